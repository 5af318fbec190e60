"""The origin of a version: (object, revision) to the decision, the caller and the operation that wrote it.

A read of the store's history and nothing else: compacted versions are gone. `server.http.origins` serves it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

from kedge.api.objects import Object
from kedge.errors import Compacted, NotFound
from kedge.keys import NO_REVISION, Key, Origin, Revision
from kedge.server.service.core import Core
from kedge.store import Entry

_FIRST_BATCH_S = 5.0
"""How long a watch of the store may take to return history that it has."""


class VersionOrigin(NamedTuple):
    """The write behind the version that an object had at a revision."""

    key: Key
    revision: Revision
    """The revision of that write: the one that was asked for, or an earlier one."""
    created: Revision
    """The revision that created the object; 0 for its deletion."""
    origin: Origin
    deleted: bool = False
    """The write removed the object."""


async def version_origin(core: Core, key: Key, revision: Revision = NO_REVISION) -> VersionOrigin:
    """The write of the version at `revision`, or of the newest one.

    Raises:
        NotFound: the object did not exist then.
        Compacted: that revision is no longer in history.
    """
    entry = await _entry_at(core, key, revision)
    if entry is not None:
        return _of(entry)
    removed = await _removal(core, key, revision) if revision else None
    if removed is None:
        at = f" at revision {revision}" if revision else ""
        raise NotFound(f'{core.kind_of(key).resource} "{key.name}" not found{at}', key=key)
    return removed


async def condition_origin(core: Core, key: Key, condition: str, revision: Revision = NO_REVISION) -> VersionOrigin:
    """The write that gave a condition the content that it had at `revision`, or has now.

    Raises:
        NotFound: the object or the condition did not exist then.
        Compacted: the write is no longer in history, or more than `Limits.origin_versions_max` versions ago.
    """
    entry = await _entry_at(core, key, revision)
    wanted = None if entry is None else _condition(core, entry, condition)
    if entry is None or wanted is None:
        kind, at = core.kind_of(key), f" at revision {revision}" if revision else ""
        missing = "it does not exist" if entry is None else f"it has no condition {condition}"
        raise NotFound(f'{kind.resource} "{key.name}": {missing}{at}', key=key)
    for _ in range(core.env.limits.origin_versions_max):
        core.origin_reads.inc()
        if entry.modified == entry.created:
            return _of(entry)
        before = await _entry_at(core, key, entry.modified - 1)
        if before is None or before.created != entry.created or _condition(core, before, condition) != wanted:
            return _of(entry)
        entry = before
    raise Compacted(
        f"{key} has had more than {core.env.limits.origin_versions_max} versions since its condition {condition} was"
        f" written, before revision {entry.modified}: ask for that revision"
    )


async def _entry_at(core: Core, key: Key, revision: Revision) -> Entry | None:
    (entry,) = (await core.store.get((key,), at=revision)).entries
    if entry is not None and revision and entry.modified > revision:
        raise Compacted(f"of {key} only the newest version is kept, written at revision {entry.modified}")
    return entry


def _condition(core: Core, entry: Entry, name: str) -> dict[str, Any] | None:
    """As written, so that any change of it counts."""
    document = Object(core.kind_of(entry.key), entry.key, entry.value, revision=entry.modified).edit()
    status = document.get("status")
    found = status.get("conditions") if isinstance(status, dict) else None
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and each.get("type") == name:
            return each
    return None


async def _removal(core: Core, key: Key, revision: Revision) -> VersionOrigin | None:
    """The deletion at `revision`, if it was one. A deletion leaves no version, but it is in the history of changes."""
    watch = await core.store.watch(key.kind, after=revision - 1, namespace=key.namespace)
    try:
        watch.request_progress()
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(_FIRST_BATCH_S):
                batch = await watch.__anext__()
                for change in batch.changes:
                    if change.key == key and change.revision == revision and change.deleted:
                        return VersionOrigin(key, revision, NO_REVISION, change.origin, deleted=True)
    finally:
        watch.close()
    return None


def _of(entry: Entry) -> VersionOrigin:
    return VersionOrigin(entry.key, entry.modified, entry.created, entry.origin)

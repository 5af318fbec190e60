"""The record of the keys that all servers of one store share: fingerprints, in a ConfigMap.

A server with other keys would refuse the certificates and tokens of the others, and they would refuse its own. It is
found when it starts, not when half of the requests fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kedge.api.requests import Create, Get, Patch
from kedge.api.wellknown import CONFIG_MAP_KIND, SYSTEM_NAMESPACE
from kedge.errors import AlreadyExists, Conflict, NotFound, Terminal, check
from kedge.keys import Key
from kedge.server.service import reads, writes
from kedge.server.service.core import Core

RECORD: Final = Key(CONFIG_MAP_KIND, SYSTEM_NAMESPACE, "kedge-server-keys")
ServerKeys = Mapping[str, Sequence[str]]
"""Fingerprints by use, such as `authority`. The first one of each is in use, the others are accepted."""


def plan_key_record(recorded: Mapping[str, str], keys: ServerKeys) -> dict[str, str]:
    """The fingerprints to record; empty if they are recorded. Pure.

    A recorded key must be in use or accepted. A key that is replaced is therefore first added to every server.

    Raises:
        Terminal: the server does not have a recorded key.
    """
    for use, fingerprints in keys.items():
        check(bool(fingerprints), f"a server without a key for {use} does not name it")
        if use in recorded and recorded[use] not in fingerprints:
            raise Terminal(
                f"this server has other keys than its store: {use} is {fingerprints[0][:16]}, but {recorded[use][:16]}"
                f" is recorded in {RECORD.namespace}/{RECORD.name}. Copy the keys of a server of this cluster, or pass"
                " their folder with --pki. If the old ones were replaced or lost, start with --replace-keys, which"
                " records these: kubeconfigs and tokens of the old keys then have to be made again"
            )
    return {use: found[0] for use, found in keys.items() if recorded.get(use) != found[0]}


async def check_keys(core: Core, keys: ServerKeys, *, replace: bool) -> None:
    """Check the keys of this server against the record, and record those that are new.

    Raises:
        Terminal: they are others, and `replace` is false.
    """
    for _ in range(core.env.limits.proof_attempts_max):
        try:
            found = await reads.get(core, Get(RECORD))
        except NotFound:
            body = {"metadata": {"name": RECORD.name}, "data": plan_key_record({}, keys)}
            try:
                await writes.create(core, Create(core.kind_of(RECORD), body, RECORD.namespace))
            except AlreadyExists:
                continue  # another server was faster: its keys count
            return
        recorded = {} if replace else (found.edit().get("data") or {})
        changed = plan_key_record(recorded, keys)
        if not changed:
            return
        patch = {"metadata": {"resourceVersion": str(found.revision)}, "data": changed}
        try:
            await writes.patch(core, Patch(RECORD, patch))
        except Conflict:
            continue
        return
    raise Terminal(f"{RECORD.name} changed in every attempt to write it: start the server again")

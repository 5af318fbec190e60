"""Rotation: every value of an encrypted kind is written again with the first key, then older keys are not needed.

Old versions are dropped from history, and, where values were in clear before, from the free parts of the file. It is
safe to repeat: an interrupted rotation leaves the record of keys as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from kedge.errors import Conflict, Unavailable
from kedge.keys import Origin
from kedge.limits import Limits
from kedge.store.contract import AtRevision, Entry, Put, Store
from kedge.store.encryption.cipher import ValueCipher, read_record
from kedge.store.encryption.key_file import IDENTITY
from kedge.store.encryption.key_record import RECORD_KEY, rotated


@runtime_checkable
class Scrubber(Protocol):
    """A store that can overwrite what deleted versions left in its files."""

    async def scrub(self) -> None: ...


class RotationResult(msgspec.Struct, frozen=True):
    """The outcome of a rotation."""

    writer: str
    rewritten: int
    unneeded: tuple[str, ...]
    """Entries of the key file that the store no longer needs."""


async def rotate(store: Store, cipher: ValueCipher, limits: Limits, origin: Origin) -> RotationResult:
    """Write every value of the encrypted kinds again.

    Raises:
        Misconfigured: this server lacks a key that the store needs.
        Unavailable: another server put another key first meanwhile. Give all servers the same file and repeat.
    """
    await cipher.start(store)  # this server's first key writes from now on
    record, revision = await read_record(store)
    if record is None:
        return RotationResult(IDENTITY, 0, ())
    rewritten = 0
    for kind in record.rotated_kinds:
        entries = (await store.list(kind)).entries
        for part in _parts(entries, limits):
            rewritten += await _rewrite(store, part, origin)
    await store.compact(await store.revision())
    if IDENTITY in record.keys and cipher.writer.secret and isinstance(store, Scrubber):
        await store.scrub()
    done = rotated(cipher.file)
    if done != record:
        try:
            await store.commit([AtRevision(RECORD_KEY, revision)], [Put(RECORD_KEY, done.encode())], origin=origin)
        except Conflict as error:
            raise Unavailable(
                "another server put another key first meanwhile: give every server the same key file, and repeat"
            ) from error
        await cipher.follow(store)
    unneeded = [each.name for each in cipher.file.keys if each.name not in done.keys]
    return RotationResult(done.writer, rewritten, tuple(unneeded))


async def _rewrite(store: Store, entries: Sequence[Entry], origin: Origin) -> int:
    """Write values again, unchanged. One that was changed or deleted meanwhile needs no rewrite."""
    checks = [AtRevision(each.key, each.modified) for each in entries]
    try:
        await store.commit(checks, [Put(each.key, each.value) for each in entries], origin=origin)
    except Conflict:
        if len(entries) == 1:
            return 0
        return sum([await _rewrite(store, [each], origin) for each in entries])
    return len(entries)


def _parts(entries: Sequence[Entry], limits: Limits) -> Iterator[list[Entry]]:
    """Entries in commits within half of the limits."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) >= limits.commit_ops_max // 4 or size + len(entry.value) > limits.commit_bytes_max // 2):
            yield part
            part, size = [], 0
        part.append(entry)
        size += len(entry.value)
    if part:
        yield part

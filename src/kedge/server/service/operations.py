"""Operation ids: a write that is repeated inside its window gets the first outcome instead of a second effect.

The commit of an operation also writes its record, so the record's revision is that of the commit. It is an internal
key, not an object of the API. `sweep` deletes records past their window.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions, Written
from kedge.api.wellknown import OPERATION_KIND
from kedge.errors import BadRequest, Compacted
from kedge.keys import NO_REVISION, Key
from kedge.server.service.core import Core, Proof, name_only
from kedge.store import Entry


class Operation(msgspec.Struct, frozen=True):
    """The effect of one operation id."""

    verb: str
    object: str
    """The key written, as text."""
    at: str


_DECODER = msgspec.json.Decoder(Operation)


def operation_key(operation: str) -> Key:
    return Key(OPERATION_KIND, "", operation)


async def first_outcome(
    core: Core,
    proof: Proof,
    verb: str,
    key: Key,
    options: WriteOptions,
    *,
    named: bool = True,
    reads: Sequence[Key] = (),
) -> Written | None:
    """The first outcome of this operation id, or None if it had none. `named` is false for a generated name.

    The keys that the attempt `reads` next come in the same read: over a network each read is a round trip.
    """
    operation = options.origin.operation
    if not operation or not options.recorded:
        return None
    entry = (await proof.entries(operation_key(operation), *reads))[0]
    if entry is None:
        return None
    first = _DECODER.decode(entry.value)
    first_key = Key.parse(first.object)
    same = first_key == key if named else first_key[:2] == key[:2]
    if first.verb != verb or not same:
        raise BadRequest(
            f"operation id {operation} was used to {first.verb} {first.object}; to {verb} {key}, use a new id",
            key=key,
        )
    return await _outcome(core, first_key, entry)


def record(core: Core, proof: Proof, verb: str, key: Key, options: WriteOptions) -> None:
    """Stage the record of this operation, in the same commit as its effect."""
    if options.origin.operation and options.recorded:
        done = Operation(verb, str(key), core.timestamp())
        proof.put(operation_key(options.origin.operation), msgspec.json.encode(done))


async def sweep(core: Core) -> int:
    """Delete operations past their window, and the oldest past the bound on their number. Returns how many."""
    limits = core.env.limits
    listing = await core.store.list(OPERATION_KIND)
    horizon = core.passed_window(listing.revision)
    entries = sorted(listing.entries, key=lambda entry: entry.modified)
    surplus = max(0, len(entries) - limits.operations_max)
    old = [e for n, e in enumerate(entries) if n < surplus or e.modified <= horizon]
    swept = await core.delete_all(old)
    core.operations.set(len(entries) - swept)
    return swept


async def _outcome(core: Core, key: Key, record: Entry) -> Written:
    """The object as that commit left it, or the current one if that revision is compacted."""
    try:
        (found,) = (await core.store.get([key], at=record.modified)).entries
        if found is not None:
            return Written(core.object_of(found))
        (last,) = (await core.store.get([key], at=record.modified - 1)).entries
    except Compacted:
        (last,) = (await core.store.get([key])).entries
        if last is not None:
            return Written(core.object_of(last))
    if last is not None:
        return Written(core.object_of(last), removed=True)
    kind = core.kind_of(key)
    return Written(Object(kind, key, name_only(kind, key), revision=NO_REVISION), removed=True)

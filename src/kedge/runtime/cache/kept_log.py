"""Received logs as records: taken from a cache for a kept file, and built again from one for a recheck."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kedge.api.objects import Object
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.records import ReceivedChange, ReceivedEntry, ReceivedPart
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.received import CacheChange, ChangeType, Received, ReceivedLog, Source


def received_part(cache: Cache, *, process: str, deciders: Iterable[str]) -> ReceivedPart:
    """Everything that is left of a cache's received log."""
    log = cache.received
    objects, revision = log.state_at(log.oldest)
    entries = [
        ReceivedEntry(
            entry.place,
            entry.source.value,
            entry.revision,
            tuple(
                [
                    ReceivedChange(change.type.value, change.key, change.new, change.revision, change.missed)
                    for change in entry.changes
                ]
            ),
        )
        for entry in log.after(log.oldest)
    ]
    base = tuple(objects[key] for key in sorted(objects))
    return ReceivedPart(process, tuple(deciders), cache.name, log.oldest, revision, base, tuple(entries))


def received_logs(parts: Iterable[ReceivedPart], decider: str, limits: Limits) -> Mapping[str, ReceivedLog]:
    """The received logs that decisions of `decider` (a `Decision.process`) read from, by cache."""
    return {part.cache: restored_log(part, limits) for part in parts if decider in part.deciders}


def restored_log(part: ReceivedPart, limits: Limits) -> ReceivedLog:
    held: dict[Key, Object] = {each.key: each for each in part.base}
    entries = []
    for entry in part.entries:
        changes = []
        for each in entry.changes:
            old = held.pop(each.key, None)
            if each.new is not None:
                held[each.key] = each.new
            changes.append(CacheChange(ChangeType(each.type), each.key, old, each.new, each.revision, each.missed))
        entries.append(Received(entry.place, Source(entry.source), entry.revision, changes))
    base = {each.key: each for each in part.base}
    return ReceivedLog.restored(limits, place=part.place, revision=part.revision, base=base, entries=entries)

"""Received logs as records: taken from a cache for a kept file, and built again from one for a recheck."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain

from kedge.api.objects import Object
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.records import CacheMark, ReceivedChange, ReceivedEntry, ReceivedPart
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.received import CacheChange, ChangeType, Received, ReceivedLog, Source


def received_part(cache: Cache, *, process: str, deciders: Iterable[str]) -> ReceivedPart:
    """Everything that is left of a cache's received log."""
    log = cache.received
    objects, revision = log.state_at(log.oldest)
    time_of = cache.wall_clock()
    entries = [received_entry(each, time_of) for each in log.after(log.oldest)]
    base = tuple(objects[key] for key in sorted(objects))
    return ReceivedPart(process, tuple(deciders), cache.name, log.oldest, revision, base, tuple(entries))


def received_entry(entry: Received, time_of: Callable[[float], datetime]) -> ReceivedEntry:
    """An entry of a received log as a record."""
    changes = [
        ReceivedChange(each.type.value, each.key, each.new, each.revision, each.missed) for each in entry.changes
    ]
    return ReceivedEntry(entry.place, entry.source.value, entry.revision, tuple(changes), time_of(entry.at_s))


class KeptLogs:
    """The received logs that decisions of one decider (a `Decision.process`) read from, in pieces."""

    def __init__(self, parts: Iterable[ReceivedPart], decider: str, limits: Limits) -> None:
        self._limits = limits
        self._pieces: dict[str, list[list[ReceivedPart]]] = {}
        """By cache. A piece is a part with a base, and the parts that continue it; they are joined when it is read."""
        self._restored: dict[tuple[str, int], ReceivedLog] = {}
        for part in parts:
            if decider in part.deciders:
                self._add(part)

    def _add(self, part: ReceivedPart) -> None:
        pieces = self._pieces.setdefault(part.cache, [])
        if not part.continues:
            pieces.append([part])
        elif pieces and _last_place(pieces[-1]) == part.place:
            pieces[-1].append(part)
        # Otherwise the part that it continues is lost, and it is of no use alone.

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def at(self, marks: Iterable[CacheMark]) -> Mapping[str, ReceivedLog]:
        """By cache, the log that has the place of its mark. A cache whose place no piece has is left out."""
        found: dict[str, ReceivedLog] = {}
        for mark in marks:
            for number, piece in enumerate(self._pieces.get(mark.cache, ())):
                if piece[0].place <= mark.place <= _last_place(piece):
                    found[mark.cache] = self._log(mark.cache, number)
                    break
        return found

    def _log(self, cache: str, number: int) -> ReceivedLog:
        known = self._restored.get((cache, number))
        if known is None:
            piece = self._pieces[cache][number]
            entries = tuple(chain.from_iterable(part.entries for part in piece))
            known = restored_log(piece[0]._replace(entries=entries), self._limits)
            self._restored[cache, number] = known
        return known


def _last_place(piece: Sequence[ReceivedPart]) -> int:
    return piece[-1].place + len(piece[-1].entries)


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

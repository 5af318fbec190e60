"""Kept inputs of decisions, for a durable log: the pieces of received logs that a recheck needs.

Each segment of a log stands alone: it begins with the objects of each cache at the first place that a record needs, and
continues with the entries up to the last. Bounded by bytes a segment; past the bound records are logged without inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kedge.env import Env
from kedge.observe.recording.process_events import limits_event
from kedge.observe.records import Decision, OutsideEvent, ReceivedPart
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.kept_log import received_entry

SAMPLED: Final = "sample"
"""Records that only the sample keeps get no inputs: it is there to show what is usual, and most events would be written
for it."""
_BEFORE_FIRST_MAX: Final = 256
"""Entries before the first record that the first piece of a cache has."""
_OBJECT_BYTES_MIN = 100
"""No object is smaller: a cache with too many of them need not be measured."""


class KeptInputs:
    """Finds the pieces for the records of some deciders, which share caches."""

    def __init__(
        self, env: Env, *, process: str, deciders: Sequence[str], caches: Callable[[], Iterable[Cache]]
    ) -> None:
        """`deciders` are the values of `Decision.process` whose records need the contents of caches."""
        self._env = env
        self._process = process
        self._deciders = tuple(deciders)
        self._caches = caches
        self._reached: dict[str, int] = {}
        """By cache: the last place that the current segment has."""
        self._has_piece: set[str] = set()
        """Caches of which some segment has a piece."""
        self._left = 0
        """Bytes that the current segment may still get."""
        self._skipped = env.metrics.counter(
            "kedge_decisions_log_inputs_skipped_total", "Batches of records logged without the contents of their caches"
        )
        env.metrics.gauge(
            "kedge_decisions_log_inputs_bytes", "Bytes of cache contents that the current segment may still get"
        ).set_function(lambda: self._left)

    def pieces(self, decisions: Sequence[Decision], *, fresh: bool) -> Iterator[ReceivedPart | OutsideEvent]:
        """The pieces to write before these records. `fresh`: into a new segment, which has nothing yet."""
        if fresh:
            self._reached = {}
            self._left = self._env.limits.decision_log_inputs_bytes_max
            yield self._start()
        wanted = _places(each for each in decisions if each.process in self._deciders and each.kept != SAMPLED)
        caches = {each.name: each for each in self._caches()} if wanted else {}
        for name, (first, last) in wanted.items():
            if name in caches:
                yield from self._piece(caches[name], first, last)

    def _piece(self, cache: Cache, first: int, last: int) -> Iterator[ReceivedPart]:
        log, name, time_of = cache.received, cache.name, cache.wall_clock()
        reached = self._reached.get(name)
        if reached is not None and reached >= last:
            return
        if reached is not None and reached >= log.oldest:
            entries = [received_entry(each, time_of) for each in log.between(reached, last)]
            part = ReceivedPart(self._process, self._deciders, name, reached, 0, (), tuple(entries), continues=True)
        elif first < log.oldest or cache.statistics().objects * _OBJECT_BYTES_MIN > self._left:
            self._skipped.inc()
            return
        else:
            part = self._fresh_piece(cache, self._begin(cache, first), last)
            if part.place < first and _bytes(part) > self._left:
                part = self._fresh_piece(cache, first, last)
        size = _bytes(part)
        if size > self._left:
            # An attempt needs every cache that it read, so the rest of the segment gets no pieces at all.
            self._reached, self._left = {}, 0
            self._skipped.inc()
            return
        self._left -= size
        self._reached[name] = last
        yield part

    def _begin(self, cache: Cache, first: int) -> int:
        """The place at which the first piece of a cache begins: some entries before the first record, so that what a
        new leader held before its first decision is known. Later pieces begin with their first record."""
        if cache.name in self._has_piece:
            return first
        self._has_piece.add(cache.name)
        return max(cache.received.oldest, first - _BEFORE_FIRST_MAX)

    def _fresh_piece(self, cache: Cache, first: int, last: int) -> ReceivedPart:
        log, time_of = cache.received, cache.wall_clock()
        objects, revision = log.state_at(first)
        base = tuple(objects[key] for key in sorted(objects))
        entries = [received_entry(each, time_of) for each in log.between(first, last)]
        return ReceivedPart(self._process, self._deciders, cache.name, first, revision, base, tuple(entries))

    def _start(self) -> OutsideEvent:
        return limits_event(self._env, self._process, self._deciders)


def _bytes(part: ReceivedPart) -> int:
    changes = (each for entry in part.entries for each in entry.changes)
    return sum(len(each.value) for each in part.base) + sum(len(each.new.value) for each in changes if each.new)


def _places(decisions: Iterable[Decision]) -> dict[str, tuple[int, int]]:
    """By cache: the first and the last place that these records were decided at."""
    found: dict[str, tuple[int, int]] = {}
    for decision in decisions:
        for mark in decision.marks:
            first, last = found.get(mark.cache, (mark.place, mark.place))
            found[mark.cache] = min(first, mark.place), max(last, mark.place)
    return found

"""The ring of a recorder: the last minutes of decisions that no rule kept, so that an incident can reach back.

It holds references; a record of a brief decision is made, and everything is encoded, only when a window reaches back.
Bounded by time, count and bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, repeat
from operator import itemgetter
from typing import Final

from kedge.env import Env
from kedge.observe.recording.brief import BriefDecision, BriefSource, Release
from kedge.observe.records import CacheRead, Call, Decision

Pin = Callable[[Decision], Sequence[Release]]
EndedDecision = tuple[Decision, Pin, Sequence[Call], int]
"""A decision that has ended, its pin, the calls among its steps, and the number of objects that its lists returned. The
component that made the steps knows the last two; finding them again costs more than counting the decision."""
_DECISION_BYTES: Final = 1_000
"""A record without its steps."""
_STEP_BYTES: Final = 150
_REFERENCE_BYTES: Final = 8
"""An object that was read is a version that a cache holds or held, and is shared."""
BRIEF_BYTES: Final = 4_000
"""An attempt with its pod, its choice and the reply of its bind."""
_TRIM_EVERY: Final = 64
_decision_of, _pin_of = itemgetter(0), itemgetter(1)


class DecisionRing:
    """Decisions in the order of their end, oldest first."""

    def __init__(self, env: Env) -> None:
        limits = env.limits
        self._count_max, self._bytes_max = limits.decision_ring_max, limits.decision_ring_bytes_max
        self._kept_s = timedelta(seconds=limits.decision_ring_s)
        self._items: deque[Decision | BriefDecision] = deque()
        # Apart, and not as tuples, which the garbage collector would have to look at.
        self._sources: deque[Pin | BriefSource] = deque()
        """For a record its pin, for a brief decision what makes its record."""
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._untrimmed = 0
        self.missing_until: datetime | None = None
        """When the newest decision began that was dropped; None if none was."""
        env.metrics.gauge("kedge_decisions_ring", "Decisions of the last minutes that no rule kept").set_function(
            lambda: len(self._items)
        )
        env.metrics.gauge("kedge_decisions_ring_bytes", "Estimated memory of those decisions").set_function(
            lambda: self._bytes
        )
        env.metrics.gauge("kedge_decisions_ring_seconds", "Age of the oldest of those decisions").set_function(
            lambda: (env.now() - self._items[0].began).total_seconds() if self._items else 0.0
        )

    def add(self, ended: Sequence[EndedDecision]) -> None:
        """Add decisions that ended one after another."""
        if not ended or not self._count_max:
            return
        sizes: list[int] = []
        for decision, _, calls, listed in ended:
            size = _DECISION_BYTES + _STEP_BYTES * len(decision.steps) + _REFERENCE_BYTES * listed
            for call in calls:
                size += len(call.intent_json)
                for each in call.reply:
                    size += len(each.value)
            sizes.append(size)
        self._items.extend(map(_decision_of, ended))
        self._sources.extend(map(_pin_of, ended))
        self._sizes.extend(sizes)
        self._added(ended[-1][0].began, len(sizes), sum(sizes))

    def add_briefs(self, briefs: Sequence[BriefDecision], source: BriefSource) -> None:
        """Add brief decisions of one scheduler."""
        if not self._count_max:
            return
        count = len(briefs)
        self._items.extend(briefs)
        self._sources.extend(repeat(source, count))
        self._sizes.extend(repeat(BRIEF_BYTES, count))
        self._added(briefs[-1].began, count, count * BRIEF_BYTES)

    def _added(self, newest: datetime, count: int, size: int) -> None:
        self._bytes += size
        self._untrimmed += count
        if self._untrimmed >= _TRIM_EVERY or len(self._items) > self._count_max or self._bytes > self._bytes_max:
            self._trim(newest)

    def _trim(self, newest: datetime) -> None:
        self._untrimmed = 0
        items, dropped = self._items, None
        while items and (len(items) > self._count_max or self._bytes > self._bytes_max):
            dropped = self._drop_oldest()
        earliest = newest - self._kept_s
        while items and items[0].began < earliest:
            dropped = self._drop_oldest()
        if dropped is not None:  # the begin of an attempt is computed: look at one only
            self.missing_until = dropped.began

    def _drop_oldest(self) -> Decision | BriefDecision:
        self._sources.popleft()
        self._bytes -= self._sizes.popleft()
        return self._items.popleft()

    def clear(self) -> None:
        self._items.clear()
        self._sources.clear()
        self._sizes.clear()
        self._bytes = 0

    def take(self, since: datetime) -> Iterator[tuple[Decision, Pin]]:
        """Remove the decisions that began at `since` or later, and return their records, newest first.

        Each record of a brief decision is made when it is reached, so the caller may pause between two.
        """
        held = list(zip(self._items, self._sources, self._sizes, strict=True))
        self.clear()
        for item, source, size in held:
            if item.began < since:
                self._items.append(item)
                self._sources.append(source)
                self._sizes.append(size)
                self._bytes += size
        chosen = [(item, source) for item, source, _ in reversed(held) if item.began >= since]
        for maker, group in groupby(chosen, key=lambda pair: None if isinstance(pair[0], Decision) else pair[1]):
            if maker is None:
                yield from ((item, pin) for item, pin in group if isinstance(item, Decision) and callable(pin))
            elif not callable(maker):
                yield from ((record, maker.pin) for record in maker.records_of(item for item, _ in group))


def ended_decision(decision: Decision, pin: Pin) -> EndedDecision:
    """For a component that does not know the calls of its decision."""
    listed = sum(len(step.objects) for step in decision.steps if type(step) is CacheRead)
    return decision, pin, decision.calls, listed

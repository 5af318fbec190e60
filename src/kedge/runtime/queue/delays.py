"""Keys that are not yet due, soonest first, and the timer for the soonest of them.

The heap deletes lazily: moving a key forward leaves its old ticket behind, and when most tickets are void they are
swept out, so that a key that is moved again and again does not grow the heap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic

from kedge.runtime.queue.entries import QueueEntry
from kedge.runtime.queue.items import K

_SWEEP_MIN = 64
"""Below this a sweep costs more than the void tickets do."""
_TIMER_S_MIN = 0.001
"""A timer is never set nearer: rounding would make it fire too early, again and again."""


class Delays(Generic[K]):
    def __init__(self) -> None:
        self.heap: list[tuple[float, int, QueueEntry[K]]] = []
        """Valid and void tickets. Nothing waits while it is empty."""
        self._tickets = 0
        self._live = 0
        """Entries whose ticket is valid: the keys that wait."""

    def __len__(self) -> int:
        return self._live

    def put(self, entry: QueueEntry[K], due_s: float) -> None:
        """Make `entry` due at `due_s`, instead of at any earlier choice."""
        if entry.ticket == 0:
            self._live += 1
        self._tickets += 1
        entry.ticket = self._tickets
        entry.due_s = due_s
        heappush(self.heap, (due_s, entry.ticket, entry))
        self._sweep()

    def remove(self, entry: QueueEntry[K]) -> None:
        if entry.ticket != 0:
            entry.ticket = 0
            self._live -= 1

    def next_s(self) -> float | None:
        """When the soonest key is due."""
        heap = self.heap
        while heap and heap[0][2].ticket != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now_s: float) -> QueueEntry[K] | None:
        """Take out one key that is due."""
        due_s = self.next_s()
        if due_s is None or due_s > now_s:
            return None
        entry = heappop(self.heap)[2]
        self.remove(entry)
        return entry

    def _sweep(self) -> None:
        if len(self.heap) > _SWEEP_MIN + 2 * self._live:
            self.heap = [each for each in self.heap if each[2].ticket == each[1]]
            heapify(self.heap)


class DelayTimer:
    """Calls back once, when the soonest delay ends."""

    def __init__(self, monotonic: Callable[[], float], on_due: Callable[[], None]) -> None:
        self._monotonic = monotonic
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def set(self, due_s: float) -> None:
        """Fire at `due_s`, if it would not fire earlier."""
        if self._handle is not None:
            if self._due_s <= due_s:
                return
            self._handle.cancel()
        self._due_s = due_s
        self._handle = asyncio.get_running_loop().call_later(max(due_s - self._monotonic(), _TIMER_S_MIN), self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._on_due()

"""Keys that are not yet due, soonest first.

A heap with void tickets: moving a key forward leaves its old ticket behind, and when most are void they are swept out,
so that a key that is moved for ever does not grow the heap.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic

from kedge.runtime.queue.entries import QueueEntry
from kedge.runtime.queue.items import K

_SWEEP_MIN = 64
"""Below this a sweep costs more than the void tickets do."""


class Delays(Generic[K]):
    def __init__(self) -> None:
        self.heap: list[tuple[float, int, QueueEntry[K]]] = []
        """Valid and void tickets. Empty, nothing waits."""
        self._tickets = 0
        self._live = 0
        """Entries whose ticket is valid: the keys that wait."""

    def __len__(self) -> int:
        return self._live

    def put(self, entry: QueueEntry[K], due_s: float) -> None:
        """Make `entry` due at `due_s`, instead of any other time it had."""
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

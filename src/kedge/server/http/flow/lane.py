"""One lane: requests under way within a capacity, and a fair queue of those that wait for it.

The flow that was served least goes next, as in the work queue (decision 14). It does no I/O and reads no clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from kedge.errors import TooManyRequests


class Waiting:
    """A request in a queue."""

    __slots__ = ("flow", "patient", "since_s", "units", "width")

    def __init__(self, flow: str, width: int, units: int, since_s: float, *, patient: bool = False) -> None:
        self.flow = flow
        self.width = width
        self.units = units
        self.since_s = since_s
        self.patient = patient
        """Whether it has begun before: it is neither refused nor given up."""

    def begin(self) -> None:
        """It may begin, and is out of the queue."""
        raise NotImplementedError

    def refuse(self, error: TooManyRequests) -> None:
        """It is out of the queue, and will not begin."""
        raise NotImplementedError


class WaitingTask(Waiting):
    """A request whose task waits."""

    __slots__ = ("begins", "begun")

    def __init__(self, flow: str, width: int, units: int, since_s: float, *, patient: bool = False) -> None:
        super().__init__(flow, width, units, since_s, patient=patient)
        self.begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun = False
        """Whether it has a seat. A task that was cancelled may get one before it runs, and gives it back then."""

    def begin(self) -> None:
        self.begun = True
        if not self.begins.cancelled():
            self.begins.set_result(None)

    def refuse(self, error: TooManyRequests) -> None:
        if not self.begins.cancelled():
            self.begins.set_exception(error)


@dataclass(slots=True)
class _Flow:
    """Kept while it has requests that wait or are under way."""

    tag: float
    """Work that it was given, in the virtual time of the lane."""
    under_way: int = 0
    queued: bool = False
    """Whether it is in the heap: always while `waiting` has entries."""
    waiting: deque[Waiting] = field(default_factory=deque)


class FlowLane:
    """The requests of one level that share a capacity: seats, or bytes of lists."""

    def __init__(self, name: str, capacity: int, waiting_max: int, flow_waiting_max: int) -> None:
        self.name = name
        self.capacity = capacity
        self.used = 0
        self.waiting = 0
        self._waiting_max = waiting_max
        self._flow_waiting_max = flow_waiting_max
        self._flows: dict[str, _Flow] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = count()
        self._clock = 0.0
        """Virtual time of a flow that always waits. New flows start here, so that idle time earns no credit."""

    def fits(self, width: int) -> bool:
        """Whether a request may begin beside those under way. One wider than the lane runs alone."""
        return self.used + width <= self.capacity or not self.used

    def take(self, flow: str, width: int, units: int) -> None:
        """A request begins."""
        found = self._flow(flow)
        found.tag = max(found.tag, self._clock) + units
        found.under_way += 1
        self.used += width

    def release(self, flow: str, width: int) -> None:
        """A request has ended."""
        self.used -= width
        found = self._flows[flow]
        found.under_way -= 1
        self._forget(flow, found)

    def add(self, waiting: Waiting) -> None:
        """Queue a request. In a full lane the flow with the longest queue loses its newest one instead.

        Raises:
            TooManyRequests: its flow has too many requests in the queue already, or no flow has more than it.
        """
        found = self._flow(waiting.flow)
        if not waiting.patient:
            if len(found.waiting) >= self._flow_waiting_max:
                raise _refusal(f"{len(found.waiting)} requests of this client already wait")
            if self.waiting >= self._waiting_max and not self._drop_of_longer_than(len(found.waiting)):
                self._forget(waiting.flow, found)
                raise _refusal(f"{self.waiting} requests of clients like this one already wait")
        found.waiting.append(waiting)
        self.waiting += 1
        self._queue(waiting.flow, found)

    def next(self) -> Waiting | None:
        """Begin the request of the least served flow, if it fits."""
        while self._heap:
            tag, _, name = self._heap[0]
            flow = self._flows[name]
            if flow.waiting and not self.fits(flow.waiting[0].width):
                return None
            heappop(self._heap)
            flow.queued = False
            if not flow.waiting:  # its requests were given up
                self._forget(name, flow)
                continue
            begun = flow.waiting.popleft()
            self.waiting -= 1
            self._clock = max(self._clock, tag)
            self.take(name, begun.width, begun.units)
            if flow.waiting:
                self._queue(name, flow)
            begun.begin()
            return begun
        return None

    def give_up(self, waiting: Waiting) -> None:
        """The request is not wanted any more. Nothing happens if it is out of the queue."""
        flow = self._flows.get(waiting.flow)
        if flow is None or waiting not in flow.waiting:
            return
        flow.waiting.remove(waiting)
        self.waiting -= 1
        self._forget(waiting.flow, flow)

    def expire(self, since_s: float) -> None:
        """Refuse the requests that were queued before a time."""
        for flow in tuple(self._flows.values()):
            for each in [each for each in flow.waiting if each.since_s < since_s and not each.patient]:
                self._refuse(each, "the server is busy, and this request waited as long as it may")

    def _drop_of_longer_than(self, length: int) -> bool:
        longest = max(self._flows.values(), key=lambda flow: len(flow.waiting))
        newest = next((each for each in reversed(longest.waiting) if not each.patient), None)
        if newest is None or len(longest.waiting) <= length:
            return False
        self._refuse(newest, "the server is busy, and this client has more requests waiting than others")
        return True

    def _refuse(self, waiting: Waiting, why: str) -> None:
        self.give_up(waiting)
        waiting.refuse(_refusal(why))

    def _flow(self, name: str) -> _Flow:
        found = self._flows.get(name)
        if found is None:
            found = self._flows[name] = _Flow(self._clock)
        return found

    def _queue(self, name: str, flow: _Flow) -> None:
        if not flow.queued:
            flow.queued = True
            heappush(self._heap, (max(flow.tag, self._clock), next(self._order), name))

    def _forget(self, name: str, flow: _Flow) -> None:
        if not flow.under_way and not flow.waiting and not flow.queued:
            del self._flows[name]


def _refusal(why: str) -> TooManyRequests:
    return TooManyRequests(f"too many requests: {why}; try again after a pause", retry_after_s=1.0)

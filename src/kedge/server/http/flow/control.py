"""Flow control of one server: how much work is begun in one turn of the event loop, and whose.

The server is one process with one event loop. A renewal of a lease passes through several turns of it, so its time is
that of a turn: each turn begins only so much work, and less while a renewal is under way. Work that does not fit waits
in fair queues (`lane`), by level and flow (`levels`). A get that is answered at once costs one comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kedge.api.access import Caller
from kedge.env import Env
from kedge.errors import TooManyRequests
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.flow.lane import FlowLane, Waiting, WaitingTask
from kedge.server.http.flow.levels import PriorityLevel, classify, seats_of
from kedge.server.http.flow.list_costs import ListCosts, ListShape
from kedge.server.http.parameters import flag, parse_query
from kedge.server.http.routes import ResourcePath

GET_UNITS, LIST_UNITS, WRITE_UNITS = 1, 4, 2
"""Work that a request begins in one turn of the loop. A unit is about 100 µs, TLS included."""
TOKEN_UNITS = 3
"""The check of a bearer token: a signature, or a read of the store."""
LIST_BYTES_MIN = 16 * 1024
"""The least that a list costs: to begin it is as much work as to copy so many bytes."""
_READS = frozenset({"GET", "HEAD"})


class Seat:
    """The right of one request to be under way. `leave` ends it."""

    __slots__ = ("_control", "_flow", "_held", "_lane", "_shape", "_units", "_width")

    def __init__(
        self, control: FlowControl, lane: FlowLane, flow: str, width: int, units: int, shape: ListShape | None
    ) -> None:
        self._control = control
        self._lane = lane
        self._flow, self._width, self._units = flow, width, units
        self._shape = shape
        self._held = True

    def leave(self, streamed_bytes: int | None = None) -> None:
        """The request has ended, or needs no seat from now on. A list that was sent to its end has so many bytes."""
        if self._shape is not None and streamed_bytes is not None:
            self._control.costs.observe(self._shape, max(streamed_bytes, LIST_BYTES_MIN))
        self.park()

    def park(self) -> None:
        """Let others go on: the client does not read, so that nothing can be written to it."""
        if self._held:
            self._held = False
            self._control.release(self._lane, self._flow, self._width)

    async def resume(self) -> None:
        """Wait for a seat again."""
        waiting = WaitingTask(self._flow, self._width, self._units, self._control.now_s(), patient=True)
        await self._control.wait(self._lane, waiting)
        self._held = True


class FlowControl:
    """Decides when each request of a server begins."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._limits = limits = env.limits
        self.costs = ListCosts(limits.http_list_sizes_max, limits.http_list_bytes_unknown)
        waiting = limits.http_waiting_max, limits.http_flow_waiting_max
        self._requests = {each: FlowLane(each.value, seats_of(each, limits), *waiting) for each in PriorityLevel}
        self._lists = {
            each: FlowLane(f"{each.value} lists", limits.http_list_bytes_max, *waiting) for each in PriorityLevel
        }
        self._unknown = FlowLane("unknown", 1, *waiting)
        """Requests whose caller is not known, or not yet. They hold no seat, so the capacity is never used up."""
        lanes = [lane for each in PriorityLevel for lane in (self._requests[each], self._lists[each])]
        self._lanes = (*lanes, self._unknown)
        self._leases = self._requests[PriorityLevel.LEASES]
        self._left = limits.http_turn_units_max
        """Work that may still be begun before the loop has turned."""
        self._turn_due = False
        metrics = env.metrics
        used = metrics.gauge("kedge_http_flow_used", "Seats, or bytes of lists, in use", ("lane",))
        queued = metrics.gauge("kedge_http_flow_waiting", "Requests that wait for their turn", ("lane",))
        for lane in self._lanes:
            used.labels(lane.name).set_function(partial(getattr, lane, "used"))
            queued.labels(lane.name).set_function(partial(getattr, lane, "waiting"))
        self._refused = metrics.counter("kedge_http_flow_refused_total", "Requests answered with 429", ("lane",))
        self._wait_s = metrics.histogram("kedge_http_flow_wait_seconds", "Time in a queue of requests", ("lane",))
        metrics.gauge("kedge_http_list_sizes", "Lists whose size is remembered", ()).set_function(
            lambda: len(self.costs)
        )

    def start_nowait(self) -> bool:
        """Whether a get that needs no task may be answered at once. Otherwise call `defer`.

        Work is counted and not timed: after so many gets, in however many turns, the next one waits for a new turn.
        """
        if self._left <= 0:
            return False
        self._left -= GET_UNITS
        if self._left <= 0:
            self._schedule()
        return True

    async def enter(
        self, caller: Caller, path: ResourcePath | None, request: HttpRequest, exchange: Exchange
    ) -> Seat | None:
        """Wait until a request may begin. None if its client is gone by then.

        Raises:
            TooManyRequests: too many wait already, or it waited for too long.
        """
        level, flow = classify(caller, path)
        shape = _list_shape(path, request)
        if shape is None:
            lane, width = self._requests[level], 1
            units = GET_UNITS if request.method in _READS else WRITE_UNITS
        else:
            lane, width, units = self._lists[level], self.costs.estimate(shape), LIST_UNITS
        if lane.waiting or not lane.fits(width) or (self._left <= 0 and lane is not self._leases):
            await self.wait(lane, WaitingTask(flow, width, units, exchange.begun_s))
            self.waited(lane, exchange.begun_s)
        else:
            lane.take(flow, width, units)
            self._charge(lane, units)
        seat = Seat(self, lane, flow, width, units, shape)
        if exchange.closed:
            seat.leave()
            return None
        return seat

    async def admit(self, address: str, units: int, since_s: float) -> None:
        """Wait until work for a caller that is not known may begin, in the flow of its address. It holds no seat: a
        store that does not answer would otherwise keep `/livez` from being answered.

        Raises:
            TooManyRequests: too many requests of this address wait already, or it waited for too long.
        """
        lane = self._unknown
        if lane.waiting or self._left <= 0:
            await self.wait(lane, _Admission(self, lane, address, units, since_s))
            self.waited(lane, since_s)
        else:
            self._charge(lane, units)

    def defer(
        self,
        caller: Caller,
        path: ResourcePath,
        exchange: Exchange,
        answer: Callable[[], None],
        fail: Callable[[TooManyRequests], None],
    ) -> None:
        """Call `answer`, which answers a get at once, in a later turn; or `fail`."""
        level, flow = classify(caller, path)
        lane = self._requests[level]
        waiting = _DeferredGet(self, lane, flow, exchange.begun_s, answer, fail)
        try:
            lane.add(waiting)
        except TooManyRequests as error:
            waiting.refuse(error)
        self._schedule()

    async def wait(self, lane: FlowLane, waiting: WaitingTask) -> None:
        try:
            lane.add(waiting)
            self._schedule()
            await waiting.begins
        except TooManyRequests:
            self.refused(lane)
            raise
        except asyncio.CancelledError:
            # 1. The task is cancelled. 2. A turn that was due before gives it a seat, or refuses it. 3. The task runs.
            if waiting.begun:
                self.release(lane, waiting.flow, waiting.width)
            else:
                lane.give_up(waiting)
            raise

    def waited(self, lane: FlowLane, since_s: float) -> None:
        self._wait_s.labels(lane.name).observe(self.now_s() - since_s)

    def refused(self, lane: FlowLane) -> None:
        self._refused.labels(lane.name).inc()

    def release(self, lane: FlowLane, flow: str, width: int) -> None:
        lane.release(flow, width)
        if lane.waiting:
            self._schedule()

    def expire(self) -> None:
        """Refuse the requests that have waited for too long."""
        before_s = self.now_s() - self._limits.http_wait_s_max
        for lane in self._lanes:
            if lane.waiting:
                lane.expire(before_s)

    def now_s(self) -> float:
        return self._env.monotonic()

    def _charge(self, lane: FlowLane, units: int) -> None:
        if lane is self._leases:
            self._left = min(self._left, self._limits.http_lease_turn_units_max)
            return
        self._left -= units
        if self._left <= 0:
            self._schedule()

    def _schedule(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Begin work that waits: first one request of each lane, so that none starves, then by level."""
        self._turn_due = False
        limits = self._limits
        self._left = limits.http_lease_turn_units_max if self._leases.used else limits.http_turn_units_max
        for lane in self._lanes:
            if lane.waiting and (begun := lane.next()) is not None:
                self._charge(lane, begun.units)
        for lane in self._lanes:
            while lane.waiting and (self._left > 0 or lane is self._leases) and (begun := lane.next()) is not None:
                self._charge(lane, begun.units)


class _Admission(WaitingTask):
    """Work that is charged to the turn in which it begins, and holds no seat from then on."""

    __slots__ = ("_control", "_lane")

    def __init__(self, control: FlowControl, lane: FlowLane, flow: str, units: int, since_s: float) -> None:
        super().__init__(flow, 1, units, since_s)
        self._control = control
        self._lane = lane

    def begin(self) -> None:
        self._control.release(self._lane, self.flow, self.width)
        if not self.begins.cancelled():
            self.begins.set_result(None)


class _DeferredGet(Waiting):
    """A get that needs no task, in a queue."""

    __slots__ = ("_answer", "_control", "_fail", "_lane")

    def __init__(
        self,
        control: FlowControl,
        lane: FlowLane,
        flow: str,
        since_s: float,
        answer: Callable[[], None],
        fail: Callable[[TooManyRequests], None],
    ) -> None:
        super().__init__(flow, 1, GET_UNITS, since_s)
        self._control = control
        self._lane = lane
        self._answer = answer
        self._fail = fail

    def begin(self) -> None:
        self._control.waited(self._lane, self.since_s)
        self._answer()
        self._control.release(self._lane, self.flow, self.width)

    def refuse(self, error: TooManyRequests) -> None:
        self._control.refused(self._lane)
        self._fail(error)


def _list_shape(path: ResourcePath | None, request: HttpRequest) -> ListShape | None:
    """The shape of a request that reads a collection, by its list or to delete it; None for any other."""
    if path is None or path.name or request.method not in ("GET", "HEAD", "DELETE"):
        return None
    query = parse_query(request.query)
    if flag(query, "watch") and request.method == "GET":
        return None
    return ListShape.of(path, query, request.headers.get(b"accept", b""))

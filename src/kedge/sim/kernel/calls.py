"""Calls between hosts: a request crosses a link, is carried out there, and the reply crosses back.

Either may be lost: the caller then sees `OutcomeUnknown`, after its timeout, and cannot tell which it was. A result
that is an async iterator (a watch) comes back as a `RemoteStream`. Built on `network`; fault points are named here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel.faults import OF_HOSTS
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.strands import HostProcess

if TYPE_CHECKING:
    from kedge.sim.kernel.faults import FaultPoint
    from kedge.sim.kernel.world import SimWorld

_LASTING = ("partition", "pause caller", "pause callee", "crash caller", "crash callee")
REQUEST_FAULTS = ("lose", "delay", "duplicate", *_LASTING)
"""At `request of SERVICE.METHOD`. The caller is struck as the request leaves, the callee as it arrives."""
REPLY_FAULTS = ("lose", "delay", *_LASTING)
"""At `reply of SERVICE.METHOD`: the call has been carried out. The callee is struck before the reply leaves."""
MESSAGE_FAULTS = ("lose", "delay", "duplicate")
"""At `message NAME`, for `Host.send`."""
DELIVERY_FAULTS = ("delay", "disconnect", "hide")
"""At `delivery of SERVICE.METHOD`, for each item of a stream. `hide` drops one item silently."""

DELAYS_S = (0.05, 0.5, 2.0, 8.0)
PARTITIONS_S = (0.5, 3.0, 15.0)
OFFSETS_S = (-0.5, 0.5, -60.0, 60.0, 86_400.0)
PAUSES_S = (0.2, 3.0, 12.0)
DOWNTIMES_S = (0.0, 0.5, 5.0, 30.0)
STREAM_WINDOW = 64
"""Items a stream may have under way; past it the sender waits for the consumer."""


class Remote:
    """A service on another host, as seen from one host. Its attributes are the service's methods, made remote."""

    def __init__(self, world: SimWorld, caller: Host, callee: Host, service: str, timeout_s: float) -> None:
        self._world = world
        self._caller = caller
        self._callee = callee
        self._service = service
        self._timeout_s = timeout_s
        self._routes: dict[str, _Route] = {}

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if method.startswith("_"):
            raise AttributeError(method)
        call = partial(self.call, method)
        setattr(self, method, call)
        return call

    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call `method` there.

        Raises:
            Unavailable: it was not carried out; the host is down or does not serve this.
            OutcomeUnknown: no reply in time. It may have been carried out.
            Exception: whatever the method raised there.
        """
        route = self._routes.get(method)
        if route is None:
            route = self._routes[method] = _Route(self._world, self._caller, self._callee, self._service, method)
        loop = self._world.loop
        exchange = _Exchange(route, self._timeout_s, loop.create_future())
        exchange.send(args, kwargs)
        timer = loop.call_later(self._timeout_s, exchange.expire)
        try:
            return await exchange.reply
        finally:
            timer.cancel()
            del exchange, timer  # an error's traceback holds this frame, and they hold the error


class _Route:
    """One method of one service between two hosts: its names and its fault points, made once."""

    def __init__(self, world: SimWorld, caller: Host, callee: Host, service: str, method: str) -> None:
        self.world = world
        self.caller = caller
        self.callee = callee
        self.service = service
        self.method = method
        self.what = f"{service}.{method}"
        self.way = f"{caller.name}>{callee.name}"
        self.request = f"request of {self.what}"
        self.reply = f"reply of {self.what}"
        self.call_text = f"{self.what} {self.way}"
        self.task_name = f"{self.what} for {caller.name}"
        self._points: dict[tuple[str, bool, bool], FaultPoint] = {}
        self._plain: dict[object, bool] = {}

    def is_plain(self, method: Callable[..., Any]) -> bool:
        """Whether a method is called, not awaited, as far as is known."""
        function = getattr(method, "__func__", method)
        plain = self._plain.get(function)
        if plain is None:
            plain = self._plain[function] = not asyncio.iscoroutinefunction(function)
        return plain

    def is_awaited(self, method: Callable[..., Any]) -> None:
        """Remember that a method hands on what is to be awaited: from now on it gets a task at once."""
        self._plain[getattr(method, "__func__", method)] = False

    def ask(self, point: str, kinds: tuple[str, ...]) -> str:
        """What goes wrong at this point: only a mortal host can crash, and a host is never cut off from itself."""
        caller, callee = self.caller, self.callee
        key = (point, caller.mortal, callee.mortal)
        found = self._points.get(key)
        if found is None:
            able = {
                "crash caller": caller.mortal,
                "crash callee": callee.mortal,
                "pause caller": caller.ordinary,
                "pause callee": callee.ordinary,
                "partition": caller is not callee,
            }
            possible = tuple(kind for kind in kinds if able.get(kind, True))
            found = self._points[key] = self.world.faults.point(point, self.way, possible)
        return found.ask()


class _Exchange(msgspec.Struct, eq=False):
    """One request and its reply."""

    route: _Route
    timeout_s: float
    reply: asyncio.Future[Any]
    tasks: list[asyncio.Task[None]] = []
    """What carries it out: two tasks, if the request was delivered twice."""

    def expire(self) -> None:
        """Nothing came back in time, by the caller's own clock."""
        if self.reply.done():
            return
        route = self.route
        route.world.note("unknown", route.call_text)
        self.reply.set_exception(
            OutcomeUnknown(
                f"no reply to {route.what} from {route.callee.name} within {self.timeout_s}s:"
                " it may have been carried out; read before anything else"
            )
        )

    # -- there

    def send(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        route = self.route
        world, caller, callee = route.world, route.caller, route.callee
        carry = world.network.carry
        if carry is not None:
            args, kwargs = carry(args), carry(kwargs)
        fault = route.ask(route.request, REQUEST_FAULTS)

        def arrive(process: HostProcess) -> None:
            if fault == "crash callee":
                crash_for_a_while(world, callee)
            elif fault == "pause callee":
                pause_for_a_while(world, callee)
            if not callee.up:
                self._answer_nothing_done(f"{callee.name} is down: connection refused")
                return
            target = callee.services.get(route.service)
            if target is None:
                self._answer_nothing_done(f"{callee.name} does not serve {route.service}")
                return
            world.note("call", route.call_text, host=callee.name)
            method = getattr(target, route.method)
            if route.is_plain(method):
                loop = world.loop
                loop.call_soon(self._carry_out_at_once, method, args, kwargs, context=loop.plain_context(process))
            else:
                self._start(process, method, args, kwargs)

        if fault == "lose":
            return
        if fault == "partition":
            cut_for_a_while(world, caller, callee)
        extra_s = world.faults.pick("long the delay is", DELAYS_S) if fault == "delay" else 0.0
        world.network.transmit(caller, callee, arrive, what=route.request, extra_s=extra_s)
        if fault == "duplicate":
            world.network.transmit(caller, callee, arrive, what=route.request)
        if fault == "crash caller":
            crash_for_a_while(world, caller)
        elif fault == "pause caller":
            pause_for_a_while(world, caller)

    def _carry_out_at_once(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Call a plain method in one step, with no task around it; what it leaves to be awaited gets one."""
        try:
            result = method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self._send_reply(error, failed=True)
            return
        if type(result) is CoroutineType or hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            self.route.is_awaited(method)
            self._start(self.route.callee.process, None, (), {}, result)
        else:
            self._send_reply(result)

    def _start(
        self,
        process: HostProcess,
        method: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        begun: Any = None,
    ) -> None:
        world = self.route.world
        work = self._carry_out(method, args, kwargs, begun)
        self.tasks.append(world.loop.spawn_on(process, work, self.route.task_name))
        world.under_way[self] = None

    async def _carry_out(
        self, method: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any], begun: Any
    ) -> None:
        """Call the method and await what it gives, or what it has `begun`; then reply."""
        route = self.route
        world = route.world
        process = route.callee.process
        try:
            result = begun if method is None else method(*args, **kwargs)
            if type(result) is CoroutineType or hasattr(result, "__await__"):
                result = await result
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001
            self._send_reply(error, failed=True)
            return
        finally:
            world.under_way.pop(self, None)
        if hasattr(result, "__aiter__"):
            sender = _StreamSender(world, route.caller, route.callee, route.what, result.__aiter__())
            self._send_reply(sender.receiver)
            if getattr(result, "pushes", False):
                sender.begin_pull()
            else:
                world.keep(world.loop.spawn_on(process, sender.pump(), f"stream of {route.what}"))
        else:
            self._send_reply(result)

    # -- and back

    def _send_reply(self, answer: Any, *, failed: bool = False) -> None:
        route = self.route
        world = route.world
        fault = route.ask(route.reply, REPLY_FAULTS)
        extra_s = 0.0
        if fault:
            if fault == "lose":
                return
            if fault == "crash callee":
                crash_for_a_while(world, route.callee)
                return
            if fault == "crash caller":
                crash_for_a_while(world, route.caller)
            if fault == "partition":
                cut_for_a_while(world, route.caller, route.callee)
            if fault == "pause caller":
                pause_for_a_while(world, route.caller)
            if fault == "pause callee":
                pause_for_a_while(world, route.callee)
            if fault == "delay":
                extra_s = world.faults.pick("long the delay is", DELAYS_S)
        if not failed and world.network.carry is not None:
            answer = world.network.carry(answer)
        self._transmit_back(answer, failed, extra_s)

    def _answer_nothing_done(self, why: str) -> None:
        self.route.world.note("refused", self.route.call_text, host=self.route.callee.name)
        self._transmit_back(Unavailable(f"{self.route.what}: {why}; nothing was done"), failed=True)

    def _transmit_back(self, answer: Any, failed: bool, extra_s: float = 0.0) -> None:
        def arrive(_: HostProcess) -> None:
            if self.reply.done():
                return
            if failed:
                self.reply.set_exception(answer)
                self.reply.exception()  # a caller that has gone away is no error
            else:
                self.reply.set_result(answer)

        route = self.route
        route.world.network.transmit(route.callee, route.caller, arrive, what=route.reply, extra_s=extra_s)


# -- streams ---------------------------------------------------------------------------------------


class RemoteStream(AsyncIterator[Any]):
    """The receiving end of a stream. Ends by `StopAsyncIteration`, by the sender's error, or by `Unavailable`."""

    def __init__(self, sender: _StreamSender) -> None:
        self._sender = sender
        self._items: deque[Any] = deque()
        self._end: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> RemoteStream:
        return self

    async def __anext__(self) -> Any:
        if self._items:
            await asyncio.sleep(0)  # a scheduling point, even when an item is there
        while not self._items:
            if self._end is not None:
                raise self._end
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        self._sender.acknowledge()
        return item

    def close(self) -> None:
        """Stop listening, and let the sender know."""
        if self._end is None:
            self._finish(StopAsyncIteration())
            self._sender.hang_up("close")

    async def aclose(self) -> None:
        self.close()

    def tell(self, method: str, *args: Any) -> None:
        """Call a plain method of the stream at its far end, one way: no reply and no promise."""
        self._sender.tell(method, args)

    def accept(self, item: Any) -> None:
        if self._end is None:
            self._items.append(item)
            self._wake()

    def finish(self, error: BaseException) -> None:
        if self._end is None:
            self._finish(error)

    def _finish(self, error: BaseException) -> None:
        self._end = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _StreamSender:
    """The sending end: pulls items from the service, and keeps at most `STREAM_WINDOW` under way.

    A source that `pushes` needs no task: it says when it is ready, in the step of its host that makes it so, and what
    it has is taken without waiting.
    """

    def __init__(self, world: SimWorld, caller: Host, callee: Host, what: str, source: Any) -> None:
        self._world = world
        self._caller = caller
        self._callee = callee
        self._what = what
        self._source = source
        self._task: asyncio.Task[Any] | None = None
        self._under_way = 0
        self._room = asyncio.Event()
        self._full = False
        """Whether a source that pushes waits for room."""
        self._lives = (caller.process, callee.process)
        self._last_arrival_s = 0.0
        self._broken = False
        self._point = world.faults.point(f"delivery of {what}", f"{callee.name}>{caller.name}", DELIVERY_FAULTS)
        self.receiver = RemoteStream(self)
        world.on_death.append(self._somebody_died)

    async def pump(self) -> None:
        self._task = asyncio.current_task()
        try:
            async for item in self._source:
                if not await self._deliver(item):
                    return
            self._send(self.receiver.finish, StopAsyncIteration())
        except asyncio.CancelledError:
            if not self._broken:
                raise
        except Exception as error:  # noqa: BLE001
            self._send(self.receiver.finish, error)
        finally:
            await self._close_source()

    async def _deliver(self, item: Any) -> bool:
        while self._under_way >= STREAM_WINDOW:
            self._room.clear()
            await self._room.wait()
        return self._deliver_nowait(item)

    def _deliver_nowait(self, item: Any) -> bool:
        """Send an item, unless a fault has it otherwise. False if that broke the stream."""
        world = self._world
        fault = self._point.ask()
        extra_s = 0.0
        if fault:
            if fault == "disconnect":
                self._break(Unavailable(f"{self._what}: the connection was lost"))
                return False
            if fault == "hide":
                return True
            extra_s = world.faults.pick("long the delay is", DELAYS_S)
        self._under_way += 1
        carry = world.network.carry
        self._send(self.receiver.accept, item if carry is None else carry(item), extra_s)
        return True

    # -- from a source that pushes

    def begin_pull(self) -> None:
        self._source.on_ready = self._pull
        self._pull()

    def _pull(self) -> None:
        """Take what there is. A step of the sending host, in which something became ready."""
        try:
            while not self._broken:
                if self._under_way >= STREAM_WINDOW:
                    self._full = True
                    return
                item = self._source.take_nowait()
                if item is None or not self._deliver_nowait(item):
                    return
        except Exception as error:  # noqa: BLE001  the end of iteration too
            self._source.on_ready = None
            self._send(self.receiver.finish, error)

    def _stop(self) -> None:
        """Take nothing more."""
        if self._task is not None:
            self._task.cancel()
        elif getattr(self._source, "pushes", False):
            self._source.on_ready = None
            self._source.close()

    # -- on the way

    def _send(self, accept: Callable[[Any], None], value: Any, extra_s: float = 0.0) -> None:
        """Send in order. A lost piece breaks the stream: there is no gap in it, ever."""
        world, network = self._world, self._world.network
        source, target = self._callee.name, self._caller.name
        due_s = max(world.loop.now + network.latency_s(source, target) + extra_s, self._last_arrival_s)
        self._last_arrival_s = due_s
        loss = network.link(source, target).loss
        lost = loss > 0 and world.choices.network.chance(f"loss {source}>{target}", loss)

        def arrive() -> None:
            if self._broken:
                return
            if lost or network.is_cut(source, target):
                self._break(Unavailable(f"{self._what}: the connection was lost"))
            elif self._caller.process is self._lives[0] and self._caller.up:
                accept(value)

        world.loop.call_at_moment(due_s, arrive)

    def acknowledge(self) -> None:
        self._under_way -= 1
        self._room.set()
        if self._full:
            self._full = False
            loop, process = self._world.loop, self._lives[1]
            loop.call_soon(self._pull, context=loop.plain_context(process))

    def tell(self, method: str, args: tuple[Any, ...]) -> None:
        def arrive(process: HostProcess) -> None:
            if process is self._lives[1] and not self._broken:
                self._world.loop.call_on(process, getattr(self._source, method), *args)

        self._world.network.transmit(self._caller, self._callee, arrive, what=f"{method} of {self._what}")

    def hang_up(self, what: str) -> None:
        """The receiver is gone: end the pump once the word of it arrives."""

        def arrive(process: HostProcess) -> None:
            if process is self._lives[1]:
                self._broken = True
                self._stop()

        self._world.network.transmit(self._caller, self._callee, arrive, what=f"{what} of {self._what}")

    def _somebody_died(self, process: HostProcess) -> None:
        if process is self._lives[1]:
            self._break(Unavailable(f"{self._what}: {self._callee.name} went away"))
        elif process is self._lives[0]:
            self._break(Unavailable(f"{self._what}: {self._caller.name} went away"))

    def _break(self, error: Unavailable) -> None:
        """Both ends learn that the connection is gone, each after its own while."""
        if self._broken:
            return
        self._broken = True
        world, network = self._world, self._world.network
        delay_s = network.word_of_loss_s(self._callee.name, self._caller.name)
        world.loop.call_later(delay_s, self.receiver.finish, error, context=world.context)
        world.loop.call_later(delay_s, self._stop, context=world.context)

    async def _close_source(self) -> None:
        close: Any = getattr(self._source, "aclose", None) or getattr(self._source, "close", None)
        if close is not None:
            result = close()
            if asyncio.iscoroutine(result) or hasattr(result, "__await__"):
                await result


# -- faults that last ------------------------------------------------------------------------------


def crash_for_a_while(world: SimWorld, host: Host) -> None:
    """Crash a mortal host, and restart it after a drawn while."""
    if not host.mortal or not host.up:
        return
    downtime_s = world.faults.pick(f"long {host.name} is down", DOWNTIMES_S)
    host.crash()
    dead = host.process

    def come_back() -> None:
        if host.process is dead:
            host.restart()

    world.loop.call_later(downtime_s, come_back, context=world.context)


def strike_at_birth(world: SimWorld, host: Host) -> None:
    """Ask once whether a new host has a wrong clock, one that runs fast or slow, or a slow CPU."""
    match world.faults.at("birth of host", host.name, OF_HOSTS):
        case "wrong clock":
            host.skew(offset_s=world.faults.pick(f"wrong the clock of {host.name} is", OFFSETS_S))
        case "fast clock":
            host.skew(rate=world.faults.pick(f"fast the clock of {host.name} is", (1.001, 1.05)))
        case "slow clock":
            host.skew(rate=world.faults.pick(f"slow the clock of {host.name} is", (0.999, 0.95)))
        case "slow cpu":
            host.slow(world.faults.pick(f"slow {host.name} is", (0.000_1, 0.002)))


def pause_for_a_while(world: SimWorld, host: Host) -> None:
    """Let nothing run on a host for a drawn while, as a long collection or a suspended machine would."""
    if host.paused or not host.up:
        return
    duration_s = world.faults.pick(f"long {host.name} is paused", PAUSES_S)
    host.pause()
    paused = host.process

    def go_on() -> None:
        if host.process is paused:
            host.resume()

    world.loop.call_later(duration_s, go_on, context=world.context)


def send_message(world: SimWorld, source: Host, target: Host, name: str, message: Any) -> None:
    """Send one message, one way. It may come late, twice, out of order or not at all."""
    text = f"message {name}"
    fault = world.faults.at(text, f"{source.name}>{target.name}", MESSAGE_FAULTS)
    if fault == "lose":
        return
    extra_s = world.faults.pick("long the delay is", DELAYS_S) if fault == "delay" else 0.0
    if world.network.carry is not None:
        message = world.network.carry(message)

    def arrive(process: HostProcess) -> None:
        handler = target.handlers.get(name) if target.up else None
        if handler is not None:
            world.loop.call_on(process, handler, message)

    for _ in range(2 if fault == "duplicate" else 1):
        world.network.transmit(source, target, arrive, what=text, extra_s=extra_s)


def cut_for_a_while(world: SimWorld, one: Host, other: Host) -> None:
    """Cut two hosts off from each other for a drawn while: in both directions or in one."""
    pair = f"{one.name}|{other.name}"
    source, target, both_ways = world.faults.pick(
        f"{pair} is cut", ((one, other, True), (one, other, False), (other, one, False))
    )
    partition = world.network.partition([source], [target], both_ways=both_ways)
    duration_s = world.faults.pick(f"long {pair} is cut", PARTITIONS_S)
    world.loop.call_later(duration_s, partition.heal, context=world.context)

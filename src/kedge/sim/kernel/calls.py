"""Calls between hosts: a request crosses a link, runs on the other host, and its reply crosses back.

Either message may be lost. The caller then gets `OutcomeUnknown` after its timeout and does not know which one it was.
A result that is an async iterator (a watch) comes back as a `RemoteStream`. Built on `network`; `messages` is the
one-way form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel.fault_registry import FAULTS, REPLY, REQUEST
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.lasting_faults import DELAYS_S, crash_for_a_while, cut_for_a_while, pause_for_a_while
from kedge.sim.kernel.strands import HostProcess
from kedge.sim.kernel.streams import StreamSender

if TYPE_CHECKING:
    from kedge.sim.kernel.faults import FaultPoint
    from kedge.sim.kernel.world import SimWorld

REQUEST_FAULTS = FAULTS.kinds_at(REQUEST)
"""The caller is struck as the request leaves, the callee as it arrives."""
REPLY_FAULTS = FAULTS.kinds_at(REPLY)
"""They strike after the call was carried out. The callee is struck before the reply leaves."""


class Remote:
    """A service on another host, as seen from one host. Its attributes are the methods of the service, made remote."""

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
        """Call `method` of the service.

        Raises:
            Unavailable: the call was not carried out; the host is down or does not serve this.
            OutcomeUnknown: no reply in time. The call may have been carried out.
            Exception: the exception that the method raised.
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
            del exchange, timer  # breaks a cycle: the traceback of an error references this frame


class _Route:
    """One method of one service between two hosts: its names and fault points, created once."""

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
        """Whether a method is a plain function, which needs no task. Assumed until a result turns out awaitable."""
        function = getattr(method, "__func__", method)
        plain = self._plain.get(function)
        if plain is None:
            plain = self._plain[function] = not asyncio.iscoroutinefunction(function)
        return plain

    def is_awaited(self, method: Callable[..., Any]) -> None:
        """Remember that a plain method returns an awaitable: from now on its calls get a task at once."""
        self._plain[getattr(method, "__func__", method)] = False

    def draw_fault(self, point: str, kinds: tuple[str, ...]) -> str:
        """Draw the fault at this point. Only a restartable host can crash; no host is partitioned from itself."""
        caller, callee = self.caller, self.callee
        key = (point, caller.restartable, callee.restartable)
        found = self._points.get(key)
        if found is None:
            able = {
                "crash caller": caller.restartable,
                "crash callee": callee.restartable,
                "pause caller": caller.takes_faults,
                "pause callee": callee.takes_faults,
                "partition": caller is not callee,
            }
            possible = tuple(kind for kind in kinds if able.get(kind, True))
            found = self._points[key] = self.world.faults.point(point, self.way, possible)
        return found.draw_fault()


class _Exchange(msgspec.Struct, eq=False):
    """One request and its reply."""

    route: _Route
    timeout_s: float
    reply: asyncio.Future[Any]
    tasks: list[asyncio.Task[None]] = []
    """Tasks that carry out the call: two, if the request was delivered twice."""

    def expire(self) -> None:
        """End the call without a reply: its timeout has passed, by the clock of the caller."""
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

    # -- request

    def send(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        route = self.route
        world, caller, callee = route.world, route.caller, route.callee
        carry = world.network.carry
        if carry is not None:
            args, kwargs = carry(args), carry(kwargs)
        fault = route.draw_fault(route.request, REQUEST_FAULTS)

        def arrive(process: HostProcess) -> None:
            if fault == "crash callee":
                crash_for_a_while(world, callee)
            elif fault == "pause callee":
                pause_for_a_while(world, callee)
            if not callee.up:
                self._reply_unavailable(f"{callee.name} is down: connection refused")
                return
            target = callee.services.get(route.service)
            if target is None:
                self._reply_unavailable(f"{callee.name} does not serve {route.service}")
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
        """Call a plain method in one step, without a task. An awaitable result gets one."""
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
        """Call the method and await its result, or await the result that was already `begun`; then reply."""
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
            sender = StreamSender(world, route.caller, route.callee, route.what, result.__aiter__())
            self._send_reply(sender.receiver)
            if sender.pushed is not None:
                sender.begin_pull(sender.pushed)
            else:
                world.keep(world.loop.spawn_on(process, sender.pump(), f"stream of {route.what}"), process)
        else:
            self._send_reply(result)

    # -- reply

    def _send_reply(self, answer: Any, *, failed: bool = False) -> None:
        route = self.route
        world = route.world
        fault = route.draw_fault(route.reply, REPLY_FAULTS)
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

    def _reply_unavailable(self, why: str) -> None:
        self.route.world.note("refused", self.route.call_text, host=self.route.callee.name)
        self._transmit_back(Unavailable(f"{self.route.what}: {why}; nothing was done"), failed=True)

    def _transmit_back(self, answer: Any, failed: bool, extra_s: float = 0.0) -> None:
        def arrive(_: HostProcess) -> None:
            if self.reply.done():
                return
            if failed:
                self.reply.set_exception(answer)
                self.reply.exception()  # marks it retrieved: a caller that stopped waiting is no error
            else:
                self.reply.set_result(answer)

        route = self.route
        route.world.network.transmit(route.callee, route.caller, arrive, what=route.reply, extra_s=extra_s)

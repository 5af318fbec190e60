"""Streams between hosts: the items of an async iterator cross a link in order, or the stream breaks.

`calls` makes one of a call that returns an async iterator. A stream never has a gap: a lost item breaks it. The fault
point `delivery of SERVICE.METHOD` is passed for each item.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from kedge.errors import Unavailable
from kedge.sim.kernel.fault_registry import DELIVERY, FAULTS
from kedge.sim.kernel.hosts import Host
from kedge.sim.kernel.lasting_faults import DELAYS_S
from kedge.sim.kernel.strands import HostProcess

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

DELIVERY_FAULTS = FAULTS.kinds_at(DELIVERY)
"""At each item of a stream."""
STREAM_WINDOW = 64
"""Items a stream may have in flight; past it the sender waits for the consumer."""


@runtime_checkable
class PushSource(Protocol):
    """A source that calls `on_ready`, in the step of its host that makes an item available."""

    @property
    def pushes(self) -> bool:
        """Whether it needs no task for that. Otherwise it is iterated."""

    on_ready: Callable[[], None] | None

    def take_nowait(self) -> Any:
        """The next item, or None if none is available. Raises the end of the stream."""

    def close(self) -> None: ...


class RemoteStream(AsyncIterator[Any]):
    """The receiving end of a stream. Ends by `StopAsyncIteration`, by the sender's error, or by `Unavailable`.

    It is a `PushSource` as well, for a reader that uses it as one.
    """

    pushes = False

    def __init__(self, sender: StreamSender) -> None:
        self._sender = sender
        self._items: deque[Any] = deque()
        self._end: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.on_ready: Callable[[], None] | None = None

    def __aiter__(self) -> RemoteStream:
        return self

    async def __anext__(self) -> Any:
        if self._items:
            await asyncio.sleep(0)  # a scheduling point, even if an item is available
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

    def take_nowait(self) -> Any:
        if self._items:
            item = self._items.popleft()
            self._sender.acknowledge()
            return item
        if self._end is not None:
            raise self._end
        return None

    def close(self) -> None:
        """Stop receiving, and notify the sender."""
        if self._end is None:
            self._finish(StopAsyncIteration())
            self._sender.hang_up("close")

    async def aclose(self) -> None:
        self.close()

    def notify(self, method: str, *args: Any) -> None:
        """Call a plain method of the source, one way: without a reply or a guarantee."""
        self._sender.notify(method, args)

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
        if self.on_ready is not None:
            self._sender.call_on_receiver(self._run_callback)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _run_callback(self) -> None:
        if self.on_ready is None:
            return
        try:
            self.on_ready()
        except Exception as error:  # noqa: BLE001  items that it took may be lost
            self.on_ready = None
            if self._end is None:
                self.close()
            self._end = Unavailable("the stream's callback raised")
            message = "the callback of a stream raised"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})


class StreamSender:
    """The sending end: pulls items from the service, and keeps at most `STREAM_WINDOW` under way.

    A `PushSource` is drained without a task, in the step of its host in which it becomes ready.
    """

    def __init__(self, world: SimWorld, caller: Host, callee: Host, what: str, source: Any) -> None:
        self._world = world
        self._caller = caller
        self._callee = callee
        self._what = what
        self._source = source
        self.pushed: PushSource | None = source if isinstance(source, PushSource) and source.pushes else None
        self._task: asyncio.Task[Any] | None = None
        self._under_way = 0
        self._room = asyncio.Event()
        self._full = False
        """Whether a push source waits for room in the window."""
        self._processes = (caller.process, callee.process)
        self._last_arrival_s = 0.0
        self._broken = False
        self._point = world.faults.point(f"delivery of {what}", f"{callee.name}>{caller.name}", DELIVERY_FAULTS)
        self.receiver = RemoteStream(self)
        world.on_crash.append(self._process_died)

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
        """Send an item, unless a fault strikes. False if the fault broke the stream."""
        world = self._world
        fault = self._point.draw_fault()
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

    # -- from a push source

    def begin_pull(self, source: PushSource) -> None:
        source.on_ready = self._pull
        self._pull()

    def _pull(self) -> None:
        """Drain the push source. Runs in a step of the sending host."""
        source = self.pushed
        if source is None:
            return
        try:
            while not self._broken:
                if self._under_way >= STREAM_WINDOW:
                    self._full = True
                    return
                item = source.take_nowait()
                if item is None or not self._deliver_nowait(item):
                    return
        except Exception as error:  # noqa: BLE001  the end of iteration too
            source.on_ready = None
            self._send(self.receiver.finish, error)

    def _stop(self) -> None:
        """Stop reading the source."""
        if self._task is not None:
            self._task.cancel()
        elif self.pushed is not None:
            self.pushed.on_ready = None
            self.pushed.close()

    # -- on the way

    def _send(self, accept: Callable[[Any], None], value: Any, extra_s: float = 0.0) -> None:
        """Send in order. A lost item breaks the stream, so the stream never has a gap."""
        world, network = self._world, self._world.network
        source, target = self._callee.name, self._caller.name
        if world.deliveries is None:
            due_s = max(world.loop.now + network.latency_s(source, target) + extra_s, self._last_arrival_s)
            self._last_arrival_s = due_s
        loss = network.link(source, target).loss
        lost = loss > 0 and world.choices.network.chance(f"loss {source}>{target}", loss)

        def arrive() -> None:
            if self._broken:
                return
            if lost or network.is_cut(source, target):
                self._break(Unavailable(f"{self._what}: the connection was lost"))
            elif self._caller.process is self._processes[0] and self._caller.up:
                accept(value)

        carry = arrive if world.lineage is None else world.lineage.carried(source, target, arrive)
        if world.deliveries is None:
            world.loop.call_at_moment(due_s, carry)
        else:
            world.deliveries.put((source, target), self, carry)

    def call_on_receiver(self, call: Callable[[], None]) -> None:
        loop, process = self._world.loop, self._processes[0]
        loop.call_soon(call, context=loop.plain_context(process))

    def acknowledge(self) -> None:
        self._under_way -= 1
        self._room.set()
        if self._full:
            self._full = False
            loop, process = self._world.loop, self._processes[1]
            loop.call_soon(self._pull, context=loop.plain_context(process))

    def notify(self, method: str, args: tuple[Any, ...]) -> None:
        def arrive(process: HostProcess) -> None:
            if process is self._processes[1] and not self._broken:
                self._world.loop.call_on(process, getattr(self._source, method), *args)

        self._world.network.transmit(self._caller, self._callee, arrive, what=f"{method} of {self._what}")

    def hang_up(self, what: str) -> None:
        """The receiver has closed: stop the source when that message arrives."""

        def arrive(process: HostProcess) -> None:
            if process is self._processes[1]:
                self._broken = True
                self._stop()

        self._world.network.transmit(self._caller, self._callee, arrive, what=f"{what} of {self._what}")

    def _process_died(self, process: HostProcess) -> None:
        if process is self._processes[1]:
            self._break(Unavailable(f"{self._what}: {self._callee.name} crashed"))
        elif process is self._processes[0]:
            self._break(Unavailable(f"{self._what}: {self._caller.name} crashed"))

    def _break(self, error: Unavailable) -> None:
        """Break the connection. Both ends detect it after a delay."""
        if self._broken:
            return
        self._broken = True
        world, network = self._world, self._world.network
        delay_s = network.loss_detection_s(self._callee.name, self._caller.name)
        world.loop.call_later(delay_s, self.receiver.finish, error, context=world.context)
        world.loop.call_later(delay_s, self._stop, context=world.context)

    async def _close_source(self) -> None:
        close: Any = getattr(self._source, "aclose", None) or getattr(self._source, "close", None)
        if close is not None:
            result = close()
            if asyncio.iscoroutine(result) or hasattr(result, "__await__"):
                await result

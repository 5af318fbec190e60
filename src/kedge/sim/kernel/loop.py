"""The event loop: virtual time that jumps, FIFO per process, a policy that picks the process. No real I/O.

`strands` defines what is queued, `policies` picks the next process, `trace` records the steps, `loop_mixins` and
`real_io` are its base classes. It has no links and no faults: `network` and `hosts` are built on it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar, cast

from kedge.errors import check
from kedge.sim.kernel.futures import SimFuture, SimTask
from kedge.sim.kernel.loop_mixins import ConnectingLoop, InlineExecutorLoop, LoopConnections
from kedge.sim.kernel.policies import Chooser
from kedge.sim.kernel.strands import STRAND, Handle, HostProcess, Strand, TimerHandle, WorldCall, describe_callback
from kedge.sim.kernel.trace import CLOCK_JUMP, Trace

_T = TypeVar("_T")

wake_sleeper: Any = asyncio.futures._set_result_unless_cancelled  # type: ignore[attr-defined]

STEPS_A_ROUND = 8_192
"""Steps between two calls of `on_round`."""
STEPS_PER_COLLECTION = 1 << 18
"""Garbage is collected at fixed steps only, so that finalizers run at the same step in every run."""


HostClock = Callable[[str], tuple[float, float]]
"""Monotonic time of a host by name, and the rate of its clock."""
ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]


def _name_of(coroutine: Any) -> str:
    return str(getattr(coroutine, "__qualname__", type(coroutine).__name__))


class SimLoop(ConnectingLoop, InlineExecutorLoop):
    """The loop of one run. `SimWorld` makes it; `teardown` closes it."""

    def __init__(
        self,
        trace: Trace,
        schedule: array[int],
        *,
        chooser: Chooser | None,
        connections: LoopConnections,
        on_error: Callable[[dict[str, Any]], None],
        on_round: Callable[[], None],
        host_clock: HostClock,
        strand_names: dict[int, str] | None,
    ) -> None:
        """`on_error` gets unhandled exceptions. `on_round` runs every `STEPS_A_ROUND` steps, and may `stop`."""
        self.trace = trace
        self.connections = connections
        self.now = 0.0
        """Virtual seconds since the run began, on the world's own clock."""
        self.chooser = chooser
        self.strand_names = strand_names
        """The host and task of each strand, for reports. None if not wanted."""
        self.create_future: Callable[[], asyncio.Future[Any]] = partial(SimFuture, loop=self)  # cheaper than a method
        self._on_error = on_error
        self._on_round = on_round
        self._host_clock = host_clock
        self._local_clock: HostClock | None = None
        """`host_clock`, or None while the clock of every host is the world's."""
        self._schedule = schedule
        """The schedule stream of the tape, to which choices are appended."""
        self._ready: list[HostProcess] = []
        self._moments: list[float] = []
        """A heap of the moments at which a timer is due."""
        self._due: dict[float, list[Any]] = {}
        """Timers due at each of `_moments`, in the order in which they were set: a `TimerHandle`, a `WorldCall`, or for
        `asyncio.sleep` (strand, future, result), because most timers are sleeps and a tuple is cheapest."""
        self.serials = 0
        """How many futures and tasks were hashed. Counted by `futures`."""
        self._strands = CLOCK_JUMP
        self._budget: list[None] = []
        self._stopping = False
        self._running = False
        self._closed = False
        self._handler: ExceptionHandler | None = None
        self._asyncgens: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._task_factory: Any = None
        self._processes = 0
        self._collections = 0
        self.root = Strand(self.new_process("world", 1), self._next_strand())
        """The strand of work whose context was made outside the simulation."""
        self.world_context = self.context_on(self.root.process)
        """For callbacks of the world itself: they belong to no host, and no crash stops them."""
        self._world_strand = self.world_context[STRAND]

    # -- identity

    def _next_strand(self) -> int:
        self._strands += 1
        return self._strands

    def new_process(self, host_name: str, number: int) -> HostProcess:
        self._processes += 1
        return HostProcess(host_name, number, self._processes)

    def current_strand(self) -> Strand:
        return STRAND.get(self.root)

    # -- queueing

    def call_soon(self, *call: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        if context is None:
            context = copy_context()
        strand = context.get(STRAND) or self.root
        handle = Handle(call, context, strand)
        process = strand.process
        process.queue.append(handle)
        if process.idle:
            process.idle = False
            self._ready.append(process)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Handle:
        check(
            asyncio._get_running_loop() is self or not self._running,
            "call_soon_threadsafe from another thread: a simulated program has one thread; use run_in_executor",
        )
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, *call: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """A `TimerHandle`; for `asyncio.sleep` its future, which has the `cancel` that it needs."""
        sleep = call[0] is wake_sleeper
        if sleep:  # only a future is completed, which needs no context
            strand = STRAND.get(self.root)
        else:
            if context is None:
                context = copy_context()
            strand = context.get(STRAND) or self.root
        if self._local_clock is None:
            moment = local = self.now + delay
        else:
            local, rate = self._local_clock(strand.process.host_name)
            local += delay
            moment = self.now + delay / rate
        timer: Any
        if sleep:
            _, handle, result = call
            timer = (strand, handle, result)
        else:
            timer = handle = TimerHandle(call, context, strand, False, local)  # type: ignore[arg-type]  # noqa: FBT003
        due = self._due.get(moment)
        if due is None:
            self._due[moment] = [timer]
            heappush(self._moments, moment)
        else:
            due.append(timer)
        return handle

    def call_at_moment(self, moment_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call back, as the world, at an exact moment of its clock. Callbacks due at one moment keep their order."""
        if moment_s < self.now:
            moment_s = self.now
        due = self._due.get(moment_s)
        if due is None:
            self._due[moment_s] = [WorldCall(callback, args)]
            heappush(self._moments, moment_s)
        else:
            due.append(WorldCall(callback, args))

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def time(self) -> float:
        """The monotonic clock of the current host."""
        if self._local_clock is None:
            return self.now
        return self._local_clock(self.current_strand().process.host_name)[0]

    def use_host_clocks(self) -> None:
        """Set timers by the clock of each host from now on: the clock of one host has another rate."""
        self._local_clock = self._host_clock

    # -- tasks and futures

    def create_task(  # type: ignore[override, unused-ignore]
        self, coro: Coroutine[Any, Any, _T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[_T]:
        if context is None:
            context = copy_context()
            parent = context.get(STRAND) or self.root
            self._strands = number = self._strands + 1
            context.run(STRAND.set, Strand(parent.process, number))
            if self.strand_names is not None:
                self.strand_names[number] = f"{parent.process.host_name}: {name or _name_of(coro)}"
        # asyncio's own default name counts over the whole interpreter: two runs in one process would differ.
        if name is None:
            name = f"task-{self._strands}"
        if self._task_factory is not None:
            task = self._task_factory(self, coro, context=context)
            task.set_name(str(name))
            return cast("asyncio.Task[_T]", task)
        return SimTask(coro, loop=self, name=str(name), context=context)

    def spawn_on(self, process: HostProcess, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Start a task on a process other than the caller's."""
        context = copy_context()
        self._strands = number = self._strands + 1
        context.run(STRAND.set, Strand(process, number))
        if self.strand_names is not None:
            self.strand_names[number] = f"{process.host_name}: {name}"
        if self._task_factory is not None:
            return self.create_task(work, name=name, context=context)
        return SimTask(work, loop=self, name=name, context=context)

    def call_on(self, process: HostProcess, callback: Callable[..., Any], *args: Any) -> Handle:
        """`call_soon` on a process other than the caller's."""
        return self.call_soon(callback, *args, context=self.context_on(process))

    def plain_context(self, process: HostProcess) -> Context:
        """The one context, and strand, in which all plain calls to a process run, one after the other."""
        context = process.plain_context
        if context is None:
            context = process.plain_context = self.context_on(process)
            if self.strand_names is not None:
                self.strand_names[self._strands] = f"{process.host_name}: plain calls"
        return context

    def context_on(self, process: HostProcess) -> Context:
        context = Context()
        context.run(STRAND.set, Strand(process, self._next_strand()))
        return context

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    # -- running

    def run_forever(self) -> None:
        self._check_can_run()
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgens.add, finalizer=self._finalize_asyncgen)
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while not self._stopping:
                self._budget = [None] * STEPS_A_ROUND
                self._run_steps(self._budget, self.chooser)
                if len(self.trace.steps) // STEPS_PER_COLLECTION > self._collections:
                    self._collections += 1
                    gc.collect()
                self._on_round()
                if not self._ready and not self._stopping and not self._next_timers():
                    break
        finally:
            self._stopping = False
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run_steps(self, budget: list[None], choose: Chooser | None) -> None:
        """Run one step per item of `budget`, which `stop` and `change_policy` clear.

        Without a chooser the process that has waited longest is next. Choices are recorded on the tape.
        """
        ready = self._ready
        record_step = self.trace.steps.append
        record_choice = self._schedule.append
        for _ in budget:
            if choose is None:
                if not ready and not self._next_timers():
                    return
                process = ready.pop(0)
            else:
                bound = len(ready)
                if bound > 1:
                    index = choose(ready)
                    record_choice(bound << 16 | index)
                    process = ready.pop(index)
                elif bound:
                    process = ready.pop()
                else:
                    if not self._next_timers():
                        return
                    continue
            queue = process.run_queue
            handle = queue.popleft()
            if not handle.dropped:
                record_step(handle.strand.number)
                try:
                    handle.context.run(*handle.call)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001
                    self._callback_failed(handle.call[0], error)
            if queue:
                ready.append(process)
            else:
                process.idle = process.open

    def _next_timers(self) -> bool:
        """Jump to the next moment at which a timer is due, and fire its timers. False if nothing became ready."""
        moments, ready, due_at = self._moments, self._ready, self._due.pop
        while moments and not ready:
            moment = heappop(moments)
            jumps = moment > self.now
            for timer in due_at(moment):
                kind = type(timer)
                if kind is tuple:
                    # Completing a sleep is no step of its own: the next step of the task is.
                    _, future, result = timer
                    if not future.done():
                        if jumps:
                            jumps = self._jump_to(moment)
                        future.set_result(result)
                elif kind is WorldCall:
                    if jumps:
                        jumps = self._jump_to(moment)
                    self._run_as_world(self._world_strand, timer.callback, timer.args)
                    if self._stopping:
                        return False
                elif not timer.dropped:
                    if jumps:
                        jumps = self._jump_to(moment)
                    process = timer.strand.process
                    if process is self.root.process:
                        self._run_as_world(timer.strand, timer.call[0], timer.call[1:])
                        if self._stopping:
                            return False
                    else:
                        process.queue.append(timer)
                        if process.idle:
                            process.idle = False
                            ready.append(process)
        return bool(ready)

    def _jump_to(self, moment: float) -> bool:
        """Set the clock. Returns False: the clock jumps to a moment once."""
        self.now = moment
        self.trace.steps.append(CLOCK_JUMP)
        self.trace.times.append(moment)
        return False

    def _run_as_world(self, strand: Strand, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Run work of the world, such as the arrival of a message, outside the context of any host."""
        self.trace.steps.append(strand.number)
        try:
            callback(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001
            self._callback_failed(callback, error)

    def stop(self) -> None:
        """End the run after this step."""
        self._stopping = True
        self._budget.clear()

    def change_policy(self, chooser: Chooser | None) -> None:
        """Schedule by `chooser` from the next step on."""
        self.chooser = chooser
        self._budget.clear()

    def run_until_complete(self, future: Any) -> Any:
        self._check_can_run()
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if not task.done():
            raise RuntimeError("the loop stopped before the future was done: nothing is left that could complete it")
        return task.result()

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        check(not self._running, "a running loop cannot be closed")
        self._closed = True
        self._ready.clear()
        self._moments.clear()
        self._due.clear()
        self.connections.close()

    def _check_can_run(self) -> None:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._running or asyncio._get_running_loop() is not None:
            raise RuntimeError("a simulation cannot run inside a running event loop: call it from plain code")

    # -- lives of processes; `hosts` calls these

    def hold(self, process: HostProcess, queue: deque[Handle]) -> None:
        """Stop running `process`; its new work goes to `queue`."""
        if process in self._ready:
            self._ready.remove(process)
        waiting = list(process.run_queue)
        if process.queue is not process.run_queue:
            waiting.extend(process.queue)
            process.queue.clear()
        process.run_queue.clear()
        process.queue = queue
        process.open = False
        process.idle = False
        queue.extend(waiting)

    def release(self, process: HostProcess) -> None:
        """Run `process` again, beginning with the work queued while it was held. Not from its own steps."""
        if process.queue is not process.run_queue:
            process.run_queue.extend(process.queue)
            process.queue = process.run_queue
        process.open = True
        self.wake(process)

    def wake(self, process: HostProcess) -> None:
        """Put `process` on the ready list if it has work. Not from its own steps: it would be there twice."""
        if process in self._ready:
            return
        if process.run_queue:
            process.idle = False
            self._ready.append(process)
        else:
            process.idle = process.open

    def drop_timers(self, process: HostProcess) -> list[object]:
        """Remove the timers of a crashed process. Returns them: they reference its tasks."""
        gone: list[object] = []
        for moment in self._moments:
            kept = []
            for timer in self._due[moment]:
                kind = type(timer)
                if kind is not WorldCall and (timer[0] if kind is tuple else timer.strand).process is process:
                    gone.append(timer)
                else:
                    kept.append(timer)
            self._due[moment][:] = kept
        return gone

    # -- errors

    def _callback_failed(self, callback: Callable[..., Any], error: BaseException) -> None:
        message = f"exception in callback {describe_callback(callback)}"
        self.call_exception_handler({"message": message, "exception": error})

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._handler = handler

    def get_exception_handler(self) -> ExceptionHandler | None:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._handler(self, context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001
            self.default_exception_handler({"message": "the exception handler itself failed", "exception": error})

    get_debug = staticmethod(bool)  # asyncio calls it for every future and task; this returns False at no cost

    def set_debug(self, enabled: bool) -> None:
        check(not enabled, "asyncio's debug mode reads the real clock: use the trace instead")

    # -- async generators

    def _finalize_asyncgen(self, agen: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens.discard(agen)
        if not self._closed:
            self.create_task(agen.aclose(), name="close of an async generator")

    async def shutdown_asyncgens(self) -> None:
        closing = list(self._asyncgens)
        self._asyncgens.clear()
        await asyncio.gather(*[agen.aclose() for agen in closing], return_exceptions=True)

    def pending(self) -> Iterable[asyncio.Task[Any]]:
        """Tasks that have not ended, in the order in which they were created."""
        return sorted(asyncio.all_tasks(self), key=hash)

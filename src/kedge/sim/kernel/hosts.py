"""Hosts: the machines of components. A host boots, crashes, restarts, pauses, runs slow, and has its own clocks.

A crash parks the work of the host: nothing is cancelled and no `finally` block runs. `Host.env` gives a component its
clocks, randomness and tasks; `network` carries its messages. Hosts do not depend on the components they run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from kedge.env import Env, uid_from
from kedge.errors import check
from kedge.limits import Limits
from kedge.metrics import Metrics
from kedge.sim.kernel.strands import Handle, HostProcess

if TYPE_CHECKING:
    from kedge.sim.kernel.calls import Remote
    from kedge.sim.kernel.loop import SimLoop
    from kedge.sim.kernel.world import SimWorld

_T = TypeVar("_T")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Where every wall clock starts, before its offset."""

Boot = Callable[["Host"], Coroutine[Any, Any, Any]]


class Host:
    """One simulated machine. Made by `Simulation.host`; every method may be called from anywhere in the run."""

    def __init__(self, world: SimWorld, name: str) -> None:
        self.name = name
        self.services: dict[str, object] = {}
        """Services of the current process, by name. A crash empties it."""
        self.handlers: dict[str, Callable[[Any], object]] = {}
        """Message handlers of the current process, by name. A crash empties it."""
        self.takes_faults = True
        """False for the driver, which no fault touches."""
        self._world = world
        self._loop = world.loop
        self._boot: Boot | None = None
        self.boot_task: asyncio.Task[Any] | None = None
        """The boot program of the current process; None for a host without one."""
        self.restartable = False
        """Whether faults may crash this host: it has a boot program to restart."""
        self.process = self._loop.new_process(name, 1)
        self.up = True
        self.paused = False
        self._step_s = 0.0
        self._offset = timedelta()
        self._rate = 1.0
        self._anchor = (0.0, 0.0)
        self._random = self._new_random()

    def __repr__(self) -> str:
        return f"Host({self.name})"

    # -- work

    def spawn(self, work: Coroutine[Any, Any, _T], *, name: str) -> asyncio.Task[_T]:
        """Start a task on this host. Its failure is a violation of the run."""
        check(self.up, f"host {self.name} is down: restart it first")
        task = self._loop.spawn_on(self.process, work, name)
        self._world.keep(task, self.process)
        return task

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on this host and return its result without a network. For tests; components use `remote`."""
        task = self._loop.spawn_on(self.process, work, f"work on {self.name}")
        return await task

    def boot(self, program: Boot) -> asyncio.Task[Any]:
        """Run `program(host)` now, and again after every restart. Faults may crash a host that has one."""
        self._boot = program
        self.restartable = True
        self.boot_task = self.spawn(program(self), name=f"boot {self.name}")
        return self.boot_task

    def env(self, *, limits: Limits | None = None, metrics: Metrics | None = None) -> Env:
        """The environment of a component on this host: clocks, randomness, tasks, limits, metrics."""
        source = self._random
        return Env(
            now=self.now,
            monotonic=self.monotonic,
            random=source,
            new_uid=lambda: uid_from(source),
            spawn=self._spawn_here(),
            secret_bytes=source.randbytes,
            limits=limits or Limits(),
            metrics=metrics or Metrics(series_max=(limits or Limits()).metric_series_max),
        )

    def _spawn_here(self) -> Callable[..., asyncio.Task[Any]]:
        process = self.process  # an Env belongs to one process

        def spawn(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
            task = self._loop.spawn_on(process, work, name)
            self._world.keep(task, process)
            return task

        return spawn

    # -- services and messages

    def serve(self, name: str, target: object) -> None:
        """Let other hosts call the methods of `target` as service `name`, until this host crashes."""
        self.services[name] = target

    def remote(self, host: Host, service: str, *, timeout_s: float | None = None) -> Remote:
        """`service` on `host`, called over the network."""
        return self._world.remote(self, host, service, timeout_s)

    def on_message(self, name: str, handler: Callable[[Any], object]) -> None:
        """Call `handler` with each message that is sent to `name` here, until this host crashes."""
        self.handlers[name] = handler

    def send(self, host: Host, name: str, message: object) -> None:
        """Send a message, one way: it may arrive late, twice, out of order or never, without an error."""
        self._world.send(self, host, name, message)

    # -- clocks

    def monotonic(self) -> float:
        """Seconds on the clock of this host."""
        local, world = self._anchor
        return local + (self._loop.now - world) * self._rate

    def now(self) -> datetime:
        """The wall clock of this host."""
        return EPOCH + self._offset + timedelta(seconds=self.monotonic())

    def skew(self, *, offset_s: float | None = None, rate: float | None = None) -> None:
        """Offset the wall clock by `offset_s`; run both clocks at `rate`. Timers already set keep their moment."""
        if offset_s is not None:
            self._offset = timedelta(seconds=offset_s)
        if rate is not None:
            check(rate > 0, "a clock cannot stand still or run backwards")
            self._anchor = (self.monotonic(), self._loop.now)
            self._rate = rate
            if rate != 1.0:
                self._loop.use_host_clocks()
        self._world.note("clock", f"offset {self._offset.total_seconds()}s, rate {self._rate}", host=self.name)

    @property
    def clock_rate(self) -> float:
        return self._rate

    # -- crash, restart, pause

    def crash(self) -> None:
        """End the process now. Its work is parked for ever: never cancelled, and no `finally` block runs.

        A step of the host itself that calls this still runs to its next `await`; the messages it sends are lost.
        """
        if not self.up:
            return
        self._world.note("crash", self.name, host=self.name)
        process = self.process
        parked: deque[Handle] = deque()
        self._loop.hold(process, parked)
        process.parked.extend([parked, *self._loop.drop_timers(process)])
        self._world.park(process)
        self.up = False
        self.paused = False
        self.services.clear()
        self.handlers.clear()

    def restart(self) -> None:
        """Start a new process: empty memory, and the boot program from its start."""
        self.crash()
        self.process = self._loop.new_process(self.name, self.process.number + 1)
        self.up = True
        self._random = self._new_random()
        self._world.note("restart", f"{self.name}, process {self.process.number}", host=self.name)
        if self._step_s:
            self._gate()
        if self._boot is not None:
            self.boot_task = self.spawn(self._boot(self), name=f"boot {self.name}")

    def pause(self) -> None:
        """Run nothing on this host, as during a long garbage collection. Time goes on; timers that are due wait."""
        if self.up and not self.paused:
            self.paused = True
            self._world.note("pause", self.name, host=self.name)
            self._loop.hold(self.process, deque())

    def resume(self) -> None:
        if self.up and self.paused:
            self.paused = False
            self._world.note("resume", self.name, host=self.name)
            self._open_soon()

    def slow(self, step_s: float) -> None:
        """Make each step take `step_s` of virtual time; 0 makes the host fast again."""
        check(step_s >= 0, "a step cannot take less than no time")
        self._step_s = step_s
        self._world.note("cpu", f"{step_s}s a step", host=self.name)
        if not self.up or self.paused:
            return
        if step_s:
            self._gate()
        else:
            self._open_soon()

    def _open_soon(self) -> None:
        self._loop.call_soon(self._open, self.process, context=self._world.context)

    def _open(self, process: HostProcess) -> None:
        """Let the host run at its current speed. Runs as the world, when no step of the host is running."""
        if process is not self.process or not self.up or self.paused:
            return
        if self._step_s:
            self._gate()
        else:
            self._loop.release(process)

    @property
    def step_s(self) -> float:
        """Duration of a step; 0 on a host that is not slow."""
        return self._step_s

    def _gate(self) -> None:
        self._loop.hold(self.process, _SlowQueue(self, self._loop))

    def _new_random(self) -> Random:
        return Random(f"{self._world.choices.seed}/host/{self.name}/{self.process.number}")


class _SlowQueue(deque[Handle]):
    """The queue of a slow host: moves one handle at a time to the run queue, each after `step_s`."""

    def __init__(self, host: Host, loop: SimLoop) -> None:
        super().__init__()
        self._host = host
        self._loop = loop
        self._ticking = False

    def append(self, handle: Handle) -> None:
        super().append(handle)
        if not self._ticking:
            self._tick()

    def extend(self, handles: Any) -> None:
        super().extend(handles)
        if self and not self._ticking:
            self._tick()

    def _tick(self) -> None:
        """Call back when the time of one step has passed on the world's clock."""
        self._ticking = True
        self._loop.call_at_moment(self._loop.now + self._host.step_s, self._let_through)

    def _let_through(self) -> None:
        """Move the oldest handle to the run queue, unless this is no longer the queue of the host."""
        self._ticking = False
        process = self._host.process
        if not self or process.queue is not self:
            return
        process.run_queue.append(self.popleft())
        self._loop.wake(process)
        if self:
            self._tick()

"""An event loop that measures each of its steps, in CPU time of its thread: how long one callback holds the loop."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from kedge.heap import heap_statistics

_T = TypeVar("_T")
_REFERENCE_S = 0.010
"""Time that `_reference` takes on the machine on which the limit was chosen."""
_KEPT_S = 0.004
"""Shorter steps and scans are not kept."""
_PAGE_S_MAX = 25e-6
"""Kernel time for a new page of memory, at most. Other kernel time is that of the step."""


class LoopStep(NamedTuple):
    """One callback. Times are CPU times of the thread, scaled to the machine on which the limit was chosen."""

    own_s: float
    """Without the garbage collector, as a scan cannot be cut, and without the kernel's time for new pages."""
    part: str
    """The part of the test in which it began."""
    name: str
    collector_s: float
    """All scans in it, but for whole ones."""
    pages: int
    """Pages of memory that the kernel added to the process."""
    pages_s: float
    """Kernel time for them, as the kernel counts it: in ticks of some milliseconds."""


class Scan(NamedTuple):
    """One scan of the garbage collector, inside a step or between two."""

    cpu_s: float
    part: str
    generation: int
    whole: bool
    """Whether it scanned the objects that were set aside too."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """Keeps every long step and every long scan."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[LoopStep] = []
        """Not yet scaled."""
        self.collector = _CollectorTime(self)
        self._slowness: dict[str, float] = {}
        """By part: how much slower this machine was around it than the one on which the limit was chosen."""
        self.current_part = ""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(self._measured, callback, *args, context=context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._measured, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._measured, callback, *args, context=context)

    def _add_reader(self, fd: int, callback: Any, *args: Any) -> Any:
        """Sockets' readers and writers are steps too: transports call this, not `add_reader`."""
        return super()._add_reader(fd, self._measured, callback, *args)  # type: ignore[misc]

    def _add_writer(self, fd: int, callback: Any, *args: Any) -> Any:
        return super()._add_writer(fd, self._measured, callback, *args)  # type: ignore[misc]

    def _measured(self, callback: Any, *args: Any) -> None:
        part, name = self.current_part, _name_of(callback)
        collector, before = self.collector, _usage()
        collector.batches_s = collector.whole_s = 0.0
        began_s = time.thread_time()
        try:
            callback(*args)
        finally:
            cpu_s = time.thread_time() - began_s
            if cpu_s > _KEPT_S:
                after = _usage()
                pages = after.ru_minflt - before.ru_minflt
                pages_s = min(after.ru_stime - before.ru_stime, pages * _PAGE_S_MAX)
                own_s = cpu_s - collector.batches_s - collector.whole_s - pages_s
                self._steps.append(LoopStep(own_s, part, name, collector.batches_s, pages, pages_s))

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """Steps that begin in here belong to this part. It begins and ends with a step of its own."""
        before_s = _reference()
        self.current_part = name
        await asyncio.sleep(0)
        try:
            yield
        finally:
            self.current_part = ""
            await asyncio.sleep(0)
            self._slowness[name] = max(before_s, _reference()) / _REFERENCE_S

    def steps(self) -> list[LoopStep]:
        """Every long step of a part, longest first."""
        found = (
            step._replace(own_s=step.own_s / slowness, collector_s=step.collector_s / slowness)
            for step in self._steps
            if (slowness := self._slowness.get(step.part))
        )
        return sorted(found, reverse=True)

    def scans(self) -> list[Scan]:
        """Every long scan in a part, longest first."""
        found = (
            scan._replace(cpu_s=scan.cpu_s / slowness)
            for scan in self.collector.scans
            if (slowness := self._slowness.get(scan.part))
        )
        return sorted(found, reverse=True)


class _CollectorTime:
    """The CPU time of the collector and of its callbacks, which are between `begin` and `end`."""

    def __init__(self, loop: SteppedLoop) -> None:
        self._loop = loop
        self._began_s = 0.0
        self.batches_s = self.whole_s = 0.0
        """The time in the step that runs."""
        self._whole_scans = heap_statistics().whole_scans
        self.scans: list[Scan] = []
        """Not yet scaled."""

    def begin(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()

    def end(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            return
        cpu_s = time.thread_time() - self._began_s
        before, self._whole_scans = self._whole_scans, heap_statistics().whole_scans
        whole = self._whole_scans > before
        if whole:
            self.whole_s += cpu_s
        else:
            self.batches_s += cpu_s
        if cpu_s > _KEPT_S:
            self.scans.append(Scan(cpu_s, self._loop.current_part, info["generation"], whole))


def run_stepped(
    main: Callable[[SteppedLoop], Coroutine[Any, Any, _T]],
) -> tuple[_T, list[LoopStep], list[Scan]]:
    """Run a coroutine on such a loop. Returns its result, the long steps and the long scans, longest first."""
    loop = SteppedLoop()
    collector = loop.collector
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        gc.callbacks.insert(0, collector.begin)
        gc.callbacks.append(collector.end)
        try:
            result = runner.run(main(loop))
        finally:
            gc.callbacks.remove(collector.begin)
            gc.callbacks.remove(collector.end)
        return result, loop.steps(), loop.scans()


def _name_of(callback: Any) -> str:
    """The coroutine that a task runs, or the function."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        while getattr(coroutine, "cr_await", None) is not None and hasattr(coroutine.cr_await, "cr_code"):
            coroutine = coroutine.cr_await
        return str(getattr(coroutine, "__qualname__", coroutine))
    return str(getattr(callback, "__qualname__", callback))


def _usage() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_THREAD)


def _reference() -> float:
    """The least CPU time of a fixed loop: how fast this machine is now."""
    spent = []
    for _ in range(3):
        began_s = time.thread_time()
        found: dict[tuple[str, int], int] = {}
        for n in range(45_000):
            found["key", n] = n
        spent.append(time.thread_time() - began_s)
    return min(spent)

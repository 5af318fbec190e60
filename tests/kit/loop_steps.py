"""An event loop that measures each of its steps, in CPU time of its thread: how long one callback holds the loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")
_REFERENCE_S = 0.010
"""Time that `_reference` takes on the machine on which the limit was chosen."""


class LoopStep(NamedTuple):
    """One callback."""

    cpu_s: float
    part: str
    """The part of the test in which it ran."""
    name: str
    collector_s: float
    """The part of it in which the garbage collector ran: not divisible before Python 3.14."""

    @property
    def own_s(self) -> float:
        return self.cpu_s - self.collector_s


class SteppedLoop(asyncio.SelectorEventLoop):
    """Keeps the longest step of each name in each part."""

    def __init__(self) -> None:
        super().__init__()
        self._longest: dict[tuple[str, str], tuple[float, float]] = {}
        """By part and name: the CPU time, and the collector's part of it."""
        self._collector = _CollectorTime()
        self._slowness: dict[str, float] = {}
        """By part: how much slower this machine was around it than the one on which the limit was chosen."""
        self._part = ""

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
        part, name = self._part, _name_of(callback)
        self._collector.spent_s = 0.0
        began_s = time.thread_time()
        try:
            callback(*args)
        finally:
            spent = time.thread_time() - began_s, self._collector.spent_s
            known = (part, name)
            if spent > self._longest.get(known, (0.0, 0.0)):
                self._longest[known] = spent

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """Steps that begin in here belong to this part. It begins and ends with a step of its own."""
        before_s = _reference()
        self._part = name
        await asyncio.sleep(0)
        try:
            yield
        finally:
            self._part = ""
            await asyncio.sleep(0)
            self._slowness[name] = max(before_s, _reference()) / _REFERENCE_S

    def longest(self) -> list[LoopStep]:
        """The longest step of each part, longest first, scaled to the reference machine."""
        by_part: dict[str, LoopStep] = {}
        for (part, name), (cpu_s, collector_s) in self._longest.items():
            slowness = self._slowness.get(part, 1.0)
            if part and (part not in by_part or cpu_s / slowness > by_part[part].cpu_s):
                by_part[part] = LoopStep(cpu_s / slowness, part, name, collector_s / slowness)
        return sorted(by_part.values(), reverse=True)


class _CollectorTime:
    """The CPU time of the collector."""

    def __init__(self) -> None:
        self.spent_s = self._began_s = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.spent_s += time.thread_time() - self._began_s


def run_stepped(main: Callable[[SteppedLoop], Coroutine[Any, Any, _T]]) -> tuple[_T, list[LoopStep]]:
    """Run a coroutine on such a loop. Returns its result and the longest step of each part."""
    loop = SteppedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        gc.callbacks.append(loop._collector)
        try:
            result = runner.run(main(loop))
        finally:
            gc.callbacks.remove(loop._collector)
        return result, loop.longest()


def _name_of(callback: Any) -> str:
    """The coroutine that a task runs, or the function."""
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        while getattr(coroutine, "cr_await", None) is not None and hasattr(coroutine.cr_await, "cr_code"):
            coroutine = coroutine.cr_await
        return str(getattr(coroutine, "__qualname__", coroutine))
    return str(getattr(callback, "__qualname__", callback))


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

"""An event loop that measures each of its steps, in CPU time of its thread: how long one callback holds the loop."""

from __future__ import annotations

import asyncio
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


class SteppedLoop(asyncio.SelectorEventLoop):
    """Keeps the longest step of each name in each part."""

    def __init__(self) -> None:
        super().__init__()
        self._longest: dict[tuple[str, str], float] = {}
        self._part = ""

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        def step() -> None:
            part, name = self._part, _name_of(callback)
            began_s = time.thread_time()
            try:
                callback(*args)
            finally:
                spent_s = time.thread_time() - began_s
                known = (part, name)
                if spent_s > self._longest.get(known, 0.0):
                    self._longest[known] = spent_s

        return super().call_soon(step, context=context)

    @asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """Steps that begin in here belong to this part. It begins and ends with a step of its own."""
        self._part = name
        await asyncio.sleep(0)
        try:
            yield
        finally:
            self._part = ""
            await asyncio.sleep(0)

    def longest(self) -> list[LoopStep]:
        """The longest step of each part, longest first, scaled to the reference machine."""
        scale = _REFERENCE_S / _reference()
        by_part: dict[str, LoopStep] = {}
        for (part, name), cpu_s in self._longest.items():
            if part and (part not in by_part or cpu_s * scale > by_part[part].cpu_s):
                by_part[part] = LoopStep(cpu_s * scale, part, name)
        return sorted(by_part.values(), reverse=True)


def run_stepped(main: Callable[[SteppedLoop], Coroutine[Any, Any, _T]]) -> tuple[_T, list[LoopStep]]:
    """Run a coroutine on such a loop. Returns its result and the longest step of each part."""
    loop = SteppedLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main(loop))
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
    for _ in range(5):
        began_s = time.thread_time()
        found: dict[tuple[str, int], int] = {}
        for n in range(45_000):
            found["key", n] = n
        spent.append(time.thread_time() - began_s)
    return min(spent)

"""Long work is cut into steps of the event loop: all other work of the process waits while one step runs.

Workers of controllers, handlers of caches and the scheduler's cycles use it. Only time that passes without a wait
counts. In a simulation no time passes within a step, so nothing is cut there: a trace does not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

from kedge.env import Env

_T = TypeVar("_T")
STEP_SHARE = 0.4
"""Part of `Limits.step_s_max` after which work ends its step: the piece of work that reaches it still has to end."""


class StepBudget:
    """The time that one piece of repeated work has used of its step."""

    __slots__ = ("_began_s", "_budget_s", "_cuts", "_monotonic")

    def __init__(self, env: Env, of: str, *, share: float = STEP_SHARE) -> None:
        self._monotonic = env.monotonic
        self._budget_s = env.limits.step_s_max * share
        self._cuts = env.metrics.counter(
            "kedge_runtime_steps_cut_total",
            "Times that work went on in a later step, so that other work could run",
            ("of",),
        ).labels(of)
        self._began_s = self._monotonic()

    def begin(self) -> None:
        """A step begins, or went on after a wait."""
        self._began_s = self._monotonic()

    def used_up(self) -> bool:
        """Whether the work must go on in a later step. The caller suspends, and calls `begin` when it goes on."""
        if self._monotonic() - self._began_s < self._budget_s:
            return False
        self._cuts.inc()
        return True


class Waits(Generic[_T]):
    """Awaits a coroutine, and knows afterwards whether it ever suspended: `asyncio` has no count of a task's steps."""

    __slots__ = ("_coroutine", "waited")

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self.waited = False

    def __await__(self) -> Generator[Any, Any, _T]:
        steps = self._coroutine.__await__()
        try:
            future = next(steps)
            self.waited = True
            while True:
                try:
                    yield future
                except GeneratorExit:
                    steps.close()
                    raise
                except BaseException as error:  # noqa: BLE001  a cancellation too goes to the coroutine that waits
                    future = steps.throw(error)
                else:
                    break
        except StopIteration as end:
            result: _T = end.value
            return result
        return (yield from steps)

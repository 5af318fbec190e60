"""The end of a run: report the tasks that still wait, and close every coroutine that is left.

During a run nothing of a crashed host is finalized. After the outcome is complete the rest is closed here, so that the
interpreter does not warn about it in the middle of another run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kedge.sim.kernel.world import SimWorld

_CLOSE_ATTEMPTS = 10
_CREATED = inspect.CORO_CREATED


def waiting_tasks(world: SimWorld) -> list[str]:
    """Every task that has not ended, with the line it waits at."""
    lines = []
    for task in world.loop.pending():
        stack = task.get_stack(limit=1)
        place = "not started"
        if stack:
            code = stack[-1].f_code
            place = f"{code.co_filename.rsplit('/', 1)[-1]}:{stack[-1].f_lineno} in {code.co_name}"
        lines.append(f"{task.get_name()} waits at {place}")
    return lines


def tear_down(world: SimWorld) -> None:
    """Close every coroutine that is left. Their `finally` blocks run now, when they can no longer change the run."""
    loop = world.loop
    left = list(loop.pending())
    loop.close()
    hook = sys.unraisablehook
    sys.unraisablehook = bool
    try:
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro())
        world.forget()
    finally:
        sys.unraisablehook = hook
    _forget_tasks(loop)


def _forget_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Restore asyncio's register of tasks: its size affects the order of `all_tasks` in the next run."""
    registered: Any = getattr(asyncio.tasks, "_all_tasks", None)
    if registered is None:
        registered = getattr(asyncio.tasks, "_scheduled_tasks", set())  # its name since Python 3.12
    for task in list(registered):
        if task.get_loop() is loop:
            task._log_traceback = False
            registered.discard(task)
    if not registered:
        registered.clear()


def _close(coroutine: Any) -> None:
    _close_unstarted(coroutine)
    for _ in range(_CLOSE_ATTEMPTS):  # a `finally` block that awaits rejects the first attempts
        try:
            coroutine.close()
        except RuntimeError:
            continue
        except BaseException:  # noqa: BLE001
            return
        return
    with contextlib.suppress(BaseException):
        coroutine.throw(GeneratorExit)


def _close_unstarted(coroutine: Any) -> None:
    """Close coroutines that were passed to this one and never awaited: the interpreter would warn about them."""
    frame = getattr(coroutine, "cr_frame", None)
    for value in list(frame.f_locals.values()) if frame is not None else ():
        if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == _CREATED:
            _close_unstarted(value)
            value.close()

"""Waiting for the end of several tasks, in the same steps of the event loop on every Python.

A task that has already ended costs `asyncio.gather` one step on Python 3.11 and none on later versions, so traces of
simulations would depend on the version. Coroutines, none of which has begun, can be given to `asyncio.gather`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class _EndOfAll(asyncio.Future[list[Any]]):
    """Done when every task has ended. Cancelling it cancels the tasks, and it still waits for their end."""

    def __init__(self, tasks: tuple[asyncio.Future[Any], ...], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._tasks = tasks
        distinct = dict.fromkeys(tasks)
        self._running = len(distinct)
        self._cancel_asked = False
        for task in distinct:
            task.add_done_callback(self._task_ended)  # also if it has ended: the call is then a step of its own

    def cancel(self, msg: Any = None) -> bool:
        if self.done():
            return False
        asked = [task.cancel(msg) for task in self._tasks]
        self._cancel_asked = self._cancel_asked or any(asked)
        return any(asked)

    def _task_ended(self, _: asyncio.Future[Any]) -> None:
        self._running -= 1
        if self._running:
            return
        outcomes = [_outcome(task) for task in self._tasks]
        if self._cancel_asked:
            self.set_exception(asyncio.CancelledError())
        else:
            self.set_result(outcomes)


def _outcome(task: asyncio.Future[Any]) -> Any:
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


def gather_ended(*works: asyncio.Future[Any] | Coroutine[Any, Any, Any]) -> asyncio.Future[list[Any]]:
    """The result or the exception of each, in their order, once all have ended.

    As `asyncio.gather(*works, return_exceptions=True)`, but with equal steps on every version of Python.
    """
    loop = asyncio.get_running_loop()
    if works:
        return _EndOfAll(tuple(asyncio.ensure_future(each) for each in works), loop)
    nothing: asyncio.Future[list[Any]] = loop.create_future()
    nothing.set_result([])
    return nothing

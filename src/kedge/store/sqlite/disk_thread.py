"""A thread for the calls that may sync: commits, checkpoints, slices of a compaction. It runs one at a time.

The event loop waits for each, up to `Limits.sync_wait_s`, with the interpreter lock released. So the thread does not
compete for that lock while the disk is quick, and a disk that stalls does not hold the loop: `docs/decisions/0070`.
"""

from __future__ import annotations

import asyncio
import threading  # noqa: TID251  real disks only; nothing here is replayed
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kedge.env import Env
from kedge.errors import check


class DiskCall:
    """A call under way or ended. The thread sets `result` or `error` before it reports the end."""

    __slots__ = ("_loop", "ended", "error", "on_end", "result", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = False
        """False after `DiskThread.run` if the call outlasted the wait."""
        self.on_end: Callable[[], None] | None = None
        """Called by the loop when a call that outlasted the wait ends, before any other call can begin."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that no longer waits."""

    def outlasts(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def report(self, ended: Callable[[DiskCall], None]) -> None:
        """From the thread: notify the loop if it no longer waits."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to notify
                self._loop.call_soon_threadsafe(ended, self)


class _Handover:
    """The call that the loop hands to the thread. The thread has no reference to the store, which can be collected."""

    __slots__ = ("begun", "call", "done", "ended")

    def __init__(self, ended: weakref.WeakMethod[Callable[[DiskCall], None]]) -> None:
        self.begun = threading.Lock()  # released by the loop for each call
        self.done = threading.Lock()  # released by the thread after each call
        self.begun.acquire()
        self.done.acquire()
        self.call: DiskCall | None = None
        self.ended = ended

    def serve(self) -> None:
        while True:
            self.begun.acquire()
            call = self.call
            if call is None:
                return
            try:
                call.result = call.work()
            except BaseException as error:  # noqa: BLE001  it is raised where the loop takes the result
                call.error = error
            ended = self.ended()
            # In this order: the loop marks the call as late, then looks at `done` once more.
            self.done.release()
            if ended is not None:
                call.report(ended)
            del call, ended  # the thread waits here for long: it must not keep the store alive

    def stop(self) -> None:
        self.call = None
        self.begun.release()


class DiskThread:
    """Runs calls for one store. It starts with the first call."""

    def __init__(self, env: Env, name: str) -> None:
        self._limits = env.limits
        self._name = name
        self._handover = _Handover(weakref.WeakMethod(self._late_call_ended))
        self._current: DiskCall | None = None
        self._waiting: list[Callable[[], None]] = []  # until no call is under way; bounded by the store's own tasks
        self._stop: Callable[[], object] | None = None
        self._late = env.metrics.counter(
            "kedge_store_late_syncs_total", "Syncs and checkpoints that outlasted the event loop's wait for them"
        )

    @property
    def busy(self) -> bool:
        """Whether a call that outlasted the wait is under way. No other use of the connection may begin."""
        return self._current is not None

    def run(self, work: Callable[[], Any]) -> DiskCall:
        """Run `work` and wait for it, up to the limit. If it is not `ended` by then, set `on_end`."""
        check(self._current is None, "calls to the disk follow one another")
        handover = self._handover
        if self._stop is None:
            threading.Thread(target=handover.serve, name=self._name, daemon=True).start()
            self._stop = weakref.finalize(self, handover.stop)
        call = handover.call = self._current = DiskCall(work)
        handover.begun.release()
        try:
            call.ended = handover.done.acquire(timeout=self._limits.sync_wait_s)
        except BaseException:  # a signal handler raised: nothing may touch the connection before the thread is done
            handover.done.acquire()
            self._current = None
            raise
        if not call.ended:
            call.outlasts(asyncio.get_running_loop())
            call.ended = handover.done.acquire(blocking=False)  # it may have ended in between
        if call.ended:
            self._current = None
        else:
            self._late.inc()
        return call

    async def call(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, which leaves no transaction open, not even if it fails."""
        await self.free()
        call = self.run(work)
        if not call.ended:
            ended = asyncio.get_running_loop().create_future()
            call.on_end = lambda: None if ended.done() else ended.set_result(None)
            await ended
        if call.error is not None:
            raise call.error
        return call.result

    async def free(self) -> None:
        """Wait until no call is under way. The caller begins its own in the same step of the loop."""
        while self._current is not None:
            free = asyncio.get_running_loop().create_future()
            self.when_free(lambda free=free: None if free.done() else free.set_result(None))  # type: ignore[misc]
            await free

    def when_free(self, callback: Callable[[], None]) -> None:
        """Call back when the call under way has ended; another one may have begun by then."""
        self._waiting.append(callback)

    def stop(self) -> None:
        """End the thread, after the call under way."""
        if self._stop is not None:
            self._stop()

    def _late_call_ended(self, call: DiskCall) -> None:
        if self._current is not call:
            return  # it ended just as the wait did, and `run` has returned it as ended
        self._handover.done.acquire(blocking=False)
        self._current, call.ended = None, True
        if call.on_end is not None:
            call.on_end()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()

"""Tasks that wait for the queue to change.

A waiter that is woken and then cancelled passes the wake-up on; otherwise the wake-up would be lost with it.
"""

from __future__ import annotations

import asyncio


class Waiters:
    def __init__(self) -> None:
        self._futures: dict[asyncio.Future[None], None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._futures)

    async def wait(self) -> None:
        """Wait until woken. Check the condition again: another task may have been faster."""
        future = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():
                self.wake_one()
            raise
        finally:
            self._futures.pop(future, None)

    def wake_one(self) -> None:
        while self._futures:
            future = next(iter(self._futures))
            del self._futures[future]
            if not future.done():
                future.set_result(None)
                return

    def wake_all(self) -> None:
        while self._futures:
            self.wake_one()

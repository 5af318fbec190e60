"""The bound on requests in flight: a free slot is taken at once, and waiters are served in order.

As `asyncio.Semaphore`, but a free slot costs no coroutine, and most requests find one.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """`take` or `wait`, then `release`.

    Invariant: no request waits while a slot is free. A released slot goes to the longest waiter.
    """

    __slots__ = ("_limit", "_waiting", "taken")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0

    def take(self) -> bool:
        """Take a free slot; False if there is none: then `wait`."""
        if self.taken >= self._limit:
            return False
        self.taken += 1
        return True

    async def wait(self) -> None:
        """Wait for a slot and take it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:
                self.release()  # granted and cancelled at once: pass the slot on
            raise

    def release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the waiter keeps the slot
                return
        self.taken -= 1

"""The bound on requests in flight: a free slot is taken without waiting, and those who wait are served in turn.

As `asyncio.Semaphore`, but one that has room costs a request no coroutine: most requests find some.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """`take` or `wait`, then `give_back`.

    Invariant: nobody waits while a slot is free. One that is given back goes to whoever has waited longest.
    """

    __slots__ = ("_limit", "_waiting", "taken")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0

    def take(self) -> bool:
        """Take a slot if there is one: if not, `wait`."""
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
                self.give_back()  # the slot came together with the cancellation: to the next
            raise

    def give_back(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # it keeps the slot that was taken
                return
        self.taken -= 1

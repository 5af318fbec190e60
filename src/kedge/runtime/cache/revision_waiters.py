"""Readers that wait until a cache reaches a revision, or a version of one object."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from kedge.keys import Key, Revision


class RevisionWaiters:
    """Futures by revision and by key. The cache wakes them in the step that reaches it."""

    def __init__(self) -> None:
        self.by_revision: list[tuple[Revision, int, asyncio.Future[None]]] = []
        """A heap. Cancelled waiters are removed lazily, when they reach the top."""
        self.by_key: dict[Key, dict[asyncio.Future[None], None]] = {}
        self._number = count()
        self.waiting = 0

    def reached(self, revision: Revision) -> None:
        """Wake the waiters for `revision` or less."""
        waits = self.by_revision
        while waits and waits[0][0] <= revision:
            _wake(heapq.heappop(waits)[2])

    def changed(self, key: Key) -> None:
        """Wake the waiters for a version of `key`."""
        for future in self.by_key.pop(key, ()):
            _wake(future)

    def wake_all(self) -> None:
        """Wake every waiter: a list was applied."""
        for _, _, future in self.by_revision:
            _wake(future)
        self.by_revision.clear()
        for key in tuple(self.by_key):
            self.changed(key)

    async def until(self, holds: Callable[[], bool], *, revision: Revision, key: Key | None, within_s: float) -> bool:
        """Wait until `holds()`; False if it does not become true in time."""
        self.waiting += 1
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    await self._once(revision, key)
        except TimeoutError:
            return holds()
        finally:
            self.waiting -= 1
        return True

    async def _once(self, revision: Revision, key: Key | None) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self.by_revision, (revision, next(self._number), future))
        if key is not None:
            self.by_key.setdefault(key, {})[future] = None
        try:
            await future
        finally:
            future.cancel()
            self._drop_done()
            if key is not None and key in self.by_key:
                self.by_key[key].pop(future, None)
                if not self.by_key[key]:
                    del self.by_key[key]

    def _drop_done(self) -> None:
        """Without this, waiters that time out and come back would pile up while the cache does not move."""
        waits = self.by_revision
        while waits and waits[0][2].done():
            heapq.heappop(waits)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

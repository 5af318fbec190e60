"""Watches that are late by as much as a test wants. Lists and writes are not."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from kedge.api.requests import OpenWatch, WatchEvent
from kedge.sim.cluster import RemoteTransport

HOUR_S = 3600.0


class Delay:
    """The delay of every watch of a cluster. Lists and writes are not delayed."""

    def __init__(self) -> None:
        self.late_s = 0.0
        self.waiters: list[asyncio.Event] = []

    def become(self, late_s: float) -> None:
        self.late_s = late_s
        for each in self.waiters:
            each.set()


class LateTransport(RemoteTransport):
    """Delivers the events of a stream with a delay, in order and without loss."""

    def __init__(self, remote: Any, delay: Delay) -> None:
        super().__init__(remote)
        self._delay = delay

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        return self._later(await super().open_watch(request))

    async def _later(self, stream: AsyncGenerator[WatchEvent, None]) -> AsyncGenerator[WatchEvent, None]:
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[float, WatchEvent]] = deque()
        came = asyncio.Event()
        self._delay.waiters.append(came)

        async def read() -> None:
            async for event in stream:
                waiting.append((loop.time(), event))
                if len(waiting) == 1:
                    came.set()

        reader = asyncio.ensure_future(read())
        reader.add_done_callback(lambda _: came.set())
        try:
            while True:
                while waiting and waiting[0][0] + self._delay.late_s <= loop.time():
                    yield waiting.popleft()[1]
                if reader.done() and not waiting:
                    reader.result()
                    return
                came.clear()
                left_s = waiting[0][0] + self._delay.late_s - loop.time() if waiting else None
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await came.wait()
        finally:
            self._delay.waiters.remove(came)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await stream.aclose()

"""A TCP proxy on loopback that can refuse connections, drop replies, delay everything or disconnect on command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tests.etcd_server import free_port

_LATE_TURNS = 5
"""Turns of the loop in which a connection may still appear that was accepted before the proxy was closed."""


class Proxy:
    """Forwards to `target`, unless a fault is set."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.port = free_port()
        self.requests_flow = asyncio.Event()
        """Cleared: data of clients is not forwarded."""
        self.replies_flow = asyncio.Event()
        """Cleared: data of the server is not read, so that its buffers fill."""
        self.swallow_replies = False
        self.requests_flow.set()
        self.replies_flow.set()
        self._closed = False
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def refuse_new(self) -> None:
        """Stop listening. Connections that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def refuse(self) -> None:
        """Stop listening, and close every connection."""
        self.refuse_new()
        self.hang_up()

    def hang_up(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()
        for pump in tuple(self._pumps):
            pump.cancel()

    async def close(self) -> None:
        self._closed = True
        await self.refuse()
        await asyncio.gather(*tuple(self._pumps), return_exceptions=True)
        for _ in range(_LATE_TURNS):
            await asyncio.sleep(0)
            self.hang_up()
        await asyncio.gather(*tuple(self._pumps), return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
            return
        self._start(self._join(reader, writer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.partition(":")
        self._writers.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        if self._closed:
            writer.transport.abort()
            server_writer.transport.abort()
            return
        self._writers.add(server_writer)
        self._start(self._pump(reader, server_writer, self.requests_flow, replies=False))
        self._start(self._pump(server_reader, writer, self.replies_flow, replies=True))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event, *, replies: bool
    ) -> None:
        try:
            while True:
                await flows.wait()
                data = await reader.read(1 << 16)
                if not data:
                    break
                await flows.wait()
                if replies and self.swallow_replies:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()

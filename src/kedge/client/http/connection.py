"""One client connection on httptools, and a pool of them: one request at a time on each, kept alive between requests.

A request that is cancelled half way aborts its connection: its reply must never be taken for that of the next request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, cast

import httptools

from kedge.client.http.kubeconfig import ServerAddress
from kedge.errors import KedgeError

CONNECT_S = 10.0
IDLE_MAX = 256
"""Connections kept for the next requests. Callers bound the requests in flight; fewer connections than that would mean
TLS handshakes after every burst."""
LINE_BYTES_MAX = 64 * 1024 * 1024
"""One line of a watch; an object is far smaller."""


class RequestNotSent(KedgeError):
    """The request did not leave this process. Nothing was done."""


class ConnectionBroken(KedgeError):
    """The connection broke after the request was sent and before its reply was whole."""


class HttpReply:
    """The head of a reply; its body arrives in pieces."""

    __slots__ = ("body", "code", "ended", "headers")

    def __init__(self) -> None:
        self.code = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: deque[bytes] = deque()
        self.ended = False


class ClientConnection(asyncio.Protocol):
    """One connection. `exchange` sends a request and returns the reply's head as soon as it is there."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._reply = HttpReply()
        self._waiter: asyncio.Future[None] | None = None
        self._lost = False
        self._head_only = False
        self.reusable = True

    # -- asyncio.Protocol and httptools ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.abort()  # bytes that answer nothing
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._lost = True
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._reply.code = self._parser.get_status_code()
        self.reusable = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self._reply.body.append(body)

    def on_message_complete(self) -> None:
        if self._reply.code >= 200:
            self._reply.ended = True
        else:
            self._reply.code = 0  # 100 Continue: the reply itself follows

    # -- use ---------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        return self.reusable and not self._lost and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes) -> HttpReply:
        """Send a request; return its reply once the head is there.

        Raises:
            RequestNotSent: the connection was gone before anything was written.
            ConnectionBroken: it broke afterwards.
        """
        reply = self.begin(head, body)
        await self.wait_head(reply)
        return reply

    def begin(self, head: bytes, body: bytes) -> HttpReply:
        """Send a request now; nothing of its reply is there yet.

        Raises:
            RequestNotSent: the connection was gone before anything was written.
        """
        if not self.usable or self._transport is None:
            raise RequestNotSent("the connection is closed")
        self._reply = reply = HttpReply()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(head + body)
        return reply

    async def wait_head(self, reply: HttpReply) -> None:
        """Wait until the code and the headers of a reply are there. Raises `ConnectionBroken`."""
        while not reply.code:
            await self._wait()

    async def read(self, reply: HttpReply) -> bytes:
        """The whole body."""
        while not reply.ended:
            await self._wait()
        return reply.body[0] if len(reply.body) == 1 else b"".join(reply.body)

    async def read_lines(self, reply: HttpReply) -> AsyncIterator[bytes]:
        """The body line by line, as it arrives."""
        rest = b""
        while True:
            while reply.body:
                *lines, rest = (rest + reply.body.popleft()).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > LINE_BYTES_MAX:
                    raise ConnectionBroken(f"a line of the stream is longer than {LINE_BYTES_MAX} bytes")
            if reply.ended:
                return
            await self._wait()

    async def _wait(self) -> None:
        if self._lost:
            raise ConnectionBroken("the connection broke")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()


class ConnectionPool:
    """Connections to one server. Idle ones are reused, newest first; the caller bounds how many are in use."""

    def __init__(self, address: ServerAddress, *, idle_max: int = IDLE_MAX) -> None:
        self._address = address
        self._idle: list[ClientConnection] = []
        self._idle_max = idle_max
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._shared = f"Host: {host}:{address.port}\r\nUser-Agent: kedge\r\n".encode()
        if address.token:
            self._shared += f"Authorization: Bearer {address.token}\r\n".encode()

    def head(self, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], length: int) -> bytes:
        extra = b"".join(b"%b: %b\r\n" % each for each in headers)
        size = b"Content-Length: %d\r\n" % length if length or method in ("POST", "PUT", "PATCH") else b""
        return f"{method} {target} HTTP/1.1\r\n".encode() + self._shared + extra + size + b"\r\n"

    async def request(self, head: bytes, body: bytes) -> tuple[HttpReply, bytes]:
        """Send one request and read its whole reply. Cancelled, it aborts its connection.

        Raises:
            RequestNotSent, ConnectionBroken: as `ClientConnection.exchange`.
        """
        connection = await self.take()
        try:
            reply = await connection.exchange(head, body)
            answer = await connection.read(reply)
        except BaseException:
            connection.abort()
            raise
        self.give_back(connection)
        return reply, answer

    def give_back(self, connection: ClientConnection) -> None:
        """Keep a connection for the next caller: the reply to its last request was read to its end."""
        if connection.usable and len(self._idle) < self._idle_max:
            self._idle.append(connection)
        else:
            connection.abort()

    @property
    def has_idle(self) -> bool:
        return bool(self._idle)

    def take_nowait(self) -> ClientConnection | None:
        """As `take`, if one is idle."""
        while self._idle:
            found = self._idle.pop()
            if found.usable:
                return found
        return None

    async def take(self) -> ClientConnection:
        """A connection for one caller, which aborts it at the end, or gives it back."""
        if (idle := self.take_nowait()) is not None:
            return idle
        address = self._address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                hostname = address.host if address.tls is not None else None
                _, connection = await loop.create_connection(
                    ClientConnection, address.host, address.port, ssl=address.tls, server_hostname=hostname
                )
        except (OSError, TimeoutError) as error:
            raise RequestNotSent(f"{address.host}:{address.port} cannot be reached: {error or 'no answer'}") from error
        return connection

    async def close(self) -> None:
        for each in self._idle:
            each.abort()
        self._idle.clear()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

"""One HTTP/1.1 connection: bytes in, requests out, replies in order. Built on httptools; runs on any asyncio loop.

It enforces the limits of size and time and answers a parse error with a `Status`. It knows no paths: `Handler` does.
One request of a connection is handled at a time; requests that a client pipelines wait, and reading pauses meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, Protocol

import httptools

from kedge.env import Env
from kedge.server.http.status import status_body

_PIPELINED_MAX = 16
_REASONS = {status.value: status.phrase for status in HTTPStatus}
JSON = b"application/json"

Header = tuple[bytes, bytes]


class HttpRequest:
    """One request, whole. Header names are lower case; values of a header that stands twice are joined by a comma."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "peer", "query", "version")

    def __init__(self) -> None:
        self.method = ""
        self.path = b""
        self.query = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.keep_alive = True
        self.version = "1.1"
        self.peer: dict[str, Any] | None = None
        """The client's certificate, as `ssl` describes it; None without one."""


class Handler(Protocol):
    """Answers requests. An exception that escapes becomes a 500 and closes the connection."""

    def __call__(self, request: HttpRequest, exchange: Exchange) -> Coroutine[Any, Any, None]: ...


class HttpError(Exception):
    """The request cannot be read. The connection answers with a `Status` and closes."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class Connections:
    """All connections of one server: their limits, their deadlines, and how they end."""

    def __init__(self, handler: Handler, env: Env) -> None:
        self.handler = handler
        self.env = env
        self.limits = env.limits
        self.open: set[HttpConnection] = set()
        self.draining = False
        self._emptied = asyncio.Event()
        metrics = env.metrics
        self.refused = metrics.counter(
            "kedge_http_connections_refused_total", "Connections closed at once, because too many were open", ()
        )
        self.unreadable = metrics.counter("kedge_http_unreadable_total", "Requests that could not be parsed", ("code",))
        metrics.gauge("kedge_http_connections", "Open connections", ()).set_function(lambda: len(self.open))

    def protocol(self) -> HttpConnection:
        """A factory for `loop.create_server`."""
        return HttpConnection(self)

    async def run_deadlines(self) -> None:
        """Close connections that are idle or too slow, for ever. One sweep a second costs less than a timer each."""
        while True:
            await asyncio.sleep(1.0)
            now = self.env.monotonic()
            for connection in [each for each in self.open if each.deadline_s < now]:
                connection.expire()

    def drain(self) -> None:
        """Close idle connections, let requests in progress finish, and answer new ones with `draining` set."""
        self.draining = True
        for connection in tuple(self.open):
            connection.close_when_idle()

    async def wait_closed(self) -> None:
        """Wait until no connection is open. The caller bounds the wait."""
        while self.open:
            self._emptied.clear()
            await self._emptied.wait()

    def remove(self, connection: HttpConnection) -> None:
        self.open.discard(connection)
        if not self.open:
            self._emptied.set()

    def abort(self) -> None:
        for connection in tuple(self.open):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    """The protocol object of one connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request = HttpRequest()
        self._reading_head = False
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._waiting: deque[HttpRequest] = deque()
        self._exchange: Exchange | None = None
        self._failed = False
        self._closing = False
        self._peer: dict[str, Any] | None = None
        self._writable: asyncio.Event | None = None
        self.deadline_s = 0.0

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._connections.open) >= self._limits.http_connections_max:
            self._connections.refused.inc()
            transport.abort()
            return
        self._connections.open.add(self)
        transport.set_write_buffer_limits(high=self._limits.http_write_buffer_bytes)
        tls = transport.get_extra_info("ssl_object")
        self._peer = tls.getpeercert() or None if tls is not None else None
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        if self._failed:
            return
        if not self._reading_head and not self._body_bytes:
            self.deadline_s = self._connections.env.monotonic() + self._limits.http_request_s
        try:
            self._parser.feed_data(data)
            if self._reading_head:
                self._head_bytes += len(data)
                self._check_head(self._head_bytes)
        except HttpError as error:
            self._refuse(error)
        except httptools.HttpParserUpgrade:
            # The request is answered as plain HTTP, and its connection closed: later bytes may be of another protocol.
            self._failed = True
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(
                cause
                if isinstance(cause, HttpError)
                else HttpError(400, "BadRequest", f"malformed HTTP request: {error}")
            )

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.remove(self)
        self._failed = True
        self._waiting.clear()
        if self._writable is not None:
            self._writable.set()
        if self._exchange is not None:
            self._exchange.lost()

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    # -- httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._request = HttpRequest()
        self._reading_head = True
        self._head_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._request.path += url
        if len(self._request.path) > self._limits.http_url_bytes_max:
            raise HttpError(414, "RequestURITooLong", f"the URL is longer than {self._limits.http_url_bytes_max} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._check_head(self._head_bytes)
        headers, name = self._request.headers, name.lower()
        headers[name] = b"%b, %b" % (headers[name], value) if name in headers else value

    def on_headers_complete(self) -> None:
        self._reading_head = False
        request, parser = self._request, self._parser
        request.method = parser.get_method().decode("latin-1")
        request.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        request.version = parser.get_http_version()
        request.peer = self._peer
        if b"?" in request.path:
            request.path, _, request.query = request.path.partition(b"?")
        length = request.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._limits.http_body_bytes_max:
            raise self._body_too_large()
        if request.headers.get(b"expect", b"").lower() == b"100-continue" and self._exchange is None:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.http_body_bytes_max:
            raise self._body_too_large()

    def on_message_complete(self) -> None:
        request = self._request
        request.body = b"".join(self._body) if len(self._body) != 1 else self._body[0]
        self._body = []
        self._body_bytes = 0
        if self._exchange is None:
            self._begin(request)
            return
        if len(self._waiting) >= _PIPELINED_MAX:
            raise HttpError(400, "BadRequest", f"more than {_PIPELINED_MAX} requests are pipelined: wait for replies")
        self._waiting.append(request)
        if self._transport is not None:
            self._transport.pause_reading()

    def _check_head(self, size: int) -> None:
        if size > self._limits.http_header_bytes_max:
            raise HttpError(
                431,
                "RequestHeaderFieldsTooLarge",
                f"headers are larger than {self._limits.http_header_bytes_max} bytes",
            )

    def _body_too_large(self) -> HttpError:
        return HttpError(
            413, "RequestEntityTooLarge", f"the body is larger than {self._limits.http_body_bytes_max} bytes"
        )

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, request: HttpRequest) -> None:
        exchange = self._exchange = Exchange(self, request)
        self.deadline_s = float("inf")
        exchange.task = asyncio.get_running_loop().create_task(self._handle(request, exchange))

    async def _handle(self, request: HttpRequest, exchange: Exchange) -> None:
        try:
            await self._connections.handler(request, exchange)
        finally:
            if not exchange.ended:
                self.abort()  # half a reply cannot be taken back: the client must see that it is cut

    def ended(self, exchange: Exchange, *, keep_alive: bool) -> None:
        """The reply is written: go on with the next request, or close."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        if not keep_alive or self._closing or self._failed:
            self._close()
        elif self._waiting:
            request = self._waiting.popleft()
            if not self._waiting and self._transport is not None:
                self._transport.resume_reading()
            self._begin(request)
        else:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        self.deadline_s = self._connections.env.monotonic() + self._limits.http_idle_s

    def _refuse(self, error: HttpError) -> None:
        """Answer a request that cannot be read. A reply under way is cut instead: its client sees that."""
        self._failed = True
        self._connections.unreadable.labels(str(error.code)).inc()
        if self._exchange is not None:
            self.abort()
            return
        body = status_body(error.code, error.reason, str(error))
        self._write(_head(error.code, JSON, (), len(body), keep_alive=False) + body)
        self._close()

    def expire(self) -> None:
        """The deadline is past: half a request gets a 408, silence gets nothing."""
        if self._reading_head or self._body_bytes or self._body:
            self._refuse(
                HttpError(408, "Timeout", f"the request was not complete after {self._limits.http_request_s} s")
            )
        else:
            self._close()

    # -- output ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def congested(self) -> bool:
        """Whether the client reads slower than the server writes."""
        return self._writable is not None

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""
        if self._writable is not None:
            await self._writable.wait()

    def close_when_idle(self) -> None:
        self._closing = True
        if self._exchange is None and not self._reading_head:
            self._close()

    @property
    def draining(self) -> bool:
        return self._connections.draining

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Exchange:
    """The reply to one request. `respond` sends it whole; `start`, `write` and `end` stream it in chunks."""

    __slots__ = ("_connection", "_keep_alive", "_on_lost", "_plain", "_request", "closed", "ended", "started", "task")

    def __init__(self, connection: HttpConnection, request: HttpRequest) -> None:
        self._connection = connection
        self._request = request
        self._keep_alive = request.keep_alive
        self._on_lost: Callable[[], None] | None = None
        self._plain = False
        self.task: asyncio.Task[None] | None = None
        self.started = False
        self.ended = False
        self.closed = False
        """The client is gone. Writing is harmless and reaches nothing."""

    def respond(self, code: int, body: bytes, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        """Send the whole reply."""
        self.started = self.ended = True
        connection = self._connection
        keep_alive = self._keep_alive and not connection.draining
        head = _head(code, content_type, headers, len(body), keep_alive=keep_alive)
        connection.write(head if self._request.method == "HEAD" else head + body)
        connection.ended(self, keep_alive=keep_alive)

    def start(self, code: int, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        """Begin a reply whose length is not known: in chunks, or until the connection closes for HTTP/1.0."""
        self.started = True
        self._plain = self._request.version == "1.0"
        if self._plain:
            self._keep_alive = False
        self._connection.write(
            _head(code, content_type, headers, None, keep_alive=self._keep_alive, chunked=not self._plain)
        )

    def write(self, data: bytes) -> None:
        if data and not self.closed:
            self._connection.write(data if self._plain else b"%x\r\n%b\r\n" % (len(data), data))

    @property
    def congested(self) -> bool:
        return self._connection.congested

    async def drained(self) -> None:
        await self._connection.drained()

    def end(self) -> None:
        self.ended = True
        if not self._plain:
            self._connection.write(b"0\r\n\r\n")
        self._connection.ended(self, keep_alive=self._keep_alive and not self._connection.draining)

    def on_lost(self, notify: Callable[[], None]) -> None:
        """Call `notify` when the client is gone; at once if it is."""
        self._on_lost = notify
        if self.closed:
            notify()

    def lost(self) -> None:
        self.closed = True
        if self._on_lost is not None:
            self._on_lost()


def _head(
    code: int,
    content_type: bytes,
    headers: Iterable[Header],
    length: int | None,
    *,
    keep_alive: bool,
    chunked: bool = False,
) -> bytes:
    parts = [
        b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nCache-Control: no-cache, private\r\n"
        % (code, _REASONS.get(code, "").encode(), content_type)
    ]
    parts.extend(b"%b: %b\r\n" % header for header in headers)
    if length is not None:
        parts.append(b"Content-Length: %d\r\n" % length)
    elif chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if not keep_alive:
        parts.append(b"Connection: close\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)

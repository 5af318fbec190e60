"""One HTTP/1.1 connection: bytes in, requests out, replies in order. Built on httptools; runs on any asyncio loop.

It enforces the limits of size and time and answers a parse error with a `Status`. It knows no paths: `Handler` does.
One request of a connection is handled at a time; requests that a client pipelines wait, and reading pauses meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import httptools

from kedge.server.http.exchange import JSON, Exchange, HttpRequest, PeerCertificate
from kedge.server.http.peers import address_of
from kedge.server.http.reply_head import reply_head
from kedge.server.http.status import status_body

if TYPE_CHECKING:
    from kedge.server.http.connections import Connections

_METHODS = {each.encode(): each for each in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}

_SPECIAL = frozenset(
    {b"connection", b"content-length", b"expect", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
"""Headers about the connection, or about how a body arrives. Most gets have none of them."""


class HttpError(Exception):
    """The request cannot be read. The connection answers with a `Status` and closes."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class HttpConnection(asyncio.Protocol):
    """The protocol object of one connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._limits = connections.limits
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._request = HttpRequest()
        self._receiving = False
        """Whether a request has begun to arrive and is not complete."""
        self._reading_head = False
        self._head_bytes = 0
        self._special = False
        """Whether the head has a header of `_SPECIAL`."""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._waiting: deque[HttpRequest] = deque()
        self._exchange: Exchange | None = None
        self._failed = False
        self._peer: PeerCertificate | None = None
        self._writable: asyncio.Event | None = None
        self._paused = False
        """Whether reading is paused, because of requests that wait or a client that does not read."""
        self._unread_bytes = 0
        self._request_deadline_s = 0.0
        """When a request that has begun to arrive must be whole; 0 until it is known."""
        self._body_bytes_seen = 0
        self.deadline_s = 0.0
        self.address = ""

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.address = address_of(opened.get_extra_info("peername"))
        tls = opened.get_extra_info("ssl_object")
        if tls is None and not self._connections.peers.has_room(self.address):  # `TlsListener` checks it before TLS
            self._connections.refused.inc()
            opened.abort()
            return
        self._connections.open.add(self)
        self._connections.peers.add(self.address, self)
        opened.set_write_buffer_limits(high=self._limits.http_write_buffer_bytes)
        facts = tls.getpeercert() if tls is not None else None
        self._peer = PeerCertificate(facts) if facts else None
        wait_s = min(self._limits.http_first_request_s, self._limits.http_idle_s)
        self.deadline_s = self._connections.env.monotonic() + wait_s

    def data_received(self, data: bytes) -> None:
        if self._failed:
            return
        was_receiving, was_in_head = self._receiving, self._reading_head
        try:
            self._parser.feed_data(data)
            if self._receiving and (not was_receiving or self._reading_head is not was_in_head):
                self._wait_for_rest()
            if self._reading_head:
                self._head_bytes += len(data)
                if self._head_bytes > self._limits.http_header_bytes_max:
                    raise self._head_too_large()
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

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._connections.remove(self)
        self._failed = True
        self._waiting.clear()
        if self._writable is not None:
            self._writable.set()
        if self._exchange is not None:
            self._exchange.lost()

    def pause_writing(self) -> None:
        """The client reads too slowly: take no more requests from it, and give it time to read."""
        self._writable = asyncio.Event()
        if self._exchange is not None:
            self._exchange.congested = True
        if self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
            self._give_time_to_read(self._transport)

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._exchange is not None:
            self.deadline_s = float("inf")
            self._exchange.congested = False
            self._exchange.writable()
        else:
            self._next_request()

    def _give_time_to_read(self, transport: asyncio.Transport) -> None:
        self._unread_bytes = transport.get_write_buffer_size()
        self.deadline_s = self._connections.env.monotonic() + self._limits.http_stalled_s

    # -- httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._request = HttpRequest(late=self._connections.draining)
        self._receiving = True
        self._reading_head = True
        self._head_bytes = 0
        self._special = False
        self._request_deadline_s = 0.0

    def on_url(self, url: bytes) -> None:
        self._request.path += url
        if len(self._request.path) > self._limits.http_url_bytes_max:
            raise HttpError(414, "RequestURITooLong", f"the URL is longer than {self._limits.http_url_bytes_max} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.http_header_bytes_max:
            raise self._head_too_large()
        if not self._reading_head:
            return  # a trailer behind a chunked body: a proxy that removes headers has not seen it
        headers, name = self._request.headers, name.lower()
        headers[name] = b"%b, %b" % (headers[name], value) if name in headers else value
        if name in _SPECIAL:
            self._special = True

    def on_headers_complete(self) -> None:
        self._reading_head = False
        request, parser = self._request, self._parser
        method = parser.get_method()
        request.method = _METHODS.get(method) or method.decode("latin-1")
        request.version = parser.get_http_version()
        request.peer = self._peer
        if b"?" in request.path:
            request.path, _, request.query = request.path.partition(b"?")
        if self._special or request.version != "1.1" or method not in _METHODS:
            self._check_special(request)

    def _check_special(self, request: HttpRequest) -> None:
        """Whether the connection stays open, and how the body arrives. Without a special header, a request of a known
        method in HTTP/1.1 keeps the connection and has no body."""
        parser = self._parser
        request.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        coding = request.headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            raise HttpError(400, "BadRequest", "the transfer encoding is not chunked: send no other one")
        length = request.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._limits.http_body_bytes_max:
            raise self._body_too_large()
        if request.headers.get(b"expect", b"").lower() == b"100-continue" and self._exchange is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.http_body_bytes_max:
            raise self._body_too_large()

    def on_message_complete(self) -> None:
        request = self._request
        self._receiving = False
        if self._body:
            request.body = b"".join(self._body) if len(self._body) != 1 else self._body[0]
            self._body = []
            self._body_bytes = 0
        if self._exchange is None and self._writable is None:
            self._begin(request)
            return
        most = self._limits.http_pipelined_max
        if len(self._waiting) >= most:
            raise HttpError(400, "BadRequest", f"more than {most} requests are pipelined: wait for replies")
        self._waiting.append(request)
        if self._writable is None:
            self.deadline_s = float("inf")  # the exchange under way has no deadline
        if self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _head_too_large(self) -> HttpError:
        largest = self._limits.http_header_bytes_max
        return HttpError(431, "RequestHeaderFieldsTooLarge", f"headers are larger than {largest} bytes")

    def _body_too_large(self) -> HttpError:
        return HttpError(
            413, "RequestEntityTooLarge", f"the body is larger than {self._limits.http_body_bytes_max} bytes"
        )

    # -- requests ----------------------------------------------------------------------------------

    def _begin(self, request: HttpRequest) -> None:
        exchange = self._exchange = Exchange(self, request, request.keep_alive, self._connections.env.monotonic())
        self.deadline_s = float("inf")
        if self._connections.handler.answer_nowait(request, exchange):
            if not exchange.ended and not exchange.deferred:
                self.abort()  # as in `_handle`
            return
        self.handle_in_task(request, exchange)

    def handle_in_task(self, request: HttpRequest, exchange: Exchange) -> None:
        exchange.task = asyncio.get_running_loop().create_task(self._handle(request, exchange))

    async def _handle(self, request: HttpRequest, exchange: Exchange) -> None:
        try:
            await self._connections.handler(request, exchange)
        finally:
            if not exchange.ended:
                self.abort()  # half a reply cannot be taken back: the client must see that it is cut

    def ended(self, exchange: Exchange, *, keep_alive: bool, now_s: float) -> None:
        """The reply is written: go on with the next request, or close."""
        if self._exchange is not exchange:
            return
        self._exchange = None
        if not keep_alive or self._failed:
            self.close()
        elif self._writable is not None:
            return
        elif self._waiting or self._paused:
            self._next_request()
        else:
            self.deadline_s = now_s + (self._limits.http_request_s if self._receiving else self._limits.http_idle_s)

    def _next_request(self) -> None:
        """Go on with a request that was pipelined, or wait for one."""
        request = self._waiting.popleft() if self._waiting else None
        if self._paused and not self._waiting and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        if request is not None:
            self._begin(request)
        else:
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        if self._receiving:
            self._wait_for_rest()
        else:
            self.deadline_s = self._connections.env.monotonic() + self._limits.http_idle_s

    def _wait_for_rest(self) -> None:
        """Half a request is here: its head must come soon, and its body steadily."""
        now, limits = self._connections.env.monotonic(), self._limits
        if not self._request_deadline_s:
            self._request_deadline_s = now + limits.http_request_s
        self._body_bytes_seen = self._body_bytes
        wait_s = limits.http_head_s if self._reading_head else limits.http_body_check_s
        self.deadline_s = min(now + wait_s, self._request_deadline_s)

    def _refuse(self, error: HttpError) -> None:
        """Answer a request that cannot be read. A reply under way is cut instead: its client sees that."""
        self._failed = True
        self._connections.unreadable.labels(str(error.code)).inc()
        if self._exchange is not None:
            self.abort()
            return
        body = status_body(error.code, error.reason, str(error))
        head = reply_head(error.code, JSON, (), len(body), keep_alive=False)
        self.write(head if self._parser.get_method() == b"HEAD" else head + body)
        self._close_after_reply()

    def _close_after_reply(self) -> None:
        """Close once the client has closed, at the latest after `http_lingering_s`; later bytes are thrown away.

        Closed at once, a socket answers bytes of the client with a reset, which can destroy the reply on its way.
        """
        self.deadline_s = float("inf")
        asyncio.get_running_loop().call_later(self._limits.http_lingering_s, self.close)
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def expire(self) -> None:
        """The deadline is past: half a request gets a 408, silence gets nothing, and a client that does not read its
        replies is cut off."""
        if self._writable is not None and self._transport is not None:
            read = self._unread_bytes - self._transport.get_write_buffer_size()
            if read >= self._limits.http_write_buffer_bytes // 4:
                self._give_time_to_read(self._transport)
            else:
                self._connections.stalled.inc()
                self.abort()
        elif self._receiving:
            self._expire_request()
        else:
            self.close()

    def _expire_request(self) -> None:
        """Refuse a request that arrives too slowly, or check it again later."""
        limits, now = self._limits, self._connections.env.monotonic()
        if now >= self._request_deadline_s:
            self._refuse(HttpError(408, "Timeout", f"the request was not complete after {limits.http_request_s} s"))
        elif self._reading_head:
            self._refuse(HttpError(408, "Timeout", f"the head was not complete after {limits.http_head_s} s"))
        elif self._body_bytes - self._body_bytes_seen < limits.http_body_check_bytes_min:
            slow = f"less than {limits.http_body_check_bytes_min} bytes in {limits.http_body_check_s} s"
            self._refuse(HttpError(408, "Timeout", f"the body arrives too slowly: {slow}"))
        else:
            self._body_bytes_seen = self._body_bytes
            self.deadline_s = min(now + limits.http_body_check_s, self._request_deadline_s)

    # -- output ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written."""
        if self._writable is not None:
            await self._writable.wait()

    @property
    def busy(self) -> bool:
        """Whether a request is under way, or one that has begun to arrive is still expected."""
        return self._exchange is not None or (self._receiving and not self._failed)

    @property
    def dispensable(self) -> bool:
        """Whether no request is under way, so that the connection may make room for another one."""
        return self._exchange is None and not self._waiting

    @property
    def idle(self) -> bool:
        """Whether the client may still send a request."""
        return not self._failed and self._transport is not None and not self._transport.is_closing()

    def take_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raw streams instead of HTTP. The connection still counts, and is cut when the server stops."""
        assert self._transport is not None
        self._failed = True  # nothing more is parsed
        reader = asyncio.StreamReader(limit=self._limits.stream_buffer_bytes)
        protocol = _RawProtocol(reader, self)
        self._transport.set_protocol(protocol)
        self._transport.set_write_buffer_limits(high=self._limits.stream_buffer_bytes)
        protocol.connection_made(self._transport)
        if self._transport.is_closing():
            reader.feed_eof()
        return reader, asyncio.StreamWriter(self._transport, protocol, reader, asyncio.get_running_loop())

    def began(self, method: str, code: int) -> None:
        """Count a request whose reply is a stream."""
        self._connections.count(method, code, self.now_s())

    def answered(self, method: str, code: int, begun_s: float) -> float:
        """Count and measure a request that began at `begun_s` and whose reply is whole. Returns the time now."""
        connections = self._connections
        now_s = connections.env.monotonic()
        connections.count(method, code, now_s).observe(now_s - begun_s)
        return now_s

    def now_s(self) -> float:
        return self._connections.env.monotonic()

    @property
    def draining(self) -> bool:
        return self._connections.draining

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _RawProtocol(asyncio.StreamReaderProtocol):
    """The protocol object of a connection that has left HTTP."""

    def __init__(self, reader: asyncio.StreamReader, connection: HttpConnection) -> None:
        super().__init__(reader)
        self._http = connection

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._http.connection_lost(exc)

"""One HTTP request and the reply to it. `connection` reads requests and carries the bytes of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kedge.server.http.reply_head import Header, as_chunk, reply_head

if TYPE_CHECKING:
    from kedge.api.access import Caller
    from kedge.server.http.connection import HttpConnection
    from kedge.server.http.flow import Seat
    from kedge.server.http.request_audit import RequestAudit

JSON = b"application/json"
_SWITCHED = 101
"""The code of a connection that has left HTTP."""


class PeerCertificate(msgspec.Struct, eq=False):
    """The client certificate of a connection, which TLS has checked."""

    facts: Mapping[str, Any]
    """As `ssl` describes it."""
    caller: Caller | None = None
    """The caller that it names, once a request was authenticated."""


class HttpRequest(msgspec.Struct, eq=False):
    """One request, whole. Header names are lower case; values of a header that stands twice are joined by a comma."""

    method: str = ""
    path: bytes = b""
    query: bytes = b""
    headers: dict[bytes, bytes] = {}  # a new one each
    body: bytes = b""
    keep_alive: bool = True
    version: str = "1.1"
    late: bool = False
    """Whether it began to arrive after the server had begun to stop."""
    caller: Caller | None = None
    """In a call of a batch: the caller of the batch."""
    peer: PeerCertificate | None = None
    """The client's certificate; None without one."""


class Handler(Protocol):
    """Answers requests. An exception that escapes becomes a 500 and closes the connection."""

    def __call__(self, request: HttpRequest, exchange: Exchange) -> Coroutine[Any, Any, None]: ...

    def answer_nowait(self, request: HttpRequest, exchange: Exchange) -> bool:
        """Answer at once, or in a later turn if it sets `deferred`; or return False and do nothing: then it is called,
        in a task."""


class Exchange(msgspec.Struct, eq=False, weakref=True):
    """The reply to one request. `respond` sends it whole; `start`, `write` and `end` stream it in chunks."""

    connection: HttpConnection
    request: HttpRequest
    keep_alive: bool
    """Whether the client wants the connection to stay open."""
    begun_s: float
    audit: RequestAudit | None = None
    """The entry of the audit log in the making; None for a request that is not logged."""
    task: asyncio.Task[None] | None = None
    seat: Seat | None = None
    """The right to be under way, of a request that is handled in a task."""
    streamed_bytes: int = 0
    deferred: bool = False
    """Whether it needs no task, and is answered in a later turn of the loop."""
    started: bool = False
    ended: bool = False
    closed: bool = False
    """The client is gone. Writing is harmless and reaches nothing."""
    congested: bool = False
    """Whether the client reads slower than the server writes. The connection sets it."""
    _on_lost: Callable[[], None] | None = None
    _on_writable: Callable[[], None] | None = None
    _plain: bool = False
    _head_only: bool = False

    def respond(self, code: int, body: bytes, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        """Send the whole reply."""
        self.started = self.ended = True
        if self.audit is not None:
            self.audit.answered(code)
        connection = self.connection
        now_s = connection.answered(self.request.method, code, self.begun_s)
        keep_alive = self.keep_alive and not connection.draining
        head = reply_head(code, content_type, headers, len(body), keep_alive=keep_alive)
        connection.write(head if self.request.method == "HEAD" else head + body)
        connection.ended(self, keep_alive=keep_alive, now_s=now_s)

    def start(self, code: int, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        """Begin a reply whose length is not known: in chunks, or until the connection closes for HTTP/1.0."""
        self.started = True
        if self.audit is not None:
            self.audit.started(code)
        self.connection.began(self.request.method, code)
        self._plain = self.request.version == "1.0"
        self._head_only = self.request.method == "HEAD"
        if self._plain:
            self.keep_alive = False
        self.connection.write(
            reply_head(code, content_type, headers, None, keep_alive=self.keep_alive, chunked=not self._plain)
        )

    def write(self, data: bytes) -> None:
        if data and not self.closed and not self._head_only:
            self.connection.write(data if self._plain else as_chunk(data))

    def write_pieces(self, pieces: Sequence[bytes]) -> None:
        """As `write`, of several pieces in one chunk: they are copied once."""
        if self.closed:
            return
        size = sum(map(len, pieces))
        self.streamed_bytes += size
        if self._head_only:
            return
        if self._plain:
            self.connection.write(b"".join(pieces))
        else:
            self.connection.write(b"".join([b"%x\r\n" % size, *pieces, b"\r\n"]))

    @property
    def chunked(self) -> bool:
        return not self._plain

    def write_chunk(self, chunk: bytes) -> None:
        """Write what `as_chunk` returned, to a reply that is `chunked`."""
        if not self.closed:
            self.connection.write(chunk)

    async def drained(self) -> None:
        """Wait until the client has read enough for more to be written. Others have its seat meanwhile."""
        seat = self.seat
        if seat is None or not self.congested:
            await self.connection.drained()
            return
        seat.park()
        await self.connection.drained()
        if not self.closed:
            await seat.resume()

    def leave_seat(self) -> None:
        """The request goes on for long and costs little from now on, such as a watch."""
        if self.seat is not None:
            self.seat.leave()
            self.seat = None

    def end(self) -> None:
        self.ended = True
        if not self._plain and not self._head_only:
            self.connection.write(b"0\r\n\r\n")
        connection = self.connection
        connection.ended(self, keep_alive=self.keep_alive and not connection.draining, now_s=connection.now_s())

    def on_writable(self, notify: Callable[[], None]) -> None:
        """Call `notify` each time that the client has read enough after it was `congested`."""
        self._on_writable = notify

    def writable(self) -> None:
        if self._on_writable is not None:
            self._on_writable()

    def take_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Leave HTTP: the caller writes the reply and all that follows as raw bytes, and closes the connection."""
        self.started = self.ended = True
        if self.audit is not None:
            self.audit.started(_SWITCHED)
        return self.connection.take_over()

    def on_lost(self, notify: Callable[[], None]) -> None:
        """Call `notify` when the client is gone; at once if it is."""
        self._on_lost = notify
        if self.closed:
            notify()

    def lost(self) -> None:
        self.closed = True
        if self._on_lost is not None:
            self._on_lost()

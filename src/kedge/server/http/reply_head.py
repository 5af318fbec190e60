"""The head of a reply as bytes, and the chunks of a streamed one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from kedge.caches import remembered

Header = tuple[bytes, bytes]
_REASONS = {status.value: status.phrase for status in HTTPStatus}


def as_chunk(data: bytes) -> bytes:
    """One chunk of a streamed reply."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def reply_head(
    code: int,
    content_type: bytes,
    headers: Iterable[Header],
    length: int | None,
    *,
    keep_alive: bool,
    chunked: bool = False,
) -> bytes:
    """The status line and headers of a reply. Without a length it ends with its connection, or is `chunked`."""
    first = _first_lines(code, content_type, keep_alive=keep_alive, chunked=chunked and length is None)
    more = b"".join([b"%b: %b\r\n" % header for header in headers]) if headers else b""
    return b"%b%bContent-Length: %d\r\n\r\n" % (first, more, length) if length is not None else first + more + b"\r\n"


@remembered(entries=256, entry_bytes=1024)  # codes and media types of our own
def _first_lines(code: int, content_type: bytes, *, keep_alive: bool, chunked: bool) -> bytes:
    """The lines that many replies have in common."""
    lines = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nCache-Control: no-cache, private\r\n" % (
        code, _REASONS.get(code, "").encode(), content_type,
    )  # fmt: skip
    return lines + b"Transfer-Encoding: chunked\r\n" * chunked + b"Connection: close\r\n" * (not keep_alive)

"""The bare server: httptools, TLS, constant answers. `python -m benchmarks.http.bare STATE` takes certificates there.

`/answer/CODE/SIZE` gets that many bytes, in slices while the client reads them, as a server must that bounds what it
buffers (one write of 12 MB takes 11 or 25 ms, by where its memory comes from). `/stream` stays open, and `/emit/SIZE`
writes one chunk to every stream. It prints its port. Headers and bodies are read as the API server reads them, and not
looked at.
"""

from __future__ import annotations

import asyncio
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import httptools

from kedge.limits import Limits
from kedge.server.http.list_parts import SLICE_BYTES
from kedge.server.http.server import TlsFiles, bound_tls_buffers, tls_context

_HEAD = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nCache-Control: no-cache, private\r\n"


@lru_cache(maxsize=64)
def answer(code: int, size: int) -> bytes:
    return (_HEAD + b"Content-Length: %d\r\n\r\n") % (code, size) + b"x" * size


@lru_cache(maxsize=64)
def chunk(size: int) -> bytes:
    return b"%x\r\n%b\n\r\n" % (size, b"x" * (size - 1))


class BareConnection(asyncio.Protocol):
    """One connection."""

    streams: dict[BareConnection, None] = {}  # noqa: RUF012  # one server a process

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpRequestParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._url = b""
        self._unsent = b""
        self._sent = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.transport.set_write_buffer_limits(high=Limits().http_write_buffer_bytes)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write_on()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.streams.pop(self, None)

    def on_message_begin(self) -> None:
        self._headers, self._body, self._url = {}, [], b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        _, verb, *sizes = self._url.split(b"/")
        if verb == b"stream":
            self.streams[self] = None
            self.transport.write((_HEAD + b"Transfer-Encoding: chunked\r\n\r\n") % 200)
            return
        if verb == b"emit":
            written = chunk(int(sizes[0]))
            for each in self.streams:
                each.transport.write(written)
            sizes = [b"200", b"2"]
        self._unsent, self._sent = answer(int(sizes[0]), int(sizes[1])), 0
        self._write_on()

    def _write_on(self) -> None:
        while self._sent < len(self._unsent) and not self._paused:
            at = self._sent
            self._sent += SLICE_BYTES
            self.transport.write(self._unsent[at : self._sent])


async def serve(state: Path) -> None:
    bound_tls_buffers(Limits())
    tls = tls_context(TlsFiles(serving=state / "serving.pem", authority=state / "ca.crt"))
    server = await asyncio.get_running_loop().create_server(BareConnection, "127.0.0.1", 0, ssl=tls, backlog=4_096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))

"""Load from this process on servers in other processes: raw connections, and the CPU time that a server spends on them.

The connections count replies and read nothing else, so that the load costs little beside the server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

from kedge.client.http import ServerAddress, read_kubeconfig

_P = TypeVar("_P", bound=asyncio.Protocol)
START_S = 60.0
WAIT_S = 300.0
"""The longest that any one wait may take."""


def cpu_s(pid: int) -> float:
    """CPU time of a process, in nanoseconds' steps: the kernel's clock of that process (see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid) << 3 | 2)


class ServerUnderLoad:
    """A process that serves, and where."""

    def __init__(self, process: subprocess.Popen[str], address: ServerAddress) -> None:
        self.process = process
        self.address = address

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)


@contextmanager
def started(*command: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process, killed at the end: its state is temporary. It prints to `log`."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=output, stderr=output, text=True, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def printed(process: subprocess.Popen[str], log: Path, sign: Callable[[str], bool]) -> str:
    """The output of a process, once it has the sign."""
    deadline_s = time.monotonic() + START_S
    while not sign(text := log.read_text()):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"{process.args!r} did not start: {text}")
        time.sleep(0.02)
    return text


@contextmanager
def kedge_server(state: Path, *options: str) -> Iterator[ServerUnderLoad]:
    """`kedge server`, as anyone runs it."""
    log = state.with_suffix(".log")
    command = ("-m", "kedge", "server", "--state", str(state), "--listen", "127.0.0.1:0", *options)
    with started(*command, log=log) as process:
        printed(process, log, lambda text: "serving https://" in text)
        yield ServerUnderLoad(process, read_kubeconfig(state / "admin.kubeconfig"))


@contextmanager
def bare_server(state: Path, like: ServerUnderLoad) -> Iterator[ServerUnderLoad]:
    """The bare server, with the certificates of a kedge server."""
    log = state.with_suffix(".bare.log")
    with started("-m", "benchmarks.http.bare", str(state), log=log) as process:
        port = int(printed(process, log, lambda text: text.endswith("\n")))
        address = like.address
        yield ServerUnderLoad(process, ServerAddress(address.host, port, address.tls))


# -- connections -----------------------------------------------------------------------------------


def request(method: str, path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
    """A request with the headers that clients send."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: application/json\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class LoadConnection(asyncio.Protocol):
    """Sends one request after another from a shared source, and counts the bytes of replies."""

    def __init__(self) -> None:
        self._buffer = b""
        self._missing = -1
        self._chunked = False
        self._source: Iterator[bytes] = iter(())
        self._done: asyncio.Future[None] | None = None
        self.code = 0
        self.size = 0
        """Bytes of the body of the last reply."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server closed a connection"))

    def run(self, source: Iterator[bytes]) -> asyncio.Future[None]:
        """Send what the source has, to its end."""
        self._source = source
        self._done = asyncio.get_running_loop().create_future()
        self._next()
        return self._done

    def _next(self) -> None:
        assert self._done is not None
        following = next(self._source, None)
        if following is not None:
            self._buffer, self._missing, self._chunked = b"", -1, False
            self.transport.write(following)
        elif not self._done.done():
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._missing < 0 and not self._chunked:
            data = self._buffer = self._buffer + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return
            self.code = int(data[9:12])
            self.size = 0
            at = data.find(b"Content-Length: ", 0, end)
            if at >= 0:
                self._missing = int(data[at + 16 : data.index(b"\r\n", at)])
            self._chunked = at < 0
            data = data[end + 4 :]
            self._buffer = b""
        self.size += len(data)
        if self._chunked:
            self._buffer = (self._buffer + data)[-5:]
            if self._buffer != b"0\r\n\r\n":
                return
        elif self.size < self._missing:
            return
        if not self.failed(self.code, data):
            self._next()

    def failed(self, code: int, data: bytes) -> bool:
        """Whether a reply ends the load."""
        if code >= 400:
            self.connection_lost(RuntimeError(f"a request was answered with {code}: {data[:500]!r}"))
        return code >= 400


class WatchConnection(asyncio.Protocol):
    """One open watch: counts the lines that pass `wanted`, after the head."""

    def __init__(self, sent: bytes, notify: Callable[[int], None], wanted: Callable[[bytes], bool] | None) -> None:
        self._sent = sent
        self._notify = notify
        self._wanted = wanted
        self._rest = b""
        self.opened = asyncio.get_running_loop().create_future()
        self.size = 0
        """Bytes since the last reset."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self.opened.set_result(None)
            data = data.partition(b"\r\n\r\n")[2]
        self.size += len(data)
        if self._wanted is None:
            if count := data.count(b"\n\r\n"):
                self._notify(count)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if count := sum(map(self._wanted, lines)):
            self._notify(count)


async def connect(server: ServerUnderLoad, count: int) -> list[LoadConnection]:
    return [await _connection(server, LoadConnection) for _ in range(count)]


async def open_watches(
    server: ServerUnderLoad,
    path: str,
    count: int,
    notify: Callable[[int], None],
    *,
    wanted: Callable[[bytes], bool] | None = None,
) -> list[WatchConnection]:
    """Watches whose replies have begun. `notify` gets the number of new lines that `wanted` passes."""
    sent = request("GET", path)
    found = []
    for _ in range(count):
        each = await _connection(server, lambda: WatchConnection(sent, notify, wanted))
        await asyncio.wait_for(each.opened, WAIT_S)
        found.append(each)
    return found


async def _connection(server: ServerUnderLoad, make: Callable[[], _P]) -> _P:
    return await tls_connection(server.address, make)


async def tls_connection(address: ServerAddress, make: Callable[[], _P]) -> _P:
    loop = asyncio.get_running_loop()
    _, found = await loop.create_connection(
        make, address.host, address.port, ssl=address.tls, server_hostname=address.host
    )
    return found


async def send_all(connections: Sequence[LoadConnection], requests: Iterable[bytes]) -> float:
    """Send requests, one at a time on each connection. Returns the seconds that it took."""
    source = iter(requests)
    began_s = time.perf_counter()
    await asyncio.wait_for(asyncio.gather(*(each.run(source) for each in connections)), WAIT_S)
    return time.perf_counter() - began_s


async def cost_us(server: ServerUnderLoad, connections: Sequence[LoadConnection], requests: Sequence[bytes]) -> float:
    """CPU microseconds of the server for each request."""
    began_s = server.cpu_s
    await send_all(connections, requests)
    return (server.cpu_s - began_s) / len(requests) * 1e6


def close(connections: Iterable[LoadConnection | WatchConnection]) -> None:
    for each in connections:
        with suppress(OSError):
            each.transport.abort()

"""The client side of the fuzzers: it sends cases to a server, reads every reply to its end, and counts by status.

A fault is a 5xx other than 503, a reply that is no HTTP, or silence for longer than `HANG_S`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httptools
from tests.fuzz.identities import ADMINISTRATOR, Identity
from tests.fuzz.own_paths import SESSION
from tests.fuzz.raw_cases import RawCase
from tests.fuzz.requests import FuzzRequest

HANG_S = 20.0
SILENCE_S = 0.5
"""A raw case may leave the server waiting for more, rightly: after so long the client closes its side."""
FAULTS_MAX = 20


@dataclass
class Tally:
    """The replies of a server."""

    codes: Counter[int] = field(default_factory=Counter)
    cases: int = 0
    faults: list[str] = field(default_factory=list)
    broken: list[bytes] = field(default_factory=list)
    """The input of each fault: for the corpus."""

    def fault(self, text: str, sent: bytes) -> None:
        self.faults.append(f"{text}: {sent[:2_000]!r}")
        self.broken.append(sent)

    def count(self, code: int, about: str, sent: bytes) -> None:
        self.codes[code] += 1
        if code >= 500 and code != 503:
            self.fault(f"{about} was answered with {code}", sent)

    @property
    def replies(self) -> int:
        return sum(self.codes.values())


class _Replies:
    """Parses all replies of a connection."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.bodies: list[bytes] = []
        self._body = b""
        self.complete = True
        self.parser: Any = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._body = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.complete = True
        self.codes.append(self.parser.get_status_code())
        self.bodies.append(self._body)


class Peer:
    """Where the server is, and the tally of all that was sent to it."""

    def __init__(self, host: str, port: int, tls: Mapping[Identity, ssl.SSLContext] | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self.tally = Tally()
        self.session = SESSION
        """The cookie of the session with the page, once there is one."""

    async def connect(self, identity: Identity = ADMINISTRATOR) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._tls is None:
            return await asyncio.open_connection(self._host, self._port)
        tls = self._tls[identity]
        return await asyncio.open_connection(self._host, self._port, ssl=tls, server_hostname=self._host)

    def _on_wire(self, data: bytes) -> bytes:
        return data.replace(SESSION.encode(), self.session.encode())

    async def send_raw(self, case: RawCase) -> None:
        """Send a case, and read to the end of the connection."""
        self.tally.cases += 1
        whole = b"".join(case.pieces)
        reader, writer = await self.connect()
        received = b""
        try:
            async with asyncio.timeout(HANG_S):
                with suppress(ConnectionError, ssl.SSLError):
                    for each in case.pieces:
                        writer.write(self._on_wire(each))
                        await writer.drain()
                    if case.half_close:
                        await self._close_side(writer)
                    received = await self._read(reader, writer)
        except TimeoutError:
            self.tally.fault(f"{case.name}: the server neither answered nor closed", whole)
        finally:
            writer.transport.abort()
        self._check(case, whole, received)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        received = b""
        while True:
            try:
                data = await asyncio.wait_for(reader.read(65536), SILENCE_S)
            except TimeoutError:
                await self._close_side(writer)
                with suppress(ConnectionError, ssl.SSLError):
                    received += await reader.read()
                return received
            except (ConnectionError, ssl.SSLError):
                return received
            if not data:
                return received
            received += data

    async def _close_side(self, writer: asyncio.StreamWriter) -> None:
        """TLS of asyncio has no half-closed connections: it is closed as a whole."""
        with suppress(ConnectionError, ssl.SSLError, OSError):
            if self._tls is None:
                writer.write_eof()
            else:
                writer.close()

    def _check(self, case: RawCase, whole: bytes, received: bytes) -> None:
        replies = _Replies()
        if b"HEAD" not in whole:  # its replies have lengths and no bodies
            try:
                replies.parser.feed_data(received)
            except httptools.HttpParserUpgrade:
                pass
            except httptools.HttpParserError as error:
                self.tally.fault(f"{case.name}: a reply is no HTTP ({error}): {received[:500]!r}", whole)
        else:
            heads = [line for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
            replies.codes = [int(line.split()[1]) for line in heads]
            if whole.startswith(b"HEAD ") and b"\r\n\r\n" in received:
                after = received.partition(b"\r\n\r\n")[2]
                if after and not after.startswith(b"HTTP/1.1 "):
                    self.tally.fault(f"{case.name}: the reply to HEAD has a body", whole)
        for code in replies.codes:
            self.tally.count(code, case.name, whole)

    async def send_requests(self, requests: list[FuzzRequest], identity: Identity = ADMINISTRATOR) -> None:
        """Send requests on one connection, one at a time; open another when the server closes it."""
        reader, writer = await self.connect(identity)
        for each in requests:
            self.tally.cases += 1
            sent = each.encoded()
            try:
                async with asyncio.timeout(HANG_S):
                    if writer.is_closing() or reader.at_eof():
                        writer.close()
                        reader, writer = await self.connect(identity)
                    writer.write(self._on_wire(sent))
                    code, closes = await _reply(reader, head_only=each.method == "HEAD")
                self.tally.count(code, f"{each.method} {each.target}", sent)
                if closes:
                    writer.close()
            except TimeoutError:
                self.tally.fault(f"{each.method} {each.target}: no answer in {HANG_S} s", sent)
                writer.transport.abort()
            except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, ValueError) as error:
                self.tally.fault(f"{each.method} {each.target}: the reply was cut ({error!r})", sent)
                writer.transport.abort()
            if len(self.tally.faults) >= FAULTS_MAX:
                break
        writer.close()


async def _reply(reader: asyncio.StreamReader, *, head_only: bool) -> tuple[int, bool]:
    """The code of one reply, and whether the server closes after it."""
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        code = int(head.split()[1])
        if code != 100:
            break
    closes = b"connection: close" in head
    if code == 101:
        return code, True
    if head_only or code in (204, 304):
        return code, closes
    if b"transfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    elif b"content-length: " in head:
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    else:
        await reader.read()
        closes = True
    return code, closes

"""Streams of pods from the client's side: a log as pieces of bytes, and the WebSocket of a command.

Both read from a connection of their own with a bounded buffer: a consumer that is slow makes the server wait.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import httptools
import msgspec
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from kedge.api.wellknown import EXEC_PROTOCOLS
from kedge.client.http.kubeconfig import ServerAddress
from kedge.errors import OperatingError, Unavailable, from_status

_READ_BYTES = 64 * 1024
_CONNECT_S = 10.0


@asynccontextmanager
async def _connection(address: ServerAddress) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    tls: ssl.SSLContext | None = address.tls
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, limit=_READ_BYTES)
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{address.host}:{address.port} cannot be reached: {error or 'no answer'}") from error
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def _pod_path(namespace: str, pod: str, subresource: str, query: Sequence[tuple[str, str]]) -> str:
    where = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"
    return f"{where}/{subresource}?{urlencode(query)}"


class _LogParser:
    """Collects the parts of one reply, for httptools."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.ended = False

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.ended = True


async def read_log(
    address: ServerAddress, namespace: str, pod: str, query: Sequence[tuple[str, str]]
) -> AsyncIterator[bytes]:
    """The log of a container, in pieces.

    Raises:
        OperatingError: the server refused.
        Unavailable: the connection broke before the end of the log.
    """
    collected = _LogParser()
    parser: Any = httptools.HttpResponseParser(collected)
    token = f"Authorization: Bearer {address.token}\r\n" if address.token else ""
    head = (
        f"GET {_pod_path(namespace, pod, 'log', query)} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n{token}\r\n"
    )
    failure = b""
    async with _connection(address) as (reader, writer):
        writer.write(head.encode())
        while not collected.ended:
            data = await reader.read(_READ_BYTES)
            if not data:
                raise Unavailable(f"the log of pod {pod} was cut: the API server or the agent has stopped")
            parser.feed_data(data)
            piece, collected.body = b"".join(collected.body), []
            if parser.get_status_code() >= 400:
                failure += piece
            elif piece:
                yield piece
    if failure:
        raise _refusal(failure, parser.get_status_code())


def _refusal(body: bytes, code: int) -> OperatingError:
    try:
        return from_status({"code": code, **msgspec.json.decode(body, type=dict[str, Any])})
    except msgspec.MsgspecError:
        return Unavailable(f"the server answered {code}: {body[:200].decode('latin-1')}")


class ExecSocket:
    """The WebSocket of one command."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        protocol: ClientProtocol,
        frames: Sequence[Frame] = (),
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = protocol
        self._frames = list(frames)
        """Frames that arrived together with the answer to the handshake."""
        self._message = b""

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Messages with their channel, until the server closes."""
        while True:
            frames, self._frames = self._frames, []
            frames += [each for each in self._protocol.events_received() if isinstance(each, Frame)]
            for frame in frames:
                if frame.opcode is Opcode.CLOSE:
                    return
                message = self._take(frame)
                if message:
                    yield message[0], message[1:]
            data = await self._reader.read(_READ_BYTES)
            if not data:
                return
            self._protocol.receive_data(data)
            await self._flush()

    def _take(self, frame: Frame) -> bytes:
        """The message that a frame completes; empty if it completes none."""
        if frame.opcode in (Opcode.PING, Opcode.PONG):
            return b""
        self._message += frame.data
        if not frame.fin:
            return b""
        whole, self._message = self._message, b""
        return whole

    async def send(self, channel: int, data: bytes) -> None:
        """Send one message; nothing, if the server has closed."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(bytes([channel]) + data)
            await self._flush()

    async def _flush(self) -> None:
        if data := b"".join(self._protocol.data_to_send()):
            self._writer.write(data)
            await self._writer.drain()


@asynccontextmanager
async def open_exec(
    address: ServerAddress, namespace: str, pod: str, query: Sequence[tuple[str, str]]
) -> AsyncIterator[ExecSocket]:
    """Start a command in a container.

    Raises:
        OperatingError: the server refused.
    """
    async with _connection(address) as (reader, writer):
        uri = parse_uri(f"ws://{address.host}:{address.port}{_pod_path(namespace, pod, 'exec', query)}")
        protocol = ClientProtocol(uri, subprotocols=[Subprotocol(each) for each in EXEC_PROTOCOLS])
        request = protocol.connect()
        if address.token:
            request.headers["Authorization"] = f"Bearer {address.token}"
        protocol.send_request(request)
        writer.write(b"".join(protocol.data_to_send()))
        while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
            data = await reader.read(_READ_BYTES)
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
        events = protocol.events_received()
        response = next((each for each in events if isinstance(each, Response)), None)
        # A command that cannot be started ends at once: its last frames may come with the answer, and close the socket.
        if response is None or protocol.handshake_exc is not None:
            code = response.status_code if response is not None else 502
            raise _refusal(bytes(response.body) if response is not None and response.body else b"", code)
        yield ExecSocket(reader, writer, protocol, [each for each in events if isinstance(each, Frame)])


def exit_code_of(status: Mapping[str, Any]) -> int:
    """The exit code in the final `Status` of a command.

    Raises:
        OperatingError: the command could not be run, or its result is lost.
    """
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode" and str(cause.get("message")).isdigit():
            return int(cause["message"])
    raise from_status(status)

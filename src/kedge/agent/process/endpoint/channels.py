"""The channels of `v5.channel.k8s.io` and `v4.channel.k8s.io`: streams of a command inside one WebSocket.

The first byte of a message is its channel. Frames are the `websockets` library's; this module has no network of its
own, only a reader and a writer, whose bounded buffers make a slow side slow down the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from kedge.api.wellknown import EXEC_PROTOCOLS
from kedge.errors import OperatingError, to_status

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_READ_BYTES = 64 * 1024
_encode = msgspec.json.Encoder().encode


class ChannelSocket:
    """One WebSocket, from the handshake to its close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, message_bytes_max: int) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol(each) for each in EXEC_PROTOCOLS], max_size=message_bytes_max
        )
        self._message = b""

    async def read_request(self) -> Request | None:
        """The HTTP request of this connection; None if there is none, or it cannot be parsed."""
        while True:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                return None
            self._protocol.receive_data(data)
            for event in self._protocol.events_received():
                return event if isinstance(event, Request) else None
            if self._protocol.handshake_exc is not None:
                return None

    async def accept(self, request: Request) -> bool:
        """Answer the handshake. Returns whether it is a WebSocket now."""
        self._protocol.send_response(self._protocol.accept(request))
        await self._flush()
        return self._protocol.state is State.OPEN

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Messages with their channel, until the other side closes or breaks the rules.

        Raises:
            OSError: the connection broke.
        """
        while self._protocol.state is State.OPEN:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                return
            self._protocol.receive_data(data)
            await self._flush()  # pongs, and the reply to a close
            for frame in self._protocol.events_received():
                if isinstance(frame, Frame) and frame.opcode in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                    self._message += frame.data
                    if frame.fin:
                        message, self._message = self._message, b""
                        if message:
                            yield message[0], message[1:]

    async def send(self, channel: int, data: bytes) -> None:
        """Send one message, and wait until the connection takes more.

        Raises:
            OSError: the connection broke.
        """
        if self._protocol.state is not State.OPEN:
            raise ConnectionResetError("the WebSocket is closed")
        self._protocol.send_binary(bytes([channel]) + data)
        await self._flush()

    async def ping_for_ever(self, every_s: float) -> None:
        """Send pings: a peer that is gone is noticed only when something is sent to it."""
        while True:
            await asyncio.sleep(every_s)
            self._protocol.send_ping(b"")
            await self._flush()

    async def finish(self, status: dict[str, Any]) -> None:
        """Send the final `Status` on the error channel, and close."""
        if self._protocol.state is State.OPEN:
            await self.send(ERROR, _encode(status))
            self._protocol.send_close(1000)
            await self._flush()

    async def _flush(self) -> None:
        try:
            data = b"".join(self._protocol.data_to_send())
        except WebSocketException as error:
            raise ConnectionResetError(str(error)) from error
        if data:
            self._writer.write(data)
            await self._writer.drain()


def exit_status(code: int) -> dict[str, Any]:
    """The final `Status` of a command with this exit code."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def error_status(error: OperatingError) -> dict[str, Any]:
    """The final `Status` of a stream that failed."""
    return dict(to_status(error))

"""Streams of one container: a command with its channels, the output of the container as it comes, its log.

Each function serves one connection until it ends. Buffers are those of the connection and the pipes: when one side does
not read, the other waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from kedge.agent.process.endpoint import channels
from kedge.agent.process.endpoint.channels import ChannelSocket
from kedge.agent.process.exec import CommandFailed, ExecProcess
from kedge.errors import OperatingError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """The streams that a client of exec or attach wants, and its command."""

    command: Sequence[str] = ()
    terminal: bool = False
    stdin: bool = False
    stdout: bool = True
    stderr: bool = True


class TerminalSize(msgspec.Struct, rename="pascal"):
    """A message of the resize channel."""

    width: int = 0
    height: int = 0


async def run_command(
    socket: ChannelSocket, wanted: ExecRequest, starting: Awaitable[ExecProcess], *, ping_s: float
) -> None:
    """Run a command with its streams in the socket. A command with a terminal ends with its client."""
    try:
        process = await starting
    except CommandFailed as error:
        await socket.send(channels.STDERR if wanted.stderr else channels.STDOUT, f"kedge: {error}\n".encode())
        await socket.finish(channels.exit_status(error.exit_code))
        return
    except OperatingError as error:
        await socket.finish(channels.error_status(error))
        return
    exit_code: int | None = None
    try:
        if not wanted.stdin:
            process.end_input()
        exit_code = await _until_ended(socket, wanted, process, ping_s)
        if exit_code is not None:
            await socket.finish(channels.exit_status(exit_code))
    except OperatingError as error:
        await socket.finish(channels.error_status(error))
    finally:
        if exit_code is None and wanted.terminal:
            await asyncio.shield(process.kill())
        process.close()


async def _until_ended(socket: ChannelSocket, wanted: ExecRequest, process: ExecProcess, ping_s: float) -> int | None:
    """Move bytes until the command has ended and its output is sent: its exit code. None: the client is gone."""
    pumps = [_pump(socket, process, channels.STDOUT if wanted.stdout else None, stderr=False)]
    if not wanted.terminal:
        pumps.append(_pump(socket, process, channels.STDERR if wanted.stderr else None, stderr=True))
    output: asyncio.Future[Any] = asyncio.gather(*pumps)
    waiting: asyncio.Future[Any] = asyncio.ensure_future(process.wait())
    client: asyncio.Future[Any] = asyncio.ensure_future(
        _first_of(_receive(socket, process), socket.ping_for_ever(ping_s))
    )
    try:
        await asyncio.wait([waiting, client], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return None
        exit_code: int = waiting.result()
        await asyncio.wait([output, client], return_when=asyncio.FIRST_COMPLETED)
        return exit_code if output.done() and output.exception() is None else None
    finally:
        for each in (waiting, client, output):
            each.cancel()
        await asyncio.gather(waiting, client, output, return_exceptions=True)


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends or the connection breaks."""
    tasks = [asyncio.ensure_future(each) for each in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(socket: ChannelSocket, process: ExecProcess, channel: int | None, *, stderr: bool) -> None:
    while data := await process.read(stderr=stderr):
        if channel is not None:
            await socket.send(channel, data)


async def _receive(socket: ChannelSocket, process: ExecProcess) -> None:
    async for channel, data in socket.messages():
        if channel == channels.STDIN:
            await process.write(data)
        elif channel == channels.RESIZE:
            with suppress(msgspec.MsgspecError):
                size = msgspec.json.decode(data, type=TerminalSize)
                process.resize(size.width & 0xFFFF, size.height & 0xFFFF)
        elif channel == channels.CLOSE and data == bytes([channels.STDIN]):
            process.end_input()


async def send_output(socket: ChannelSocket, pieces: AsyncIterator[bytes], *, ping_s: float) -> None:
    """Send the output of a container, which has one stream, until it has ended or the client is gone."""

    async def send() -> None:
        async for piece in pieces:
            await socket.send(channels.STDOUT, piece)
        await socket.finish(channels.exit_status(0))

    async def receive() -> None:
        async for _ in socket.messages():
            pass

    await _first_of(send(), receive(), socket.ping_for_ever(ping_s))


async def write_chunks(writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes]) -> None:
    """Write a log as the chunks of an HTTP body. A body that is cut has no last chunk, so its reader notices."""
    async for piece in pieces:
        if piece:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()

"""The socket through which `kedge chaos` places faults on the links of a running `kedge up`.

It is in the state folder, so only the owner of the cluster can connect. A fault ends with the connection that placed
it, however that ends. One JSON value a line in both directions.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from kedge.cli.live_faults.links import FaultLink, LinkFault, links_named
from kedge.errors import Unavailable
from kedge.limits import Limits

SOCKET = "faults.sock"


class ListLinks(msgspec.Struct, tag="links"):
    """Reply: the names of the links."""


class PlaceFault(msgspec.Struct, tag="place"):
    """Reply: the number of the fault."""

    to: str
    fault: LinkFault


class EndFault(msgspec.Struct, tag="end"):
    number: int


class BreakWatches(msgspec.Struct, tag="break"):
    """Reply: how many broke."""

    to: str
    kind: str


class ReadLimits(msgspec.Struct, tag="limits"):
    """Reply: the limits of the cluster, by name."""


FaultRequest = ListLinks | PlaceFault | EndFault | BreakWatches | ReadLimits


class FaultSocket:
    """Serves one state folder."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._links: list[FaultLink] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def add(self, link: FaultLink) -> FaultLink:
        self._links.append(link)
        return link

    async def start(self) -> None:
        """Listen. The name is taken over from a process that was killed: a lock lets only one run at a time."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        (self._folder / SOCKET).unlink(missing_ok=True)
        with _short_name(self._folder) as name:
            listener.bind(name)
        (self._folder / SOCKET).chmod(0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            (self._folder / SOCKET).unlink(missing_ok=True)
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        placed: dict[int, tuple[LinkFault, Sequence[FaultLink]]] = {}
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                try:
                    value: Any = self._answer(msgspec.json.decode(line, type=FaultRequest), placed)
                    reply = {"value": value}
                except msgspec.MsgspecError as error:
                    reply = {"error": f"{error}: use the kedge that runs the cluster"}
                writer.write(msgspec.json.encode(reply) + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            pass  # it is gone, or sent no lines
        finally:
            for number in list(placed):
                _end(placed, number)
            self._writers.discard(writer)
            writer.close()

    def _answer(self, asked: FaultRequest, placed: dict[int, tuple[LinkFault, Sequence[FaultLink]]]) -> Any:
        match asked:
            case ListLinks():
                return [each.name for each in self._links]
            case PlaceFault():
                number = max(placed, default=0) + 1
                placed[number] = (asked.fault, links_named(self._links, asked.to))
                for link in placed[number][1]:
                    link.add(asked.fault)
                return number
            case ReadLimits():
                return dataclasses.asdict(self._limits)
            case EndFault():
                return _end(placed, asked.number)
            case BreakWatches():
                return sum(link.break_watches(asked.kind) for link in links_named(self._links, asked.to))


def _end(placed: dict[int, tuple[LinkFault, Sequence[FaultLink]]], number: int) -> bool:
    fault, links = placed.pop(number, (None, ()))
    for link in links:
        if fault is not None:
            link.remove(fault)
    return fault is not None


class FaultClient:
    """The end of `kedge chaos`. Faults that it placed end when it is closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, folder: Path) -> FaultClient:
        """Connect to the cluster of a state folder.

        Raises:
            Unavailable: no `kedge up` of this build runs there.
        """
        try:
            with _short_name(folder) as name:
                return cls(*await asyncio.open_unix_connection(name))
        except OSError as error:
            raise Unavailable(
                f"no kedge up that takes faults runs on {folder}: start one with `kedge up --detach --state {folder}`"
            ) from error

    async def ask(self, request: FaultRequest) -> Any:
        """Send a request and return the value of its reply.

        Raises:
            Unavailable: the cluster ended, or refused.
        """
        try:
            self._writer.write(msgspec.json.encode(request) + b"\n")
            await self._writer.drain()
            line = await self._reader.readline()
        except OSError as error:
            raise Unavailable(f"kedge up ended: {error}") from error
        if not line:
            raise Unavailable("kedge up closed its fault socket: look at its log")
        reply = msgspec.json.decode(line)
        if "error" in reply:
            raise Unavailable(f"kedge up refused a fault: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        with suppress(OSError, RuntimeError):
            self._writer.close()


@contextmanager
def _short_name(folder: Path) -> Iterator[str]:
    """A name of the socket that fits: the path of a socket is at most 107 bytes, a folder may be deeper."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)

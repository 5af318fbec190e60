"""The agent's end of the keeper's socket: requests with replies, and events. Starts the keeper if none serves."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.agent.process import keeper
from kedge.errors import OutcomeUnknown, Unavailable

START_S = 20.0
"""A keeper that does not serve by then has failed; the reason is in its log."""
SOCKET = "keeper.sock"


class KeeperChannel:
    """One connection to the keeper of a folder, made when it is needed and again when it breaks."""

    def __init__(self, folder: Path, on_event: Callable[[str], None]) -> None:
        self._folder = folder
        self._on_event = on_event
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def call(self, op: str, **parts: Any) -> Any:
        """Send one request and return its reply.

        Raises:
            Unavailable: the keeper cannot be reached or refused; nothing was done.
            OutcomeUnknown: the connection broke before the reply.
        """
        writer = await self._connected()
        number = next(self._numbers)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            writer.write(json.dumps({"id": number, "op": op, **parts}).encode() + b"\n")
            return await reply
        finally:
            self._waiting.pop(number, None)

    async def wait_ended(self, *, within_s: float) -> None:
        """Wait until the keeper has ended: it removes its socket as the last thing.

        Raises:
            Unavailable: it still runs.
        """
        path = self._folder / SOCKET
        try:
            async with asyncio.timeout(within_s):
                while path.exists():  # noqa: ASYNC110  # the keeper is another process: there is no event to wait for
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise Unavailable(f"the keeper of {self._folder} still runs: see {self._folder / 'keeper.log'}") from error

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._writer is not None:
            self._writer.close()

    async def _connected(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None or self._writer.is_closing():
                reader, self._writer = await self._open()
                self._reading = asyncio.get_running_loop().create_task(self._read(reader), name="keeper")
            return self._writer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = self._folder / SOCKET
        with suppress(OSError):
            return await asyncio.open_unix_connection(path, limit=keeper.LINE_BYTES_MAX)
        start_keeper(self._folder)
        try:
            async with asyncio.timeout(START_S):
                while True:
                    with suppress(OSError):
                        return await asyncio.open_unix_connection(path, limit=keeper.LINE_BYTES_MAX)
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            log = self._folder / "keeper.log"
            raise Unavailable(f"the keeper of {self._folder} does not answer: see {log}") from error

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "event" in message:
                    self._on_event(message["pod_uid"])
                    continue
                reply = self._waiting.get(message["id"])
                if reply is None or reply.done():
                    continue
                if "error" in message:
                    reply.set_exception(Unavailable(f"the keeper refused: {message['error']}"))
                else:
                    reply.set_result(message["value"])
        except (OSError, ValueError):
            pass
        finally:
            if self._writer is not None:
                self._writer.close()
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(OutcomeUnknown("the connection to the keeper broke: look what runs"))


def start_keeper(folder: Path) -> None:
    """Start a keeper that outlives this process. A second one of the same folder ends at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "keeper.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=True,
            check=True,
        )

"""The agent's end of the keeper's socket: requests with replies, and events. Starts the keeper if none serves."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kedge.agent.process import keeper
from kedge.agent.process.keeper_bounds import UNSENT_BYTES_MAX
from kedge.agent.process.keeper_client import NO_OPERATION
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.limits import Limits

START_AGAIN_S = 1.0
"""An earlier keeper that is about to end makes the new one end too: start one more."""
SOCKET = "keeper.sock"
LOCK = "keeper.lock"


class MissingOperation(Unavailable):
    """The keeper is older than this agent and lacks an operation. Do without it, or replace the keeper."""


class KeeperChannel:
    """One connection to the keeper of a folder, made when it is needed and again when it breaks."""

    def __init__(self, folder: Path, on_event: Callable[[str], None], limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._on_event = on_event
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def call(self, op: str, *, bounded: bool = True, **parts: Any) -> Any:
        """Send one request and return its reply, within `agent_keeper_reply_s`.

        Unbounded, it waits as long as the keeper lives.

        Raises:
            MissingOperation: the keeper does not know the operation; nothing was done.
            Unavailable: the keeper cannot be reached or refused; nothing was done.
            OutcomeUnknown: the connection broke, or there was no reply in time.
        """
        reply_s = self._limits.agent_keeper_reply_s if bounded else None
        writer = await self._connected()
        number = next(self._numbers)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            writer.write(json.dumps({"id": number, "op": op, **parts}).encode() + b"\n")
            async with asyncio.timeout(reply_s):
                return await reply
        except TimeoutError as error:
            raise OutcomeUnknown(f"the keeper of {self._folder} did not reply in {reply_s} s: list again") from error
        finally:
            self._waiting.pop(number, None)

    async def wait_ended(self, *, within_s: float) -> None:
        """Wait until no keeper runs: each holds the lock until it has ended.

        Raises:
            Unavailable: it still runs.
        """
        try:
            async with asyncio.timeout(within_s):
                while not _is_free(self._folder / LOCK):  # noqa: ASYNC110  # another process: there is no event
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
                if self._reading is not None:
                    await asyncio.wait(
                        [self._reading]
                    )  # it fails the requests of the connection that broke, and no later one
                reader, self._writer = await self._open()
                self._reading = asyncio.get_running_loop().create_task(self._read(reader, self._writer), name="keeper")
            return self._writer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with suppress(OSError):
            return await _connect(self._folder)
        log = self._folder / "keeper.log"
        try:
            async with asyncio.timeout(self._limits.agent_keeper_start_s):
                while True:
                    start_keeper(self._folder)
                    for _ in range(round(START_AGAIN_S / 0.02)):
                        with suppress(OSError):
                            return await _connect(self._folder)
                        await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise Unavailable(f"the keeper of {self._folder} does not answer: see {log}") from error
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"no keeper can be started in {self._folder}: {error}: see {log}") from error

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                    reply.set_exception(_refusal(message["error"]))
                else:
                    reply.set_result(message["value"])
        except (OSError, ValueError):
            pass
        finally:
            writer.close()
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(OutcomeUnknown("the connection to the keeper broke: list what runs"))


def _refusal(error: str) -> Unavailable:
    if NO_OPERATION in error:
        return MissingOperation(
            "the keeper of this node is older than its agent: drain the node and restart the agent to replace it"
        )
    return Unavailable(f"the keeper refused: {error}")


async def _connect(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect through a descriptor of the folder: the path of a socket is at most 107 bytes, a folder may be deeper."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{SOCKET}", limit=2 * UNSENT_BYTES_MAX)
    finally:
        os.close(descriptor)


def start_keeper(folder: Path) -> None:
    """Start a keeper that outlives this process. A second one of the same folder ends at once."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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


def _is_free(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    return True


def may_hold_processes(folder: Path) -> bool:
    """Whether a keeper of this folder runs, or one that was killed may have left processes."""
    if (folder / SOCKET).exists():
        return True
    for path in (folder / "processes").glob("*.json"):
        try:
            if not json.loads(path.read_bytes())["ended"]:
                return True
        except (OSError, LookupError, TypeError, ValueError):
            return True
    return False

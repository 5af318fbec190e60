"""A command of `exec`: a program that the keeper runs beside a container, with its streams at the agent.

The agent makes the pipes or the terminal, and the keeper opens the other ends by their paths. So the keeper is the
parent and knows the exit code, and no byte of the streams passes through it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import struct
import termios
from collections.abc import Sequence
from contextlib import suppress

from kedge.agent.process.channel import KeeperChannel
from kedge.errors import OperatingError, OutcomeUnknown, Unavailable

CHUNK_BYTES = 32 * 1024
_TERMINAL_TYPE = {"TERM": "xterm"}


class CommandFailed(OperatingError):
    """The program cannot be executed. `exit_code` is the exit code that a shell would have for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code


class ExecProcess:
    """One command that runs. Read, write and `wait`; then `close`, which does not end it."""

    def __init__(self, channel: KeeperChannel, command: int, stdin: int, stdout: int, stderr: int | None) -> None:
        self._channel = channel
        self._command = command
        self._stdin: int | None = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._ended = asyncio.Event()

    @classmethod
    async def start(cls, channel: KeeperChannel, process: str, argv: Sequence[str], *, terminal: bool) -> ExecProcess:
        """Run a command beside a process of the keeper.

        Raises:
            CommandFailed: the program cannot be executed.
            Unavailable: the keeper refused or cannot be reached.
        """
        ours, theirs, stdio = _open_terminal() if terminal else _open_pipes()
        reply = None
        try:
            reply = await channel.call(
                "exec",
                process=process,
                argv=list(argv),
                stdio=[*stdio, terminal],
                env=_TERMINAL_TYPE if terminal else {},
                timeout_s=None,
            )
            if "failed" in reply:
                code = 127 if reply["failed"] == errno.ENOENT else 126
                raise CommandFailed(reply["message"], code)
        finally:
            _close(theirs)
            if reply is None or "failed" in reply:
                _close(ours)
        for each in ours:
            os.set_blocking(each, False)
        stdin, stdout, *rest = ours
        return cls(channel, reply["command"], stdin, stdout, rest[0] if rest else None)

    async def read(self, *, stderr: bool = False) -> bytes:
        """The next bytes of an output; empty at its end.

        The end is also reached when the command has ended and everything it wrote is read: a program that it left in
        the background may hold the stream open for ever.
        """
        descriptor = self._stderr if stderr else self._stdout
        while descriptor is not None:
            try:
                return os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                if self._ended.is_set():
                    return b""
                await self._wait_ready(descriptor)
            except OSError:  # a terminal without programs
                return b""
        return b""

    async def write(self, data: bytes) -> None:
        """Write to standard input. Bytes that no program reads any more are dropped."""
        view = memoryview(data)
        while view and self._stdin is not None and not self._ended.is_set():
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                await self._wait_ready(self._stdin, writing=True)
            except OSError:
                return

    def end_input(self) -> None:
        """Close standard input. A terminal has one descriptor for both directions and stays open."""
        if self._stdin is not None and self._stdin != self._stdout:
            _close([self._stdin])
            self._stdin = None

    def resize(self, width: int, height: int) -> None:
        with suppress(OSError):
            fcntl.ioctl(self._stdout, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    async def wait(self) -> int:
        """The exit code, once the command has ended; 128 and the signal if one ended it.

        Raises:
            OutcomeUnknown: the keeper ended or was restarted meanwhile.
        """
        try:
            code = await self._channel.call("wait_command", bounded=False, command=self._command)
        except Unavailable as error:
            raise OutcomeUnknown(f"the exit code of the command is lost: {error}") from error
        finally:
            self._ended.set()
        return 128 - int(code) if code < 0 else int(code)

    async def kill(self) -> None:
        """Kill the command and everything it started."""
        with suppress(OperatingError):
            await self._channel.call("kill_command", command=self._command)

    def close(self) -> None:
        """Close the streams. A terminal that is closed sends SIGHUP to its programs."""
        self._ended.set()
        _close({each for each in (self._stdin, self._stdout, self._stderr) if each is not None})
        self._stdin = None

    async def _wait_ready(self, descriptor: int, *, writing: bool = False) -> None:
        """Wait until the descriptor is ready, or the command has ended. The caller tries again."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        # A terminal is one descriptor for both directions; a copy has a registration of its own.
        copy = os.dup(descriptor)
        add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
        add(copy, ready.set)
        waits = [asyncio.ensure_future(each.wait()) for each in (ready, self._ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            remove(copy)
            os.close(copy)


def _open_pipes() -> tuple[list[int], list[int], list[str]]:
    """Three pipes: our ends, the ends of the command, and the paths by which the keeper opens those."""
    stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
    stdout_read, stdout_write = os.pipe2(os.O_CLOEXEC)
    stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC)
    theirs = [stdin_read, stdout_write, stderr_write]
    paths = [f"/proc/{os.getpid()}/fd/{each}" for each in theirs]
    return [stdin_write, stdout_read, stderr_read], theirs, paths


def _open_terminal() -> tuple[list[int], list[int], list[str]]:
    master, slave = os.openpty()
    return [master, master], [slave], [os.ttyname(slave)] * 3


def _close(descriptors: Sequence[int] | set[int]) -> None:
    for each in set(descriptors):
        with suppress(OSError):
            os.close(each)

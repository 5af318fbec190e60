"""State folders of commands: one process at a time, and errors of the disk in one sentence.

The locks belong to the process: the kernel releases them when it ends, however it ends, and names the holder.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from kedge.cli.resources.next_steps import with_next_step
from kedge.errors import KedgeError, Unavailable

UP_LOCK = "up.lock"
AGENT_LOCK = "agent.lock"
DECISIONS = "decisions"
INCIDENTS = "incidents"
"""The folder of decision logs, below a state folder: its own log is of `kedge up`, those below it of components."""
AUDIT = "audit"
"""The folder of the audit log of an API server, below its state folder."""
STOP_S = 30.0
"""`kedge up` that has not stopped by then is killed: everything it did is on disk."""
_FLOCK = "hhqqi"  # struct flock: type, whence, start, length, pid


@contextmanager
def command_errors(folder: Path | None = None) -> Iterator[None]:
    """Errors that a person can act on, in one sentence each."""
    try:
        yield
    except KedgeError as error:
        raise click.ClickException(with_next_step(error)) from error
    except OSError as error:
        where = f"{error.filename or folder or ''}: ".removeprefix(": ")
        hint = "; check the path and its permissions, then run the command again"
        if folder is not None:
            hint = f"; is {folder} a writable folder with free space?"
        raise click.ClickException(f"{where}{error.strerror or error}{hint}") from error


@contextmanager
def folder_lock(path: Path, holder: str, *, next_step: str = "stop it first") -> Iterator[None]:
    """Hold a lock file as long as the body runs. `holder` names the program that may have it.

    Raises:
        Unavailable: another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            pid = holder_of(path)
            raise Unavailable(
                f"{holder} already runs on {path.parent} (process {pid}): {next_step}, or use another --state"
            ) from error
        yield
    finally:
        os.close(descriptor)


def holder_of(path: Path) -> int:
    """The process that has the lock, from the kernel; 0 if none has. A pid in a file could be an old one."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = struct.unpack(_FLOCK, found)
    return 0 if kind == fcntl.F_UNLCK else max(0, int(pid))  # never the -1 that signals every process


def stop_holder(path: Path) -> int:
    """End the process that has the lock: SIGTERM, later SIGKILL. Returns its pid, or 0 if there was none."""
    pid = holder_of(path)
    deadline_s = time.monotonic() + STOP_S
    number = signal.SIGTERM
    while pid and holder_of(path) == pid:
        if number == signal.SIGTERM or time.monotonic() >= deadline_s:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            number = signal.SIGKILL
        time.sleep(0.05)
    return pid

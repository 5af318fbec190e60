"""Processes of this machine as `/proc` shows them, and how one is started. Standard library only, as the keeper.

A pid alone proves nothing, because the kernel reuses pids: a process is its pid and its start time.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

MARKER = "KEDGE_PROCESS"
"""Environment variable of every process that a keeper starts: the keeper's folder and the id of the record."""
_DEFAULTED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that the keeper ignores or handles. An ignored signal stays ignored over exec, so each is set back."""


class ProcEntry(NamedTuple):
    """One process, from `/proc/PID/stat`."""

    pid: int
    state: str
    parent: int
    session: int
    cpu_ticks: int
    """User and system time, with that of children it has waited for."""
    start_ticks: int
    pages: int

    @property
    def runs(self) -> bool:
        return self.state not in "ZX"


def read_entry(pid: int) -> ProcEntry | None:
    """None if there is no such process."""
    try:
        text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    except OSError:
        return None
    field = text[text.rindex(")") + 2 :].split()
    used = sum(int(each) for each in field[11:15])
    return ProcEntry(pid, field[0], int(field[1]), int(field[3]), used, int(field[19]), int(field[21]))


def read_table() -> dict[int, ProcEntry]:
    found = (read_entry(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  # twice as fast
    return {each.pid: each for each in found if each is not None}


def is_alive(pid: int, start_ticks: int) -> bool:
    """Whether this very process runs: the pid may belong to another one by now."""
    entry = read_entry(pid)
    return entry is not None and entry.runs and entry.start_ticks == start_ticks


def read_marker(pid: int) -> str:
    """The marker in the environment that a process was started with; empty if it has none or is not ours to read."""
    wanted = f"{MARKER}=".encode()
    with suppress(OSError):
        for part in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            if part.startswith(wanted):
                return os.fsdecode(part[len(wanted) :])
    return ""


def read_outputs(pid: int) -> tuple[str, ...]:
    """The files that are standard output and error of a process; empty if they are not ours to read."""
    with suppress(OSError):
        return tuple(os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2))  # noqa: PTH115  # faster
    return ()


def descendants(table: Mapping[int, ProcEntry], roots: Iterable[int]) -> set[int]:
    """The roots and every process below them."""
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    found: set[int] = set()
    open_pids = list(roots)
    while open_pids:
        pid = open_pids.pop()
        if pid not in found:
            found.add(pid)
            open_pids += children.get(pid, ())
    return found


def signal_group(pid: int, number: int) -> None:
    if pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class ExecFailed(OSError):
    """The program could not be executed: it is missing, is not a program, or its folder is missing."""


def spawn(argv: list[str], env: Mapping[str, str], cwd: str, log: str, record: Callable[[int], None]) -> int:
    """Start a program as the leader of a session of its own, with its output appended to a file.

    The child waits until `record` has returned. If the keeper is killed before that, or `record` raises, the child
    reads the end of its pipe and exits: no program runs that is not recorded.

    Raises:
        ExecFailed: after `record`: the program cannot run.
        OSError: before `record`, or raised by it: no program ran.
    """
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    opened = [output]
    try:
        gate, release = os.pipe2(os.O_CLOEXEC)
        opened += (gate, release)
        report, failure = os.pipe2(os.O_CLOEXEC)
        opened += (report, failure)
        pid = os.fork()
        if pid == 0:
            _run_child(argv, env, cwd, output, gate, release, failure)
        os.close(failure)
        opened.remove(failure)
        try:
            record(pid)
            with suppress(BrokenPipeError):  # it was killed meanwhile: that is its end
                os.write(release, b"1")
        except BaseException:
            os.close(release)
            opened.remove(release)
            os.waitpid(pid, 0)
            raise
        failed = os.read(report, 16)
    finally:
        for each in opened:
            os.close(each)
    if failed:
        os.waitpid(pid, 0)
        raise ExecFailed(int(failed), os.strerror(int(failed)), argv[0] if argv else "")
    return pid


def _run_child(
    argv: list[str], env: Mapping[str, str], cwd: str, output: int, gate: int, release: int, failure: int
) -> NoReturn:
    """Never returns: a child that unwound would be a second keeper."""
    code = errno.EINVAL
    try:
        os.close(release)
        if os.read(gate, 1):
            os.setsid()
            os.chdir(cwd or "/")
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            for each in _DEFAULTED:
                signal.signal(each, signal.SIG_DFL)
            os.execve(_find_program(argv[0], env.get("PATH", os.defpath)), argv, env)
    except OSError as error:
        code = error.errno or code
    finally:
        with suppress(OSError):
            os.write(failure, str(code).encode())
        os._exit(127)


def _find_program(name: str, path: str) -> str:
    if "/" in name:
        return name
    for folder in path.split(os.pathsep):
        candidate = Path(folder, name)
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

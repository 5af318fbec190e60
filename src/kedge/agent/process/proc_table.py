"""Processes of this machine as `/proc` shows them, and how one is started. Standard library only, as the keeper.

A pid alone proves nothing, because the kernel reuses pids: a process is its pid and its start time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import termios
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING or __package__:
    from kedge.agent.process import cgroups, mounts
else:  # run as a part of the keeper, without the package
    import cgroups
    import mounts

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
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


class Stdio(NamedTuple):
    """Paths of the standard streams. A path may be `/proc/PID/fd/N` of another process, such as a pipe."""

    stdin: str
    stdout: str
    stderr: str
    terminal: bool = False
    """Whether standard input is the terminal that controls the session."""


SILENT = Stdio(os.devnull, os.devnull, os.devnull)


class Confinement(NamedTuple):
    """The surroundings that a child enters before its program."""

    cgroups: tuple[str, ...] = ()
    binds: tuple[mounts.Bind, ...] = ()
    scratch: str = ""
    """An empty folder for a new root."""
    mounts_of: int = 0
    """A process whose mounts it has; 0 for those of the keeper, and `binds`."""


OPEN = Confinement()


class ExecFailed(OSError):
    """The program could not be executed: it is missing, is not a program, or its folder is missing."""


def spawn(
    argv: list[str],
    env: Mapping[str, str],
    cwd: str,
    stdio: Stdio,
    record: Callable[[int], None],
    confinement: Confinement = OPEN,
) -> int:
    """Start a program as the leader of a session of its own. A file of its output is appended to.

    The child waits until `record` has returned. If the keeper is killed before that, or `record` raises, the child
    reads the end of its pipe and exits: no program runs that is not recorded.

    Raises:
        ExecFailed: after `record`: the program cannot run.
        OSError: before `record`, or raised by it: no program ran.
    """
    opened: list[int] = []
    try:
        streams = _open_streams(stdio, opened)
        gate, release = os.pipe2(os.O_CLOEXEC)
        opened += (gate, release)
        report, failure = os.pipe2(os.O_CLOEXEC)
        opened += (report, failure)
        pid = os.fork()
        if pid == 0:
            _run_child(argv, env, cwd, streams, stdio.terminal, confinement, gate, failure)
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


def _open_streams(stdio: Stdio, opened: list[int]) -> tuple[int, int, int]:
    """Open the three streams; each descriptor is also added to `opened`. A terminal must not become the keeper's."""
    opened.append(os.open(stdio.stdin, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    output = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC
    for path in (stdio.stdout, stdio.stderr):
        new = 0 if path.startswith(("/proc/", "/dev/")) else os.O_CREAT
        opened.append(os.open(path, output | new, 0o600))
    return opened[0], opened[1], opened[2]


def _run_child(
    argv: list[str],
    env: Mapping[str, str],
    cwd: str,
    streams: tuple[int, int, int],
    terminal: bool,
    confinement: Confinement,
    gate: int,
    failure: int,
) -> NoReturn:
    """Never returns: a child that unwound would be a second keeper."""
    code = errno.EINVAL
    try:
        _close_others({0, 1, 2, *streams, gate, failure})
        if os.read(gate, 1):
            os.setsid()
            cgroups.join(list(confinement.cgroups))
            if confinement.mounts_of:
                mounts.enter(confinement.mounts_of)
            if confinement.binds:
                mounts.bind_all(confinement.binds, confinement.scratch)
            os.chdir(cwd or "/")
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for each in _DEFAULTED:
                signal.signal(each, signal.SIG_DFL)
            os.execve(_find_program(argv[0], env.get("PATH", os.defpath)), argv, env)
    except OSError as error:
        code = error.errno or code
    finally:
        with suppress(OSError):
            os.write(failure, str(code).encode())
        os._exit(127)


def _close_others(kept: set[int]) -> None:
    """Close the other descriptors now, not at exec: mounts may take long.

    Until then a child of a killed keeper would hold its lock, so that no other keeper starts, and its socket and
    connections, so that agents wait for replies of a keeper that is gone.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) not in kept:
            with suppress(OSError):  # the listing's own
                os.close(int(name))


def _find_program(name: str, path: str) -> str:
    if "/" in name:
        return name
    for folder in path.split(os.pathsep):
        candidate = Path(folder, name)
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def consumption_of(owners: Mapping[int, str], groups: Mapping[str, list[str]]) -> dict[str, dict[str, float]]:
    """CPU seconds and bytes of processes and all below them, by owner. `owners` is by pid of the topmost process.

    Control groups count children that have ended, and memory that processes share once; `/proc` has the rest.
    """
    found = {}
    for owner, (ticks, pages) in _totals(owners).items():
        cpu_s, held = cgroups.usage(groups.get(owner, []))
        found[owner] = {
            "cpu_s": ticks / _TICKS if cpu_s is None else cpu_s,
            "bytes": pages * _PAGE if held is None else held,
        }
    return found


def _totals(owners: Mapping[int, str]) -> dict[str, tuple[int, int]]:
    """CPU ticks and pages by owner, from `/proc`."""
    table = read_table()
    totals: dict[str, tuple[int, int]] = {}
    for pid in table:
        above, seen = pid, 0
        while above not in owners and above in table and seen < 100:
            above, seen = table[above].parent, seen + 1
        owner = owners.get(above)
        if owner is not None:
            ticks, pages = totals.get(owner, (0, 0))
            totals[owner] = ticks + table[pid].cpu_ticks, pages + table[pid].pages
    return totals

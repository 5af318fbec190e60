"""The checks of `kedge doctor`. Each looks at one thing, changes nothing, and names the features that need it."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from kedge.cli.state_folder import UP_LOCK, holder_of

CGROUPS = Path("/sys/fs/cgroup")
COMMAND_S = 10.0
FREE_BYTES_MIN = 500 << 20
OPEN_FILES_MIN = 1024
SQLITE_MIN = (3, 35, 0)
"""The first with everything that the store uses: WAL, upserts and RETURNING."""
UNSOUND_ETCD = re.compile(r"3\.5\.[012]$")
_STA_UNSYNC = 0x40


class Outcome(Enum):
    """How a check ended."""

    OK = "ok"
    LIMITED = "limited"
    """Kedge works; `without` names the features that do not."""
    MISSING = "missing"
    """Kedge does not work."""


class Examination(NamedTuple):
    """One check."""

    name: str
    outcome: Outcome
    found: str
    without: str = ""
    """The parts that work and those that do not; needed unless the outcome is OK."""


def examine(state: Path, host: str, port: int) -> Iterator[Examination]:
    """Every check, in the order in which it is printed."""
    yield _python()
    yield _sqlite()
    yield _system()
    yield _cgroups()
    yield _port(state, host, port)
    yield _folder(state)
    yield _open_files()
    yield _clock()
    yield _program("kubectl", ("version", "--client"), "kedge get, apply, logs and exec do the same: `kedge --help`")
    yield _etcd()


def _python() -> Examination:
    text = sys.version.split()[0]
    good = sys.version_info >= (3, 11)
    return Examination("python", Outcome.OK if good else Outcome.MISSING, text, "kedge needs Python 3.11 or newer")


def _sqlite() -> Examination:
    good = sqlite3.sqlite_version_info >= SQLITE_MIN
    wanted = ".".join(map(str, SQLITE_MIN))
    return Examination(
        "sqlite",
        Outcome.OK if good else Outcome.MISSING,
        sqlite3.sqlite_version,
        f"the embedded store needs {wanted} or newer; `kedge server --store etcd://HOST:PORT` works without",
    )


def _system() -> Examination:
    good = sys.platform == "linux" and hasattr(os, "pidfd_open")
    return Examination(
        "processes",
        Outcome.OK if good else Outcome.LIMITED,
        f"{sys.platform}, {'pidfd' if hasattr(os, 'pidfd_open') else 'no pidfd'}",
        "nodes run processes on Linux 5.3 or newer only; hunts, scenarios and `kedge server` work without",
    )


def _cgroups() -> Examination:
    without = "pods run without limits of memory and CPU, and a pod's processes are ended by process group"
    if (CGROUPS / "cgroup.controllers").is_file():
        controllers = (CGROUPS / "cgroup.controllers").read_text().split()
        writable = os.access(CGROUPS / "cgroup.procs", os.W_OK)
        found = f"v2, {'writable' if writable else 'not writable'}, controllers: {' '.join(controllers) or 'none'}"
        good = writable and {"cpu", "memory"} <= set(controllers)
        return Examination("cgroups", Outcome.OK if good else Outcome.LIMITED, found, without)
    memory = CGROUPS / "memory"
    if memory.is_dir():
        writable = os.access(memory, os.W_OK)
        found = f"v1, {'writable' if writable else 'not writable'}"
        return Examination("cgroups", Outcome.OK if writable else Outcome.LIMITED, found, without)
    return Examination("cgroups", Outcome.LIMITED, "none", without)


def _port(state: Path, host: str, port: int) -> Examination:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if pid := holder_of(state / UP_LOCK):
            return Examination("port", Outcome.OK, f"{host}:{port} is served by kedge up (process {pid})")
        return Examination(
            "port",
            Outcome.LIMITED,
            f"{host}:{port}: {error.strerror}",
            f"`kedge up --listen {host}:0` picks a free port",
        )
    return Examination("port", Outcome.OK, f"{host}:{port} is free")


def _folder(state: Path) -> Examination:
    there = state
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    writable = os.access(there, os.W_OK | os.X_OK) and there.is_dir()
    found = f"{state}, {free >> 20} MiB free{'' if writable else ', not writable'}"
    if not writable:
        return Examination("state", Outcome.LIMITED, found, "`kedge up --state DIR` takes another folder")
    short = free < FREE_BYTES_MIN
    return Examination(
        "state", Outcome.LIMITED if short else Outcome.OK, found, "a full disk makes the store refuse writes: free some"
    )


def _open_files() -> Examination:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN
    return Examination(
        "open files",
        Outcome.LIMITED if few else Outcome.OK,
        "no limit" if soft == resource.RLIM_INFINITY else str(soft),
        f"watches and connections are a file each: `ulimit -n {OPEN_FILES_MIN}` or more for a busy server",
    )


def _clock() -> Examination:
    """Whether the kernel counts its clock as synchronized: `adjtimex` with no change asked for."""
    without = (
        "safety depends on no clock, but times in objects and certificates do: start an NTP client on every machine"
    )
    try:
        buffer = ctypes.create_string_buffer(256)  # struct timex, with every field zero: read only
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
        status = int.from_bytes(buffer.raw[40:44] if sys.maxsize > 1 << 32 else buffer.raw[20:24], sys.byteorder)
    except (AttributeError, OSError):
        return Examination("clock", Outcome.LIMITED, "its state cannot be read", without)
    if state < 0 or status & _STA_UNSYNC:
        return Examination("clock", Outcome.LIMITED, "the kernel reports that it is not synchronized", without)
    return Examination("clock", Outcome.OK, "the kernel reports that it is synchronized")


def _program(name: str, arguments: tuple[str, ...], without: str) -> Examination:
    path = shutil.which(name)
    if path is None:
        return Examination(name, Outcome.LIMITED, "not on the path", without)
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Examination(name, Outcome.LIMITED, f"{path} does not run: {error}", without)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return Examination(name, Outcome.OK, f"{path}, {lines[0] if lines else 'no version'}")


def _etcd() -> Examination:
    without = "only clusters of several API servers need it; one server has SQLite, and etcd may run elsewhere"
    found = _program("etcd", ("--version",), without)
    version = found.found.rpartition(" ")[2]
    if found.outcome is Outcome.OK and UNSOUND_ETCD.search(version):
        return Examination(
            "etcd", Outcome.LIMITED, found.found, "3.5.0 to 3.5.2 can lose data when killed: use a newer release"
        )
    return found

"""Writes and syncs of a store in order, and the files that a power cut could have left at any point of them.

`disk_shim.c` records the calls of a process; `sqlite_load` is the load. A sync makes everything durable that was
written to its file before. A power cut keeps any of the later writes: all, none, some, or the beginnings of some.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tools import need_tool

ROOT = Path(__file__).parents[2]
SUFFIXES = ("", "-wal", "-mark", "-acks")
"""The files of a store, by their number in a trace. The last one is the load's own: what was acknowledged, and when."""
ACKS = 3
SECTOR_BYTES = 512
_RECORD = struct.Struct("<BBHIQ")


class Call(IntEnum):
    """The kinds of a trace."""

    WRITE = 1
    CUT = 2
    SYNC = 3


class DiskCall(NamedTuple):
    """One call that succeeded."""

    kind: Call
    file: int
    offset: int
    """Where it writes, or the length that it cuts the file to."""
    data: bytes


@cache
def shim(folder: Path) -> Path:
    """The compiled shim."""
    made = folder / "disk_shim.so"
    compiler = need_tool("cc", install="apt-get install gcc libc6-dev")
    source = Path(__file__).with_name("disk_shim.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", made, source, "-ldl"], check=True)
    return made


def run_shimmed(folder: Path, store: Path, arguments: Sequence[str], *, trace: Path | None = None) -> str:
    """Run `python -m tests.torture.disk_load` with these arguments and the shim. Returns what it printed."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(shim(folder)),
        "KEDGE_DISK_STORE": str(store),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
    }
    if trace is not None:
        environment["KEDGE_DISK_TRACE"] = str(trace)
    command = [sys.executable, "-m", "tests.torture.disk_load", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"the load ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def read_trace(path: Path) -> Iterator[DiskCall]:
    content = memoryview(path.read_bytes())
    place = 0
    while place < len(content):
        kind, file, _, length, offset = _RECORD.unpack_from(content, place)
        place += _RECORD.size
        size = length if kind == Call.WRITE else 0
        yield DiskCall(Call(kind), file, offset, bytes(content[place : place + size]))
        place += size


Choice = Callable[[Sequence[DiskCall]], Iterable[DiskCall]]
"""Which of the calls since the last sync of a file have an effect that survives."""


@dataclass
class Disk:
    """The files of a store: what is durable, and what has been written since."""

    durable: list[bytearray]
    pending: list[list[DiskCall]] = field(default_factory=lambda: [[], [], []])

    @classmethod
    def of(cls, store: Path) -> Disk:
        files = [store.with_name(store.name + suffix) for suffix in SUFFIXES[:ACKS]]
        return cls([bytearray(each.read_bytes()) if each.exists() else bytearray() for each in files])

    def copy(self) -> Disk:
        return copy.deepcopy(self)

    def apply(self, call: DiskCall, *, syncs_lie: bool = False) -> None:
        if call.file == ACKS:
            return
        if call.kind is not Call.SYNC:
            self.pending[call.file].append(call)
        elif not syncs_lie:
            for each in self.pending[call.file]:
                _carry_out(self.durable[call.file], each)
            self.pending[call.file] = []

    def write(self, store: Path, choose: Choice) -> None:
        """The files after a power cut."""
        for suffix, durable, pending in zip(SUFFIXES[:ACKS], self.durable, self.pending, strict=True):
            content = bytearray(durable)
            for each in choose(pending):
                _carry_out(content, each)
            path = store.with_name(store.name + suffix)
            if content or not suffix:
                path.write_bytes(content)
            else:
                path.unlink(missing_ok=True)


def _carry_out(content: bytearray, call: DiskCall) -> None:
    end = call.offset + len(call.data)
    if call.kind is Call.CUT:
        del content[call.offset :]
        content.extend(bytes(call.offset - len(content)))
    else:
        content.extend(bytes(max(0, end - len(content))))
        content[call.offset : end] = call.data


# -- what survives -----------------------------------------------------------------------------------


def nothing(pending: Sequence[DiskCall]) -> Iterable[DiskCall]:
    del pending
    return ()


def everything(pending: Sequence[DiskCall]) -> Iterable[DiskCall]:
    return pending


def drawn(rng: random.Random) -> Choice:
    """Some whole calls, in any part of the sequence."""
    share = rng.choice((0.1, 0.5, 0.9))
    return lambda pending: [each for each in pending if rng.random() < share]


def beginning(rng: random.Random) -> Choice:
    """The first calls: a disk that keeps the order."""
    return lambda pending: pending[: rng.randrange(len(pending) + 1)]


def torn(rng: random.Random) -> Choice:
    """Some calls, each with all, some or the first of its sectors, or up to any byte."""

    def choose(pending: Sequence[DiskCall]) -> Iterator[DiskCall]:
        for each in pending:
            if each.kind is not Call.WRITE or rng.random() < 0.3:
                if rng.random() < 0.7:
                    yield each
            elif rng.random() < 0.3:
                yield each._replace(data=each.data[: rng.randrange(len(each.data) + 1)])
            else:
                yield from _sectors(each, rng)

    return choose


def _sectors(call: DiskCall, rng: random.Random) -> Iterator[DiskCall]:
    share = rng.choice((0.2, 0.5, 0.9))
    place = 0
    while place < len(call.data):
        end = place + SECTOR_BYTES - (call.offset + place) % SECTOR_BYTES
        if rng.random() < share:
            yield call._replace(offset=call.offset + place, data=call.data[place:end])
        place = end


SURVIVALS: dict[str, Callable[[random.Random], Choice]] = {
    "nothing": lambda _: nothing,
    "everything": lambda _: everything,
    "drawn": drawn,
    "beginning": beginning,
    "torn": torn,
}


def copy_store(store: Path, folder: Path) -> Path:
    """A copy of a store that no process has open."""
    fresh(folder)
    for suffix in SUFFIXES[:ACKS]:
        if (each := store.with_name(store.name + suffix)).exists():
            shutil.copy(each, folder)
    return folder / store.name


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder

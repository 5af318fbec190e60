"""A machine with a SQLite store on its disk: a power cut leaves the files as last synced, with a part of the rest.

The files are real and in a folder of their own; threads and syncs are not. Each process of the machine opens a copy of
the files that the last one left, because the process under it has crashed and still has its own open. `fault_points`
declares the faults.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from kedge.env import Env
from kedge.sim.cluster.fault_points import SQLITE
from kedge.sim.kernel import FAULTS, Host, Simulation
from kedge.sim.kernel.lasting_faults import DOWNTIMES_S
from kedge.store import Entry
from kedge.store.sqlite import SqliteStore
from kedge.store.sqlite.disk_thread import DiskCall, DiskThread
from kedge.store.sqlite.file import log_of
from kedge.store.sqlite.locked_file import close_file
from kedge.store.sqlite.revision_mark import mark_path

SECTOR_BYTES = 512
_UNREAD = logging.NullHandler()
"""Alarms of a simulated disk are for its judge, not for the terminal of a hunt."""
FULL_S = (2.0, 15.0, 40.0)
PARTS = ("nothing", "all", "a prefix", "a torn prefix")
"""How much of the bytes of an unfinished sync is on the disk."""
EIGHTHS = 8


class SimulatedDisk(DiskThread):
    """Runs each call at once. During a call the power may be cut, or the disk become full."""

    def __init__(self, env: Env, name: str, machine: SqliteMachine) -> None:
        super().__init__(env, name)
        self._machine = machine

    def run(self, work: Callable[[], Any]) -> DiskCall:
        call = DiskCall(work)
        fault = self._machine.draw_fault()
        before = self._machine.read_files() if fault == "power cut" else None
        try:
            call.result = work()
        except Exception as error:  # noqa: BLE001  it is raised where the loop takes the result
            call.error = error
        call.ended = True
        if before is not None:
            self._machine.cut_power(before)
        elif fault == "full":
            self._machine.fill_disk()
        return call


class SimulatedSqliteStore(SqliteStore):
    """A store on a simulated disk."""

    @property
    def connection(self) -> sqlite3.Connection:
        return self._db

    def limit_pages(self, pages: int) -> None:
        """Let the file grow no further than to its present size, or to `pages` if that is more."""
        self._db.execute(f"PRAGMA max_page_count={pages}")

    def newest_versions(self) -> tuple[Entry, ...]:
        """Every object, for judges."""
        return tuple(self._versions)

    def abandon(self) -> None:
        """Release the files of a process that has crashed. Nothing of it runs any more."""
        with suppress(sqlite3.Error):
            self._release()


def _remove_files(folder: Path, connections: list[sqlite3.Connection]) -> None:
    for each in connections:
        close_file(each)  # again, for most: a file of the next run may get the same identity
    shutil.rmtree(folder, ignore_errors=True)


class SqliteMachine:
    """The disk of one host, and the store of its current process."""

    def __init__(self, sim: Simulation, host: Host) -> None:
        self._sim, self._host = sim, host
        logging.getLogger("kedge.store").addHandler(_UNREAD)  # safe to repeat
        self._base = Path(tempfile.mkdtemp(prefix="kedge-sim-"))
        self._connections: list[sqlite3.Connection] = []
        """The connection of each process. The last one is open when the run ends."""
        weakref.finalize(sim.world, _remove_files, self._base, self._connections)
        self._point = sim.faults.point(SQLITE, host.name, FAULTS.kinds_at(SQLITE))
        self._lives = 0
        self._left: dict[str, bytes] | None = None
        """The files that a power cut left; None after any other end."""
        self.store: SimulatedSqliteStore | None = None

    @property
    def path(self) -> Path:
        return self._base / f"{self._lives}" / "store"

    async def open_store(self, env: Env) -> SimulatedSqliteStore:
        """Open the store on the files that the last process, or a power cut, left."""
        former, left = self.store, self._left
        if former is not None and left is None:
            left = self.read_files()  # the process has crashed, and the machine has all that it wrote
        if former is not None:
            former.abandon()
        self._left, self.store = None, None
        self._lives += 1
        self.path.parent.mkdir()
        for name, content in (left or {}).items():
            (self.path.parent / name).write_bytes(content)

        machine = self

        class OnThisDisk(SimulatedSqliteStore):
            def _make_disk(self, env: Env, name: str) -> DiskThread:
                return SimulatedDisk(env, name, machine)

        self.store = store = cast("SimulatedSqliteStore", await OnThisDisk.open(self.path, env))
        self._connections.append(store.connection)
        return store

    # -- faults ------------------------------------------------------------------------------------

    def draw_fault(self) -> str:
        return self._point.draw_fault() if self.store is not None and self._left is None else ""

    def read_files(self) -> dict[str, bytes]:
        """The store, its log and its mark, by file name."""
        files = (self.path, log_of(self.path), mark_path(self.path))
        return {each.name: each.read_bytes() for each in files if each.exists()}

    def cut_power(self, before: dict[str, bytes]) -> None:
        """End the process during a sync. `before` are the files as they were when it began."""
        after = self.read_files()
        store, log = self.path.name, log_of(self.path).name
        left = dict(before)
        if after[store] != before[store]:
            # A checkpoint syncs the database before it changes the log.
            left[store] = self._torn(before[store], after[store])
        else:
            left[log] = self._torn(before.get(log, b""), after.get(log, b""))
        if self._sim.faults.pick("the mark is left", (True, False)) is False:
            left.pop(mark_path(self.path).name, None)  # it is never synced
        self._left = left
        self._sim.sometimes("the power was cut during a sync")
        downtime_s = self._sim.faults.pick("long the power is off", DOWNTIMES_S)
        self._host.crash()
        dead, world = self._host.process, self._sim.world

        def restart() -> None:
            if self._host.process is dead:
                self._host.restart()

        world.loop.call_later(downtime_s, restart, context=world.context)

    def _torn(self, before: bytes, after: bytes) -> bytes:
        """A file of which a part of the changes is on the disk."""
        part = self._sim.faults.pick("much of the sync is left", PARTS)
        if part == "nothing" or before == after:
            return before
        if part == "all":
            return after
        size = max(len(before), len(after))
        first = next(n for n in range(size) if before[n : n + 1] != after[n : n + 1]) // SECTOR_BYTES
        sectors = size // SECTOR_BYTES + 1 - first
        kept = first + sectors * self._sim.faults.pick("many eighths of it", range(EIGHTHS)) // EIGHTHS
        end = kept * SECTOR_BYTES
        self._sim.sometimes("a part of a sync was left")
        torn = after[end : end + SECTOR_BYTES // 2] if part == "a torn prefix" else b""
        return after[:end] + torn + before[end + len(torn) :]

    def fill_disk(self) -> None:
        """Let the store not grow for a while."""
        store = self.store
        if store is None:
            return
        store.limit_pages(1)
        self._sim.sometimes("the disk was full")
        self._sim.world.loop.call_later(
            self._sim.faults.pick("long the disk is full", FULL_S),
            self.free_disk,
            store,
            context=self._sim.world.context,
        )

    def free_disk(self, store: SimulatedSqliteStore) -> None:
        with suppress(sqlite3.Error):  # another process has its own connection, without a bound
            store.limit_pages(2**31)

"""Checkpoints: the write-ahead log is moved into the database, so that it stays short. No answer waits for one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from kedge.env import Env
from kedge.store.sqlite.alarms import Alarms
from kedge.store.sqlite.disk_thread import DiskThread
from kedge.store.sqlite.meters import StoreMeters


class Checkpoints:
    """Times the checkpoints of one store by the pages that its commits have written."""

    def __init__(
        self, env: Env, path: Path, db: sqlite3.Connection, disk: DiskThread, alarms: Alarms, meters: StoreMeters
    ) -> None:
        self._env = env
        self._limits = env.limits
        self._path = path
        self._db = db
        self._disk = disk
        self._alarms = alarms
        self._meters = meters
        self._pages = 0  # an upper estimate; a checkpoint measures it

    def count(self, pages: int) -> None:
        self._pages += pages

    @property
    def is_due(self) -> bool:
        return self._pages >= self._limits.wal_pages_max

    def start(self) -> None:
        """Move what is in the log by now, unless the disk is busy: then it stays due."""
        if self._disk.busy:
            return
        began_s = self._env.monotonic()
        call = self._disk.run(lambda: self._move("PASSIVE"))
        if call.ended:
            self._moved(call.result, call.error, began_s)
        else:
            call.on_end = lambda: self._moved(call.result, call.error, began_s)

    async def finish(self) -> None:
        """Move all of the log, and cut it to nothing."""
        began_s, moved, failure = self._env.monotonic(), None, None
        try:
            moved = await self._disk.call(lambda: self._move("TRUNCATE"))
        except sqlite3.Error as error:
            failure = error
        self._moved(moved, failure, began_s)

    def _move(self, mode: str) -> Any:
        return self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()

    def _moved(self, row: Any, error: BaseException | None, began_s: float) -> None:
        if error is not None:
            if not isinstance(error, sqlite3.Error):
                raise error
            self._pages = 0  # retry after as many pages again; the log keeps everything until then
            self._alarms.raise_alarm("checkpoint failed", f"a checkpoint of {self._path} failed: {error}")
            return
        _, pages, moved = row
        took_s = self._env.monotonic() - began_s
        self._pages = max(0, pages - moved)
        self._meters.wal_pages.set(pages)
        self._meters.checkpoint_seconds.observe(took_s)
        if took_s > self._limits.sync_hold_s_alarm:
            self._alarms.raise_alarm(
                "checkpoint slow",
                f"a checkpoint of {moved} pages took {took_s:.3f} s, and commits waited for it"
                f" (alarm at {self._limits.sync_hold_s_alarm} s): lower wal_pages_max, or use a faster disk",
            )

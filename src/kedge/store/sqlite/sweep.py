"""Compaction of the file: versions before the compacted revision are deleted, in small and frequent slices.

Each row has the revision that it replaced, so one pass over the rows up to the compacted revision finds every obsolete
version, with no index and no second write of any row.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque

from kedge.env import Env
from kedge.errors import Unavailable
from kedge.keys import NO_REVISION, Revision
from kedge.store.feed import Feed
from kedge.store.sqlite.alarms import Alarms
from kedge.store.sqlite.checksums import is_sound
from kedge.store.sqlite.disk_thread import DiskThread
from kedge.store.sqlite.file import DELETE_VERSION, ids_of, not_sound, set_facts

_ROWS = "SELECT * FROM versions WHERE id > ? AND id <= ? ORDER BY id LIMIT ?"


class Sweeper:
    """Advances `swept`, the id up to which rows have been read, to the feed's compacted revision."""

    def __init__(
        self, env: Env, db: sqlite3.Connection, feed: Feed, disk: DiskThread, alarms: Alarms, *, swept: int
    ) -> None:
        self._env = env
        self._limits = env.limits
        self._db = db
        self._feed = feed
        self._disk = disk
        self._alarms = alarms
        self._swept = swept
        self._turn = asyncio.Lock()
        self._marks: deque[tuple[float, Revision]] = deque()  # times and revisions, oldest first
        self._ran_at = env.monotonic()
        self._seconds = env.metrics.histogram(
            "kedge_store_compaction_seconds", "Time to select and delete one slice of a compaction"
        )
        self._age = env.metrics.gauge("kedge_store_history_age_seconds", "Age of the oldest version in history")

    async def run(self) -> None:
        """Keep `history_s` of history, for as long as the store is open."""
        while True:
            await asyncio.sleep(self._limits.compact_every_s)
            self._feed.compact(self._due(self._env.monotonic()))
            try:
                await self.sweep()
            except Unavailable as error:
                self._alarms.raise_alarm("compaction failed", f"compaction failed and will be retried: {error}")

    def _due(self, now: float) -> Revision:
        """The revision at which history should begin."""
        marks = self._marks
        marks.append((now, self._feed.revision))
        due = NO_REVISION
        while now - marks[0][0] >= self._limits.history_s:
            due = marks.popleft()[1]
            if not marks:
                break
        self._age.set(now - marks[0][0] if marks else 0.0)
        return due

    async def sweep(self) -> None:
        """Delete obsolete versions up to the feed's compacted revision, in slices; other tasks run in between."""
        async with self._turn:
            started = self._env.monotonic()
            await asyncio.sleep(0)  # the feed has just freed all that it dropped: a step of its own
            while self._swept < ids_of(self._feed.compacted)[1]:
                if self._feed.closed:
                    raise Unavailable("the store was closed")
                await self._disk.free()
                await self._slice()
                await asyncio.sleep(0)
            self._ran_at = self._env.monotonic()
        if (took := self._ran_at - started) > self._limits.compact_every_s:
            self._alarms.raise_alarm(
                "compaction slow",
                f"a compaction took {took:.1f} s, and one is due every {self._limits.compact_every_s} s:"
                " history grows faster than it is compacted",
            )

    def stalled(self) -> str:
        """The alarm to raise if compaction has not finished for far too long; empty otherwise."""
        idle = self._env.monotonic() - self._ran_at
        if idle < 3 * self._limits.compact_every_s:
            return ""
        return f"no compaction has finished for {idle:.0f} s; one is due every {self._limits.compact_every_s} s"

    async def _slice(self) -> None:
        started = self._env.monotonic()
        db, last = self._db, ids_of(self._feed.compacted)[1]
        try:
            rows = db.execute(_ROWS, (self._swept, last, self._limits.compact_rows_max)).fetchall()
            for row in rows:
                if not is_sound(row):  # its key or its predecessor may be another's: nothing is deleted by it
                    raise Unavailable(
                        f"{not_sound(row)}: list the damage with `kedge store check`, or restore a backup"
                    )
            reached = rows[-1][0] if len(rows) == self._limits.compact_rows_max else last
            db.execute("BEGIN")
            db.executemany(
                DELETE_VERSION,
                [
                    (*ids_of(abs(previous)), name, namespace, kind)
                    for _, kind, namespace, name, _, previous, *_ in rows
                    if previous
                ],
            )
            db.executemany("DELETE FROM versions WHERE id = ?", [(row[0],) for row in rows if row[8] is None])
            set_facts(db, {"compacted": self._feed.compacted, "swept": reached})
            await self._disk.call(self._commit)
        except sqlite3.Error as error:
            # Memory does not depend on this, so the store serves on either way.
            self._roll_back()
            raise Unavailable(f"a compaction could not be written: {error}") from error
        self._swept = reached
        held = self._env.monotonic() - started
        self._seconds.observe(held)
        if held > self._limits.sync_hold_s_alarm:
            self._alarms.raise_alarm(
                "compaction slice slow",
                f"one slice of a compaction took {held:.3f} s, and commits waited for it"
                f" (alarm at {self._limits.sync_hold_s_alarm} s): lower compact_rows_max, or use a faster disk",
            )

    def _commit(self) -> None:
        """In the thread. It leaves no transaction open: the next use of the connection may be a commit's."""
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

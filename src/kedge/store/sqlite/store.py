"""A store in one SQLite file. Reads are from memory; the file is the log, written before a commit is acknowledged.

Group commit: commits that arrive together share one transaction and one sync, for which the event loop waits unless
the disk stalls. Memory has only durable versions whenever the loop runs: `docs/decisions/0005` and `0070`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kedge.env import Env
from kedge.errors import Conflict, Fenced, OperatingError, OutcomeUnknown, TooManyRequests, Unavailable, check
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.backup import StoreExport, sliced
from kedge.store.contract import (
    Check,
    DeleteKey,
    Entry,
    Listing,
    Reading,
    StoreStatistics,
    StoreWatch,
    Write,
    check_commit,
    latest_only_keys,
)
from kedge.store.encryption import ValueCipher
from kedge.store.feed import Feed
from kedge.store.sqlite import file
from kedge.store.sqlite.alarms import Alarms
from kedge.store.sqlite.checkpoints import Checkpoints
from kedge.store.sqlite.commit_group import CommitGroup, CommitRequest
from kedge.store.sqlite.disk_reserve import DiskReserve
from kedge.store.sqlite.disk_thread import DiskCall, DiskThread
from kedge.store.sqlite.failures import disk_full, is_full, raise_at_open, wrapped
from kedge.store.sqlite.held_file import HeldFile
from kedge.store.sqlite.locked_file import OpenedFile, close_file, open_file
from kedge.store.sqlite.meters import StoreMeters
from kedge.store.sqlite.revision_mark import RevisionMark
from kedge.store.sqlite.sweep import Sweeper
from kedge.store.versions import Versions
from kedge.tasks import gather_ended

_TURNS = 2
"""Turns of the loop that a sync waits for other commits: a request is read in one turn and handled in the next."""


class SqliteStore:
    """The contract on one file, which this process has locked. Open with `SqliteStore.open`."""

    def __init__(self, env: Env, path: Path, opened: OpenedFile, cipher: ValueCipher | None = None) -> None:
        self._env = env
        self._cipher = cipher
        self._limits = env.limits
        self._path = path
        self._db = db = opened.db
        facts = file.read_facts(db)
        self.incarnation = facts.incarnation
        compacted = facts.compacted
        newest = file.newest_revision(db)
        self._feed = Feed(env, revision=compacted, compacted=compacted)
        self._versions = Versions(file.load(db, compacted, self._feed.publish, cipher))
        self._feed.advance(newest)
        self._alarms = Alarms(env)
        if opened.lost:
            self._alarms.raise_alarm("commits lost", opened.lost)
        self._held = HeldFile(env, path, opened.identity)
        self._disk = self._make_disk(env, f"disk of {path.name}")
        self._sweeper = Sweeper(env, db, self._feed, self._disk, self._alarms, swept=facts.swept)
        self._sweeping: asyncio.Task[None] | None = None
        self._pending: deque[CommitRequest] = deque()
        self._flush_due = False
        self._closed = ""  # why the store serves nothing more; empty while it is open
        self._ops_largest = 0
        self._bytes_largest = 0
        self._commits = 0
        self._conflicts = 0
        self._sync_s_max = 0.0
        self._page_bytes = file.page_bytes(db)
        self._meters = StoreMeters(env.metrics)
        self._checkpoints = Checkpoints(env, path, db, self._disk, self._alarms, self._meters)
        self._meters.read(self._pending.__len__, lambda: self._ops_largest, lambda: self._bytes_largest)
        # Last: an error before this leaves no file beside the store, and no descriptor open.
        self._reserve = DiskReserve(env, path, lambda: file.free_bytes(db))
        self._mark = RevisionMark(path, self.incarnation, newest)

    @classmethod
    async def open(
        cls,
        path: str | Path,
        env: Env,
        *,
        connection: type[sqlite3.Connection] = sqlite3.Connection,
        cipher: ValueCipher | None = None,
    ) -> SqliteStore:
        """Open the store at `path`, or create it. A backup is recognised and restored. `cipher` encrypts values in the
        file; without one they are taken as they are.

        Raises:
            Unavailable: another process has it open, or the disk is full. Free it, then open again.
            StoreDamaged: its content is not what a store wrote. Restore a backup, or salvage what is sound.
            Terminal: it is not a kedge store, or cannot be written. The message has the next step.
            Misconfigured: the key of an encrypted value is missing or wrong.
        """
        path = Path(path)
        check(env.limits.commit_ops_max <= 1 << file.SEQ_BITS, "commit_ops_max is larger than the index in a row's id")
        opened = open_file(path, env.new_uid, connection)
        db = opened.db
        try:
            # The store times its checkpoints; SQLite's own are a fallback, should the count of pages be far off.
            db.execute(f"PRAGMA wal_autocheckpoint={4 * env.limits.wal_pages_max}")
            store = cls(env, path, opened, cipher)
        except BaseException as error:  # noqa: BLE001  every error is raised again, as the one for its cause
            close_file(db)
            raise_at_open(error, path)
        store._sweeping = env.spawn(store._sweeper.run(), name=f"compaction of {path.name}")
        return store

    def _make_disk(self, env: Env, name: str) -> DiskThread:
        """Runs the calls that may sync. A simulated machine has no threads."""
        return DiskThread(env, name)

    # -- commits -----------------------------------------------------------------------------------

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        size = check_commit(checks, writes, self._limits, origin=origin)
        if self._closed:
            self._check_open()
        if len(self._pending) >= self._limits.commit_queue_max:
            raise TooManyRequests(f"{len(self._pending)} commits already wait for the disk: try again later")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Revision] = loop.create_future()
        self._pending.append(CommitRequest(checks, writes, fence, origin, size, answer))
        ops = len(checks) + len(writes)
        if ops > self._ops_largest:
            self._ops_largest = ops
        if size > self._bytes_largest:
            self._bytes_largest = size
        if not self._flush_due:
            # Not now: other commits of this turn of the loop can still share the sync, and those of requests that are
            # being read already.
            self._flush_due = True
            loop.call_soon(self._flush_later, _TURNS)
        return await answer

    def _flush_later(self, turns: int) -> None:
        """Flush in so many turns of the loop. They take microseconds where nothing else is to be done."""
        asyncio.get_running_loop().call_soon(*((self._flush_later, turns - 1) if turns > 1 else (self._flush_soon,)))

    def _flush_soon(self) -> None:
        if self._disk.busy:
            self._disk.when_free(self._flush_soon)
            return
        self._flush_due = False
        if not self._closed and (moved := self._held.moved()):
            self._break(f"{moved}; commits are no longer accepted: put it back or restore a backup, then start again")
        if self._closed:
            return
        self._flush(self._take_batch())
        loop = asyncio.get_running_loop()
        if self._checkpoints.is_due:
            loop.call_soon(self._checkpoint)  # after the callers that were just answered
        if self._pending:
            self._flush_due = True
            loop.call_soon(self._flush_soon)

    def _checkpoint(self) -> None:
        if not self._closed:
            self._checkpoints.start()

    def _take_batch(self) -> list[CommitRequest]:
        """The commits of the next sync: all that wait, within bounds, and at least one."""
        pending, ops_max, bytes_max = self._pending, self._limits.sync_ops_max, self._limits.sync_bytes_max
        batch: list[CommitRequest] = []
        ops = size = 0
        while pending:
            request = pending[0]
            ops += len(request.writes)
            size += request.size
            if batch and (ops > ops_max or size > bytes_max):
                break
            batch.append(pending.popleft())
        return batch

    def _flush(self, batch: list[CommitRequest]) -> None:
        """Settle a batch. On any failure every caller gets an answer, and only one that is certain."""
        group = CommitGroup(batch)
        with self._in_doubt(group):
            self._prove(group)
            if group.applied:
                self._write(group)
            else:
                self._conflicts += group.lost
                group.answer()

    @contextmanager
    def _in_doubt(self, group: CommitGroup) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._break(f"a bug in the store ({error!r}) left it in doubt: open it again, and report this")
            group.fail(OutcomeUnknown(f"{self._closed}; read before anything else"))
            raise

    def _prove(self, group: CommitGroup) -> None:
        """Prove and apply each request in order: later ones see earlier ones."""
        versions = self._versions
        revision = self._feed.revision
        tight = self._reserve.is_tight()
        for request in group.requests:
            writes = request.writes
            try:
                versions.prove(request.checks, writes, request.fence)
                if tight:
                    self._check_growth(writes)
            except Exception as error:  # noqa: BLE001  a request that makes no sense fails alone
                group.outcomes.append(error)
                group.lost += isinstance(error, Conflict | Fenced)
                continue
            if writes:
                revision += 1
                changes = versions.apply(writes, revision, request.origin)
                group.applied.append((revision, changes, latest_only_keys(writes)))
            group.outcomes.append(revision)

    def _write(self, group: CommitGroup) -> None:
        """Make the group durable. If the disk stalls, memory has none of it until the sync ends."""
        group.make_rows(self._cipher)
        group.began_s = self._env.monotonic()
        try:
            group.insert(self._db)
        except Exception as error:  # noqa: BLE001  whatever it was, memory and file must agree afterwards
            self._written(group, error, committing=False)
            return
        call = self._disk.run(partial(self._db.execute, "COMMIT"))
        if call.ended:
            self._written(group, call.error, committing=True)
            return
        for _, changes, _ in reversed(group.applied):
            self._versions.undo(changes)
        call.on_end = partial(self._written_late, group, call)

    def _written_late(self, group: CommitGroup, call: DiskCall) -> None:
        with self._in_doubt(group):
            for _, changes, _ in group.applied:
                self._versions.redo(changes)
            self._written(group, call.error, committing=True)

    def _written(self, group: CommitGroup, error: BaseException | None, *, committing: bool) -> None:
        """Publish and answer, or undo and give every caller the error."""
        applied = group.applied
        if error is not None:
            if not isinstance(error, Exception):
                raise error
            if is_full(error) and self._reserve.give_up():
                self._alarms.raise_alarm("reserve given up", f"{disk_full(self._path)}; its reserve is in use")
                if self._rolled_back():
                    self._write(group)
                    return
            group.fail(self._unwritten(error, group, committing=committing))
            return
        self._mark.write(applied[-1][0])
        self._synced(group)
        self._feed.publish_all(applied)
        self._commits += len(applied)
        self._conflicts += group.lost
        group.answer()

    def _rolled_back(self) -> bool:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    def _check_growth(self, writes: Sequence[Write]) -> None:
        """Reject new objects while the disk is full: the reserve is for updates and deletions."""
        for write in writes:
            if isinstance(write, DeleteKey):
                return
        if any(not write.latest_only and self._versions.newest(write.key) is None for write in writes):
            raise Unavailable(
                f"nothing was written: the disk of {self._path} is full, and its reserve is for updates and deletions:"
                " free some space, or delete objects"
            )

    def _unwritten(self, error: Exception, group: CommitGroup, *, committing: bool) -> OperatingError:
        """Handle a failed write. Continue if it is certain that nothing was written; otherwise stop serving."""
        # A full disk fails before the log's commit mark is written, so the outcome is certain even in COMMIT.
        certain = (not committing or is_full(error)) and self._rolled_back()
        if not certain:
            self._break(
                f"a sync of {self._path} failed ({error}) and may or may not have been written: open the store again"
            )
            return OutcomeUnknown(f"a sync of {self._path} failed ({error}): read before anything else")
        for _, changes, _ in reversed(group.applied):
            self._versions.undo(changes)
        failure = wrapped(error, self._path)
        self._alarms.raise_alarm("write failed", f"commits fail: {failure}")
        return Unavailable(f"nothing was written: {failure}")

    def _synced(self, group: CommitGroup) -> None:
        took_s, rows, size = self._env.monotonic() - group.began_s, len(group.rows), group.size
        # A row holds its key and origin beside its value; a transaction adds a few pages.
        self._checkpoints.count((size + 200 * rows) // self._page_bytes + 3 + len(group.replaced))
        self._meters.sync_seconds.observe(took_s)
        self._meters.sync_ops.set(rows)
        self._meters.sync_bytes.set(size)
        if took_s > self._sync_s_max:
            self._sync_s_max = took_s
        if took_s > self._limits.sync_hold_s_alarm:
            self._alarms.raise_alarm(
                "sync slow",
                f"a sync of {rows} writes took {took_s:.3f} s, and other commits waited for it"
                f" (alarm at {self._limits.sync_hold_s_alarm} s): use a faster disk",
            )

    # -- reads -------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        if self._closed:
            self._check_open()
        if at > self._feed.revision:
            await self._feed.wait_reached(at)
        return self._versions.get(keys, self._feed, at=at)

    def get_nowait(self, keys: Sequence[Key]) -> Reading:
        self._check_open()
        return self._versions.get(keys, self._feed, at=NO_REVISION)

    async def list(
        self,
        kind: str,
        *,
        namespace: str = "",
        at: Revision = NO_REVISION,
        start_after: Key | None = None,
        limit: int = 0,
    ) -> Listing:
        self._check_open()
        if at > self._feed.revision:
            await self._feed.wait_reached(at)
        slice_max = self._limits.list_page_max
        return await self._versions.list_in_slices(
            kind, self._feed, slice_max, namespace=namespace, at=at, start_after=start_after, limit=limit
        )

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> StoreWatch:
        self._check_open()
        return await self._feed.watch(kind, after=after, namespace=namespace)

    async def revision(self) -> Revision:
        self._check_open()
        return self._feed.revision

    def statistics(self) -> StoreStatistics:
        stalled = "" if self._closed else self._sweeper.stalled()
        return self._versions.statistics(
            self._feed,
            backend="sqlite",
            incarnation=self.incarnation,
            commits=self._commits,
            conflicts=self._conflicts,
            sync_s_max=self._sync_s_max,
            alarms=(*self._alarms.texts(), *((stalled,) if stalled else ())),
        )

    # -- upkeep ------------------------------------------------------------------------------------

    async def compact(self, revision: Revision) -> None:
        self._check_open()
        self._feed.check_compactable(revision)
        self._feed.compact(revision)
        await self._sweeper.sweep()

    async def export(self) -> StoreExport:
        """All of it at one revision, for a backup. Versions are frozen, so references to them are a snapshot."""
        self._check_open()
        slices = sliced(self._stored(tuple(self._versions)), self._limits.backup_rows_max)
        return StoreExport("sqlite", self.incarnation, self._feed.revision, slices)

    async def scrub(self) -> None:
        """Rewrite the file without its free pages, which may hold parts of deleted versions. Commits wait for it."""
        self._check_open()
        try:
            await self._disk.call(partial(self._db.execute, "VACUUM"))
        except sqlite3.Error as error:
            raise wrapped(error, self._path) from error
        await self._checkpoints.finish()

    def _stored(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Entries as the file has them, for a copy of it."""
        return entries if self._cipher is None else self._cipher.seal_entries(entries)

    async def backup(self, path: str | Path) -> Revision:
        """Write a copy of everything at one revision to `path`, while the store serves on. Returns that revision.

        Restore it by opening it: `SqliteStore.open` recognises a backup, advances the revision by `RESTORE_BUMP`, and
        takes a new incarnation. Copy the file first to restore it more than once.

        Raises:
            Terminal: `path` exists or cannot be written.
            Unavailable: the disk is full.
        """
        self._check_open()
        # The versions are frozen and durable, so references to them are a snapshot.
        revision, entries = self._feed.revision, sorted(self._versions, key=lambda entry: entry.modified)
        began_s = self._env.monotonic()
        await file.write_backup(
            Path(path), self._stored(entries), revision, self.incarnation, slice_rows=self._limits.backup_rows_max
        )
        self._meters.backup_seconds.observe(self._env.monotonic() - began_s)
        return revision

    async def close(self) -> None:
        """Settle waiting commits first, then move the log into the database, so that one file holds everything."""
        await self._settled()
        if self._sweeping is not None:
            task, self._sweeping = self._sweeping, None
            task.cancel()
            await gather_ended(task)
        await self._settled()
        if not self._closed:
            self._closed = "the store is closed: open it again"
            self._feed.close()
            try:
                await self._checkpoints.finish()
            finally:
                self._release()

    async def _settled(self) -> None:
        """Settle the commits that wait, and the one that is under way."""
        while not self._closed and (self._pending or self._disk.busy):
            await self._disk.free()
            if self._pending and not self._closed:
                self._flush(self._take_batch())

    def _release(self) -> None:
        self._disk.stop()
        close_file(self._db)
        self._mark.close()

    def _break(self, why: str) -> None:
        """Stop serving: memory and file may differ."""
        self._closed = why
        self._alarms.raise_alarm("store broken", why)
        self._feed.close(why)
        while self._pending:
            answer = self._pending.popleft().answer
            if not answer.done():
                answer.set_exception(Unavailable(f"nothing was written: {why}"))
        self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(self._closed)

"""The contract on etcd: its revisions, its transactions, its history. Several API servers may share one cluster.

`transactions` plans requests, `transport` sends them, `feeder` reads etcd's watch. A commit that may have been made is
never retried here: it is `OutcomeUnknown`, and the caller reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import BadRequest, Compacted, Conflict, Fenced, OperatingError, OutcomeUnknown, Unavailable
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision
from kedge.store.backup import StoreExport
from kedge.store.contract import Check, Entry, Listing, Reading, StoreStatistics, StoreWatch, Write, check_commit
from kedge.store.encryption import ValueCipher
from kedge.store.etcd import messages as m
from kedge.store.etcd.access import EtcdLogin, EtcdTls
from kedge.store.etcd.chain import Chain, HistoryGap
from kedge.store.etcd.compactor import compact_periodically
from kedge.store.etcd.diagnosis import diagnosed
from kedge.store.etcd.export import export_pages
from kedge.store.etcd.feeder import Feeder, FeedStart, watch_request
from kedge.store.etcd.layout import Layout, Meta, cluster_of, commits_in
from kedge.store.etcd.releases import release_alarms
from kedge.store.etcd.transactions import MetaEntry, explain_failure, meta_entry_in, plan_commit, plan_meta
from kedge.store.etcd.transport import COMPACT, COMPACTED, RANGE, TXN, EtcdTransport, NotSent, RevisionError, Unanswered
from kedge.store.etcd.watch import CatchUp, EtcdWatch
from kedge.store.feed import Feed, FeedWatch
from kedge.tasks import gather_ended

_log = logging.getLogger(__name__)

GETS_IN_FLIGHT = 64
"""Concurrent ranges of one `get`."""

ATTEMPTS_MAX = 4
"""How often a request is repeated because the store was restored meanwhile."""

_POLL = Backoff(0.005, 0.2)


class EtcdStore:
    """Implements `Store`. Make one with `open`."""

    def __init__(self, transport: EtcdTransport, layout: Layout, env: Env, cipher: ValueCipher | None = None) -> None:
        self._env = env
        self._cipher = cipher
        self._layout = layout
        self._transport = transport
        self._feeder = Feeder(env, transport, layout, self)
        self._meta_entry = MetaEntry(Meta("", ""), 0)
        self.seen = 0
        """The newest etcd revision of any reply. A later reply with an older one comes from a restored backup."""
        self._restoring = asyncio.Lock()
        self._compacted: Revision = NO_REVISION
        self._catch_ups: dict[EtcdWatch, None] = {}
        self._progress_wanted: list[FeedWatch] = []
        self._progress: asyncio.Task[Any] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._commits = 0
        self._conflicts = 0
        self._alarms: dict[str, str] = {}
        self._closed = False

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        env: Env,
        *,
        prefix: str = "/kedge",
        tls: EtcdTls | None = None,
        login: EtcdLogin | None = None,
        compactor: bool = True,
        cipher: ValueCipher | None = None,
    ) -> EtcdStore:
        """Connect, and create the store under `prefix` if there is none.

        Args:
            endpoints: `host:port` or URLs of members of one cluster; the first that answers is used.
            tls: for a cluster with TLS.
            login: for a cluster with authentication.
            compactor: take turns with other openers at compacting history older than `Limits.history_s`.
            cipher: encrypts values in etcd; without one they are taken as they are.

        Raises:
            Unavailable: no endpoint can be reached, or the cluster has no leader.
            Misconfigured: an address, certificate, authority, credential or version is wrong; the message names it.
        """
        transport = EtcdTransport(endpoints, env, tls=tls, login=login)
        store = cls(transport, Layout(prefix, cipher), env, cipher)
        try:
            store._feeder.start(await store.read_start())
            store._alarms.update(await release_alarms(transport))
        except Unavailable as error:
            await transport.close()
            raise await diagnosed(error, transport.addresses, tls, within_s=env.limits.store_connect_s) from error
        except BaseException:
            await transport.close()
            raise
        store.spawn(store._feeder.run(), "follow")
        if compactor:
            store.spawn(compact_periodically(store, transport, store._layout, env), "compact")
        return store

    @property
    def incarnation(self) -> str:
        return self._meta_entry.meta.incarnation

    @property
    def feed(self) -> Feed:
        return self._feeder.feed

    # -- commits -----------------------------------------------------------------------------------

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        check_commit(checks, writes, self._env.limits, origin=origin)
        if self._cipher is not None and self._cipher.covers(writes):
            return await self._cipher.commit(self, self._commit, checks, writes, fence, origin)
        return await self._commit(checks, writes, fence, origin)

    async def _commit(
        self, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None, origin: Origin
    ) -> Revision:
        for _ in range(ATTEMPTS_MAX):
            self._check_open()
            meta_entry, seen = self._meta_entry, self.seen
            request = plan_commit(self._layout, meta_entry, checks, writes, fence, origin)
            response = await self._transport.send_once(TXN, request)
            etcd_revision: int = response.header.revision
            if self._is_foreign(response.header, meta_entry, seen):
                wrote = bool(writes and response.succeeded)
                await self._restored_beneath(meta_entry, response.header, wrote=wrote)
                if not wrote:
                    continue
            elif not response.succeeded:
                try:
                    moved = explain_failure(self._layout, meta_entry, response, checks, writes, fence)
                except (Conflict, Fenced):
                    self._conflicts += 1
                    raise
                self._adopt(moved)
                continue
            self._commits += bool(writes)
            return self._meta_entry.meta.kedge_revision(etcd_revision)
        raise Unavailable("the store is being restored, nothing was written: try again")

    # -- reads -------------------------------------------------------------------------------------

    def get_nowait(self, keys: Sequence[Key]) -> None:
        del keys  # etcd alone knows the newest

    async def get(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        # One range a key, all but the first at the revision of the first. A transaction would need one round trip
        # less, but one that only reads can crash etcd 3.5.0-3.5.4 (etcd#14110).
        entries: list[Entry | None] = []
        if not at:
            first, at = await self._get_one(keys[0], NO_REVISION) if keys else (None, await self.revision())
            entries = [first] if keys else []
        rest = keys[len(entries) :]
        for start in range(0, len(rest), GETS_IN_FLIGHT):
            chunk = rest[start : start + GETS_IN_FLIGHT]
            found = await asyncio.gather(*(self._get_one(key, at) for key in chunk))
            entries.extend(entry for entry, _ in found)
        return Reading(tuple(entries), at)

    async def _get_one(self, key: Key, at: Revision) -> tuple[Entry | None, Revision]:
        meta_entry, found = await self._range(at, key=self._layout.key(key))
        entry = self._layout.entry(found.kvs[0], meta_entry.meta) if found.kvs else None
        return entry, at or meta_entry.meta.kedge_revision(found.header.revision)

    async def list(
        self,
        kind: str,
        *,
        namespace: str = "",
        at: Revision = NO_REVISION,
        start_after: Key | None = None,
        limit: int = 0,
    ) -> Listing:
        start, end = self._layout.range(kind, namespace)
        if start_after is not None:
            start = min(max(start, self._layout.key(start_after) + b"\0"), end)
        limits = self._env.limits
        entries: list[Entry] = []
        page = min(1_000, limits.store_page_objects_max)
        while True:
            wanted = min(page, limit - len(entries)) if limit else page
            meta_entry, found = await self._range(at, key=start, range_end=end, limit=wanted)
            at = at or meta_entry.meta.kedge_revision(found.header.revision)
            entries.extend([self._layout.entry(kv, meta_entry.meta) for kv in found.kvs])
            remaining = found.count - len(found.kvs)
            if not remaining or (limit and len(entries) >= limit):
                return Listing(entries, at, remaining)
            start = found.kvs[-1].key + b"\0"
            bytes_each = max(1, found.ByteSize() // len(found.kvs))
            page = max(1, min(limits.store_page_objects_max, limits.store_page_bytes_max // bytes_each))

    async def export(self) -> StoreExport:
        """All of it at one revision, for a backup; read in pages, while the store serves on."""
        revision = await self.revision()
        pages = export_pages(self._range, self._layout, revision, self._env.limits.backup_rows_max)
        return StoreExport("etcd", self.incarnation, revision, pages)

    async def revision(self) -> Revision:
        meta_entry, found = await self._read_record()
        return meta_entry.meta.kedge_revision(found.header.revision)

    # -- watches -----------------------------------------------------------------------------------

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> StoreWatch:
        self._check_open()
        feed = await self._wait_reached(after)
        source: FeedWatch | CatchUp
        if after >= feed.compacted:
            source = await feed.watch(kind, after=after, namespace=namespace)
        else:
            source = await self._open_catch_up(kind, after, namespace)
        watch = EtcdWatch(self, source, kind=kind, namespace=namespace)
        if isinstance(source, CatchUp):
            self._catch_ups[watch] = None
        return watch

    def want_progress(self, watch: FeedWatch) -> None:
        """Bring the feed up to date with etcd, then send `watch` a progress mark."""
        self._progress_wanted.append(watch)
        if (self._progress is None or self._progress.done()) and not self._closed:
            self._progress = self.spawn(self._make_progress(), "progress")

    def left(self, watch: EtcdWatch) -> None:
        """A watch has ended, or needs no etcd watch of its own any more."""
        self._catch_ups.pop(watch, None)

    async def sync(self) -> bool:
        """Whether the feed has every commit. If so, it advances to the newest revision."""
        etcd_revision, commits = await self.read_commits()
        return self._feeder.prove_idle(etcd_revision=etcd_revision, commits=commits)

    async def read_commits(self) -> tuple[int, int]:
        """The newest etcd revision, and how many commits there were by then."""
        _, found = await self._read_record()
        return found.header.revision, commits_in(found)

    async def check_position(self, revision: Revision, commits: int) -> None:
        """Raise `HistoryGap` unless history after this revision still exists, and is the same history."""
        try:
            meta_entry, record = await self._read_record(revision)
        except Compacted as error:
            raise HistoryGap(error.message) from error
        if commits_in(record) != commits:
            await self._restored_beneath(meta_entry, record.header)
            raise HistoryGap(f"revision {revision} was commit {commits} and is now commit {commits_in(record)}")

    # -- history -----------------------------------------------------------------------------------

    async def compact(self, revision: Revision) -> None:
        self._check_open()
        meta_entry = self._meta_entry
        if revision <= max(meta_entry.floor, meta_entry.meta.offset):
            return
        if revision > self.feed.revision and revision > (newest := await self.revision()):
            raise BadRequest(f"cannot compact to {revision}: the newest revision is {newest}")
        await self._wait_reached(revision)  # so that compaction does not overtake local watches
        try:
            request = m.CompactionRequest(revision=revision - meta_entry.meta.offset)
            await self._transport.send_until_answered(COMPACT, request)
        except RevisionError as error:
            if str(error) != COMPACTED:
                raise BadRequest(f"cannot compact to {revision}: {error}") from error
        self._compacted = max(self._compacted, revision)
        self.drop_history(revision)

    def drop_history(self, revision: Revision) -> None:
        """Drop history up to `revision` from memory; watches that still need it read it from etcd."""
        self.feed.compact(min(revision, self.feed.revision))

    async def mark_restored(self) -> None:
        """Record that etcd was restored from a backup: a new incarnation, far ahead, with its past compacted.

        The store detects this itself if the restored cluster has another id (a new `--initial-cluster-token`) or is
        behind a revision that this process has seen. Call it if neither is certain.
        """
        self._check_open()
        response = await self._transport.send_until_answered(RANGE, m.RangeRequest(key=self._layout.meta))
        await self._restore(self._meta_entry, cluster_of(response.header), since=response.header.revision + 1)

    # -- the rest ----------------------------------------------------------------------------------

    def statistics(self) -> StoreStatistics:
        feed = self.feed
        return StoreStatistics(
            backend="etcd",
            incarnation=self.incarnation,
            revision=max(feed.revision, self._meta_entry.meta.kedge_revision(self.seen)),
            compacted=max(self._compacted, self._meta_entry.floor),
            objects=self._feeder.objects,
            history_changes=feed.history_changes,
            watchers=feed.watchers + len(self._catch_ups),
            commits=self._commits,
            conflicts=self._conflicts,
            alarms=tuple(self._alarms.values()),
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await gather_ended(*tasks)
        for watch in tuple(self._catch_ups):
            watch.close()
        self.feed.close()
        await self._transport.close()

    async def read_start(self) -> FeedStart:
        """Read or write the meta key, and read the position at which a feed can start."""
        layout = self._layout
        while True:
            await self._ensure_meta()
            meta_entry, record = await self._read_record()
            at = meta_entry.meta.kedge_revision(record.header.revision)
            _, found = await self._range(at, key=layout.objects, range_end=layout.objects_end, count_only=True)
            if meta_entry == self._meta_entry:  # else it was restored meanwhile
                return FeedStart(meta_entry, record.header.revision, commits_in(record), found.count)

    # -- private: reading --------------------------------------------------------------------------

    async def _range(self, at: Revision = NO_REVISION, **request: Any) -> tuple[MetaEntry, Any]:
        """One linearizable range, at a past, present or future revision, and the meta entry to interpret it with."""
        for _ in range(ATTEMPTS_MAX):
            self._check_open()
            meta_entry, seen = self._meta_entry, self.seen
            if at and at < meta_entry.floor:
                raise self._compacted_at(at)
            etcd_at = at - meta_entry.meta.offset if at else 0  # in etcd, 0 is the newest
            try:
                answer = self._transport.send_until_answered(RANGE, m.RangeRequest(revision=etcd_at, **request))
                response = await answer
            except RevisionError as error:
                if str(error) == COMPACTED:
                    raise self._compacted_at(at) from error
                await self._read_record()  # a future revision, or lost with a restored backup?
                if self._meta_entry == meta_entry:
                    await self._wait_reached(at)
                continue
            if not self._is_foreign(response.header, meta_entry, seen):
                return meta_entry, response
            await self._restored_beneath(meta_entry, response.header)
        raise Unavailable("the store is being restored: try again")

    async def _read_record(self, at: Revision = NO_REVISION) -> tuple[MetaEntry, Any]:
        return await self._range(at, key=self._layout.record, keys_only=True)

    def _compacted_at(self, at: Revision) -> Compacted:
        oldest = max(self._compacted, self._meta_entry.floor, at + 1)
        return Compacted(f"revision {at} is no longer in history, which begins at {oldest}: list again", oldest=oldest)

    # -- private: watching -------------------------------------------------------------------------

    async def _wait_reached(self, revision: Revision) -> Feed:
        """Wait for the feed, and poll etcd for it: etcd's revision may advance without a commit to this store."""
        while True:
            feed = await self._sound_feed()
            if revision <= feed.revision:
                return feed
            poll = self.spawn(self._poll_until(feed, revision), "poll")
            try:
                await feed.wait_reached(revision)
            except Unavailable:
                if feed is await self._sound_feed():
                    raise
            finally:
                poll.cancel()

    async def _sound_feed(self) -> Feed:
        try:
            async with asyncio.timeout(self._env.limits.watch_future_wait_s):
                return await self._feeder.sound_feed()
        except TimeoutError:
            raise Unavailable("history restarts, but etcd cannot be reached: try again") from None

    async def _poll_until(self, feed: Feed, revision: Revision) -> None:
        failures = 0
        while feed.revision < revision:
            try:
                await self.sync()
            except OperatingError as error:
                _log.debug("the newest revision is unknown: %s", error)
            failures += 1
            await asyncio.sleep(_POLL.ceiling_s(failures))

    async def _make_progress(self) -> None:
        while self._progress_wanted:
            watches = tuple(self._progress_wanted)
            try:
                await self._wait_reached(await self.revision())
            except OperatingError as error:
                _log.debug("progress marks are sent without a read of etcd: %s", error)
            for watch in watches:
                watch.request_progress()
            del self._progress_wanted[: len(watches)]

    async def _open_catch_up(self, kind: str, after: Revision, namespace: str) -> CatchUp:
        meta_entry = self._meta_entry
        if after < max(meta_entry.floor, self._compacted):
            raise self._compacted_at(after)
        # Before the first write of this key the store has no history, although etcd may have.
        etcd_revision = max(after - meta_entry.meta.offset, meta_entry.written)
        meta_entry, record = await self._read_record(etcd_revision + meta_entry.meta.offset)
        try:
            stream = await self._transport.watch(watch_request(self._layout, etcd_revision))
        except (NotSent, Unanswered) as error:
            raise Unavailable(f"etcd cannot be watched ({error}): try again") from error
        chain = Chain(self._layout, meta_entry.meta, etcd_revision=etcd_revision, commits=commits_in(record))
        return CatchUp(self, stream, chain, kind=kind, namespace=namespace, batch_max=self._env.limits.watch_batch_max)

    # -- private: identity and restored backups ----------------------------------------------------

    def _is_foreign(self, header: Any, meta_entry: MetaEntry, seen: int) -> bool:
        """Whether a reply came from a restored backup: another cluster id, or an older revision than before."""
        if cluster_of(header) == meta_entry.meta.cluster and header.revision >= seen:
            self.seen = max(self.seen, header.revision)
            return False
        return True

    async def _restored_beneath(self, meta_entry: MetaEntry, header: Any, *, wrote: bool = False) -> None:
        """Handle a reply of a restored backup: record it in the store, before any of its revisions is used."""
        since = header.revision + (0 if wrote else 1)
        try:
            await self._restore(meta_entry, cluster_of(header), since=since)
        except OperatingError as error:
            if wrote:
                raise OutcomeUnknown(f"the write was made in a backup that is being restored: {error}") from error
            raise Unavailable(f"the store is being restored: {error}") from error

    async def _restore(self, known: MetaEntry, cluster: str, *, since: int) -> None:
        async with self._restoring:
            if self._meta_entry != known:
                return  # another task of this process was first
            meta = known.meta.restored(self._env.new_uid(), cluster, since=since)
            response = await self._transport.send_once(TXN, plan_meta(self._layout, known, meta))
            if response.succeeded:
                moved: MetaEntry | None = MetaEntry(meta, response.header.revision)
            else:
                moved = meta_entry_in(response.responses[0].response_range)
            self._adopt(moved)

    def _adopt(self, meta_entry: MetaEntry | None) -> None:
        """Continue with another meta entry; every watch lists again."""
        if meta_entry is None:
            raise Unavailable(f"{self._layout.meta.decode()} is gone from etcd: open the store again")
        if meta_entry != self._meta_entry:
            self._meta_entry, self.seen, self._compacted = meta_entry, meta_entry.written, NO_REVISION
            self._feeder.restart("the store was restored from a backup")

    async def _ensure_meta(self) -> None:
        """Read the meta key, or write it if it does not exist."""
        while True:
            seen = self.seen
            response = await self._transport.send_until_answered(RANGE, m.RangeRequest(key=self._layout.meta))
            known = meta_entry_in(response)
            if known is not None:
                known.meta.check_finished(self._layout.start)
            cluster = cluster_of(response.header)
            fell_back = known == self._meta_entry and response.header.revision < seen
            if known is None:
                meta = Meta(self._env.new_uid(), cluster)
            elif known.meta.cluster != cluster or fell_back:
                meta = known.meta.restored(self._env.new_uid(), cluster, since=response.header.revision + 1)
            else:
                self._meta_entry, self.seen = known, response.header.revision
                return
            try:
                await self._transport.send_once(TXN, plan_meta(self._layout, known, meta))
            except OutcomeUnknown:
                continue  # the next read decides

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed: open it again")

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = self._env.spawn(work, name=f"etcd store: {name}")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

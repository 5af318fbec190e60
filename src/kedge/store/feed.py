"""The history of recent changes, and the watches that read it.

A watch is a cursor into one shared history, so a slow watch costs nothing but its own lag, and no watch has a buffer
that could grow. Backends call `publish` in revision order, once a commit is durable.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence

from kedge.env import Env
from kedge.errors import BadRequest, Compacted, FutureRevision, Lagged, Unavailable, check
from kedge.keys import FENCE, NO_REVISION, Key, Revision
from kedge.store.contract import Batch, Change, Entry

ALL_KINDS = ""


class _Log:
    """The changes of one kind (or of all), oldest first.

    `changes[i]` has absolute index `base + i` and was made at `revisions[i]`; None marks a
    dropped `latest_only` version. Both lists always have the same length.
    """

    __slots__ = ("base", "changes", "revisions", "shared", "shared_at", "watches")

    def __init__(self) -> None:
        self.base = 0
        self.changes: list[Change | None] = []
        self.revisions: list[Revision] = []
        self.shared: dict[str, tuple[int, Batch]] = {}
        """The batches at `shared_at`, by namespace: watches at the same position share them."""
        self.shared_at: tuple[int, int, Revision] = (0, 0, NO_REVISION)
        """The position of the watches that share: start, end, revision."""
        self.watches: dict[FeedWatch, None] = {}  # a dict, because the order of a set is not deterministic

    @property
    def end(self) -> int:
        return self.base + len(self.changes)

    def index_after(self, revision: Revision) -> int:
        return self.base + bisect_right(self.revisions, revision)

    def skip(self, version: Entry) -> None:
        """Replace the change that made `version` by None, so that watches skip it."""
        place = bisect_left(self.revisions, version.modified)
        while place < len(self.revisions) and self.revisions[place] == version.modified:
            change = self.changes[place]
            if change is not None and change.key == version.key:
                self.changes[place] = None
                return
            place += 1

    def drop_through(self, revision: Revision) -> None:
        count = bisect_right(self.revisions, revision)
        if count:
            del self.changes[:count]
            del self.revisions[:count]
            self.base += count


class Feed:
    """History from `compacted` to `revision`, both included."""

    def __init__(self, env: Env, *, revision: Revision, compacted: Revision) -> None:
        self.revision = revision
        self.compacted = compacted
        self._limits = env.limits
        self.backlog_max = env.limits.watch_backlog_max
        self._logs: dict[str, _Log] = {ALL_KINDS: _Log()}
        self._watchers = 0
        self._progress_timer: asyncio.TimerHandle | None = None
        self._future_waiters: dict[asyncio.Future[None], Revision] = {}
        self._closed = False
        self._closed_why = ""  # why the watches ended, if not by a plain `close`
        self._closed_compacted = False
        self._delivered = env.metrics.counter("kedge_store_watch_changes_total", "Changes delivered to watches")
        self._progress_sent = env.metrics.counter(
            "kedge_store_watch_progress_total", "Progress marks sent to idle watches"
        )
        self._future_waits = env.metrics.counter(
            "kedge_store_future_waits_total", "Reads and watches that waited for a future revision"
        )
        self._delivered_now = 0
        self._batch_largest = 0
        gauge = env.metrics.gauge
        gauge("kedge_store_history_commits", "Changes kept in history").set_function(lambda: self.history_changes)
        gauge("kedge_store_watch_backlog", "Changes that the slowest watch is behind").set_function(self._backlog)
        gauge("kedge_store_watch_batch", "Changes in the largest batch").set_function(lambda: self._batch_largest)

    # -- written by the backend --------------------------------------------------------------------

    def publish(
        self, revision: Revision, changes: Sequence[Change], latest_only: Collection[Key] = frozenset()
    ) -> None:
        """Append one commit and wake its waiters. For a key in `latest_only`, drop the change before."""
        self.publish_all([(revision, changes, latest_only)])

    def publish_all(self, commits: Iterable[tuple[Revision, Sequence[Change], Collection[Key]]]) -> None:
        """Append commits, then wake the waiters, once for all commits."""
        everything = self._logs[ALL_KINDS]
        kinds: dict[str, _Log] = {}
        for revision, changes, latest_only in commits:
            check(revision > self.revision, "revisions are published in order")
            for change in changes:
                kind = change.key.kind
                log = kinds.get(kind)
                if log is None:
                    log = kinds[kind] = self._log(kind)
                if latest_only and change.previous is not None and change.key in latest_only:
                    log.skip(change.previous)
                    everything.skip(change.previous)
                log.changes.append(change)
                log.revisions.append(revision)
                everything.changes.append(change)
                everything.revisions.append(revision)
            self.revision = revision
        if self._watchers:
            for log in (*kinds.values(), everything):
                for watch in tuple(log.watches):  # a watch may drain at once, find that it has ended, and leave
                    watch.wake()
            if FENCE in kinds:
                # A new leader waits until every cache, idle kinds included, has reached this revision.
                self._start_progress_timer(self._limits.watch_fence_progress_s)
            elif self._progress_timer is None:
                self._start_progress_timer(self._limits.watch_progress_s)
        if self._future_waiters:
            self._wake_future_waiters()
        if len(everything.changes) > self._limits.history_commits_max:
            # Drop an eighth at once: dropping one with each publish would copy the whole list each time.
            self.compact(everything.revisions[len(everything.revisions) // 8])

    def advance(self, revision: Revision) -> None:
        """Advance without a change: a backend shared with other users skips revisions."""
        if revision > self.revision:
            self.publish(revision, ())

    def check_compactable(self, revision: Revision) -> None:
        if revision > self.revision:
            raise BadRequest(f"cannot compact to {revision}: the newest revision is {self.revision}")

    def compact(self, revision: Revision) -> None:
        if revision <= self.compacted:
            return
        self.compacted = revision
        for log in self._logs.values():
            log.drop_through(revision)

    def close(self, why: str = "", *, compacted: bool = False) -> None:
        """End every watch: with `Unavailable` and `why`, with `Compacted`, or without an error."""
        if self._closed:
            return
        self._closed, self._closed_why, self._closed_compacted = True, why, compacted
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None
        for log in self._logs.values():
            for watch in tuple(log.watches):
                watch.end(self._end_of_watch())
        self._wake_future_waiters()

    # -- read by all -------------------------------------------------------------------------------

    @property
    def history_changes(self) -> int:
        return len(self._logs[ALL_KINDS].changes)

    @property
    def watchers(self) -> int:
        return self._watchers

    @property
    def closed(self) -> bool:
        return self._closed

    def check_readable(self, revision: Revision) -> None:
        if revision < self.compacted:
            raise Compacted(
                f"revision {revision} is no longer in history, which begins at {self.compacted}: list again",
                oldest=self.compacted,
            )

    async def wait_reached(self, revision: Revision) -> None:
        """Wait until history reaches `revision`, for as long as the limits allow."""
        if revision <= self.revision:
            return
        if self._closed:
            raise Unavailable(self._closed_why or "the store was closed")
        self._future_waits.inc()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._future_waiters[waiter] = revision
        try:
            async with asyncio.timeout(self._limits.watch_future_wait_s):
                await waiter
        except TimeoutError:
            raise FutureRevision(
                f"revision {revision} is past the newest, {self.revision}, and was not reached within"
                f" {self._limits.watch_future_wait_s} s: list again if it came from another store"
            ) from None
        finally:
            self._future_waiters.pop(waiter, None)
        if revision > self.revision:
            raise Unavailable(self._closed_why or "the store was closed")

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> FeedWatch:
        self.check_readable(after)
        await self.wait_reached(after)
        self.check_readable(after)  # it may have been compacted during the wait
        return FeedWatch(self, self._log(kind), after=after, namespace=namespace)

    def first_changes_after(self, kind: str, revision: Revision) -> dict[Key, Change]:
        """The first change after `revision` of each key that has one. Its `previous` is the version at `revision`."""
        log = self._log(kind)
        first: dict[Key, Change] = {}
        for change in log.changes[log.index_after(revision) - log.base :]:
            if change is not None:
                first.setdefault(change.key, change)
        return first

    # -- private -----------------------------------------------------------------------------------

    def _log(self, kind: str) -> _Log:
        log = self._logs.get(kind)
        if log is None:
            log = self._logs[kind] = _Log()
        return log

    def _backlog(self) -> int:
        return max((watch.behind for log in self._logs.values() for watch in log.watches), default=0)

    def _end_of_watch(self) -> Exception:
        # One for each watch: an exception raised by many tasks would accumulate all their tracebacks.
        if self._closed_compacted:
            return Compacted(self._closed_why, oldest=self.revision + 1)
        return Unavailable(self._closed_why) if self._closed_why else StopAsyncIteration()

    def _start_progress_timer(self, after_s: float) -> None:
        """Send progress marks after `after_s` at the latest."""
        loop = asyncio.get_running_loop()
        if self._progress_timer is not None:
            if self._progress_timer.when() <= loop.time() + after_s:
                return
            self._progress_timer.cancel()
        self._progress_timer = loop.call_later(after_s, self._send_progress)

    def _count_now(self) -> None:
        # In thousands: a counter costs more than the delivery itself.
        self._delivered.inc(self._delivered_now)
        self._delivered_now = 0

    def _send_progress(self) -> None:
        self._progress_timer = None
        self._count_now()
        for log in self._logs.values():
            for watch in tuple(log.watches):
                if watch.revision < self.revision:
                    self._progress_sent.inc()
                    watch.request_progress()

    def _wake_future_waiters(self) -> None:
        for waiter, revision in self._future_waiters.items():
            if not waiter.done() and (self._closed or revision <= self.revision):
                waiter.set_result(None)

    # -- called by watches -------------------------------------------------------------------------

    def joined(self, watch: FeedWatch, log: _Log) -> None:
        if self._closed:
            watch.end(self._end_of_watch())
            return
        log.watches[watch] = None
        self._watchers += 1
        if watch.revision < self.revision:
            # History is past it already and may not move again: it needs a progress mark now.
            watch.request_progress()

    def left(self, watch: FeedWatch, log: _Log) -> None:
        if log.watches.pop(watch, self) is None:
            self._watchers -= 1

    def count_delivered(self, changes: int) -> None:
        self._delivered_now += changes
        if self._delivered_now >= 1_000:
            self._count_now()
        if changes > self._batch_largest:
            self._batch_largest = changes

    @property
    def batch_max(self) -> int:
        return self._limits.watch_batch_max


class FeedWatch:
    """A cursor into one log of a feed. Implements `StoreWatch`."""

    __slots__ = (
        "_caught_up", "_end", "_feed", "_log", "_namespace", "_next", "_progress_wanted", "_waiter", "on_ready",
        "revision",
    )  # fmt: skip

    pushes = True

    def __init__(self, feed: Feed, log: _Log, *, after: Revision, namespace: str) -> None:
        self.revision = after
        self._feed = feed
        self._log = log
        self._namespace = namespace
        self._next = log.index_after(after)
        self._progress_wanted = False
        self._waiter: asyncio.Future[None] | None = None
        self.on_ready: Callable[[], None] | None = None
        self._caught_up = log.end
        """The end of history when the watch began. Only later changes count as lag; otherwise a watch that was
        disconnected could never resume."""
        self._end: Exception | None = None
        feed.joined(self, log)

    @property
    def behind(self) -> int:
        """How many changes since it began, or since it last read, it has not taken."""
        return self._log.end - max(self._next, self._caught_up)

    def __aiter__(self) -> FeedWatch:
        return self

    async def __anext__(self) -> Batch:
        while True:
            batch = self.take_nowait()
            if batch is not None:
                return batch
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None

    def take_nowait(self) -> Batch | None:
        if self._end is not None:
            raise self._end
        log = self._log
        if self._next == log.base + len(log.changes) and not self._progress_wanted:
            return None
        try:
            return self._take()
        except (Compacted, Lagged) as error:
            self._leave(error)
            raise

    def request_progress(self) -> None:
        self._progress_wanted = True
        self.wake()

    def close(self) -> None:
        self.end(StopAsyncIteration())

    def wake(self) -> None:
        if self.on_ready is not None:
            try:
                self.on_ready()
            except Exception as error:  # noqa: BLE001  a callback must not fail the commit that runs it
                self._give_up(error)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end(self, error: Exception) -> None:
        if self._end is None:
            self._leave(error)
            self.wake()

    def _give_up(self, error: Exception) -> None:
        self.on_ready = None
        if self._end is None:
            self._leave(callback_failed())
        report_callback_error(self.revision, error)

    def _leave(self, error: Exception) -> None:
        self._end = error
        self._feed.left(self, self._log)

    def _take(self) -> Batch | None:
        """The next batch, or None if the changes since the last are of other namespaces."""
        log, feed = self._log, self._feed
        start, end = self._next, log.end
        if start < log.base:
            raise Compacted(
                f"the watch was at revision {self.revision} when history up to {feed.compacted} was dropped:"
                " list again",
                oldest=feed.compacted,
            )
        if (behind := self.behind) > feed.backlog_max:
            raise Lagged(
                f"the watch fell {behind} changes behind (the limit is {feed.backlog_max}):"
                f" watch again after {self.revision}"
            )
        place = (start, end, feed.revision)
        if log.shared_at != place:
            log.shared, log.shared_at = {}, place
        found = log.shared.get(self._namespace)
        if found is None:
            found = log.shared[self._namespace] = self._batch(start, end)
        self._next, batch = found
        if not batch.changes and not self._progress_wanted and self._next == end:
            return None
        self._progress_wanted = False
        self.revision = batch.revision
        if batch.changes:
            feed.count_delivered(len(batch.changes))
        return batch

    def _batch(self, start: int, end: int) -> tuple[int, Batch]:
        """The batch from index `start` on, and the index after it."""
        log, feed = self._log, self._feed
        first, last = start - log.base, end - log.base
        stop = min(last, first + feed.batch_max)
        while stop < last and log.revisions[stop] == log.revisions[stop - 1]:
            stop += 1  # a batch never splits a commit
        reached = feed.revision if stop == last else log.revisions[stop - 1]
        changes = [change for change in log.changes[first:stop] if change is not None]
        if self._namespace:
            changes = [change for change in changes if change.key.namespace == self._namespace]
        return log.base + stop, Batch(tuple(changes), reached, stop == last)


def callback_failed() -> Unavailable:
    """The end of a watch whose `on_ready` raised."""
    return Unavailable(
        "the watch callback raised; batches it took may be lost: watch again after the last revision processed"
    )


def report_callback_error(revision: Revision, error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"the callback of a watch at revision {revision} raised", "exception": error}
    )

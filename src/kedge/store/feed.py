"""The history of recent changes, and the watches that read it.

A watch is a cursor into history that all watches share, so a slow one costs nothing but its own lag, and
none has a buffer that could grow. Backends call `publish` in revision order, once a commit is durable.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from kedge.env import Env
from kedge.errors import Compacted, Lagged, Unavailable, check
from kedge.keys import Key, Revision
from kedge.store.contract import Batch, Change

ALL_KINDS = ""


class _Log:
    """The changes of one kind (or of all), oldest first.

    `changes[i]` has absolute index `base + i` and was made at `revisions[i]`; None stands where a
    `latest_only` version was dropped. Both lists have the same length always.
    """

    __slots__ = ("base", "changes", "revisions", "watches")

    def __init__(self) -> None:
        self.base = 0
        self.changes: list[Change | None] = []
        self.revisions: list[Revision] = []
        self.watches: dict[FeedWatch, None] = {}  # a dict, because a set has no order to repeat

    @property
    def end(self) -> int:
        return self.base + len(self.changes)

    def index_after(self, revision: Revision) -> int:
        return self.base + bisect_right(self.revisions, revision)

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
        self._logs: dict[str, _Log] = {ALL_KINDS: _Log()}
        self._latest_only: dict[Key, tuple[int, int]] = {}  # where a droppable version stands: kind's log, whole log
        self._progress_timer: asyncio.TimerHandle | None = None
        self._future_waiters: dict[asyncio.Future[None], Revision] = {}
        self._closed: BaseException | None = None
        self._delivered = env.metrics.counter("kedge_store_watch_changes_total", "Changes handed to watches")
        self._progress_sent = env.metrics.counter(
            "kedge_store_watch_progress_total", "Progress marks sent to idle watches"
        )
        self._future_waits = env.metrics.counter(
            "kedge_store_future_waits_total", "Reads and watches past the newest revision"
        )
        self._history = env.metrics.gauge("kedge_store_history_commits", "Changes kept in history")

    # -- written by the backend --------------------------------------------------------------------

    def publish(
        self, revision: Revision, changes: Sequence[Change], *, latest_only: frozenset[Key] = frozenset()
    ) -> None:
        """Append one commit and wake whoever waits for it."""
        check(revision > self.revision, f"revision {revision} published after {self.revision}")
        everything = self._logs[ALL_KINDS]
        for change in changes:
            log = self._log(change.key.kind)
            if change.key in latest_only or change.key in self._latest_only:
                self._drop_previous(log, change, keep=change.key not in latest_only)
            for each in (log, everything):
                each.changes.append(change)
                each.revisions.append(revision)
        self.revision = revision
        for kind in dict.fromkeys(change.key.kind for change in changes):
            for watch in self._logs[kind].watches:
                watch.wake()
        for watch in everything.watches:
            watch.wake()
        if self._future_waiters:
            self._wake_future_waiters()
        if self._progress_timer is None and any(log.watches for log in self._logs.values()):
            self._progress_timer = asyncio.get_running_loop().call_later(
                self._limits.watch_progress_s, self._send_progress
            )
        if len(everything.changes) > self._limits.history_commits_max:
            # Drop an eighth at once: dropping one at each publish would move the whole list each time.
            self.compact(everything.revisions[len(everything.revisions) // 8])

    def advance(self, revision: Revision) -> None:
        """Move on with no change of interest: a backend shared with others skips revisions."""
        if revision > self.revision:
            self.publish(revision, ())

    def compact(self, revision: Revision) -> None:
        if revision <= self.compacted:
            return
        self.compacted = revision
        for log in self._logs.values():
            log.drop_through(revision)
        self._history.set(len(self._logs[ALL_KINDS].changes))

    def close(self, error: BaseException | None = None) -> None:
        """End every watch: with `error`, or quietly."""
        self._closed = error or StopAsyncIteration()
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        for log in self._logs.values():
            for watch in tuple(log.watches):
                watch.end(error)
        self._wake_future_waiters()

    # -- read by everyone --------------------------------------------------------------------------

    @property
    def history_changes(self) -> int:
        return len(self._logs[ALL_KINDS].changes)

    @property
    def watchers(self) -> int:
        return sum(len(log.watches) for log in self._logs.values())

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
        self._future_waits.inc()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._future_waiters[waiter] = revision
        try:
            async with asyncio.timeout(self._limits.watch_future_wait_s):
                await waiter
        except TimeoutError:
            raise Unavailable(
                f"revision {revision} is past the newest, {self.revision}, and did not come within"
                f" {self._limits.watch_future_wait_s} s: list again if it came from another store"
            ) from None
        finally:
            self._future_waiters.pop(waiter, None)
        if revision > self.revision:
            raise Unavailable("the store was closed")

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> FeedWatch:
        self.check_readable(after)
        await self.wait_reached(after)
        self.check_readable(after)  # the wait may have been long
        return FeedWatch(self, self._log(kind), after=after, namespace=namespace)

    def first_changes_after(self, kind: str, revision: Revision) -> dict[Key, Change]:
        """The first change past `revision` of each key that has one. Its `previous` is how the key stood then."""
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

    def _drop_previous(self, log: _Log, change: Change, *, keep: bool) -> None:
        everything = self._logs[ALL_KINDS]
        for each, place in zip((log, everything), self._latest_only.pop(change.key, ()), strict=False):
            if place >= each.base:
                each.changes[place - each.base] = None
        if not keep:
            self._latest_only[change.key] = (log.end, everything.end)

    def _send_progress(self) -> None:
        self._progress_timer = None
        for log in self._logs.values():
            for watch in log.watches:
                if watch.revision < self.revision:
                    self._progress_sent.inc()
                    watch.request_progress()

    def _wake_future_waiters(self) -> None:
        for waiter, revision in self._future_waiters.items():
            if not waiter.done() and (self._closed is not None or revision <= self.revision):
                waiter.set_result(None)

    @property
    def closed(self) -> BaseException | None:
        return self._closed

    def count_delivered(self, changes: int) -> None:
        self._delivered.inc(changes)

    @property
    def backlog_max(self) -> int:
        return self._limits.watch_backlog_max

    @property
    def batch_max(self) -> int:
        return self._limits.watch_batch_max


class FeedWatch:
    """A cursor into one log of a feed. Implements `Watch`."""

    __slots__ = ("_end", "_feed", "_log", "_namespace", "_next", "_progress_wanted", "_waiter", "revision")

    def __init__(self, feed: Feed, log: _Log, *, after: Revision, namespace: str) -> None:
        self.revision = after
        self._feed = feed
        self._log = log
        self._namespace = namespace
        self._next = log.index_after(after)
        self._progress_wanted = False
        self._waiter: asyncio.Future[None] | None = None
        self._end: BaseException | None = feed.closed
        if self._end is None:
            log.watches[self] = None

    def __aiter__(self) -> FeedWatch:
        return self

    async def __anext__(self) -> Batch:
        while True:
            if self._end is not None:
                raise self._end
            try:
                batch = self._take()
            except (Compacted, Lagged) as error:
                self.end(error)
                raise
            if batch is not None:
                return batch
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None

    def request_progress(self) -> None:
        self._progress_wanted = True
        self.wake()

    def close(self) -> None:
        self.end(None)

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end(self, error: BaseException | None) -> None:
        if self._end is None:
            self._end = error or StopAsyncIteration()
            self._log.watches.pop(self, None)
            self.wake()

    def _take(self) -> Batch | None:
        """The next batch, or None if there is nothing to say yet."""
        log, feed = self._log, self._feed
        if self.revision < feed.compacted and self._next < log.base:
            raise Compacted(
                f"the watch stood at revision {self.revision} when history up to {feed.compacted} was dropped:"
                " list again",
                oldest=feed.compacted,
            )
        start, end = self._next - log.base, len(log.changes)
        if end - start > feed.backlog_max:
            raise Lagged(
                f"the watch fell {end - start} changes behind (the limit is {feed.backlog_max}):"
                f" watch again after {self.revision}"
            )
        stop = min(end, start + feed.batch_max)
        while stop < end and log.revisions[stop] == log.revisions[stop - 1]:
            stop += 1  # a batch never splits a commit
        reached = feed.revision if stop == end else log.revisions[stop - 1]
        changes = tuple(
            change
            for change in log.changes[start:stop]
            if change is not None and (not self._namespace or change.key.namespace == self._namespace)
        )
        self._next = log.base + stop
        if not changes and not self._progress_wanted and stop == end:
            return None
        self._progress_wanted = False
        self.revision = reached
        if changes:
            feed.count_delivered(len(changes))
        return Batch(changes, reached)

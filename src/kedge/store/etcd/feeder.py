"""Reads one etcd watch over the whole prefix into a `Feed`, which all local watches share.

A broken watch is reopened on another endpoint, after the last revision taken. If history is compacted by then, or an
event is missing, local watches end with `Compacted` and a new feed starts: never a gap.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import OperatingError, Unavailable
from kedge.keys import Revision
from kedge.store.etcd import messages as m
from kedge.store.etcd.chain import Chain, HistoryGap
from kedge.store.etcd.layout import Layout
from kedge.store.etcd.transactions import MetaEntry
from kedge.store.etcd.transport import EtcdTransport, NotSent, Unanswered, WatchStream
from kedge.store.feed import Feed

_log = logging.getLogger(__name__)

_BULK_EVENTS = 64


class FeedStart(NamedTuple):
    """The position at which a feed can start: one linearizable read of the whole store."""

    meta_entry: MetaEntry
    etcd_revision: int
    commits: int
    objects: int


class Feeder:
    """The only writer of the feed and of the position of etcd's watch."""

    feed: Feed

    def __init__(self, env: Env, transport: EtcdTransport, layout: Layout, store: Any) -> None:
        self._env = env
        self._transport = transport
        self._layout = layout
        self._store = store
        self._stream: WatchStream | None = None
        self._backoff = Backoff(0.02, env.limits.store_reconnect_s_max)
        self._sound = asyncio.Event()
        self._asked = 0  # the newest etcd revision when the feed's lag was last read
        self._gone = "it has not started"  # why the feed must restart; empty while it is sound
        self._reconnects = env.metrics.counter(
            "kedge_store_reconnects_total", "Watches of the remote store that were reopened", ("cause",)
        )

    def start(self, position: FeedStart) -> None:
        """Start a feed at `position`. Catch-up watches serve earlier history."""
        self._chain = Chain(
            self._layout,
            position.meta_entry.meta,
            etcd_revision=position.etcd_revision,
            commits=position.commits,
        )
        self.objects = position.objects
        self.feed = Feed(self._env, revision=self._chain.revision, compacted=self._chain.revision)
        self._gone, self._asked = "", 0
        self._sound.set()

    async def sound_feed(self) -> Feed:
        """The feed; while it restarts, the next one."""
        await self._sound.wait()
        return self.feed

    def restart(self, why: str) -> None:
        """End every local watch with `Compacted`, and have `run` start a new feed."""
        if not self._gone:
            self._gone = why
            self._sound.clear()
            self._reconnects.labels("gone").inc()
            _log.warning("history is lost; every watch must list again: %s", why)
            self.feed.close(f"{why}: list again", compacted=True)
            if self._stream is not None:
                self._stream.close()

    async def run(self) -> None:
        failures = 0
        while True:
            began_s = self._env.monotonic()
            try:
                if self._gone:
                    self.start(await self._store.read_start())
                await self._follow()
                failures = 0
                continue
            except HistoryGap as gap:
                self.restart(str(gap))
            except (NotSent, Unanswered, OperatingError) as error:
                if not self._gone:
                    self._reconnects.labels("broken").inc()
                    _log.info("the watch of the store is reopened: %s", error)
            if self._env.monotonic() - began_s > self._env.limits.store_reconnect_s_max:
                failures = 0  # it had been healthy for a while
            await asyncio.sleep(self._backoff.pause_s(failures, self._env.random))
            failures += 1

    def prove_idle(self, *, etcd_revision: int, commits: int) -> bool:
        """Use a linearizable read: if the feed has every commit that it found, advance the feed to it."""
        if self._gone or not self._chain.prove_idle(etcd_revision=etcd_revision, commits=commits):
            return False
        self.feed.advance(self._chain.revision)
        return True

    # -- private -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read etcd's watch from the chain's position until it breaks."""
        await self._store.check_position(self._chain.revision, self._chain.commits)
        self._stream = stream = await self._transport.watch(watch_request(self._layout, self._chain.etcd_revision))
        behind_since_s: float | None = None
        try:
            while not self._gone:
                response = await stream.next(self._env.limits.store_silence_s)
                if response is not None:
                    behind_since_s = None
                    await self._take(response)
                    if await self._is_too_slow(response):
                        self._reconnects.labels("behind").inc()
                        return
                    continue
                behind_since_s = await self._check_silence(behind_since_s)
                if behind_since_s is not None:
                    waited_s = self._env.monotonic() - behind_since_s
                    if waited_s > self._env.limits.store_silence_s:
                        stream.give_up()
                        raise Unanswered(f"no event for {waited_s:.1f} s although there were commits")
        finally:
            self._stream = None
            stream.close()

    async def _take(self, response: Any) -> None:
        check_alive(response)
        limits = self._env.limits
        turn = max(1, min(limits.watch_batch_max, limits.watch_backlog_max // 2))
        published = 0
        for revision, changes in self._chain.take(response.events):
            for change in changes:
                self.objects += change.created - change.deleted
            self.feed.publish(revision, changes)
            published += len(changes)
            if published >= turn:
                # etcd sends up to 1,000 revisions at once: a watch that keeps up must not be disconnected for that.
                published = 0
                await asyncio.sleep(0)

    async def _is_too_slow(self, response: Any) -> bool:
        """Whether it is faster to reopen the watch.

        etcd sends one revision at a time to a watch that keeps up, and each takes several iterations of a busy event
        loop. A watch that begins in the past gets a thousand revisions at once.
        """
        lag_max = self._env.limits.store_watch_lag_max
        seen: int = self._store.seen
        if not 0 < len(response.events) < _BULK_EVENTS or seen - max(self._chain.etcd_revision, self._asked) <= lag_max:
            return False
        self._asked = seen  # etcd may be shared: revisions are only a hint, commits count
        try:
            _, commits = await self._store.read_commits()
        except Unavailable:
            return False
        return bool(commits - self._chain.commits > lag_max)

    async def _check_silence(self, behind_since_s: float | None) -> float | None:
        """Since when there are commits that the watch has not delivered; None if there are none."""
        try:
            in_step = await self._store.sync()
        except Unavailable:
            return behind_since_s  # unknown; the watch may still recover by itself
        if in_step:
            return None
        return behind_since_s if behind_since_s is not None else self._env.monotonic()


def watch_request(layout: Layout, after: Revision) -> Any:
    return m.WatchCreateRequest(key=layout.start, range_end=layout.end, start_revision=after + 1, prev_kv=True)


def check_alive(response: Any) -> None:
    """Raise if etcd has ended the watch."""
    if response.compact_revision:
        raise HistoryGap(f"etcd has compacted its history up to revision {response.compact_revision}")
    if response.canceled:
        raise Unanswered(f"etcd cancelled the watch: {response.cancel_reason}")

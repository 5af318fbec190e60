"""Keeps one etcd watch over the whole prefix flowing into a `Feed`, which all local watches share.

A watch that breaks is begun again on another endpoint, after the last revision taken. If history is gone by then,
or something in it is missing, local watches end with `Compacted` and a new feed begins: never a gap.
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
from kedge.store.etcd.chain import Chain, Gap
from kedge.store.etcd.layout import Layout
from kedge.store.etcd.transactions import MetaEntry
from kedge.store.etcd.transport import EtcdTransport, NotSent, Unanswered, WatchStream
from kedge.store.feed import Feed

_log = logging.getLogger(__name__)

_BULK_EVENTS = 64


class Beginning(NamedTuple):
    """Where a feed can begin: one linearizable read of the store as a whole."""

    meta_entry: MetaEntry
    etcd_revision: int
    commits: int
    objects: int


class Feeder:
    """The one writer of the feed, and of where etcd's watch stands."""

    feed: Feed

    def __init__(self, env: Env, transport: EtcdTransport, layout: Layout, store: Any) -> None:
        self._env = env
        self._transport = transport
        self._layout = layout
        self._store = store
        self._stream: WatchStream | None = None
        self._backoff = Backoff(0.02, env.limits.store_reconnect_s_max)
        self._sound = asyncio.Event()
        self._asked = 0  # the newest etcd revision when it was last asked how far the feed is behind
        self._gone = "it has not begun"  # why the feed must begin anew; empty while it is sound
        self._reconnects = env.metrics.counter(
            "kedge_store_reconnects_total", "Watches of the remote store begun again", ("cause",)
        )

    def begin(self, beginning: Beginning) -> None:
        """Start a feed at `beginning`. What came before is for catch-up watches."""
        self._chain = Chain(
            self._layout,
            beginning.meta_entry.meta,
            etcd_revision=beginning.etcd_revision,
            commits=beginning.commits,
        )
        self.objects = beginning.objects
        self.feed = Feed(self._env, revision=self._chain.revision, compacted=self._chain.revision)
        self._gone, self._asked = "", 0
        self._sound.set()

    async def sound_feed(self) -> Feed:
        """The feed; while it must begin anew, the next one."""
        await self._sound.wait()
        return self.feed

    def begin_anew(self, why: str) -> None:
        """End every local watch with `Compacted`, and have `run` start a new feed."""
        if not self._gone:
            self._gone = why
            self._sound.clear()
            self._reconnects.labels("gone").inc()
            _log.warning("history was lost, every watch must list again: %s", why)
            self.feed.close(f"{why}: list again", compacted=True)
            if self._stream is not None:
                self._stream.close()

    async def run(self) -> None:
        failures = 0
        while True:
            began_s = self._env.monotonic()
            try:
                if self._gone:
                    self.begin(await self._store.read_beginning())
                await self._follow()
                failures = 0
                continue
            except Gap as gap:
                self.begin_anew(str(gap))
            except (NotSent, Unanswered, OperatingError) as error:
                if not self._gone:
                    self._reconnects.labels("broken").inc()
                    _log.info("the watch of the store is begun again: %s", error)
            if self._env.monotonic() - began_s > self._env.limits.store_reconnect_s_max:
                failures = 0  # it had been well for a while
            await asyncio.sleep(self._backoff.pause_s(failures, self._env.random))
            failures += 1

    def prove_idle(self, *, etcd_revision: int, commits: int) -> bool:
        """Use a linearizable read: if it found no commit that the feed lacks, nothing happened until then."""
        if self._gone or not self._chain.prove_idle(etcd_revision=etcd_revision, commits=commits):
            return False
        self.feed.advance(self._chain.revision)
        return True

    # -- private -----------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Read etcd's watch from the chain's place until it breaks."""
        await self._store.check_position(self._chain.revision, self._chain.commits)
        self._stream = stream = await self._transport.watch(watch_request(self._layout, self._chain.etcd_revision))
        behind_since_s: float | None = None
        try:
            while not self._gone:
                response = await stream.next(self._env.limits.store_silence_s)
                if response is not None:
                    behind_since_s = None
                    await self._take(response)
                    if await self._tells_too_slowly(response):
                        self._reconnects.labels("behind").inc()
                        return
                    continue
                behind_since_s = await self._check_silence(behind_since_s)
                if behind_since_s is not None:
                    waited_s = self._env.monotonic() - behind_since_s
                    if waited_s > self._env.limits.store_silence_s:
                        stream.give_up()
                        raise Unanswered(f"nothing came for {waited_s:.1f} s though there were commits")
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
                # etcd sends up to 1,000 revisions at once: a watch that keeps up must not be cut off for that.
                published = 0
                await asyncio.sleep(0)

    async def _tells_too_slowly(self, response: Any) -> bool:
        """Whether it is quicker to begin the watch again.

        etcd tells a watch that keeps up of one revision at a time, and each takes several turns of a busy event
        loop. A watch that begins in the past is told a thousand revisions at once.
        """
        lag_max = self._env.limits.store_watch_lag_max
        seen: int = self._store.seen
        if not 0 < len(response.events) < _BULK_EVENTS or seen - max(self._chain.etcd_revision, self._asked) <= lag_max:
            return False
        self._asked = seen  # etcd may be shared: revisions are only a hint, commits are what counts
        try:
            _, commits = await self._store.read_commits()
        except Unavailable:
            return False
        return bool(commits - self._chain.commits > lag_max)

    async def _check_silence(self, behind_since_s: float | None) -> float | None:
        """Since when commits were made that the watch has not told of; None if there are none."""
        try:
            in_step = await self._store.sync()
        except Unavailable:
            return behind_since_s  # nobody can say; the watch may still come back by itself
        if in_step:
            return None
        return behind_since_s if behind_since_s is not None else self._env.monotonic()


def watch_request(layout: Layout, after: Revision) -> Any:
    return m.WatchCreateRequest(key=layout.start, range_end=layout.end, start_revision=after + 1, prev_kv=True)


def check_alive(response: Any) -> None:
    """Raise if etcd has ended the watch."""
    if response.compact_revision:
        raise Gap(f"etcd has compacted its history up to revision {response.compact_revision}")
    if response.canceled:
        raise Unanswered(f"etcd cancelled the watch: {response.cancel_reason}")

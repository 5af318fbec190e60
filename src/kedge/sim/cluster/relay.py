"""The relay of an API server: one watch of the store over the link, fanned out to every watch of the server.

As in the etcd backend: a `Feed` beside the service, fed by one watch of all kinds. A broken stream is resumed after the
last revision received; if that history is compacted, every local watch ends with `Compacted`, never with a gap.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any

from kedge.backoff import Backoff
from kedge.env import Env
from kedge.errors import Compacted, OperatingError, Unavailable
from kedge.keys import NO_REVISION, Revision
from kedge.store import Batch, StoreWatch
from kedge.store.feed import ALL_KINDS, Feed

BACK = 1_000
"""Revisions before its start that a new server reads too: watches of its former incarnation resume there."""
BACKOFF = Backoff(0.05, 2.0)
"""Pauses before a broken stream is opened again."""


class Relay:
    """One watch of the store, fanned out. It begins with the first local watch, or with `begin`."""

    def __init__(self, remote: Any, env: Env) -> None:
        self._remote = remote
        self._env = env
        self._feed: Feed | None = None
        self._begun = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._failures = 0

    def begin(self) -> None:
        """Open the stream, on the host that calls. Safe to repeat."""
        if self._task is None:
            self._task = self._env.spawn(self._run(), name="relay")

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> StoreWatch:
        self.begin()
        while self._feed is None:  # again: the stream may have ended before this waiter runs
            try:
                async with asyncio.timeout(self._env.limits.store_request_s):
                    await self._begun.wait()
            except TimeoutError:
                raise Unavailable("this server has no answer from the store yet: watch again") from None
        return await self._feed.watch(kind, after=after, namespace=namespace)

    def compact(self, revision: Revision) -> None:
        """Drop history here too: a watch that resumes before `revision` must list."""
        if self._feed is not None:
            self._feed.compact(min(revision, self._feed.revision))

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except Compacted as error:
                if self._feed is not None:
                    self._feed.close(error.message, compacted=True)
                self._feed = None
                self._begun.clear()
            except OperatingError:
                pass  # any failure: open the stream again after a pause
            self._failures += 1
            await asyncio.sleep(BACKOFF.pause_s(self._failures, self._env.random))

    async def _follow(self) -> None:
        """Publish the batches of one stream until it ends."""
        feed = self._feed
        if feed is None:
            stream, after = await self._open_far_back()
            feed = self._feed = Feed(self._env, revision=after, compacted=after)
            self._begun.set()
        else:
            stream = await self._remote.watch(ALL_KINDS, after=feed.revision, namespace="")
        guard = asyncio.ensure_future(self._guard(feed, stream))
        try:
            async for batch in stream:
                self._failures = 0
                _publish(feed, batch)
        finally:
            guard.cancel()
            stream.close()

    async def _guard(self, feed: Feed, stream: Any) -> None:
        """Close a stream that is silent while the store has newer revisions: its connection may be dead."""
        while True:
            received = feed.revision
            await asyncio.sleep(self._env.limits.store_silence_s)
            if feed.revision == received:
                with suppress(OperatingError):
                    if await self._remote.revision() > received == feed.revision:
                        stream.close()
                        return

    async def _open_far_back(self) -> tuple[Any, Revision]:
        newest: Revision = await self._remote.revision()
        after = max(NO_REVISION, newest - BACK)
        try:
            return await self._remote.watch(ALL_KINDS, after=after, namespace=""), after
        except Compacted as error:
            after = max(after, error.oldest)
            return await self._remote.watch(ALL_KINDS, after=after, namespace=""), after


def _publish(feed: Feed, batch: Batch) -> None:
    commits = groupby(batch.changes, key=attrgetter("revision"))
    fresh = [(revision, tuple(changes), ()) for revision, changes in commits if revision > feed.revision]
    if fresh:
        feed.publish_all(fresh)
    feed.advance(batch.revision)

"""A watch of an `EtcdStore`: a cursor into the shared feed, after a catch-up with etcd if it asks for older history.

A catch-up has an etcd watch of its own, which it reads only as fast as its reader does, and hands over to the feed
as soon as it has reached the history that the feed holds.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from kedge.errors import Compacted, OperatingError, Unavailable
from kedge.keys import Key, Revision
from kedge.store.contract import Batch
from kedge.store.etcd.chain import Chain, ChainLink, Gap
from kedge.store.etcd.feeder import check_alive
from kedge.store.etcd.transport import Unanswered, WatchStream
from kedge.store.feed import Feed, FeedWatch

_IDLE_S = 0.1


class _Store(Protocol):
    @property
    def feed(self) -> Feed: ...

    async def read_commits(self) -> tuple[int, int]:
        """The newest etcd revision, and how many commits there were by then."""

    def want_progress(self, watch: FeedWatch) -> None:
        """Bring the feed up to date with etcd, then have `watch` tell of it."""

    def left(self, watch: EtcdWatch) -> None:
        """It has ended, or needs no watch of its own any more."""


class EtcdWatch:
    """Implements `StoreWatch`."""

    def __init__(self, store: _Store, source: FeedWatch | CatchUp, *, kind: str, namespace: str) -> None:
        self._store = store
        self._source = source
        self._kind = kind
        self._namespace = namespace
        self._progress_wanted = False
        self._end: Exception | None = None

    @property
    def revision(self) -> Revision:
        return self._source.revision

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> Batch:
        while isinstance(self._source, CatchUp):
            if self._end is not None:
                raise self._end
            batch = await self._catch_up(self._source)
            if batch is not None:
                return batch
        return await self._source.__anext__()

    def request_progress(self) -> None:
        if isinstance(self._source, FeedWatch):
            self._store.want_progress(self._source)
        else:
            self._progress_wanted = True

    def close(self) -> None:
        self.end(StopAsyncIteration())

    def end(self, error: Exception) -> None:
        if isinstance(self._source, FeedWatch):
            self._source.end(error)
        elif self._end is None:
            self._end = error
            self._source.close()
        self._store.left(self)

    async def _catch_up(self, source: CatchUp) -> Batch | None:
        """One batch of old history; None when there was nothing to tell, or when the feed has taken over."""
        try:
            if source.revision >= self._store.feed.compacted and not source.pending:
                watch = await self._store.feed.watch(self._kind, after=source.revision, namespace=self._namespace)
                source.close()
                self._source = watch
                self._store.left(self)
                if self._progress_wanted:
                    self._store.want_progress(watch)
                return None
            batch = await source.next(self._progress_wanted)
        except (Gap, Unanswered, OperatingError) as error:
            if self._end is None:
                self.end(_ending(error, source.revision))
            raise self._end or error from error
        if batch is not None:
            self._progress_wanted = False
        return batch


class CatchUp:
    """Old history, from an etcd watch of its own."""

    def __init__(
        self, store: _Store, stream: WatchStream, chain: Chain, *, kind: str, namespace: str, batch_max: int
    ) -> None:
        self.revision = chain.revision
        self.pending: deque[ChainLink] = deque()
        """Taken from etcd, not yet told."""
        self._store = store
        self._stream = stream
        self._chain = chain
        self._kind = kind
        self._namespace = namespace
        self._batch_max = batch_max

    async def next(self, progress_wanted: bool) -> Batch | None:
        if not self.pending:
            response = await self._stream.next(_IDLE_S)
            if response is not None:
                check_alive(response)
                self.pending.extend(self._chain.take(response.events))
            else:
                etcd_revision, commits = await self._store.read_commits()
                if not self.pending:  # a reader that was cancelled may have left some
                    self._chain.prove_idle(etcd_revision=etcd_revision, commits=commits)
        return self._take(progress_wanted)

    def close(self) -> None:
        self._stream.close()

    def _take(self, progress_wanted: Any) -> Batch | None:
        changes: list[Any] = []
        while self.pending and len(changes) < self._batch_max:
            link = self.pending.popleft()
            changes.extend(change for change in link.changes if self._wants(change.key))
            self.revision = link.revision
        if not self.pending:
            self.revision = self._chain.revision
        return Batch(tuple(changes), self.revision) if changes or progress_wanted else None

    def _wants(self, key: Key) -> bool:
        return (not self._kind or key.kind == self._kind) and (not self._namespace or key.namespace == self._namespace)


def _ending(error: Exception, revision: Revision) -> Exception:
    """What the reader is told."""
    match error:
        case OperatingError():
            return error
        case Gap():
            return Compacted(f"history after revision {revision} is gone ({error}): list again", oldest=revision + 1)
        case _:
            return Unavailable(f"the watch broke ({error}): watch again after {revision}")

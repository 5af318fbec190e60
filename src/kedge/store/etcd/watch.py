"""A watch of an `EtcdStore`: a cursor into the shared feed, after a catch-up with etcd if it needs older history.

A catch-up has an etcd watch of its own, which it reads only as fast as its reader does. It switches to the feed as soon
as it has reached the feed's history.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from kedge.errors import Compacted, OperatingError, Unavailable
from kedge.keys import Key, Revision
from kedge.store.contract import Batch
from kedge.store.etcd.chain import Chain, ChainLink, HistoryGap
from kedge.store.etcd.feeder import check_alive
from kedge.store.etcd.transport import Unanswered, WatchStream
from kedge.store.feed import Feed, FeedWatch, callback_failed, report_callback_error

_IDLE_S = 0.1


class _Store(Protocol):
    @property
    def feed(self) -> Feed: ...

    async def read_commits(self) -> tuple[int, int]:
        """The newest etcd revision, and how many commits there were by then."""

    def want_progress(self, watch: FeedWatch) -> None:
        """Bring the feed up to date with etcd, then send `watch` a progress mark."""

    def left(self, watch: EtcdWatch) -> None:
        """The watch has ended, or needs no etcd watch of its own any more."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]: ...


class EtcdWatch:
    """Implements `StoreWatch`.

    While it catches up, `on_ready` needs a task: it reads one batch ahead and waits until that batch is taken.
    """

    def __init__(self, store: _Store, source: FeedWatch | CatchUp, *, kind: str, namespace: str) -> None:
        self._store = store
        self._source = source
        self._kind = kind
        self._namespace = namespace
        self._progress_wanted = False
        self._end: Exception | None = None
        self._on_ready: Callable[[], None] | None = None
        self._ahead: Batch | None = None
        """A batch that the task has read and that is not taken yet; `_taken` is the revision before it."""
        self._taken = source.revision
        self._room = asyncio.Event()
        self._reader: asyncio.Task[Any] | None = None

    @property
    def revision(self) -> Revision:
        return self._source.revision if self._ahead is None else self._taken

    @property
    def pushes(self) -> bool:
        return isinstance(self._source, FeedWatch)

    @property
    def on_ready(self) -> Callable[[], None] | None:
        return self._on_ready

    @on_ready.setter
    def on_ready(self, notify: Callable[[], None] | None) -> None:
        self._on_ready = notify
        if isinstance(self._source, FeedWatch):
            self._source.on_ready = notify
        elif notify is None and self._reader is not None:
            self._reader.cancel()
            self._reader = None
        elif notify is not None and self._reader is None and self._end is None:
            self._reader = self._store.spawn(self._read_ahead(self._source), "catch up")

    def take_nowait(self) -> Batch | None:
        if isinstance(self._source, FeedWatch):
            return self._source.take_nowait()
        if self._end is not None:
            raise self._end
        return None if self._ahead is None else self._take(self._ahead)

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> Batch:
        while isinstance(self._source, CatchUp):
            if self._end is not None:
                raise self._end
            if self._ahead is not None:
                return self._take(self._ahead)
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
            self._room.set()
            if self._reader is None or asyncio.current_task() is not self._reader:
                self._notify()  # otherwise the reader does, when it is done
        self._store.left(self)

    def _take(self, batch: Batch) -> Batch:
        self._ahead = None
        self._room.set()
        return batch

    async def _read_ahead(self, source: CatchUp) -> None:
        try:
            while self._source is source and self._end is None:
                before = source.revision
                batch = await self._catch_up(source)
                if batch is not None:
                    self._ahead, self._taken = batch, before
                    self._room.clear()
                    self._notify()
                    await self._room.wait()
        except (StopAsyncIteration, OperatingError) as error:
            self.end(error)
        if self._reader is asyncio.current_task():
            self._reader = None
            self.on_ready = self._on_ready
            self._notify()

    def _notify(self) -> None:
        if self._on_ready is None:
            return
        try:
            self._on_ready()
        except Exception as error:  # noqa: BLE001  as in `FeedWatch`
            self._on_ready = None
            self.end(callback_failed())
            report_callback_error(self.revision, error)

    async def _catch_up(self, source: CatchUp) -> Batch | None:
        """One batch of old history; None if there is none yet, or if the watch has switched to the feed."""
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
        except (HistoryGap, Unanswered, OperatingError) as error:
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
        """Taken from etcd, not yet returned."""
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
                if not self.pending:  # a cancelled reader may have left some
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
    """The error that the reader gets."""
    match error:
        case OperatingError():
            return error
        case HistoryGap():
            return Compacted(f"history after revision {revision} is gone ({error}): list again", oldest=revision + 1)
        case _:
            return Unavailable(f"the watch broke ({error}): watch again after {revision}")

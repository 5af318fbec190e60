"""Links between components on simulated hosts: a store that reports commits, remote stores, remote API servers.

`cluster` connects components with these. A read without a reply is `Unavailable`; a write without one is unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from kedge.api.kinds import KINDS, Registry
from kedge.api.requests import Bind, Create, List, OpenWatch, Reply, Request, WatchEvent, Written, named
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.keys import NO_ORIGIN, NO_REVISION, Fence, Key, Origin, Revision
from kedge.limits import Limits
from kedge.server.service import Service
from kedge.sim.cluster.relay import Relay
from kedge.sim.kernel import Host, RemoteStream
from kedge.store import Batch, Check, Entry, Listing, Reading, StoreStatistics, StoreWatch, Write
from kedge.store.memory import MemoryStore

_T = TypeVar("_T")

STORE, API = "store", "api"


class Commit:
    """One commit, as safety invariants see it: its keys, origin and fence, and the store after it."""

    __slots__ = ("fence", "keys", "origin", "revision", "store")

    def __init__(
        self,
        store: WatchedStore,
        revision: Revision,
        writes: Sequence[Write],
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> None:
        self.store = store
        self.revision = revision
        self.keys = tuple(write.key for write in writes)
        self.fence = fence
        self.origin = origin


class WatchedStore(MemoryStore):
    """A memory store that reports each commit to the simulation, in the step that makes it."""

    def __init__(
        self,
        host: Host,
        on_commit: Callable[[object], None],
        *,
        slowness_s: Callable[[], float] = lambda: 0.0,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(host.env(limits=limits))
        self._on_commit = on_commit
        self.slowness_s = slowness_s

    def newest(self, key: Key) -> Entry | None:
        """The committed entry of a key."""
        return self._versions.newest(key)

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        wait_s = self.slowness_s()
        if wait_s:
            await asyncio.sleep(wait_s)
        return await super().commit(checks, writes, fence=fence, origin=origin)

    def commit_nowait(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        revision = super().commit_nowait(checks, writes, fence=fence, origin=origin)
        if writes:
            self._on_commit(Commit(self, revision, writes, fence, origin))
        return revision


class ServedStore:
    """A store as other hosts call it. A request that crossed a link is carried out in one step."""

    def __init__(self, store: WatchedStore) -> None:
        self._store = store
        self.watch, self.compact, self.revision = store.watch, store.compact, store.revision_nowait

    def commit(
        self, checks: Sequence[Check], writes: Sequence[Write], *, fence: Fence | None = None, origin: Origin
    ) -> Revision | Coroutine[Any, Any, Revision]:
        wait_s = self._store.slowness_s()
        if wait_s:
            return self._commit_late(wait_s, checks, writes, fence, origin)
        return self._store.commit_nowait(checks, writes, fence=fence, origin=origin)

    async def _commit_late(
        self, wait_s: float, checks: Sequence[Check], writes: Sequence[Write], fence: Fence | None, origin: Origin
    ) -> Revision:
        await asyncio.sleep(wait_s)
        return self._store.commit_nowait(checks, writes, fence=fence, origin=origin)

    def get(self, keys: Sequence[Key], *, at: Revision) -> Reading | Coroutine[Any, Any, Reading]:
        store = self._store
        return store.get(keys, at=at) if at > store.revision_nowait() else store.get_nowait(keys, at=at)

    def list(self, kind: str, *, at: Revision, **asked: Any) -> Listing | Coroutine[Any, Any, Listing]:
        store = self._store
        return (
            store.list(kind, at=at, **asked)
            if at > store.revision_nowait()
            else store.list_nowait(kind, at=at, **asked)
        )


async def _read(call: Awaitable[_T]) -> _T:
    """A call without effects: if the reply is lost, it can be repeated."""
    try:
        return await call
    except OutcomeUnknown as error:
        raise Unavailable(error.message) from error


class RemoteStore:
    """A store on another host. Implements `Store`; a commit without a reply has an unknown outcome.

    With a `relay` all watches share one stream.
    """

    def __init__(self, remote: Any, incarnation: str, relay: Relay | None = None) -> None:
        self._remote = remote
        self._relay = relay
        self.incarnation = incarnation

    async def commit(
        self,
        checks: Sequence[Check],
        writes: Sequence[Write],
        *,
        fence: Fence | None = None,
        origin: Origin = NO_ORIGIN,
    ) -> Revision:
        revision: Revision = await self._remote.commit(checks, writes, fence=fence, origin=origin)
        return revision

    async def get(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        reading: Reading = await _read(self._remote.get(keys, at=at))
        return reading

    def get_nowait(self, keys: Sequence[Key]) -> None:
        del keys  # the store is on another host

    async def list(
        self,
        kind: str,
        *,
        namespace: str = "",
        at: Revision = NO_REVISION,
        start_after: Key | None = None,
        limit: int = 0,
    ) -> Listing:
        listing: Listing = await _read(
            self._remote.list(kind, namespace=namespace, at=at, start_after=start_after, limit=limit)
        )
        return listing

    async def watch(self, kind: str, *, after: Revision, namespace: str = "") -> StoreWatch:
        if self._relay is not None:
            return await self._relay.watch(kind, after=after, namespace=namespace)
        return RemoteWatch(await _read(self._remote.watch(kind, after=after, namespace=namespace)), after)

    async def compact(self, revision: Revision) -> None:
        await self._remote.compact(revision)

    async def revision(self) -> Revision:
        revision: Revision = await _read(self._remote.revision())
        return revision

    def statistics(self) -> StoreStatistics:
        raise NotImplementedError("read the statistics of the store on its own host")

    async def close(self) -> None:
        """Nothing to release: streams end with the host."""


class RemoteWatch:
    """A watch of a store across a link."""

    def __init__(self, stream: RemoteStream, after: Revision) -> None:
        self._stream = stream
        self.revision = after

    def __aiter__(self) -> RemoteWatch:
        return self

    async def __anext__(self) -> Batch:
        batch: Batch = await anext(self._stream)
        self.revision = batch.revision
        return batch

    @property
    def pushes(self) -> bool:
        return self._stream.pushes

    @property
    def on_ready(self) -> Callable[[], None] | None:
        return self._stream.on_ready

    @on_ready.setter
    def on_ready(self, notify: Callable[[], None] | None) -> None:
        self._stream.on_ready = notify

    def take_nowait(self) -> Batch | None:
        batch: Batch | None = self._stream.take_nowait()
        if batch is not None:
            self.revision = batch.revision
        return batch

    def request_progress(self) -> None:
        self._stream.notify("request_progress")

    def close(self) -> None:
        self._stream.close()


class Served:
    """A service as other hosts call it: by the label of a request, which names the call's fault points and traces.

    The events that a watch has at one moment cross the link as one message.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def send(self, request: Request[Reply]) -> Reply:
        return await self._service.send(request)

    async def watch(self, request: OpenWatch) -> AsyncIterator[Sequence[WatchEvent]]:
        return await self._service.open_event_stream(request)

    def create(self, request: Create) -> Coroutine[Any, Any, Written]:
        # Not async: the kernel then takes one step more for the first call on a link, and seeds count it.
        return self._service.send(request)

    def bind(self, request: Bind) -> Coroutine[Any, Any, Written]:
        return self._service.send(request)

    def __getattr__(self, label: str) -> Any:
        if label.startswith("_"):
            raise AttributeError(label)
        setattr(self, label, self.send)
        return self.send


class RemoteEvents:
    """The receiving end of a watch: one event at a time, as the transport contract wants them."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._received: deque[WatchEvent] = deque()

    def __aiter__(self) -> RemoteEvents:
        return self

    async def __anext__(self) -> WatchEvent:
        while not self._received:
            self._received.extend(await anext(self._stream))
        return self._received.popleft()

    async def aclose(self) -> None:
        self._stream.close()


class RemoteTransport:
    """An API server on another host. Implements `client.contract.Transport`."""

    repeats_safely = True
    one_history = True

    def __init__(
        self, remote: Any, kinds: Registry = KINDS, *, on_follow: Callable[[List | OpenWatch], None] = lambda _: None
    ) -> None:
        """`on_follow` is called with every request that reads a whole kind."""
        self._remote = remote
        self.kinds = kinds
        self._on_follow = on_follow
        self.caller = ""
        """The user beside every version that is written through it; empty for none."""

    async def send(self, request: Request[Reply]) -> Reply:
        if self.caller:
            request = named(request, self.caller)
        call = self._remote.call(request.label, request)
        if not request.reads:
            return await call  # type: ignore[no-any-return]
        if isinstance(request, List):
            self._on_follow(request)
        reply: Reply = await _read(call)
        return reply

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        self._on_follow(request)
        return RemoteEvents(await _read(self._remote.call(request.label, request)))  # type: ignore[return-value]

"""One cache per kind and scope in a process, shared by its controllers, each with its watcher."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.api.kinds import Kind
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import Revision
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.reads import CacheStatistics, Freshness
from kedge.runtime.revision_probe import RevisionProbe
from kedge.runtime.watch_states import WatchScope
from kedge.runtime.watcher import Watcher, WatcherStatistics


class CacheSet:
    """The caches of a process. A kind and scope has one cache, shared by all callers; they live until `stop`."""

    def __init__(self, client: Client, env: Env, *, probed: Kind | None = None) -> None:
        """`probed` is the kind that is listed for the revision of the store; without it, that of any cache."""
        self._client = client
        self._env = env
        self._revision_probe = RevisionProbe(client, env, probed)
        self._caches: dict[tuple[str, WatchScope], tuple[Cache, Watcher]] = {}
        self._of_kind: dict[str, tuple[Cache, ...]] = {}
        """The same caches by kind, for a lookup at every event of some kinds."""

    def cache(self, kind: Kind, *, namespace: str = "", label_selector: str = "", field_selector: str = "") -> Cache:
        """The cache of a kind, or of a part of it. Must be called on the event loop: it starts the watcher."""
        scope = WatchScope(namespace=namespace, label_selector=label_selector, field_selector=field_selector)
        found = self._caches.get((kind.key_kind, scope))
        if found is not None:
            return found[0]
        cache = Cache(self._client, self._env, kind, scope=scope)
        watcher = Watcher(self._client, self._env, kind, cache, scope=scope, revision_probe=self._revision_probe)
        self._caches[kind.key_kind, scope] = cache, watcher
        self._of_kind[kind.key_kind] = (*self._of_kind.get(kind.key_kind, ()), cache)
        watcher.start()
        return cache

    def of_kind(self, kind: str) -> tuple[Cache, ...]:
        """Every cache of a kind, by `Key.kind`."""
        return self._of_kind.get(kind, ())

    def watcher(self, cache: Cache) -> Watcher:
        return self._caches[cache.kind.key_kind, cache.scope][1]

    def __iter__(self) -> Iterator[Cache]:
        return iter([cache for cache, _ in self._caches.values()])

    @property
    def healthy(self) -> bool:
        """Whether every watcher follows its kind."""
        return all(watcher.healthy for _, watcher in self._caches.values())

    def freshness(self) -> tuple[Freshness, ...]:
        return tuple(cache.freshness() for cache, _ in self._caches.values())

    def statistics(self) -> tuple[tuple[CacheStatistics, WatcherStatistics], ...]:
        return tuple((cache.statistics(), watcher.statistics()) for cache, watcher in self._caches.values())

    async def wait_synced(self, *, within_s: float | None = None) -> None:
        """Wait until every cache has listed. Raises `Behind` if one has not, in time."""
        until_s = self._until_s(within_s)
        for cache, _ in tuple(self._caches.values()):
            await cache.wait_synced(within_s=max(0.0, until_s - self._env.monotonic()))

    async def at_least(self, revision: Revision, *, within_s: float | None = None) -> None:
        """Wait until every cache has everything up to `revision`: a new leader gives the revision of its fence.

        Raises:
            Behind: one has not, in time. Do not act on its content.
        """
        until_s = self._until_s(within_s)
        for cache, _ in tuple(self._caches.values()):
            await cache.at_least(revision, within_s=max(0.0, until_s - self._env.monotonic()))

    async def stop(self) -> None:
        """End every watcher. The caches can still be read, and grow stale."""
        for _, watcher in tuple(self._caches.values()):
            await watcher.stop()

    def _until_s(self, within_s: float | None) -> float:
        return self._env.monotonic() + (self._env.limits.cache_wait_s if within_s is None else within_s)

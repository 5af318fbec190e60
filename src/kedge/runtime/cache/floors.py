"""Read your writes: a key that wrote does not run again before every cache it reads has received the write.

The key waits, not its controller. A cache that is late is relisted; if that does not help in time, the key fails, is
tried again later, and never runs on older data.
"""

from __future__ import annotations

from typing import NamedTuple

from kedge.api.kinds import Kind
from kedge.env import Env
from kedge.keys import Key, Revision
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.cache_set import CacheSet
from kedge.runtime.cache.reads import Behind


class Floor(NamedTuple):
    """A revision that a key waits for: of everything of a kind, or of one object."""

    kind: str
    revision: Revision
    wrote: Key | None


class WriteFloors:
    """The floors of every key of one controller."""

    def __init__(self, caches: CacheSet, env: Env) -> None:
        self._caches = caches
        self._env = env
        self._unknown: dict[Key, dict[Key, None]] = {}
        """Writes with an unknown outcome, by key: they must be read at the API server first."""
        self._floors: dict[Key, dict[tuple[str, Key | None], Revision]] = {}
        """Only keys that have a floor; for each kind and object only the highest."""
        env.metrics.gauge("kedge_cache_floors", "Keys whose writes are not in the caches yet").set_function(
            lambda: len(self._floors)
        )
        self._relists = env.metrics.counter(
            "kedge_cache_floor_relists_total", "Relists requested because a floor was not met", ("cache", "why")
        )

    def note(self, key: Key, kind: Kind | str, revision: Revision, *, wrote: Key | None = None) -> None:
        """`key` wrote an object of `kind` and must see the write before it runs again.

        Pass `wrote` if it is known: then an event that the stream lost is noticed. After an unknown outcome,
        `revision` is that of the confirming read.
        """
        name = kind if isinstance(kind, str) else kind.key_kind
        if not self._caches.of_kind(name):
            return  # no cache of this kind is read
        floors = self._floors.setdefault(key, {})
        if (name, wrote) not in floors and len(floors) >= self._env.limits.floor_objects_max:
            wrote = None  # as strict: everything up to the revision, instead of one more object
        floors[name, wrote] = max(revision, floors.get((name, wrote), revision))

    def note_unknown(self, key: Key, wrote: Key) -> None:
        """`key` wrote `wrote` with an unknown outcome: `met` reads it at the API server.

        A key without a name stands for an object of that kind whose name the server generates.
        """
        if self._caches.of_kind(wrote.kind):
            self._unknown.setdefault(key, {})[wrote] = None

    def unmet(self, key: Key) -> bool:
        """Whether `key` has to wait. Drops the floors that are met."""
        if key in self._unknown:
            return True
        floors = self._floors.get(key)
        if floors is None:
            return False
        for (kind, wrote), revision in tuple(floors.items()):
            if all(cache.reached(revision, wrote) for cache in self._caches.of_kind(kind)):
                del floors[kind, wrote]
        if not floors:
            del self._floors[key]
        return bool(floors)

    def sweep(self) -> None:
        """Drop the floors that are met, also of keys that may never run again."""
        for key in tuple(self._floors):
            self.unmet(key)

    def pending(self, key: Key) -> tuple[Floor, ...]:
        """The floors that `key` still waits for."""
        return tuple(Floor(kind, revision, wrote) for (kind, wrote), revision in self._floors.get(key, {}).items())

    def forget(self, key: Key) -> None:
        """`key` no longer exists for this controller."""
        self._floors.pop(key, None)
        self._unknown.pop(key, None)

    async def met(self, key: Key, *, within_s: float | None = None) -> None:
        """Wait until every cache has received the writes of `key`.

        Raises:
            Behind: one has not, in time, although it was relisted. Try the key again later.
            OperatingError: the outcome of an unknown write could not be read. Try the key again later.
        """
        limits = self._env.limits
        for wrote in tuple(self._unknown.get(key, ())):
            await self._confirm(key, wrote)
        until_s = self._env.monotonic() + (limits.floor_wait_s if within_s is None else within_s)
        for floor in self.pending(key):
            for cache in self._caches.of_kind(floor.kind):
                await self._wait(cache, floor, until_s)
            floors = self._floors.get(key, {})
            if floors.get((floor.kind, floor.wrote)) == floor.revision:  # no later write came in between
                del floors[floor.kind, floor.wrote]
            if not floors:
                self._floors.pop(key, None)

    async def _confirm(self, key: Key, wrote: Key) -> None:
        """Read the outcome of a write, and set a floor at that read: a cache past it shows the outcome."""
        cache = self._caches.of_kind(wrote.kind)[0]
        if wrote.name:
            read = await cache.fresh_read(wrote)
            self.note(key, wrote.kind, read.revision, wrote=wrote if read.value is not None else None)
        else:
            self.note(key, wrote.kind, await cache.fresh_revision())
        unknown = self._unknown.get(key, {})
        unknown.pop(wrote, None)
        if not unknown:
            self._unknown.pop(key, None)

    async def _wait(self, cache: Cache, floor: Floor, until_s: float) -> None:
        revision, wrote = floor.revision, floor.wrote
        left_s = max(0.0, until_s - self._env.monotonic())
        try:
            patience_s = min(left_s, self._env.limits.floor_relist_s)
            await cache.wait_floor(revision, wrote=wrote, within_s=patience_s, or_lost=True)
        except Behind:
            if self._env.monotonic() >= until_s:
                raise
        if cache.reached(revision, wrote):
            return
        self._relists.labels(cache.name, "lost" if cache.lost(revision, wrote) else "late").inc()
        cache.request_relist()
        await cache.wait_floor(revision, wrote=wrote, within_s=max(0.0, until_s - self._env.monotonic()))

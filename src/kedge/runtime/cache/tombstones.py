"""Deletions that a cache remembers, for a while and up to a number."""

from __future__ import annotations

from collections.abc import Iterator

from kedge.api.objects import Object
from kedge.env import Env
from kedge.keys import NO_REVISION, Key, Revision
from kedge.runtime.cache.reads import Tombstone


class Tombstones:
    """Oldest first. A key is among the objects of the cache or here, never in both."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._stones: dict[Key, Tombstone] = {}

    def __len__(self) -> int:
        return len(self._stones)

    def __iter__(self) -> Iterator[Tombstone]:
        return iter(self._stones.values())

    def get(self, key: Key) -> Tombstone | None:
        self._forget_old()
        return self._stones.get(key)

    def revision_of(self, key: Key) -> Revision:
        found = self._stones.get(key)
        return found.revision if found is not None else NO_REVISION

    def add(self, last: Object, revision: Revision, *, missed: bool) -> None:
        self._stones.pop(last.key, None)  # the newest goes last
        self._stones[last.key] = Tombstone(last.key, last, revision, self._env.monotonic(), missed)
        self._forget_old()

    def remove(self, key: Key) -> None:
        """An object of that name exists again."""
        self._stones.pop(key, None)

    def _forget_old(self) -> None:
        limits, now_s = self._env.limits, self._env.monotonic()
        while self._stones:
            key, oldest = next(iter(self._stones.items()))
            if len(self._stones) <= limits.tombstones_max and now_s - oldest.at_s <= limits.tombstone_s:
                return
            del self._stones[key]

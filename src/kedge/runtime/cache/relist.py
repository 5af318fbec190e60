"""A list on its way into a cache: gathered page by page, then applied in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kedge.api.objects import Object
from kedge.keys import Key, Revision
from kedge.runtime.cache.received import CacheChange, ChangeType

if TYPE_CHECKING:
    from kedge.runtime.cache.cache import Cache


class CacheRelist:
    """Gathers a list. Versions that the cache already has are kept, with their decoded views."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known = cache._objects
        self._objects: dict[Key, Object] = {}

    def add(self, objects: Sequence[Object]) -> None:
        known, gathered = self._known, self._objects
        for each in objects:
            old = known.get(each.key)
            if old is None or old.revision < each.revision:
                gathered[each.key] = each
                self._cache.decode(each)
            else:
                gathered[each.key] = old

    def apply(self, revision: Revision, *, asked_s: float) -> None:
        self._cache.replace(self._objects, revision, asked_s=asked_s)


def diff_objects(
    old: dict[Key, Object], new: dict[Key, Object], revision: Revision, *, missed: bool
) -> Sequence[CacheChange]:
    """The changes that turn `old` into `new`. Deletions first, so that a replacement finds its place free."""
    changes = [
        CacheChange(ChangeType.DELETED, key, each, None, revision, missed=True)
        for key, each in old.items()
        if key not in new
    ]
    for key, each in new.items():
        before = old.get(key)
        if before is None:
            changes.append(CacheChange(ChangeType.ADDED, key, None, each, each.revision, missed))
        elif before is not each:
            changes.append(CacheChange(ChangeType.CHANGED, key, before, each, each.revision, missed))
    return changes

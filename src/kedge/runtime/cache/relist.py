"""A list on its way into a cache: gathered page by page, then applied in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kedge.api.objects import Object
from kedge.keys import Key, Revision
from kedge.runtime.cache.indexes import IndexState
from kedge.runtime.cache.received import CacheChange, ChangeType

if TYPE_CHECKING:
    from kedge.runtime.cache.cache import Cache


_COMPARED_AT_ONCE = 2_000
"""Objects that are looked up in a list between two looks at the clock."""


class PreparedList(NamedTuple):
    """Work on a list that needs no state of the cache to change: done page by page, so that applying it is short."""

    changes: list[CacheChange]
    """Objects that are gone, then those that are new or changed."""
    indexes: dict[str, IndexState]
    """Indexes of the list, by name; empty if the cache had objects before, whose indexes are changed in place."""


class CacheRelist:
    """Gathers a list. Versions that the cache already has are kept, with their decoded views."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known = cache._objects  # unchanged until the list is applied: its watcher is the only writer
        self._objects: dict[Key, Object] = {}
        self._missed = cache._listed
        self._kept = 0
        """Objects of the cache that the list has too."""
        self._deletions: list[CacheChange] = []
        self._prepared = PreparedList([], {} if self._known else cache.empty_indexes())

    def add(self, objects: Sequence[Object]) -> None:
        known, gathered, prepared = self._known, self._objects, self._prepared
        for each in objects:
            old = known.get(each.key)
            self._kept += old is not None and each.key not in gathered
            if old is not None and old.revision >= each.revision:
                gathered[each.key] = old
                continue
            gathered[each.key] = each
            prepared.changes.append(change_to(old, each, missed=self._missed))
            if prepared.indexes:
                for state in prepared.indexes.values():
                    state.put(None, each)
            else:
                self._cache.decode(each)

    def find_deletions(self, revision: Revision) -> Iterator[None]:
        """Find the objects that the list does not have, in parts: the caller may do other work between two."""
        if self._kept == len(self._known):
            return  # as in most lists
        left = iter(self._known.items())
        while part := dict(islice(left, _COMPARED_AT_ONCE)):
            self._deletions += deletions(part, self._objects, revision)
            yield

    def apply(self, revision: Revision, *, asked_s: float) -> None:
        """Every part of `find_deletions` has ended."""
        changes = [*self._deletions, *self._prepared.changes] if self._deletions else self._prepared.changes
        prepared = self._prepared._replace(changes=changes)
        self._cache.replace(self._objects, revision, asked_s=asked_s, prepared=prepared)


def change_to(old: Object | None, new: Object, *, missed: bool) -> CacheChange:
    return CacheChange(ChangeType.CHANGED if old else ChangeType.ADDED, new.key, old, new, new.revision, missed)


def deletions(old: dict[Key, Object], new: dict[Key, Object], revision: Revision) -> list[CacheChange]:
    return [
        CacheChange(ChangeType.DELETED, key, each, None, revision, missed=True)
        for key, each in old.items()
        if key not in new
    ]


def diff_objects(
    old: dict[Key, Object], new: dict[Key, Object], revision: Revision, *, missed: bool
) -> Sequence[CacheChange]:
    """The changes that turn `old` into `new`. Deletions first, so that a replacement finds its place free."""
    changes = deletions(old, new, revision)
    for key, each in new.items():
        before = old.get(key)
        if before is not each:
            changes.append(change_to(before, each, missed=missed))
    return changes

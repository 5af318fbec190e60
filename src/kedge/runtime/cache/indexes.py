"""Indexes of a cache: from a value to the objects that have it, kept with every change.

An index is a name and a pure function from an object to its values. While its function fails on an object, reads of the
index raise: an index without that object would return wrong results silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from kedge.api.objects import Object
from kedge.api.wellknown import ZONE_LABEL
from kedge.errors import InvariantBroken
from kedge.keys import Key
from kedge.runtime.cache.received import CacheChange

ValuesOf = Callable[[Object], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Index:
    """Declared by a controller. Equal indexes of a cache are kept once."""

    name: str
    values_of: ValuesOf
    """Must be pure, the same values for the same object; and cheap, it is called at every change."""


def by_label(label: str) -> Index:
    found = _BY_LABEL.get(label)
    if found is None:
        found = _BY_LABEL[label] = Index(f"label {label}", lambda each: _one(each.metadata.labels.get(label)))
    return found


def _one(value: str | None) -> tuple[str, ...]:
    return (value,) if value else ()


def _policy_versions(each: Object) -> tuple[str, ...]:
    """The version of a SchedulingPolicy, and of its canary."""
    spec = each.view.spec
    canary = spec.canary.version if spec.canary is not None else None
    return tuple(dict.fromkeys((*_one(spec.version), *_one(canary))))


_BY_LABEL: dict[str, Index] = {}
_KEY_OF = attrgetter("key")
BY_NAMESPACE = Index("namespace", lambda each: (each.key.namespace,))
"""The tenant."""
BY_OWNER = Index("owner", lambda each: tuple(dict.fromkeys(ref.uid for ref in each.metadata.owner_references)))
"""The uid of each owner."""
BY_CONTROLLER = Index(
    "controller", lambda each: tuple(ref.uid for ref in each.metadata.owner_references if ref.controller)
)
"""The uid of the owner that controls the object."""
BY_NODE = Index("node", lambda each: _one(each.view.spec.node_name))
"""The node of a pod or a reservation; no value before it has one."""
BY_ZONE = by_label(ZONE_LABEL)
BY_PRIORITY = Index("priority", lambda each: (str(each.view.spec.priority or 0),))
BY_POLICY_VERSION = Index("policy version", _policy_versions)


def in_key_order(objects: Iterable[Object]) -> tuple[Object, ...]:
    """Without a lookup of each key, which takes longer than the sort."""
    return tuple(sorted(objects, key=_KEY_OF))


class IndexState:
    """One index of one cache. Written by the cache, in the step that changes its objects."""

    __slots__ = ("_buckets", "_ordered", "_unreadable", "index")

    def __init__(self, index: Index, objects: Iterable[Object]) -> None:
        self.index = index
        self._buckets: dict[str, dict[Key, Object]] = {}
        self._ordered: dict[str, tuple[Object, ...]] = {}
        """Buckets in key order, made at a read and dropped when the bucket changes."""
        self._unreadable: dict[Key, Exception] = {}
        for each in objects:
            self.put(None, each)

    def put(self, old: Object | None, new: Object | None) -> Exception | None:
        """Replace the old version of an object by the new one. Returns the index function's error, if it raised."""
        if old is not None:
            self._remove(old)
        if new is None:
            return None
        try:
            values = tuple(self.index.values_of(new))
        except Exception as error:  # noqa: BLE001  the function is the caller's
            self._unreadable[new.key] = error
            return error
        for value in values:
            self._ordered.pop(value, None)
            self._buckets.setdefault(value, {})[new.key] = new
        return None

    def put_all(self, changes: Iterable[CacheChange]) -> list[Exception]:
        """As `put`, for each change. Returns the errors."""
        return [error for each in changes if (error := self.put(each.old, each.new)) is not None]

    def adopt(self, made: IndexState) -> list[Exception]:
        """Take the content of an index that was made elsewhere, and is not used again. Returns its errors."""
        self._buckets, self._ordered, self._unreadable = made._buckets, made._ordered, made._unreadable
        return list(self._unreadable.values())

    def _remove(self, old: Object) -> None:
        if self._unreadable.pop(old.key, None) is not None:
            return
        for value in self.index.values_of(old):
            bucket = self._buckets.get(value)
            if bucket is not None:
                bucket.pop(old.key, None)
                self._ordered.pop(value, None)
                if not bucket:
                    del self._buckets[value]

    def get(self, value: str) -> tuple[Object, ...]:
        """The objects that have `value`, in key order."""
        if self._unreadable:
            key, error = next(iter(self._unreadable.items()))
            raise InvariantBroken(f"index {self.index.name!r} could not read {key}: fix its function") from error
        found = self._ordered.get(value)
        if found is None:
            bucket = self._buckets.get(value)
            if bucket is None:
                return ()
            found = self._ordered[value] = in_key_order(bucket.values())
        return found

    def values(self) -> tuple[str, ...]:
        return tuple(sorted(self._buckets))

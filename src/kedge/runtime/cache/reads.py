"""Reads of a cache with their revision and age, and errors for a cache that is not fresh enough.

None of the errors is ever replaced by older data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kedge.api.objects import Object
from kedge.errors import Unavailable
from kedge.keys import Key, Revision

_T = TypeVar("_T")


class Read(NamedTuple, Generic[_T]):
    """A value, with the revision and the age of the cache it comes from."""

    value: _T
    revision: Revision
    """Everything at or below it is reflected in the value."""
    age_s: float
    """Since the cache was last proved complete."""
    place: int
    """The place of the cache in its received log; -1 for a read of the API server."""


class Tombstone(NamedTuple):
    """A deletion that is remembered."""

    key: Key
    object: Object
    """Its last known state."""
    revision: Revision
    """The revision of the deletion, or of the list that revealed it if its event was missed."""
    at_s: float
    """When this process received it, on its monotonic clock."""
    missed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The revision, age and watcher state of a cache at one moment. `synced` never latches."""

    cache: str
    synced: bool
    """It has listed, and a stream is open."""
    phase: str
    """The state of its watcher: listing, connecting, streaming, pausing, waiting, stopped."""
    reason: str
    """Why the watcher entered that state."""
    revision: Revision
    age_s: float
    """Infinite before the first list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """Figures of one cache."""

    cache: str
    objects: int
    revision: Revision
    age_s: float
    place: int
    tombstones: int
    indexes: dict[str, int]
    """How many values each index has."""
    subscribers: int
    waiting: int
    relists: int
    stale_events: int
    """Events older than the state here: delivered twice, or by a server that lags."""


class NotSynced(Unavailable):
    """The cache has never listed, so it does not know what exists. Call `wait_synced`, then read."""


class Behind(Unavailable):
    """The cache did not reach a revision in time. Try the key again later; no older data was served instead."""

    def __init__(self, message: str, *, wanted: Revision, freshness: Freshness) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.freshness = freshness


class Stale(Unavailable):
    """The cache is older than the decision allows. Wait for it, or read past it with `fresh_read`."""

    def __init__(self, message: str, *, age_s: float, budget_s: float, freshness: Freshness) -> None:
        super().__init__(message)
        self.age_s = age_s
        self.budget_s = budget_s
        self.freshness = freshness

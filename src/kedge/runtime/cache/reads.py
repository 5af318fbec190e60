"""What a read of a cache tells beside the object: how far the cache was, and how long ago it was proved current.

The errors here say that a cache is not good enough for what was asked of it. None is ever swallowed into older data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kedge.api.objects import Object
from kedge.errors import Unavailable
from kedge.keys import Key, Revision

_T = TypeVar("_T")


class Read(NamedTuple, Generic[_T]):
    """An answer, with where and when it is from."""

    value: _T
    revision: Revision
    """Everything at or below it is in the answer."""
    age_s: float
    """Since the cache was last proved to hold everything there was."""
    place: int
    """Where in the received log the cache stood; -1 for a read of the authority."""


class Tombstone(NamedTuple):
    """A deletion that is remembered."""

    key: Key
    object: Object
    """The last state known."""
    revision: Revision
    """Of the deletion; of the list that showed it, if the deletion itself was missed."""
    at_s: float
    """When this process learned of it, on its monotonic clock."""
    missed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How good a cache is right now. `synced` never latches."""

    cache: str
    synced: bool
    """It has listed, and a stream brings it what follows."""
    phase: str
    """What its watcher does: listing, connecting, streaming, pausing, waiting, stopped."""
    reason: str
    """Why it does that."""
    revision: Revision
    age_s: float
    """Infinite before the first list."""


class NotSynced(Unavailable):
    """The cache has never listed: it cannot tell what exists from what does not. Wait with `synced`, then read."""


class Behind(Unavailable):
    """The cache did not reach a revision in time. Try the key again later; nothing older was served instead."""

    def __init__(self, message: str, *, wanted: Revision, freshness: Freshness) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.freshness = freshness


class Stale(Unavailable):
    """The cache is older than the decision allows. Wait for it, or ask the authority with `fresh_read`."""

    def __init__(self, message: str, *, age_s: float, budget_s: float, freshness: Freshness) -> None:
        super().__init__(message)
        self.age_s = age_s
        self.budget_s = budget_s
        self.freshness = freshness

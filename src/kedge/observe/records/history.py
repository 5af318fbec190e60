"""The rest of what is kept beside decisions: the store's history, what caches received, and the outside world.

With these a reader needs no cluster: the state at any revision, the view of any cache, and every write with its writer.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from kedge.api.objects import Object
from kedge.keys import Key, Revision


class StoreState(NamedTuple):
    """Every object of the store at one revision: where a history begins."""

    revision: Revision
    at: datetime
    objects: tuple[Object, ...]


class CommitRecord(NamedTuple):
    """One commit. `Object.origin` of each version names the decision that wrote it."""

    revision: Revision
    at: datetime
    written: tuple[Object, ...]
    deleted: tuple[Key, ...] = ()


class ReceivedChange(NamedTuple):
    """How one object of a cache changed."""

    type: str
    key: Key
    new: Object | None
    """None for a deletion."""
    revision: Revision
    missed: bool = False
    """No event reported it: a list showed it later."""


class ReceivedEntry(NamedTuple):
    """One list, event or mark in the received log of one cache."""

    place: int
    source: str
    revision: Revision
    changes: tuple[ReceivedChange, ...]


class ReceivedPart(NamedTuple):
    """A stretch of the received log of one cache of one process."""

    process: str
    """The name of the process, and the number of its life."""
    deciders: tuple[str, ...]
    """The values of `Decision.process` that read from this cache: controllers of one process share their caches."""
    cache: str
    place: int
    """The place of `base`: entries follow it."""
    revision: Revision
    base: tuple[Object, ...]
    """What the cache held at `place`."""
    entries: tuple[ReceivedEntry, ...]


class OutsideEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that happened to the cluster from outside: a person's step, a fault, a change of admission."""

    at: datetime
    kind: str
    text: str
    where: str = ""
    """The host or object that it happened to."""
    data: dict[str, Any] = {}
    """As JSON: the admission policies that hold from now on, a capacity, a quota."""

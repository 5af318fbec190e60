"""Records beside decisions: the history of the store, the received logs of caches, and events from outside.

With these a reader needs no cluster: it has the state at any revision, the content of any cache, and every write.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from kedge.api.objects import Object
from kedge.keys import Key, Revision


class StoreState(NamedTuple):
    """Every object of the store at one revision: the start of a history."""

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
    """One change of one object in a cache."""

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
    at: datetime | None = None
    """When it came, by the clock of the process. Records of before do not have it."""


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
    """The objects in the cache at `place`."""
    entries: tuple[ReceivedEntry, ...]
    continues: bool = False
    """It has no base: its entries follow those of the part before it of the same cache and process."""


class CoverageRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many decisions of one process ended, and how many of them were kept, up to a moment."""

    process: str
    """The run of the recorder. A later record of the same run replaces an earlier one."""
    since: datetime
    until: datetime
    seen: int
    kept: dict[str, int]
    """By rule."""
    sample_every: int
    """One in so many of the decisions that no other rule keeps is kept."""


class FieldCount(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """How often one controller read or wrote one field of one kind."""

    controller: str
    verb: str
    kind: str
    field: str
    count: int


class CountsRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts of reads and writes by one process, up to a moment. Never sampled."""

    process: str
    """The run of the recorder, as in its `CoverageRecord`. A row replaces an earlier one of the same run."""
    since: datetime
    until: datetime
    rows: tuple[FieldCount, ...]
    """Rows that changed since the last record in this file. The first one in a file has all."""
    deciders: tuple[str, ...] = ()
    """The values of `Decision.process` of this process: its components share one client, with its bounds."""
    noted_every: int = 0
    """The fields of one decision in so many were noted; 0 for a recorder that notes none."""


class KeptTotals(NamedTuple):
    """All kept decisions of some logs, for a view of a few of them."""

    rules: dict[str, int]
    """How many of them each rule kept."""
    first: datetime | None
    """When the earliest began; None if there is none."""
    last: datetime | None


class OutsideEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that no component caused: a person's step, a fault, a change of admission policies."""

    at: datetime
    kind: str
    text: str
    where: str = ""
    """The host or object that was affected."""
    data: dict[str, Any] = {}
    """Details as JSON, such as the admission policies from now on."""

"""The received log: everything a cache received, in order. A decision records its place in it, and can be run again.

The log is a ring. Entries that fall off it are folded into a base state, so that the state of the cache at any place
still in the ring can be rebuilt. Kept records pin the places they need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from itertools import islice

import msgspec

from kedge.api.objects import Object
from kedge.errors import Compacted
from kedge.keys import NO_REVISION, Key, Revision
from kedge.limits import Limits


class ChangeType(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"


class CacheChange(msgspec.Struct, frozen=True, gc=False):
    """A change of one object in a cache. For subscribers it is a wake-up, not a source of truth."""

    type: ChangeType
    key: Key
    old: Object | None
    new: Object | None
    """None for a deletion."""
    revision: Revision
    missed: bool = False
    """No event brought it: a list revealed it, at `revision` or before."""

    @property
    def object(self) -> Object:
        """The newest known version."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


class Source(StrEnum):
    LIST = "list"
    EVENT = "event"
    MARK = "mark"
    """A bookmark: nothing changed up to its revision."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """One entry: the changes of a whole list, one event, or one bookmark."""

    place: int
    source: Source
    revision: Revision
    """The revision up to which the cache was complete after it."""
    changes: Sequence[CacheChange]
    at_s: float = 0.0
    """When it came, on the monotonic clock."""


_FOLDED_AT_ONCE = 1_000
"""Changes of a list that one append takes into the base."""


class Pin:
    """Keeps the log from `place` on, until it is released. `lost` is set if the log had to drop it at its bound."""

    __slots__ = ("_log", "lost", "place")

    def __init__(self, log: ReceivedLog, place: int) -> None:
        self._log = log
        self.place = place
        self.lost = False

    def release(self) -> None:
        self._log.unpin(self)


class ReceivedLog:
    """The newest entries received. Places count up from 0; place 0 is before the first entry."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: deque[Received] = deque()
        self._base: dict[Key, Object] = {}
        self._base_revision: Revision = NO_REVISION
        self._unfolded: Iterator[CacheChange] | None = None
        """The rest of a long entry that was dropped: some of it goes into `_base` at each append, all before a read."""
        self._pins: dict[int, list[Pin]] = {}
        """By place: thousands of records may hold one each."""
        self._pinned: list[int] = []
        """The places of `_pins` as a heap, for a lookup of the first at every append. May hold places without pins."""
        self.place = 0
        """The place of the newest entry."""

    @classmethod
    def restored(
        cls, limits: Limits, *, place: int, revision: Revision, base: Mapping[Key, Object], entries: Sequence[Received]
    ) -> ReceivedLog:
        """A log as it was kept: `base` is what the cache held at `place`, and `entries` follow it."""
        log = cls(limits)
        log._base, log._base_revision = dict(base), revision
        log._entries.extend(entries)
        log.place = place + len(entries)
        return log

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int:
        """The oldest place whose state can be rebuilt."""
        return self.place - len(self._entries)

    def append(self, source: Source, revision: Revision, changes: Sequence[CacheChange], at_s: float) -> None:
        self.place += 1
        self._entries.append(Received(self.place, source, revision, changes, at_s))
        if len(self._entries) > self._limits.received_log_max:
            self._trim()

    def after(self, place: int) -> tuple[Received, ...]:
        """The entries after `place`, oldest first."""
        self._check_kept(place)
        return tuple(self._entries)[place - self.oldest :]

    def between(self, place: int, last: int) -> list[Received]:
        """The entries after `place` up to `last`, oldest first. Its cost grows with their distance from the newest."""
        self._check_kept(place)
        newer = self.place - last
        return [*islice(reversed(self._entries), newer, newer + last - place)][::-1]

    def state_at(self, place: int) -> tuple[Mapping[Key, Object], Revision]:
        """The objects and the revision of the cache at `place`."""
        self._check_kept(place)
        while self._unfolded is not None:
            self._fold_some()
        objects, revision = dict(self._base), self._base_revision
        for entry in self._entries:
            if entry.place > place:
                break
            _fold(objects, entry.changes)
            revision = entry.revision
        return objects, revision

    def pin(self, place: int) -> Pin:
        """Keep everything from `place` on."""
        self._check_kept(place)
        pin = Pin(self, place)
        here = self._pins.get(place)
        if here is None:
            self._pins[place] = [pin]
            heappush(self._pinned, place)
        else:
            here.append(pin)
        return pin

    def unpin(self, pin: Pin) -> None:
        here = self._pins.get(pin.place)
        if here is not None and pin in here:
            here.remove(pin)
            if not here:
                del self._pins[pin.place]
                self._trim()

    def _first_pinned(self) -> int | None:
        """The oldest place that is pinned."""
        while self._pinned and self._pinned[0] not in self._pins:
            heappop(self._pinned)
        return self._pinned[0] if self._pinned else None

    def _check_kept(self, place: int) -> None:
        if not self.oldest <= place <= self.place:
            raise Compacted(
                f"place {place} is not in the received log, which has {self.oldest} to {self.place}: pin it in time",
                oldest=self.oldest,
            )

    def _trim(self) -> None:
        limits = self._limits
        while len(self._entries) > limits.received_log_max:
            if self._unfolded is not None:
                self._fold_some()
                return  # the log is longer for a while: no step folds a whole list
            first = self._first_pinned()
            if first is not None and self.oldest >= first:
                if len(self._entries) <= limits.received_pinned_max:
                    return
                while first is not None and first <= self.oldest:
                    for pin in self._pins.pop(first):
                        pin.lost = True
                    first = self._first_pinned()
            entry = self._entries.popleft()
            self._base_revision = entry.revision
            if len(entry.changes) <= _FOLDED_AT_ONCE:
                _fold(self._base, entry.changes)
            else:
                self._unfolded = iter(entry.changes)

    def _fold_some(self) -> None:
        assert self._unfolded is not None
        some = tuple(islice(self._unfolded, _FOLDED_AT_ONCE))
        _fold(self._base, some)
        if len(some) < _FOLDED_AT_ONCE:
            self._unfolded = None


def _fold(objects: dict[Key, Object], changes: Iterable[CacheChange]) -> None:
    for change in changes:
        if change.new is None:
            objects.pop(change.key, None)
        else:
            objects[change.key] = change.new

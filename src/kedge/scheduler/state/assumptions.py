"""Assumptions: pods that were given a node and that the caches do not show there yet.

An assumption ends by evidence alone: the cache shows the pod, the service rejects the bind, or a read settles it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import ValuesView
from dataclasses import dataclass
from itertools import islice

from kedge.errors import check
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.records import AssumedBind
from kedge.placement.resources import Units
from kedge.scheduler.state.shapes import PodRequest


@dataclass(slots=True)
class Assumption:
    """One pod and its node."""

    key: Key
    uid: str
    node: str
    zone: str
    request: PodRequest
    since_s: float
    revision: Revision = NO_REVISION
    """The revision of the bind; none while it is in flight."""


class PastAssumptions:
    """Past states, newest first. Each step back costs as many changes as there were in between."""

    def __init__(
        self, recorded: dict[str, AssumedBind], undo: list[tuple[str, AssumedBind | None]], changes: int
    ) -> None:
        self._recorded, self._undo, self._changes = recorded, undo, changes

    def at(self, changes: int) -> dict[str, AssumedBind] | None:
        """As `Assumptions.recorded_at`. Each call must be about the same state as the one before it, or an older."""
        check(changes <= self._changes, "past assumptions are read from the newest to the oldest")
        if self._changes - changes > len(self._undo):
            return None
        while self._changes > changes:
            uid, before = self._undo.pop()
            self._changes -= 1
            if before is None:
                del self._recorded[uid]
            else:
                self._recorded[uid] = before
        return self._recorded.copy()


class Assumptions:
    """By pod uid: binds in flight, and binds made that no cache shows yet."""

    def __init__(self, *, changes_max: int) -> None:
        """`recorded_at` reaches back `changes_max` changes."""
        self._assumed: dict[str, Assumption] = {}
        self._recorded: dict[str, AssumedBind] = {}
        """The same, as attempt records hold it."""
        self._undo: deque[tuple[str, AssumedBind | None]] = deque(maxlen=changes_max)
        """For each of the last changes, what was recorded before it."""
        self.changes = 0
        """The number of changes so far. It names a state, for `recorded_at`."""

    def __len__(self) -> int:
        return len(self._assumed)

    @property
    def undoable(self) -> int:
        """The number of changes that can be undone."""
        return len(self._undo)

    def __contains__(self, uid: object) -> bool:
        return uid in self._assumed

    def get(self, uid: str) -> Assumption | None:
        return self._assumed.get(uid)

    def values(self) -> ValuesView[Assumption]:
        return self._assumed.values()

    def put(self, assumption: Assumption) -> None:
        """Add an assumption, or record its changed fields."""
        uid = assumption.uid
        self._assumed[uid] = assumption
        self._undo.append((uid, self._recorded.get(uid)))
        self.changes += 1
        self._recorded[uid] = AssumedBind(
            assumption.node, assumption.revision, assumption.request.workload, assumption.zone
        )

    def pop(self, uid: str) -> Assumption | None:
        recorded = self._recorded.pop(uid, None)
        if recorded is not None:
            self._undo.append((uid, recorded))
            self.changes += 1
        return self._assumed.pop(uid, None)

    def recorded(self) -> dict[str, AssumedBind]:
        """A copy, for a record."""
        return self._recorded.copy()

    def recorded_at(self, changes: int) -> dict[str, AssumedBind] | None:
        """The same as it was after so many changes; None if that is too long ago."""
        newer = self.changes - changes
        if newer > len(self._undo):
            return None
        found = self._recorded.copy()
        for uid, before in islice(reversed(self._undo), newer):
            if before is None:
                del found[uid]
            else:
                found[uid] = before
        return found

    def past(self) -> PastAssumptions:
        """The states of before, for many records at once."""
        return PastAssumptions(self._recorded.copy(), list(self._undo), self.changes)

    def requests_in(self, tenant: str, zone: str, seen: Revision) -> list[Units]:
        """The requests of a tenant's pods in a zone that a quota at revision `seen` does not count yet."""
        return [
            each.request.requirements.requests
            for each in self._assumed.values()
            if each.key.namespace == tenant and each.zone == zone and (not each.revision or each.revision > seen)
        ]

"""Assumptions: pods that were given a node and that the caches do not show there yet.

An assumption ends by evidence alone: the cache shows the pod, the service rejects the bind, or a read settles it.
"""

from __future__ import annotations

from collections.abc import ValuesView
from dataclasses import dataclass

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


class Assumptions:
    """By pod uid: binds in flight, and binds made that no cache shows yet."""

    def __init__(self) -> None:
        self._assumed: dict[str, Assumption] = {}
        self._recorded: dict[str, AssumedBind] = {}
        """The same, as attempt records hold it: every record gets a copy, which must be cheap."""

    def __len__(self) -> int:
        return len(self._assumed)

    def __contains__(self, uid: object) -> bool:
        return uid in self._assumed

    def get(self, uid: str) -> Assumption | None:
        return self._assumed.get(uid)

    def values(self) -> ValuesView[Assumption]:
        return self._assumed.values()

    def put(self, assumption: Assumption) -> None:
        """Add an assumption, or record its changed fields."""
        self._assumed[assumption.uid] = assumption
        self._recorded[assumption.uid] = AssumedBind(
            assumption.node, assumption.revision, assumption.request.workload, assumption.zone
        )

    def pop(self, uid: str) -> Assumption | None:
        self._recorded.pop(uid, None)
        return self._assumed.pop(uid, None)

    def recorded(self) -> dict[str, AssumedBind]:
        """A copy, for a record."""
        return self._recorded.copy()

    def requests_in(self, tenant: str, zone: str, seen: Revision) -> list[Units]:
        """The requests of a tenant's pods in a zone that a quota at revision `seen` does not count yet."""
        return [
            each.request.requirements.requests
            for each in self._assumed.values()
            if each.key.namespace == tenant and each.zone == zone and (not each.revision or each.revision > seen)
        ]

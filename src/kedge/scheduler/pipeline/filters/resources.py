"""The filter on resources, the number of pods included. It changes with every claim.

Single rows are checked in plain integers, all rows at once in columns; a test holds that the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np

from kedge.placement.reasons import Reason
from kedge.scheduler.pipeline.plugin import Blocker, ClaimFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import EVERY, Bools, Rows
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.shapes import PodRequirements
from kedge.scheduler.state.snapshot import AMOUNT_MAX, Snapshot


class ResourceFilter(ClaimFilter):
    reason = Reason.RESOURCE
    label = ""
    unblocked_by = ClusterEvent.NODE | ClusterEvent.ROOM
    preemptible = True
    by_requests = True

    def __init__(self, snapshot: Snapshot, requirements: PodRequirements) -> None:
        self._snapshot = snapshot
        self._amounts = tuple((resource, amount) for resource, amount in requirements.requests.items() if amount > 0)

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        return (cls(context.snapshot, context.shape.requirements),)

    def mask(self, rows: Rows) -> Bools:
        fitting = np.ones(len(self._snapshot.exists[rows]), np.bool_)
        for resource, amount in self._amounts:
            fitting &= ~self._short(resource, amount, rows)
        return fitting

    def passes(self, node: NodeRow) -> bool:
        offered, claimed = node.offered, node.claimed
        if offered is None:
            return False
        for resource, amount in self._amounts:
            has = offered.get(resource, 0)
            if claimed.get(resource, 0) + amount > (has if has < AMOUNT_MAX else AMOUNT_MAX):
                return False
        return True

    def failures(self) -> Iterator[tuple[Blocker, Bools]]:
        """Each resource by name, with the rows that have too little of it."""
        for resource, amount in sorted(self._amounts):
            yield self.blocker(resource), self._short(resource, amount, EVERY)

    def failures_if_empty(self) -> Iterator[tuple[Blocker, Bools]]:
        snapshot = self._snapshot
        for resource, amount in sorted(self._amounts):
            column = snapshot.resources.get(resource)
            if column is None:
                yield self.blocker(resource), np.ones(snapshot.capacity, np.bool_)
            else:
                yield self.blocker(resource), min(amount, AMOUNT_MAX + 1) > snapshot.offered[column]

    def _short(self, resource: str, amount: int, rows: Rows) -> Bools:
        snapshot = self._snapshot
        column = snapshot.resources.get(resource)
        if column is None:
            return np.ones(len(snapshot.exists[rows]), np.bool_)
        short: Bools = snapshot.claimed[column, rows] + min(amount, AMOUNT_MAX + 1) > snapshot.offered[column, rows]
        return short

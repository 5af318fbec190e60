"""The filter on zone quotas: the tenant's quotas must leave enough for the pod in the node's zone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np

from kedge.api.wellknown import ZONE_LABEL
from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.plugin import AttemptFilter, AttemptInputs, Blocker, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import Bools, Rows
from kedge.scheduler.state.snapshot import Snapshot


class ZoneQuotaFilter(AttemptFilter):
    reason = Reason.ZONE_QUOTA
    label = BLOCKER_LABELS[Reason.ZONE_QUOTA]
    unblocked_by = ClusterEvent.NODE | ClusterEvent.QUOTA

    def __init__(self, snapshot: Snapshot, tenant: str) -> None:
        self._snapshot = snapshot
        self._tenant = tenant
        self._blocked: tuple[str, ...] = ()

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        return (cls(context.snapshot, context.shape.key.namespace),)

    def begin(self, inputs: AttemptInputs) -> None:
        self._blocked = inputs.blocked_zones

    def mask(self, rows: Rows) -> Bools:
        column = self._snapshot.column(ZONE_LABEL)
        return ~np.isin(column.ids[rows], [column.find(zone) for zone in self._blocked])

    def failures(self) -> Iterator[tuple[Blocker, Bools]]:
        """Each zone without room, by name."""
        column = self._snapshot.column(ZONE_LABEL)
        for zone in self._blocked:
            yield self.blocker(f"{self._tenant}/{zone}"), column.ids == column.find(zone)

"""The filter of a scheduling policy's `maxZoneSkew`: replicas of one workload are spread over zones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np

from kedge.api.wellknown import REGION_LABEL, ZONE_LABEL
from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.filters.node_labels import selected
from kedge.scheduler.pipeline.filters.taints import tolerated
from kedge.scheduler.pipeline.filters.topology_spread import SkewFilter
from kedge.scheduler.pipeline.plugin import ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import ABSENT, Bools
from kedge.scheduler.state.tallies import WorkloadRule


class ZoneSkewFilter(SkewFilter):
    """Applies to nodes in the policy's zones and regions, and counts those that the pod could go to."""

    reason = Reason.POLICY
    label = BLOCKER_LABELS[Reason.POLICY]
    unblocked_by = (
        ClusterEvent.NODE
        | ClusterEvent.TOPOLOGY
        | ClusterEvent.POD_PLACED
        | ClusterEvent.POD_GONE
        | ClusterEvent.POLICY
    )

    def __init__(self, context: ShapeContext, skew_max: int) -> None:
        key = context.shape.key
        self._snapshot = context.snapshot
        self._requirements = context.shape.requirements
        self._settings = key.settings
        self.detail = f"{key.settings.policy} {key.settings.version} maxZoneSkew"
        tally = context.use_tally(WorkloadRule(key.namespace, key.workload))
        super().__init__(context.snapshot, ZONE_LABEL, tally, skew_max=skew_max)

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterator[Self]:
        key = context.shape.key
        if key.settings.zone_skew_max is not None and key.workload:
            yield cls(context, key.settings.zone_skew_max)

    def counted_rows(self) -> Bools:
        snapshot, requirements = self._snapshot, self._requirements
        return self._in_scope() & selected(snapshot, requirements) & tolerated(snapshot, requirements.tolerations)

    def free_rows(self) -> Bools:
        return ~self._in_scope()

    def _in_scope(self) -> Bools:
        snapshot = self._snapshot
        rows: Bools = snapshot.exists & (snapshot.column(ZONE_LABEL).ids != ABSENT)
        for label, places in ((ZONE_LABEL, self._settings.zones), (REGION_LABEL, self._settings.regions)):
            if places:
                column = snapshot.column(label)
                rows &= np.isin(column.ids, [column.find(place) for place in sorted(places)])
        return rows

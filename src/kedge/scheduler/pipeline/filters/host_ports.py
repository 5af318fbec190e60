"""The filter on host ports: no pod on the node may hold a port that the pod requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.plugin import ClaimFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import Bools, Rows
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.tallies import PodTally, PortConflictRule


class HostPortFilter(ClaimFilter):
    reason = Reason.PORT
    label = BLOCKER_LABELS[Reason.PORT]
    unblocked_by = ClusterEvent.NODE | ClusterEvent.ROOM
    preemptible = True
    by_requests = True

    def __init__(self, tally: PodTally) -> None:
        self._tally = tally

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        ports = context.shape.requirements.ports
        return (cls(context.use_tally(PortConflictRule(ports))),) if ports else ()

    def mask(self, rows: Rows) -> Bools:
        free: Bools = self._tally.rows[rows] == 0
        return free

    def passes(self, node: NodeRow) -> bool:
        return not self._tally.rows[node.row]

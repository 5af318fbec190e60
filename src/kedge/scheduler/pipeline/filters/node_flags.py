"""Filters on a node's own flags: it is being deleted, cordoned, or suspect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from kedge.api.views import Taint
from kedge.api.wellknown import UNSCHEDULABLE_TAINT
from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.filters.taints import is_tolerated
from kedge.scheduler.pipeline.plugin import NodeFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import Bools, Rows
from kedge.scheduler.state.snapshot import Snapshot

_CORDON = Taint(key=UNSCHEDULABLE_TAINT, effect="NoSchedule")


class _FlagFilter(NodeFilter):
    unblocked_by = ClusterEvent.NODE

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        return (cls(context.snapshot),)


class TerminatingFilter(_FlagFilter):
    reason = Reason.NODE_TERMINATING
    label = BLOCKER_LABELS[Reason.NODE_TERMINATING]

    def mask(self, rows: Rows) -> Bools:
        return ~self._snapshot.terminating[rows]


class CordonFilter(_FlagFilter):
    reason = Reason.NODE_CORDONED
    label = BLOCKER_LABELS[Reason.NODE_CORDONED]

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        return () if is_tolerated(_CORDON, context.shape.requirements.tolerations) else (cls(context.snapshot),)

    def mask(self, rows: Rows) -> Bools:
        return ~self._snapshot.cordoned[rows]


class SuspectFilter(_FlagFilter):
    reason = Reason.NODE_SUSPECT
    label = BLOCKER_LABELS[Reason.NODE_SUSPECT]

    def mask(self, rows: Rows) -> Bools:
        return ~self._snapshot.suspect[rows]

"""The filter on taints, and what the taint score shares with it. It equals `placement.predicates`, as a test holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np

from kedge.api.views import Taint, Toleration
from kedge.placement.predicates import tolerates
from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.plugin import NodeFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import EVERY, Bools, Ids, Rows
from kedge.scheduler.state.snapshot import Snapshot

_FORBIDDING = frozenset({"NoSchedule", "NoExecute"})
_SETS_FEW = 16


class TaintFilter(NodeFilter):
    """Taints that the pod does not tolerate."""

    reason = Reason.TAINT
    label = BLOCKER_LABELS[Reason.TAINT]
    unblocked_by = ClusterEvent.NODE

    def __init__(self, snapshot: Snapshot, tolerations: tuple[Toleration, ...]) -> None:
        self._snapshot = snapshot
        self._tolerations = tolerations

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        return (cls(context.snapshot, context.shape.requirements.tolerations),)

    def mask(self, rows: Rows) -> Bools:
        return tolerated(self._snapshot, self._tolerations, rows)


def tolerated(snapshot: Snapshot, tolerations: tuple[Toleration, ...], rows: Rows = EVERY) -> Bools:
    """The rows none of whose taints forbids a pod with these tolerations."""
    sets, places = _taint_sets(snapshot, rows)
    return np.asarray(
        [
            all(taint.effect not in _FORBIDDING or is_tolerated(taint, tolerations) for taint in taints)
            for taints in sets
        ],
        np.bool_,
    )[places]


def untolerated_preferences(snapshot: Snapshot, tolerations: tuple[Toleration, ...], rows: Rows = EVERY) -> Ids:
    """The number of `PreferNoSchedule` taints on each row that are not tolerated."""
    relevant = tuple(t for t in tolerations if t.effect in ("", "PreferNoSchedule"))
    sets, places = _taint_sets(snapshot, rows)
    return np.asarray(
        [
            sum(taint.effect == "PreferNoSchedule" and not is_tolerated(taint, relevant) for taint in taints)
            for taints in sets
        ],
        np.int32,
    )[places]


def _taint_sets(snapshot: Snapshot, rows: Rows) -> tuple[list[tuple[Taint, ...]], Ids]:
    """The distinct sets of taints among the rows, and the index of each row's set."""
    ids = snapshot.taints[rows]
    if len(snapshot.taint_sets) <= _SETS_FEW:
        return snapshot.taint_sets, ids
    present, places = np.unique(ids, return_inverse=True)
    return [snapshot.taint_sets[i] for i in present.tolist()], places.astype(np.int32)


def is_tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)

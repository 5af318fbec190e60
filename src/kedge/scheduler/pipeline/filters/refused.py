"""The filter on nodes that refused the pod: `binding.refusals` names them for each attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np

from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.plugin import AttemptFilter, AttemptInputs, Blocker, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import EVERY, Bools, Rows
from kedge.scheduler.state.snapshot import Snapshot


class RefusedFilter(AttemptFilter):
    reason = Reason.REFUSED_LATELY
    label = BLOCKER_LABELS[Reason.REFUSED_LATELY]
    unblocked_by = ClusterEvent.SEEN | ClusterEvent.NODE

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._excluded: frozenset[str] = frozenset()

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterable[Self]:
        return (cls(context.snapshot),)

    def begin(self, inputs: AttemptInputs) -> None:
        self._excluded = inputs.excluded

    def mask(self, rows: Rows) -> Bools:
        open_ = np.ones(self._snapshot.capacity, np.bool_)
        for name in self._excluded:
            node = self._snapshot.find(name)
            if node is not None:
                open_[node.row] = False
        answer: Bools = open_[rows]
        return answer

    def failures(self) -> Iterator[tuple[Blocker, Bools]]:
        if self._excluded:
            yield self.blocker(), ~self.mask(EVERY)

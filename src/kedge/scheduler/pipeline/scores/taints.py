"""The score of `PreferNoSchedule` taints."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from kedge.api.views import Toleration
from kedge.scheduler.pipeline.filters.taints import untolerated_preferences
from kedge.scheduler.pipeline.plugin import POINTS_MAX, RelativeScore, ShapeContext, Weights
from kedge.scheduler.state.columns import Bools, Ints
from kedge.scheduler.state.snapshot import Snapshot

TAINT_TOLERATION = "taint-toleration"


class TaintScore(RelativeScore):
    """The fewer such taints the pod does not tolerate, the better."""

    weights: ClassVar = {TAINT_TOLERATION: 3}
    idle_points = POINTS_MAX

    def __init__(self, snapshot: Snapshot, tolerations: tuple[Toleration, ...], weight: int) -> None:
        self.weight = weight
        self._snapshot = snapshot
        self._tolerations = tolerations
        self._untolerated: Ints = np.zeros(0, np.int64)
        self._any = False
        self._points: dict[int, Ints] = {}

    @classmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Self:
        return cls(context.snapshot, context.shape.requirements.tolerations, weights[TAINT_TOLERATION])

    @property
    def active(self) -> bool:
        return self._any

    def rebuild(self) -> None:
        self._untolerated = untolerated_preferences(self._snapshot, self._tolerations).astype(np.int64)
        self._any = bool(self._untolerated.any())
        self._points = {}

    def points(self, feasible: Bools) -> Ints:
        most = int((self._untolerated * feasible).max(initial=0))
        if most not in self._points:
            self._points = {most: POINTS_MAX - self._untolerated * POINTS_MAX // max(most, 1)}
        return self._points[most]

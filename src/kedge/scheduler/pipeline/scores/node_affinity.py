"""The score of preferred node affinity."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from kedge.scheduler.pipeline.filters.node_labels import meets_any
from kedge.scheduler.pipeline.plugin import POINTS_MAX, RelativeScore, ShapeContext, Weights
from kedge.scheduler.state.columns import EVERY, Bools, Ints
from kedge.scheduler.state.shapes import PodRequirements
from kedge.scheduler.state.snapshot import Snapshot

NODE_AFFINITY = "node-affinity"


class NodeAffinityScore(RelativeScore):
    """The weights of the terms that a node meets, as a share of the most that any feasible node meets."""

    weights: ClassVar = {NODE_AFFINITY: 2}

    def __init__(self, snapshot: Snapshot, requirements: PodRequirements, weight: int) -> None:
        self.weight = weight
        self._snapshot = snapshot
        self._requirements = requirements
        self._met: Ints = np.zeros(0, np.int64)
        self._points: dict[int, Ints] = {}

    @classmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Self | None:
        requirements = context.shape.requirements
        return cls(context.snapshot, requirements, weights[NODE_AFFINITY]) if requirements.preferred else None

    def rebuild(self) -> None:
        self._met = np.zeros(self._snapshot.capacity, np.int64)
        self._points = {}
        for term, weight in self._requirements.preferred:
            self._met += weight * meets_any(self._snapshot, (term,), EVERY)

    def points(self, feasible: Bools) -> Ints:
        most = int((self._met * feasible).max(initial=0))
        if most not in self._points:
            self._points = {most: self._met * POINTS_MAX // most if most else self._met}
        return self._points[most]

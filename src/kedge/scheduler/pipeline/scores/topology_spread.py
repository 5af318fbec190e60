"""The score of topology spread constraints that may be broken (`ScheduleAnyway`)."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar, Self

import numpy as np

from kedge.caches import remembered
from kedge.scheduler.pipeline.filters.topology_spread import rows_included
from kedge.scheduler.pipeline.plugin import POINTS_MAX, RelativeScore, ShapeContext, Weights
from kedge.scheduler.state.columns import ABSENT, Bools, Ints
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.tallies import SelectorRule

TOPOLOGY_SPREAD = "topology-spread"
_LOG_BITS = 30
"""Bits after the point. With them a sum is rounded as kube-scheduler rounds its float64."""


class TopologySpreadScore(RelativeScore):
    """The fewer matching pods in a node's domains, the better.

    A constraint's counts weigh more the more domains it has, so that hosts do not outweigh zones.
    """

    weights: ClassVar = {TOPOLOGY_SPREAD: 2}
    about_pods = True

    def __init__(self, context: ShapeContext, weight: int) -> None:
        self.weight = weight
        self._snapshot = context.snapshot
        self._requirements = context.shape.requirements
        self._constraints = context.shape.spread_preferred
        namespace = context.shape.key.namespace
        self._parts = [
            DomainCounts(context.snapshot, each.topology_key, context.use_tally(SelectorRule(namespace, each.selector)))
            for each in self._constraints
        ]
        self._keyed: Bools = np.zeros(0, np.bool_)

    @classmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Self | None:
        return cls(context, weights[TOPOLOGY_SPREAD]) if context.shape.spread_preferred else None

    def rebuild(self) -> None:
        self._keyed = self._snapshot.exists.copy()
        for part in self._parts:
            self._keyed &= part.ids != ABSENT
        for constraint, part in zip(self._constraints, self._parts, strict=True):
            part.rebuild(rows_included(self._snapshot, self._requirements, constraint) & self._keyed)

    def update(self, rows: list[int]) -> None:
        for part in self._parts:
            part.update(rows)

    def points(self, feasible: Bools) -> Ints:
        scored = feasible & self._keyed
        if not scored.any():
            return np.zeros(len(feasible), np.int64)
        crowd = np.zeros(len(feasible), np.int64)
        for constraint, part in zip(self._constraints, self._parts, strict=True):
            domains = int(np.count_nonzero(np.bincount(part.ids[scored], minlength=part.domains)))
            by_domain = part.counts * fixed_log(domains + 2) + ((constraint.skew_max - 1) << _LOG_BITS)
            crowd += by_domain[part.ids]
        crowd = (crowd + (1 << (_LOG_BITS - 1))) >> _LOG_BITS
        among = crowd[scored]
        low, high = int(among.min()), int(among.max())
        if not high:
            points = np.full(len(feasible), POINTS_MAX, np.int64)
        else:
            points = (high + low - crowd) * POINTS_MAX // high
        points[~scored] = 0
        return points


@remembered(entries=1024, entry_bytes=128)  # a number
def fixed_log(number: int) -> int:
    """The natural logarithm with `_LOG_BITS` bits after the point: the same on every machine, unlike `math.log`."""
    return round(Decimal(number).ln() * (1 << _LOG_BITS))

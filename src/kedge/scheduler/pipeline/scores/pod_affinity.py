"""The score of preferred affinity and anti-affinity between pods, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from kedge.scheduler.pipeline.plugin import POINTS_MAX, RelativeScore, ShapeContext, Weights
from kedge.scheduler.state.columns import Bools, Ints
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import AttractionRule, PodTally

POD_AFFINITY = "pod-affinity"
_DOMAINS_FEW = 16


class PodAffinityScore(RelativeScore):
    """From 0 points for the lowest sum of weights on a feasible node to 100 for the highest."""

    weights: ClassVar = {POD_AFFINITY: 2}
    about_pods = True

    def __init__(self, snapshot: Snapshot, tallies: Mapping[str, PodTally], weight: int) -> None:
        self.weight = weight
        self._parts = [DomainCounts(snapshot, key, tally) for key, tally in tallies.items()]
        self._pull: Ints = np.zeros(0, np.int64)
        self._stale = True
        """Whether pods were added or removed since the points were computed."""
        self._points: dict[tuple[int, int], Ints] = {}
        self._level: Ints = np.zeros(0, np.int64)

    @classmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Self | None:
        snapshot, shape = context.snapshot, context.shape
        topology_keys = {
            **dict.fromkeys(weighted.term.topology_key for weighted in shape.terms.preferred),
            **snapshot.tallies.attraction_keys,
        }
        if not topology_keys:
            return None
        tallies = {
            key: context.use_tally(AttractionRule(key, shape.key.namespace, shape.key.labels, shape.terms.preferred))
            for key in topology_keys
        }
        return cls(snapshot, tallies, weights[POD_AFFINITY])

    @property
    def active(self) -> bool:
        return any(part.tally.weighing for part in self._parts)

    def rebuild(self) -> None:
        for part in self._parts:
            part.rebuild()
        self._stale = True

    def update(self, rows: list[int]) -> None:
        for part in self._parts:
            if part.update(rows) != []:
                self._stale = True

    def points(self, feasible: Bools) -> Ints:
        if len(self._parts) == 1 and self._parts[0].domains <= _DOMAINS_FEW:
            return self._points_by_domain(self._parts[0], feasible)
        if self._stale:
            first, *others = self._parts
            self._pull = first.counts[first.ids]
            for part in others:
                self._pull += part.counts[part.ids]
            self._points, self._stale = {}, False
        pull = self._pull
        among = pull[feasible]
        low, high = (int(among.min()), int(among.max())) if len(among) else (0, 0)
        if low == high:
            return self._all_alike(len(feasible))
        if (low, high) not in self._points:
            self._points = {(low, high): _normalized(pull, low, high)}
        return self._points[low, high]

    def _points_by_domain(self, part: DomainCounts, feasible: Bools) -> Ints:
        """The same result where there are few domains: computed for each domain, not for each row."""
        counts = part.counts.tolist()
        by_pull = sorted(range(len(counts)), key=counts.__getitem__)

        def has_feasible(domain: int) -> bool:
            return bool(part.sizes[domain]) and bool((feasible & (part.ids == domain)).any())

        weakest = next(filter(has_feasible, by_pull), None)
        if weakest is None:
            return self._all_alike(len(feasible))
        strongest = next(filter(has_feasible, reversed(by_pull)))
        low, high = counts[weakest], counts[strongest]
        if low == high:
            return self._all_alike(len(feasible))
        if self._stale or (low, high) not in self._points:
            by_domain = _normalized(part.counts, low, high)
            self._points, self._stale = {(low, high): by_domain[part.ids]}, False
        return self._points[low, high]

    def _all_alike(self, rows: int) -> Ints:
        if len(self._level) != rows:
            self._level = np.zeros(rows, np.int64)
        return self._level


def _normalized(pull: Ints, low: int, high: int) -> Ints:
    """Points from 0 for `low` to 100 for `high`: in float64 and then truncated, as kube-scheduler computes them."""
    shares = (pull - low).astype(np.float64) / float(high - low)
    return (float(POINTS_MAX) * shares).astype(np.int64)

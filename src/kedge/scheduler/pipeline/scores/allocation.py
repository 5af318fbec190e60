"""Scores by the CPU and memory of one node, with the pod on it: least, most and balanced allocation.

Each depends on one node alone, so a changed row is scored by itself, in plain integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from kedge.placement.resources import CPU, MEMORY
from kedge.scheduler.pipeline.plugin import POINTS_MAX, RowScore, ShapeContext, Weights
from kedge.scheduler.state.columns import EVERY, Bools, Ints, Rows
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.shapes import PodRequirements
from kedge.scheduler.state.snapshot import SCORED_MAX, Snapshot

LEAST_ALLOCATED = "least-allocated"
MOST_ALLOCATED = "most-allocated"
BALANCED_ALLOCATION = "balanced-allocation"
_HALF = POINTS_MAX // 2
_FEW = 16
"""Rows of which each is scored by itself."""
_KNOWN_MAX = 4096
"""Different fillings of nodes whose score a shape remembers."""


def allocation_parts(snapshot: Snapshot, requirements: PodRequirements, rows: Rows = EVERY) -> dict[str, Ints]:
    """Least, most and balanced allocation of CPU and memory on some rows, once the pod is there."""
    offered = snapshot.scored_offered[:, rows]
    divisor = np.maximum(offered, 1)
    resources = np.maximum((offered > 0).sum(0), 1)
    asked = np.asarray([[min(amount, SCORED_MAX)] for amount in requirements.scored], np.int64)
    taken = np.minimum(snapshot.scored_claimed[:, rows] + asked, offered)
    most = (taken * POINTS_MAX // divisor).sum(0) // resources
    least = ((offered - taken) * POINTS_MAX // divisor).sum(0) // resources
    balanced = _balanced(requirements, offered, snapshot.claimed[:2, rows])
    return {LEAST_ALLOCATED: least, MOST_ALLOCATED: most, BALANCED_ALLOCATION: balanced}


def _balanced(requirements: PodRequirements, offered: Ints, claimed: Ints) -> Ints:
    """75 if the pod leaves the balance of CPU and memory as it is, up to 100 if it improves it, down to 50 if not."""
    cpu, memory = requirements.requests.get(CPU, 0), requirements.requests.get(MEMORY, 0)
    if not cpu and not memory:
        return np.zeros(offered.shape[1], np.int64)  # pods without requests would fill one node
    asked = np.asarray([[min(cpu, SCORED_MAX)], [min(memory, SCORED_MAX)]], np.int64)
    improved = _balance(claimed + asked, offered) - _balance(claimed, offered)
    balanced: Ints = _HALF + (_HALF + improved) // 2
    return balanced


def _balance(claimed: Ints, offered: Ints) -> Ints:
    """100 when CPU and memory are used equally, 50 when one is full and the other empty.

    In floats, with the operations of kube-scheduler in their order: each is exact or correctly rounded, so the points
    are the same on every machine.
    """
    used = np.minimum(claimed / np.maximum(offered, 1).astype(np.float64), 1.0)
    apart = np.abs((used[0] - used[1]) / 2)
    apart[(offered == 0).any(0)] = 0.0
    points: Ints = ((1.0 - apart) * POINTS_MAX).astype(np.int64)
    return points


def _balance_of(used: list[float]) -> int:
    """`_balance` of one node, from the used shares of the resources that it has."""
    apart = abs((used[0] - used[1]) / 2) if len(used) == 2 else 0.0
    return int((1.0 - apart) * POINTS_MAX)


class AllocationScore(RowScore):
    """The weighted sum of the three, on all rows at once or on one row."""

    weights: ClassVar = {LEAST_ALLOCATED: 1, MOST_ALLOCATED: 0, BALANCED_ALLOCATION: 1}

    def __init__(self, snapshot: Snapshot, requirements: PodRequirements, weights: Weights) -> None:
        self._snapshot = snapshot
        self._requirements = requirements
        self._weights = weights
        self._asked = tuple(
            (min(scored, SCORED_MAX), min(requirements.requests.get(resource, 0), SCORED_MAX))
            for scored, resource in zip(requirements.scored, (CPU, MEMORY), strict=True)
        )
        self._known: dict[tuple[int, int, int, int, int, int], int] = {}
        """By a row's capacity and claims. Nodes and pods come in few sizes."""

    @classmethod
    def for_shape(cls, context: ShapeContext, weights: Weights) -> Self:
        return cls(context.snapshot, context.shape.requirements, weights)

    def all(self) -> Ints:
        total = np.zeros(self._snapshot.capacity, np.int64)
        for name, points in allocation_parts(self._snapshot, self._requirements).items():
            if self._weights[name]:
                total += self._weights[name] * points
        return total

    def row(self, node: NodeRow) -> int:
        offered, claimed, scored = node.offered, node.claimed, node.scored
        if offered is None:
            return 0
        known = (
            offered.get(CPU, 0), offered.get(MEMORY, 0),
            scored[0], scored[1], claimed.get(CPU, 0), claimed.get(MEMORY, 0),
        )  # fmt: skip
        found = self._known.get(known)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[known] = self._of(known[:2], known[2:4], known[4:])
        return found

    def parts(self, rows: Ints, feasible: Bools) -> Mapping[str, Ints]:  # noqa: ARG002
        if len(rows) > _FEW:
            return allocation_parts(self._snapshot, self._requirements, rows)
        used = [self._used_of(self._snapshot.at(row)) for row in rows.tolist()]
        known = {each: self._points(*each) for each in set(used)}  # the best rows are often equal
        points = [known[each] for each in used]
        names = (LEAST_ALLOCATED, MOST_ALLOCATED, BALANCED_ALLOCATION)
        return {name: np.asarray([each[n] for each in points], np.int64) for n, name in enumerate(names)}

    def _used_of(self, node: NodeRow) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The arguments of `_points` for one row. Plain numbers are faster than vectors of a few rows."""
        offered, claimed = node.offered or {}, node.claimed
        return (
            (offered.get(CPU, 0), offered.get(MEMORY, 0)),
            (node.scored[0], node.scored[1]),
            (claimed.get(CPU, 0), claimed.get(MEMORY, 0)),
        )

    def _of(self, offered: tuple[int, ...], scored: tuple[int, ...], claimed: tuple[int, ...]) -> int:
        least, most, balanced = self._points(offered, scored, claimed)
        weights = self._weights
        total = weights[LEAST_ALLOCATED] * least + weights[MOST_ALLOCATED] * most
        return total + weights[BALANCED_ALLOCATION] * balanced

    def _points(
        self, offered: tuple[int, ...], scored: tuple[int, ...], claimed: tuple[int, ...]
    ) -> tuple[int, int, int]:
        least = most = resources = 0
        before, after = [], []
        for has, held, taken, (asks, asks_exactly) in zip(offered, scored, claimed, self._asked, strict=True):
            if has <= 0:
                continue
            has = min(has, SCORED_MAX)
            resources += 1
            full = min(min(held, SCORED_MAX) + asks, has)
            most += full * POINTS_MAX // has
            least += (has - full) * POINTS_MAX // has
            before.append(min(float(taken) / has, 1.0))
            after.append(min(float(taken + asks_exactly) / has, 1.0))
        if resources == 2:
            least, most = least // 2, most // 2
        requests = self._requirements.requests
        if not requests.get(CPU, 0) and not requests.get(MEMORY, 0):
            return least, most, 0
        improved = _balance_of(after) - _balance_of(before)
        return least, most, _HALF + (_HALF + improved) // 2

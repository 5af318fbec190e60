"""Explanations: for every node, the first filter that rejected the pod; for the best nodes, their scores.

Computed on demand from the inputs of the decision: a decision that is not explained costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kedge.errors import check
from kedge.placement.reasons import ROOM_REASONS
from kedge.scheduler.cycle.decide import NodeDecision, state_of
from kedge.scheduler.pipeline.plugin import Blocker
from kedge.scheduler.pipeline.selection import choose
from kedge.scheduler.pipeline.shape_state import ShapeState
from kedge.scheduler.state.columns import Bools, Codes, Ints
from kedge.scheduler.state.snapshot import Snapshot

FEASIBLE = 0
_CODES_MAX = 255


@dataclass(frozen=True, slots=True)
class NodeScore:
    """One node's total, and the points of each score with a weight, before weighing."""

    node: str
    total: int
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The best of the nodes that only one filter rejected."""

    node: str
    blocker: Blocker
    total: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The account of every node in one decision."""

    names: tuple[str, ...]
    """Every node, by name."""
    first_failing: bytes
    """One byte per node, in the order of `names`: 0 for feasible, else the index in `legend`, from 1."""
    legend: tuple[Blocker, ...]
    counts: Mapping[Blocker, int]
    """The number of nodes for which each blocker was the first; the most first."""
    top: tuple[NodeScore, ...]
    near_miss: NearMiss | None
    decisive: Blocker | None
    """The blocker about room on the best of the nodes that only such a blocker rejects: the pod waits for that node.

    A rule of the pod, such as its node selector, is never decisive: the pod is not meant to run there.
    """
    if_empty: Mapping[Blocker, int] | None
    """The counts if no pod were on any node. Nodes that are in none of them would take the pod. None for a pod that was
    placed: the question is whether one that was not has to wait, or never fits."""


def explain(snapshot: Snapshot, decision: NodeDecision) -> Explanation:
    """Explain a decision. The snapshot must not have changed since the decision."""
    check(
        decision.snapshot_version == snapshot.version,
        "the snapshot has changed since the decision: call explain before any claim or node changes",
    )
    state = state_of(snapshot, decision.request, decision.settings, decision.inputs)
    snapshot.explanations += 1
    if decision.node is not None and decision.feasible == decision.nodes:
        return _every_node_fits(snapshot, state, decision)
    causes = _first_causes(snapshot, state.failures())
    codes, legend, failed = causes
    counts, totals = causes.counts(snapshot), _near_totals(snapshot, state, failed)
    return Explanation(
        names=snapshot.names,
        first_failing=codes[snapshot.order()].tobytes(),
        legend=tuple(legend),
        counts=counts,
        top=_top(snapshot, state, decision),
        near_miss=_near_miss(snapshot, totals, codes, legend, decision.draw),
        decisive=_decisive(totals, codes, legend, list(counts)),
        if_empty=_first_causes(snapshot, state.failures_if_empty()).counts(snapshot) if decision.node is None else None,
    )


def _every_node_fits(snapshot: Snapshot, state: ShapeState, decision: NodeDecision) -> Explanation:
    """The same without looking at the filters, all of which passed every node: this is the usual record of a sample."""
    names = snapshot.names
    top = _top(snapshot, state, decision)
    return Explanation(names, bytes(len(names)), (), {}, top, near_miss=None, decisive=None, if_empty=None)


class _FirstCauses(NamedTuple):
    """The first cause of each row, and how many filters fail it."""

    codes: Codes
    """By row: 0, or the place in `legend`, from 1."""
    legend: list[Blocker]
    failed: Ints

    def counts(self, snapshot: Snapshot) -> dict[Blocker, int]:
        """The number of nodes by first cause; the most first."""
        numbers = np.bincount(self.codes[snapshot.order()], minlength=len(self.legend) + 1).tolist()
        counted = ((blocker, numbers[code]) for code, blocker in enumerate(self.legend, 1))
        return dict(sorted(counted, key=lambda item: (-item[1], str(item[0]))))


def _first_causes(snapshot: Snapshot, failures: Iterable[Iterable[tuple[Blocker, Bools]]]) -> _FirstCauses:
    legend: list[Blocker] = []
    codes: Codes = np.zeros(snapshot.capacity, np.uint8)
    failed = np.zeros(snapshot.capacity, np.int64)
    for group in failures:
        failing = np.zeros(snapshot.capacity, np.bool_)
        for blocker, rows in group:
            failing |= rows
            first = rows & (codes == FEASIBLE) & snapshot.exists
            if not first.any():
                continue
            if len(legend) < _CODES_MAX - 1:
                legend.append(blocker)
            elif len(legend) < _CODES_MAX:
                legend.append(replace(blocker, detail="and others"))
            codes[first] = len(legend)
        failed += failing
    return _FirstCauses(codes, legend, failed)


def summarize(decision: NodeDecision, explanation: Explanation) -> str:
    """For a condition or an Event: "0/128 nodes: 8 zone quota risk/zone-c, 90 node selector, 30 cpu".

    The decisive blocker is first, then the others by their number of nodes.
    """
    head = f"{decision.feasible}/{decision.nodes} nodes"
    if not decision.nodes:
        return f"{head}: there are none"
    counts = sorted(explanation.counts.items(), key=lambda item: item[0] != explanation.decisive)
    parts = [f"{count} {blocker}" for blocker, count in counts]
    return f"{head}: {', '.join(parts)}" if parts else head


def _top(snapshot: Snapshot, state: ShapeState, decision: NodeDecision) -> tuple[NodeScore, ...]:
    """The best nodes: first the chosen one, then by total and name."""
    if decision.node is None:
        return ()
    chosen = snapshot.find(decision.node)
    assert chosen is not None
    count = min(decision.feasible, snapshot.limits.scheduler_top_max)
    totals, tied = state.totals, state.best.first(count)
    if tied is None:
        rank = (decision.score - totals) * snapshot.capacity + snapshot.places()
        rank[chosen.row] = -1
        rows = np.argpartition(rank, count - 1)[:count]
        rows = rows[np.argsort(rank[rows], kind="stable")]
    else:  # usual, and much faster than ranking all nodes
        rows = np.array([chosen.row, *(row for row in tied if row != chosen.row)][:count])
    parts = state.parts_at(rows)
    return tuple(
        NodeScore(snapshot.at(row).name, int(totals[row]), {name: int(points[place]) for name, points in parts.items()})
        for place, row in enumerate(rows.tolist())
    )


def _near_totals(snapshot: Snapshot, state: ShapeState, failed: Ints) -> Ints | None:
    """Totals of the nodes that one filter rejects, -1 for others; None if there is no such node.

    Relative scores are computed over all nodes that at most one filter rejects.
    """
    near = snapshot.exists & (failed == 1)
    if not near.any():
        return None
    totals = state.totals_among(near | (snapshot.exists & (failed == 0)))
    totals[~near] = -1
    return totals


def _near_miss(
    snapshot: Snapshot, totals: Ints | None, codes: Codes, legend: list[Blocker], draw: int
) -> NearMiss | None:
    if totals is None:
        return None
    row = choose(snapshot, totals, draw)
    return NearMiss(snapshot.at(row).name, legend[codes[row] - 1], int(totals[row]))


def _decisive(totals: Ints | None, codes: Codes, legend: list[Blocker], counted: list[Blocker]) -> Blocker | None:
    """Of equally good nodes, the blocker of most nodes: a draw would change the message at every attempt."""
    if totals is None:
        return None
    about_room = [code for code, blocker in enumerate(legend, 1) if blocker.reason in ROOM_REASONS]
    rows = np.flatnonzero((totals >= 0) & np.isin(codes, about_room))
    if not len(rows):
        return None
    best = rows[totals[rows] == totals[rows].max()]
    near: set[int] = set(codes[best].tolist())
    return min((legend[code - 1] for code in near), key=counted.index)

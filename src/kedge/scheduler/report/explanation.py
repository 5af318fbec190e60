"""Explanations: for every node, the first filter that rejected the pod; for the best nodes, their scores.

Computed on demand from the inputs of the decision: a decision that is not explained costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kedge.errors import check
from kedge.scheduler.cycle.decide import NodeDecision, state_of
from kedge.scheduler.pipeline.plugin import Blocker
from kedge.scheduler.pipeline.selection import choose
from kedge.scheduler.pipeline.shape_state import ShapeState
from kedge.scheduler.state.columns import Codes, Ints
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


def explain(snapshot: Snapshot, decision: NodeDecision) -> Explanation:
    """Explain a decision. The snapshot must not have changed since the decision."""
    check(
        decision.snapshot_version == snapshot.version,
        "the snapshot has changed since the decision: call explain before any claim or node changes",
    )
    state = state_of(snapshot, decision.request, decision.settings, decision.inputs)
    snapshot.explanations += 1
    order = snapshot.order()
    legend: list[Blocker] = []
    codes: Codes = np.zeros(snapshot.capacity, np.uint8)
    failed = np.zeros(snapshot.capacity, np.int64)
    for group in state.failures():
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
    ordered = codes[order]
    numbers = np.bincount(ordered, minlength=len(legend) + 1).tolist()
    counted = sorted(
        ((blocker, numbers[code]) for code, blocker in enumerate(legend, 1)), key=lambda item: (-item[1], str(item[0]))
    )
    return Explanation(
        names=snapshot.names,
        first_failing=ordered.tobytes(),
        legend=tuple(legend),
        counts=dict(counted),
        top=_top(snapshot, state, decision),
        near_miss=_near_miss(snapshot, state, failed, codes, legend, decision.draw),
    )


def summarize(decision: NodeDecision, explanation: Explanation) -> str:
    """For a condition or an Event: "0/128 nodes: 90 node selector, 30 cpu, 8 zone quota risk/zone-c"."""
    head = f"{decision.feasible}/{decision.nodes} nodes"
    if not decision.nodes:
        return f"{head}: there are none"
    parts = [f"{count} {blocker}" for blocker, count in explanation.counts.items()]
    return f"{head}: {', '.join(parts)}" if parts else head


def _top(snapshot: Snapshot, state: ShapeState, decision: NodeDecision) -> tuple[NodeScore, ...]:
    """The best nodes: first the chosen one, then by total and name."""
    if decision.node is None:
        return ()
    totals = state.totals
    rank = (decision.score - totals) * snapshot.capacity + snapshot.places()
    chosen = snapshot.find(decision.node)
    assert chosen is not None
    rank[chosen.row] = -1
    count = min(decision.feasible, snapshot.limits.scheduler_top_max)
    rows = np.argpartition(rank, count - 1)[:count]
    rows = rows[np.argsort(rank[rows], kind="stable")]
    parts = state.parts_at(rows)
    return tuple(
        NodeScore(snapshot.at(row).name, int(totals[row]), {name: int(points[place]) for name, points in parts.items()})
        for place, row in enumerate(rows.tolist())
    )


def _near_miss(
    snapshot: Snapshot, state: ShapeState, failed: Ints, codes: Codes, legend: list[Blocker], draw: int
) -> NearMiss | None:
    """Relative scores are computed over all nodes that at most one filter rejects."""
    near = snapshot.exists & (failed == 1)
    if not near.any():
        return None
    totals = state.totals_among(near | (snapshot.exists & (failed == 0)))
    totals[~near] = -1
    row = choose(snapshot, totals, draw)
    return NearMiss(snapshot.at(row).name, legend[codes[row] - 1], int(totals[row]))

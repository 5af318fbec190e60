"""Preemption: which pods to evict so that a pod of higher priority fits. The fewest, of the lowest priority, by budget.

Pure: a snapshot and the pods on a node in, a plan out. No pod is evicted unless the preemptor then fits. `attempt`
evicts, and the service checks each eviction against the budgets again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kedge.api.objects import Object
from kedge.api.views import PodView
from kedge.scheduler.cycle.decide import NodeDecision, state_of
from kedge.scheduler.pipeline.shape_state import ShapeState
from kedge.scheduler.report.explanation import FEASIBLE, Explanation
from kedge.scheduler.state.columns import Bools
from kedge.scheduler.state.node_row import NodeRow
from kedge.scheduler.state.nominations import Nomination, nominated_claim
from kedge.scheduler.state.shapes import PodRequest
from kedge.scheduler.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Preemption:
    """A node and its victims. Without victims: the pods in the way are terminating already."""

    node: str
    victims: tuple[Object, ...]
    leaving: frozenset[str] = frozenset()
    """The uids of pods on the node that are terminating already."""

    @property
    def awaited(self) -> frozenset[str]:
        return self.leaving.union(pod.uid for pod in self.victims)


@dataclass(frozen=True, slots=True)
class PreemptionInputs:
    """Inputs of a plan that are not in the snapshot."""

    pods_on: Callable[[str], Sequence[Object]]
    evictable: Callable[[Sequence[Object]], Sequence[Object]]
    """The part of some pods that may be evicted together, in the same order."""
    nominated: Mapping[str, Nomination]
    """By pod uid: nominations of other pods. Each has a claim in the snapshot, named by `nominated_claim`."""


class EvictionCheck:
    """Calls `evictable`, and records whether it rejected any pod."""

    def __init__(self, evictable: Callable[[Sequence[Object]], Sequence[Object]]) -> None:
        self._evictable = evictable
        self.rejected_any = False

    def __call__(self, pods: Sequence[Object]) -> Sequence[Object]:
        going = self._evictable(pods)
        self.rejected_any = self.rejected_any or len(going) < len(pods)
        return going


def plan_preemption(
    snapshot: Snapshot,
    decision: NodeDecision,
    explanation: Explanation,
    priority: int,
    inputs: PreemptionInputs,
) -> Preemption | None:
    """The best node to preempt on for an unschedulable pod; None if evicting pods of lower priority helps nowhere."""
    state = state_of(snapshot, decision.request, decision.settings, decision.inputs)
    found: list[tuple[tuple[int, int, int, int], Preemption]] = []
    for place, row in enumerate(_candidates(snapshot, state, decision, explanation)):
        if len(found) >= snapshot.limits.scheduler_preempt_max:
            break
        node = snapshot.at(row)
        trial = (
            _ResourceTrial(snapshot, node, decision.request)
            if state.by_requests
            else _SnapshotTrial(snapshot, node, decision)
        )
        plan = _plan_on(node, trial, priority, inputs)
        trial.restore()
        if plan is None:
            continue
        priorities = [_priority(each) for each in plan.victims]
        rank = (max(priorities, default=-(2**31)), sum(each + 2**31 for each in priorities), len(priorities), place)
        found.append((rank, plan))
    return min(found, key=lambda each: each[0])[1] if found else None


def may_be_kept(nomination: Nomination, explanation: Explanation) -> bool:
    """Whether evictions can still make the nominated node feasible. If not, the pod needs another node."""
    place = bisect_left(explanation.names, nomination.node)
    if explanation.names[place : place + 1] != (nomination.node,):
        return False  # the node was deleted
    code = explanation.first_failing[place]
    return code == FEASIBLE or explanation.legend[code - 1].preemptible


def _candidates(snapshot: Snapshot, state: ShapeState, decision: NodeDecision, explanation: Explanation) -> list[int]:
    """Rows that evictions may make feasible and that, if empty, have enough resources; in order from the draw on."""
    order = snapshot.order()
    if not len(order):
        return []
    codes = np.frombuffer(explanation.first_failing, np.uint8)
    resolvable = np.zeros(len(explanation.legend) + 1, np.bool_)
    for code, blocker in enumerate(explanation.legend, 1):
        resolvable[code] = blocker.preemptible
    # A filter that evictions cannot help may fail behind one that they can.
    open_: Bools = resolvable[codes] & state.open_rows()[order]
    for resource, amount in decision.request.requirements.requests.items():
        if amount > 0:
            column = snapshot.resources.get(resource)
            if column is None:
                return []
            open_ = open_ & (snapshot.offered[column, order] >= amount)
    places = np.flatnonzero(open_)
    from_draw = np.argsort((places - decision.draw % len(order)) % len(order), kind="stable")
    rows: list[int] = order[places[from_draw]].tolist()
    return rows


class _ResourceTrial:
    """Tries evictions on one node from the resources and ports of claims. The snapshot does not change."""

    def __init__(self, snapshot: Snapshot, node: NodeRow, request: PodRequest) -> None:
        self._snapshot = snapshot
        self._node = node
        self._requirements = request.requirements
        offered = node.offered or {}
        self._free = {r: offered.get(r, 0) - node.claimed.get(r, 0) for r in request.requirements.requests}
        claims = (snapshot.claim(uid) for uid in node.claims)
        self._ports = Counter(
            port for claim in claims if claim is not None for port in claim.request.requirements.ports
        )

    def take_off(self, uid: str) -> None:
        self._move(uid, 1)

    def put_back(self, uid: str) -> None:
        self._move(uid, -1)

    def restore(self) -> None:
        """The snapshot was not changed."""

    def _move(self, uid: str, sign: int) -> None:
        claim = self._snapshot.claim(uid)
        if claim is None or claim.node != self._node.name:
            return
        for resource in self._free:
            self._free[resource] += sign * claim.request.requirements.requests.get(resource, 0)
        for port in claim.request.requirements.ports:
            self._ports[port] -= sign

    def fits(self) -> bool:
        if any(amount > 0 and amount > self._free[r] for r, amount in self._requirements.requests.items()):
            return False
        taken = [port for port, count in self._ports.items() if count > 0]
        return not any(port.clashes(each) for port in self._requirements.ports for each in taken)


class _SnapshotTrial:
    """Tries evictions on the snapshot itself, for filters that look at other pods. `restore` undoes them."""

    def __init__(self, snapshot: Snapshot, node: NodeRow, decision: NodeDecision) -> None:
        self._snapshot = snapshot
        self._node = node
        self._decision = decision
        self._off: dict[str, PodRequest] = {}

    def take_off(self, uid: str) -> None:
        claim = self._snapshot.claim(uid)
        if claim is not None and claim.node == self._node.name:
            self._off[uid] = claim.request
            self._snapshot.remove_claim(uid)

    def put_back(self, uid: str) -> None:
        request = self._off.pop(uid, None)
        if request is not None:
            self._snapshot.add_claim(uid, self._node.name, request)

    def restore(self) -> None:
        for uid in tuple(self._off):
            self.put_back(uid)

    def fits(self) -> bool:
        decision = self._decision
        state = state_of(self._snapshot, decision.request, decision.settings, decision.inputs)
        return bool(state.feasible[self._node.row])


def _plan_on(
    node: NodeRow, trial: _ResourceTrial | _SnapshotTrial, priority: int, inputs: PreemptionInputs
) -> Preemption | None:
    """The fewest victims on a node; None if evicting every evictable pod is not enough."""
    lower, leaving = [], []
    for pod in inputs.pods_on(node.name):
        if pod.metadata.deletion_timestamp is not None:
            trial.take_off(pod.uid)
            leaving.append(pod.uid)
        elif _priority(pod) < priority:
            lower.append(pod)
    for uid, nomination in inputs.nominated.items():
        if nomination.node == node.name and nomination.priority < priority:
            trial.take_off(nominated_claim(uid))
    if trial.fits():
        return Preemption(node.name, (), frozenset(leaving))
    victims = list(inputs.evictable(sorted(lower, key=lambda pod: (_priority(pod), -pod.created))))
    for pod in victims:
        trial.take_off(pod.uid)
    if not trial.fits():
        return None
    for pod in reversed(tuple(victims)):  # keep the highest priority first, then the oldest
        trial.put_back(pod.uid)
        if trial.fits():
            victims.remove(pod)
        else:
            trial.take_off(pod.uid)
    return Preemption(node.name, tuple(victims), frozenset(leaving))


def _priority(pod: Object) -> int:
    return pod.as_view(PodView).spec.priority or 0

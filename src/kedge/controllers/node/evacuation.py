"""The plan for the pods of one node: which to mark unknown, release, take back, remove and delete. Pure.

The pods of a lost node are released through their owners; a pod without an owner is removed, and its claim stays. On a
reachable node, taints and drains delete pods as usual: the agent stops them and reports their end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kedge.api.conditions import find_condition, is_true
from kedge.api.owners import controller_of
from kedge.api.views import NodeView, PodView, Taint
from kedge.api.wellknown import DISRUPTION_TARGET, NODE_LOST, NOT_READY_TAINT, UNREACHABLE_TAINT
from kedge.controllers.node.heartbeats import NodeHealth
from kedge.controllers.node.plan import NodeState
from kedge.controllers.shared.pods import is_lost
from kedge.limits import Limits
from kedge.placement.predicates import tolerates

NODE_UNKNOWN = "NodeUnknown"
"""The reason of an unknown Ready condition: the pod's node is silent."""
_LOST_TAINT = Taint(key=UNREACHABLE_TAINT, effect="NoExecute")


@dataclass(frozen=True, slots=True)
class EvacuationPlan:
    """The writes to the pods of a node. Each names the revision that was read."""

    unknown: tuple[PodView, ...] = ()
    """Ready by their agent's last report, which is too old."""
    release: tuple[PodView, ...] = ()
    """Their owners are requested to record their end."""
    take_back: tuple[PodView, ...] = ()
    """Their node has returned before their owners released them."""
    remove: tuple[PodView, ...] = ()
    """They have no owner that could release them."""
    end: tuple[PodView, ...] = ()
    """They do not tolerate a taint of a reachable node."""
    requeue_after_s: float | None = None

    @property
    def rests_on_silence(self) -> bool:
        """Whether any write assumes that the node is silent: the lease is checked at the API server first."""
        return bool(self.unknown or self.release or self.remove)

    @property
    def silent(self) -> bool:
        return not (self.unknown or self.release or self.take_back or self.remove or self.end)


def plan_evacuation(
    node: NodeView,
    state: NodeState,
    health: NodeHealth,
    pods: Sequence[PodView],
    limits: Limits,
    now: datetime,
    *,
    held: Collection[str] = (),
    out_of_service: bool = False,
) -> EvacuationPlan:
    """The writes that follow from the state of a node. `held` are the uids that a person holds."""
    running = [pod for pod in pods if not pod.finished and pod.uid not in held]
    if state in (NodeState.READY, NodeState.SUSPECT):
        # A suspect node takes nothing back: only a heartbeat makes it ready again.
        back = tuple(pod for pod in running if is_lost(pod)) if state is NodeState.READY else ()
        ended = _tainted(node, running, health, limits, now) if state is NodeState.READY else ((), None)
        return EvacuationPlan(take_back=back, end=ended[0], requeue_after_s=ended[1])
    unknown = () if health.blind else tuple(pod for pod in running if is_true(pod.status.conditions, "Ready"))
    if state is NodeState.UNKNOWN:
        return EvacuationPlan(unknown=unknown)
    release: list[PodView] = []
    remove: list[PodView] = []
    waits: list[float] = []
    for pod in running:
        after_s = 0.0 if out_of_service else release_after_s(pod, limits)
        if after_s is None or is_lost(pod):
            continue
        if not out_of_service and (health.blind or health.trusted_s < after_s):
            waits.append(max(1.0, after_s - health.trusted_s))
            continue
        (remove if controller_of(pod) is None else release).append(pod)
    return EvacuationPlan(unknown, tuple(release), (), tuple(remove), requeue_after_s=min(waits, default=None))


def release_after_s(pod: PodView, limits: Limits) -> float | None:
    """After how much silence a pod is released; None if it tolerates the taint for ever.

    A toleration can delay the release, not hasten it: a short silence releases nothing.
    """
    tolerated_s = _tolerated_s(pod, _LOST_TAINT)
    return None if tolerated_s is None else max(limits.node_lost_s, limits.node_unknown_s + tolerated_s)


def _tolerated_s(pod: PodView, taint: Taint) -> float | None:
    """For how long a pod tolerates a taint: the shortest matching toleration; None for ever, 0 not at all."""
    matching = [each for each in pod.spec.tolerations if tolerates(each, taint)]
    if not matching:
        return 0.0
    limited = [max(0, each.toleration_seconds) for each in matching if each.toleration_seconds is not None]
    return float(min(limited)) if limited else None


def _tainted(
    node: NodeView, pods: Sequence[PodView], health: NodeHealth, limits: Limits, now: datetime
) -> tuple[tuple[PodView, ...], float | None]:
    """The pods that a `NoExecute` taint deletes now, and the seconds until the next."""
    end: dict[str, PodView] = {}
    waits = []
    for taint in node.spec.taints:
        if (
            taint.effect != "NoExecute"
            or taint.key == UNREACHABLE_TAINT
            or (taint.key == NOT_READY_TAINT and health.blind)
        ):
            continue
        for pod in pods:
            borne_s = _tolerated_s(pod, taint)
            if borne_s is None or pod.terminating:
                continue
            if taint.key == NOT_READY_TAINT:
                borne_s = max(borne_s, limits.node_lost_s)
            left_s = ((taint.time_added or now) + timedelta(seconds=borne_s) - now).total_seconds()
            if left_s <= 0 and (taint.time_added is not None or not borne_s):
                end[pod.uid] = pod
            else:
                waits.append(max(1.0, left_s))
    return tuple(end.values()), min(waits, default=None)


def lost_condition(pod: PodView, *, lost: bool) -> dict[str, object]:
    """The condition that requests a pod's release from its owner, or withdraws the request."""
    found = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    if lost:
        message = f"node {pod.spec.node_name} was declared lost"
        return {"type": DISRUPTION_TARGET, "status": "True", "reason": NODE_LOST, "message": message}
    message = "its node renews its lease again" if found is not None else ""
    return {"type": DISRUPTION_TARGET, "status": "False", "reason": "NodeReturned", "message": message}

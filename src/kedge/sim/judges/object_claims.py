"""The claims of the conditions of pods, nodes, budgets, autoscalers, rollouts, policies and namespaces.

Most are about the object itself, and exact: a status write names the version that was read. Claims about nodes are held
against the renewals of their leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from kedge.api import wellknown
from kedge.api.objects import Object
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    DEPLOYMENT_REVISION,
    DISRUPTION_ALLOWED,
    DISRUPTION_BUDGET_KIND,
    DISRUPTION_TARGET,
    DRAIN_NODE,
    HOLD_PREFIX,
    NAMESPACE_KIND,
    NODE_KIND,
    NODE_LOST,
    OBEYED_PREFIX,
    OUT_OF_SERVICE,
    POD_KIND,
    RESIZE_IN_PROGRESS,
    RESIZE_PENDING,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
)
from kedge.keys import Key
from kedge.sim.judges.condition_evidence import Claims, ConditionEvidence
from kedge.sim.judges.facts import ClusterFacts
from kedge.sim.judges.pod_facts import is_ready

CLOCK_ERROR = 0.06
"""How far the rates of two host clocks may differ."""
_MOVING = ("Progressing", "Holding", "Complete")
"""The phases of a Rollout that is neither paused nor taken back."""


def _held(found: ConditionEvidence) -> str:
    return "" if any(name.startswith(HOLD_PREFIX) for name in found.of.metadata.annotations) else "it has no hold"


def _hold_returns(found: ConditionEvidence) -> str:
    """A hold ends by time, and begins only by a change of the object."""
    return "its holds are the same" if found.condition.status == "True" else ""


# -- pods ------------------------------------------------------------------------------------------


def _scheduled(found: ConditionEvidence) -> str:
    return "" if found.of.as_view(PodView).spec.node_name else "it has no node"


def _unscheduled(found: ConditionEvidence) -> str:
    node = found.of.as_view(PodView).spec.node_name
    return f"it has the node {node}" if node else ""


def _ready(found: ConditionEvidence) -> str:
    pod = found.of.as_view(PodView)
    unready = [each.name for each in pod.status.container_statuses if not each.ready]
    return "it has ended" if pod.finished else f"{unready[0]} is not ready" if unready else ""


def _unready(found: ConditionEvidence) -> str:
    pod = found.of.as_view(PodView)
    known = pod.status.container_statuses
    if pod.finished or pod.terminating or len(known) < len(pod.spec.containers) or pod.status.phase != "Running":
        return ""
    return "" if any(not each.ready for each in known) else "all of its containers are ready"


def _initialized(found: ConditionEvidence) -> str:
    pod = found.of.as_view(PodView)
    if pod.finished:
        return ""
    unready = [each.name for each in pod.status.init_container_statuses if not each.ready and not each.started]
    return f"{unready[0]} has not finished" if unready else ""


def _silent_pod(found: ConditionEvidence) -> str:
    """Its node is silent, if a controller wrote it."""
    if not found.by:
        return ""
    name = found.of.as_view(PodView).spec.node_name
    return _silence(found, name, _unknown_s(found))


def _target(found: ConditionEvidence) -> str:
    """Its node is lost, or gone, or another incarnation of it is there."""
    pod = found.of.as_view(PodView)
    if found.condition.reason != NODE_LOST or pod.spec.node_name not in found.facts.claims.get(pod.uid, {}):
        return ""
    return _silence(found, pod.spec.node_name, found.facts.limits.node_lost_s)


def _unknown_s(found: ConditionEvidence) -> float:
    """A controller that only marks a node as unknown does not read its lease first: one renewal may be on its way."""
    limits = found.facts.limits
    return limits.node_unknown_s - min(limits.node_renew_s, limits.watch_progress_s)


def _silence(found: ConditionEvidence, name: str, needed_s: float) -> str:
    """Why a node has not been silent for so long. A writer that destroys reads the lease at the API server first."""
    node = found.facts.objects.get(Key(NODE_KIND, "", name))
    if node is None or OUT_OF_SERVICE in {taint.key for taint in node.as_view(NodeView).spec.taints}:
        return ""
    silent_s = found.facts.longest_silence_s(name)
    short = silent_s < needed_s * (1 - CLOCK_ERROR)
    return f"{name} was never silent for more than {silent_s:.0f}s" if short else ""


def _resizing(found: ConditionEvidence) -> str:
    """The spec, the allocation and the applied resources are not the same."""
    pod = found.of.as_view(PodView)
    reported = {each.name: each for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    for each in (*pod.spec.containers, *pod.spec.init_containers):
        known = reported.get(each.name)
        if known is None or known.resources is None:
            return ""
        if known.allocated_resources != each.resources.requests or known.resources != each.resources:
            return ""
    of_pod = pod.spec.resources.requests
    if of_pod and pod.status.allocated_resources != of_pod:
        return ""
    return "its resources are allocated and applied as its spec has them"


def _being_resized(found: ConditionEvidence) -> str:
    """Beside that: a container that does not run yet has the resources only from its start on."""
    known = found.of.as_view(PodView).status.container_statuses
    return "" if any(each.state.running is None for each in known) else _resizing(found)


# -- nodes -----------------------------------------------------------------------------------------


def _lost(found: ConditionEvidence) -> str:
    return _silence(found, found.of.key.name, found.facts.limits.node_lost_s)


def _unknown(found: ConditionEvidence) -> str:
    """Another writer than a controller may have a reason of its own."""
    return "" if not found.by else _silence(found, found.of.key.name, _unknown_s(found))


def _drained(found: ConditionEvidence) -> str:
    facts, name = found.facts, found.of.key.name
    if DRAIN_NODE not in found.of.metadata.annotations:
        return "it is not being drained"
    for uid, each in facts.pods.items():
        pod = each.as_view(PodView)
        if pod.spec.node_name == name and not pod.finished and facts.born_s.get(uid, 0.0) < found.since_s:
            return f"{each.key} is bound to it"
    return ""


# -- budgets, policies, rollouts -------------------------------------------------------------------


def _disruptable(found: ConditionEvidence) -> str:
    return "" if found.of.view.status.disruptions_allowed > 0 else "it allows no disruption"


def _not_disruptable(found: ConditionEvidence) -> str:
    allowed = found.of.view.status.disruptions_allowed
    return f"it allows {allowed} disruptions" if allowed > 0 else ""


def _obeyed(found: ConditionEvidence) -> str:
    return "" if found.of.view.spec.active or not found.is_current else "it is not active"


def _not_obeyed(found: ConditionEvidence) -> str:
    return "it is active" if found.of.view.spec.active and found.is_current else ""


def _rollout_moves(found: ConditionEvidence) -> str:
    phase = found.of.view.status.phase
    return "" if phase in _MOVING else f"its phase is {phase}"


def _rollout_stays(found: ConditionEvidence) -> str:
    phase = found.of.view.status.phase
    return f"its phase is {phase}" if phase in _MOVING else ""


def _taken_back(found: ConditionEvidence) -> str:
    phase = found.of.view.status.phase
    return "" if phase == "RolledBack" else f"its phase is {phase}"


def _same_content(found: ConditionEvidence) -> str:
    same = found.earlier is not None and found.earlier.content == content_of(found.facts, found.of)
    return "neither its spec nor what it counts has changed" if same else ""


def _budget_returns(found: ConditionEvidence) -> str:
    """An eviction is charged at once, and what the status counts is older.

    So a budget returns without any other change if the evicted pod was not ready, or has been replaced.
    """
    facts, since_s = found.facts, found.earlier.at_s if found.earlier is not None else inf
    for name in found.of.view.status.disrupted_pods:
        pod = facts.objects.get(Key(wellknown.POD_KIND, found.of.key.namespace, name))
        if pod is None or not is_ready(pod.as_view(PodView)) or facts.born_s.get(pod.uid, -inf) >= since_s:
            return ""
    return _same_content(found)


# -- autoscalers -----------------------------------------------------------------------------------


def _scaled_object(found: ConditionEvidence) -> Object | None:
    ref = found.of.view.spec.scale_target_ref
    kind = DEPLOYMENT_KIND if ref.kind == "Deployment" else f"{ref.kind}.apps"
    return found.facts.objects.get(Key(kind, found.of.key.namespace, ref.name))


def _able(found: ConditionEvidence) -> str:
    recent = found.facts.removed_s.get(found.of.key.namespace, -inf) >= found.since_s
    return "" if recent or _scaled_object(found) is not None else "its target does not exist"


def _active(found: ConditionEvidence) -> str:
    return "" if found.of.view.status.current_metrics else "it has read no metric"


def _limited(found: ConditionEvidence) -> str:
    """The largest and the smallest advice of late are in the status; so is the size that was read with them."""
    spec, status = found.of.view.spec, found.of.view.status
    if not found.is_current:
        return ""
    high = max((each.high for each in status.advice), default=0)
    low = min((each.low for each in status.advice), default=0)
    match found.condition.reason:
        case "TooManyReplicas":
            reached = max(high, status.current_replicas) > spec.max_replicas
        case "TooFewReplicas":
            reached = min(low, status.current_replicas) < spec.min_replicas
        case "ScaleUpLimit":
            reached = high > status.current_replicas
        case _:
            reached = low < status.current_replicas
    return "" if reached else f"between {low} and {high} replicas were advised, and it has {status.current_replicas}"


def _held_back(found: ConditionEvidence) -> str:
    status = found.of.view.status
    high = max((each.high for each in status.advice), default=0)
    if high <= status.current_replicas:
        return f"no more than {high} replicas were advised, and it has {status.current_replicas}"
    if found.condition.reason == "CoolingDown" and status.last_scale_time is None:
        return "it was never scaled"
    return ""


def _scaling_returns(found: ConditionEvidence) -> str:
    """Its metrics and sizes are in its status. The age of a cache, and another autoscaler that is gone, are not."""
    removed = found.facts.removed_s.get(found.of.key.namespace, -inf) >= found.since_s
    target = _scaled_object(found)
    moved = target is not None and found.facts.tallies.changed_s.get(target.uid, -inf) >= found.since_s
    return "" if removed or moved else _same_content(found)


# -- namespaces ------------------------------------------------------------------------------------


def _remaining(found: ConditionEvidence) -> str:
    name, facts = found.of.key.name, found.facts
    if found.of.metadata.deletion_timestamp is None:
        return "it is not being deleted"
    if facts.removed_s.get(name, -inf) >= found.since_s:
        return ""
    return "" if any(key.namespace == name for key in facts.objects) else "it is empty"


def content_of(facts: ClusterFacts, of: Object) -> object:
    """The part of an object that explains a change of its own conditions: its spec, and what its status counts."""
    own = (of.metadata.generation, {k: v for k, v in of.metadata.annotations.items() if k != DEPLOYMENT_REVISION})
    status: Any = getattr(of.view, "status", None)
    match of.key.kind:
        case wellknown.AUTOSCALER_KIND:
            return (*own, status.current_replicas, status.advice, status.scaling_events, status.current_metrics)
        case wellknown.DISRUPTION_BUDGET_KIND:
            return (*own, status.current_healthy, status.desired_healthy, status.expected_pods, status.disrupted_pods)
        case wellknown.ROLLOUT_KIND:
            name = of.view.spec.target.name
            keys = (Key(DEPLOYMENT_KIND, of.key.namespace, name), Key(SCHEDULING_POLICY_KIND, "", name))
            targets = [(each.uid, each.metadata.generation) for key in keys if (each := facts.objects.get(key))]
            return (*own, status.stage, status.gates, status.change, targets)
        case _:
            return own


OBJECT_CLAIMS: Mapping[tuple[str, str], Claims] = {
    (POD_KIND, "PodScheduled"): Claims(_scheduled, _unscheduled, own=True),
    (POD_KIND, "Initialized"): Claims(_initialized, own=True),
    (POD_KIND, "Ready"): Claims(_ready, _unready, _silent_pod, own=True),
    (POD_KIND, "ContainersReady"): Claims(_ready, _unready, own=True),
    (POD_KIND, DISRUPTION_TARGET): Claims(_target),
    (POD_KIND, RESIZE_PENDING): Claims(_resizing, own=True),
    (POD_KIND, RESIZE_IN_PROGRESS): Claims(_being_resized),
    (NODE_KIND, "Ready"): Claims(None, None, _unknown),
    (NODE_KIND, "Suspect"): Claims(),
    (NODE_KIND, "Lost"): Claims(_lost),
    (NODE_KIND, "Drained"): Claims(_drained),
    (DISRUPTION_BUDGET_KIND, DISRUPTION_ALLOWED): Claims(
        _disruptable, _not_disruptable, back=_budget_returns, own=True
    ),
    (AUTOSCALER_KIND, "AbleToScale"): Claims(_able),
    (AUTOSCALER_KIND, "ScalingActive"): Claims(_active, back=_scaling_returns),
    (AUTOSCALER_KIND, "ScalingLimited"): Claims(_limited, back=_scaling_returns),
    (AUTOSCALER_KIND, "ScalingHeldBack"): Claims(_held_back, back=_scaling_returns),
    (ROLLOUT_KIND, "Progressing"): Claims(_rollout_moves, _rollout_stays, back=_same_content, own=True),
    (ROLLOUT_KIND, "RollbackObserved"): Claims(_taken_back, back=_same_content, own=True),
    (SCHEDULING_POLICY_KIND, OBEYED_PREFIX): Claims(_obeyed, _not_obeyed, own=True),
    (NAMESPACE_KIND, "NamespaceContentRemaining"): Claims(_remaining),
    (NAMESPACE_KIND, "NamespaceFinalizersRemaining"): Claims(_remaining),
}
"""By kind and type; of a scheduler's condition on a policy, the prefix."""
HELD_CLAIMS = Claims(_held, back=_hold_returns)
"""Of `Held`, which every kind may have."""

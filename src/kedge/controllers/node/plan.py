"""The plan for one node: its state by the evidence, and the conditions and taints to write. Pure.

Ready, then Suspect (no new placement), Unknown (its pods get no work), Lost (they are released through their owners).
Silence alone moves a node forward; only a renewal or a report of its agent brings it back, from any state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from kedge.api.conditions import FALSE, UNKNOWN, condition, find_condition, is_true
from kedge.api.timestamps import format_time
from kedge.api.views import NodeView, Taint
from kedge.api.wellknown import DRAIN_NODE, NOT_READY_TAINT, OUT_OF_SERVICE, UNREACHABLE_TAINT, UNSCHEDULABLE_TAINT
from kedge.controllers.node.heartbeats import NodeHealth
from kedge.limits import Limits
from kedge.placement.predicates import SUSPECT

READY, LOST = "Ready", "Lost"
_OURS = (UNREACHABLE_TAINT, NOT_READY_TAINT, UNSCHEDULABLE_TAINT)
STATUS_UNKNOWN = "NodeStatusUnknown"
"""The reason of an unknown Ready condition: the node is silent."""


class NodeState(StrEnum):
    """The state of a node, in the order in which silence moves it."""

    READY = "Ready"
    SUSPECT = "Suspect"
    UNKNOWN = "Unknown"
    LOST = "Lost"


_ORDER = list(NodeState)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The state of a node, and the writes that follow."""

    state: NodeState
    conditions: tuple[dict[str, Any], ...] = ()
    taints: tuple[dict[str, Any], ...] | None = None
    """All of its taints; None to leave them."""
    cordon: bool = False
    requeue_after_s: float = 0.0
    """When the plan may change without an event."""
    reason: str = ""


def is_out_of_service(node: NodeView) -> bool:
    """A person has tainted the node: nothing runs there any more."""
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def state_of(node: NodeView) -> NodeState:
    """The state in its conditions."""
    conditions = node.status.conditions
    if is_true(conditions, LOST):
        return NodeState.LOST
    ready = find_condition(conditions, READY)
    if ready is not None and ready.status == UNKNOWN:
        return NodeState.UNKNOWN
    return NodeState.SUSPECT if is_true(conditions, SUSPECT) else NodeState.READY


def next_state(was: NodeState, health: NodeHealth, limits: Limits, *, out_of_service: bool = False) -> NodeState:
    """The next state, from the last one and the evidence. The rate limit of lost nodes is not applied here."""
    if out_of_service:
        return NodeState.LOST
    if health.alive and health.silence_s < limits.node_suspect_s:
        return NodeState.READY
    reached = NodeState.READY
    if health.silence_s >= limits.node_suspect_s:
        reached = NodeState.SUSPECT
    if not health.blind and health.trusted_s >= limits.node_unknown_s:
        reached = NodeState.UNKNOWN
    if not health.blind and health.trusted_s >= limits.node_lost_s:
        reached = NodeState.LOST
    return max(was, reached, key=_ORDER.index)


def plan_node(node: NodeView, health: NodeHealth, limits: Limits, now: datetime, *, may_lose: bool = True) -> NodePlan:
    """The plan for a node. `may_lose` is false while the rate limit forbids to declare it lost."""
    was, out = state_of(node), is_out_of_service(node)
    state = next_state(was, health, limits, out_of_service=out)
    if state is NodeState.LOST and was is not NodeState.LOST and not (may_lose or out):
        state = NodeState.UNKNOWN
    conditions = _conditions(node, was, state, limits, out_of_service=out)
    taints = _taints(node, state, now)
    return NodePlan(
        state,
        conditions,
        taints if _differ(taints, node.spec.taints) else None,
        cordon=DRAIN_NODE in node.metadata.annotations and not node.spec.unschedulable,
        requeue_after_s=_requeue_after_s(state, health, limits),
        reason=health.blind,
    )


def _conditions(
    node: NodeView, was: NodeState, state: NodeState, limits: Limits, *, out_of_service: bool
) -> tuple[dict[str, Any], ...]:
    generation = node.metadata.generation
    found: list[dict[str, Any]] = []
    suspect = state is not NodeState.READY
    if suspect != is_true(node.status.conditions, SUSPECT):
        reason, message = ("HeartbeatLate", "its heartbeats are late") if suspect else ("HeartbeatSeen", "")
        found.append(condition(SUSPECT, status=suspect, reason=reason, message=message, observed_generation=generation))
    ready = find_condition(node.status.conditions, READY)
    unknown = state in (NodeState.UNKNOWN, NodeState.LOST)
    if unknown and (ready is None or ready.status != UNKNOWN):
        message = "tainted out of service" if out_of_service else f"silent for {limits.node_unknown_s:.0f} s"
        found.append(condition(READY, status=None, reason=STATUS_UNKNOWN, message=message))
    if state is NodeState.LOST and was is not NodeState.LOST:
        reason = "OutOfService" if out_of_service else "HeartbeatsLost"
        message = "tainted out of service" if out_of_service else f"silent for {limits.node_lost_s:.0f} s"
        found.append(condition(LOST, status=True, reason=reason, message=message, observed_generation=generation))
    if was is NodeState.LOST and state is not NodeState.LOST:
        found.append(condition(LOST, status=False, reason="HeartbeatSeen", observed_generation=generation))
    return tuple(found)


def _taints(node: NodeView, state: NodeState, now: datetime) -> tuple[dict[str, Any], ...]:
    """The taints as Kubernetes sets them: kedge's own by the state, all others unchanged."""
    wanted: list[tuple[str, str]] = []
    ready = find_condition(node.status.conditions, READY)
    if state in (NodeState.UNKNOWN, NodeState.LOST):
        wanted += [(UNREACHABLE_TAINT, "NoSchedule"), (UNREACHABLE_TAINT, "NoExecute")]
    elif ready is not None and ready.status == FALSE:
        wanted += [(NOT_READY_TAINT, "NoSchedule"), (NOT_READY_TAINT, "NoExecute")]
    elif ready is not None and ready.status == UNKNOWN:
        # It renews again, and its agent has not reported its readiness yet.
        wanted.append((UNREACHABLE_TAINT, "NoSchedule"))
    if node.spec.unschedulable or DRAIN_NODE in node.metadata.annotations:
        wanted.append((UNSCHEDULABLE_TAINT, "NoSchedule"))
    kept = [each for each in node.spec.taints if each.key not in _OURS or (each.key, each.effect) in wanted]
    have = {(each.key, each.effect) for each in kept}
    made = [Taint(key=key, effect=effect) for key, effect in wanted if (key, effect) not in have]
    return tuple(_as_json(each, now) for each in (*kept, *made))


def _as_json(taint: Taint, now: datetime) -> dict[str, Any]:
    made: dict[str, Any] = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        made["value"] = taint.value
    if taint.time_added is not None:
        made["timeAdded"] = format_time(taint.time_added)
    elif taint.effect == "NoExecute":
        made["timeAdded"] = format_time(now)  # tolerations count from here
    return made


def _differ(wanted: Sequence[dict[str, Any]], taints: Sequence[Taint]) -> bool:
    def fields(taint: Taint) -> tuple[str, str, str, bool]:
        return taint.key, taint.value, taint.effect, taint.time_added is not None

    return [(t["key"], t.get("value", ""), t["effect"], "timeAdded" in t) for t in wanted] != [*map(fields, taints)]


def _requeue_after_s(state: NodeState, health: NodeHealth, limits: Limits) -> float:
    """Until the next state could be due; never longer than `node_suspect_s`, because each reconcile also observes."""
    marks = {
        NodeState.READY: limits.node_suspect_s - health.silence_s,
        NodeState.SUSPECT: limits.node_unknown_s - health.trusted_s,
        NodeState.UNKNOWN: limits.node_lost_s - health.trusted_s,
        NodeState.LOST: limits.node_suspect_s,
    }
    return min(max(marks[state], limits.node_suspect_s / 10), limits.node_suspect_s)

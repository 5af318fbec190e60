"""The plan for one node: how far the evidence against it goes, and what to say of it. Pure.

Ready, then Suspect (no new placement), Unknown (its pods get no work), Lost (they are released through their owners).
Silence alone moves a node on; only a renewal that was seen, or its agent's own word, brings it back, from any stage.
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
"""Why a node is neither ready nor not: nobody has heard of it."""


class NodeState(StrEnum):
    """How much is held against a node."""

    READY = "Ready"
    SUSPECT = "Suspect"
    UNKNOWN = "Unknown"
    LOST = "Lost"


_ORDER = list(NodeState)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a node is now, and what is to be written of it."""

    state: NodeState
    conditions: tuple[dict[str, Any], ...] = ()
    taints: tuple[dict[str, Any], ...] | None = None
    """All of its taints as they are to be; None to leave them."""
    cordon: bool = False
    requeue_after_s: float = 0.0
    """When time alone may change the plan."""
    reason: str = ""


def is_out_of_service(node: NodeView) -> bool:
    """A person says that nothing runs there any more."""
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def state_of(node: NodeView) -> NodeState:
    """What was last said of it."""
    conditions = node.status.conditions
    if is_true(conditions, LOST):
        return NodeState.LOST
    ready = find_condition(conditions, READY)
    if ready is not None and ready.status == UNKNOWN:
        return NodeState.UNKNOWN
    return NodeState.SUSPECT if is_true(conditions, SUSPECT) else NodeState.READY


def next_state(was: NodeState, health: NodeHealth, limits: Limits, *, out_of_service: bool = False) -> NodeState:
    """What a node is, from what it was and what was heard of it. Whether it may be given up now is asked elsewhere."""
    if out_of_service:
        return NodeState.LOST
    if health.heard and health.silence_s < limits.node_suspect_s:
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
    """What to say of a node. `may_lose` is false while it is not its turn to be given up."""
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
        words = "a person says so" if out_of_service else f"silent for {limits.node_unknown_s:.0f} s"
        found.append(condition(READY, status=None, reason=STATUS_UNKNOWN, message=words))
    if state is NodeState.LOST and was is not NodeState.LOST:
        reason = "OutOfService" if out_of_service else "HeartbeatsLost"
        words = "a person says so" if out_of_service else f"silent for {limits.node_lost_s:.0f} s"
        found.append(condition(LOST, status=True, reason=reason, message=words, observed_generation=generation))
    if was is NodeState.LOST and state is not NodeState.LOST:
        found.append(condition(LOST, status=False, reason="HeartbeatSeen", observed_generation=generation))
    return tuple(found)


def _taints(node: NodeView, state: NodeState, now: datetime) -> tuple[dict[str, Any], ...]:
    """The taints as Kubernetes sets them: ours as the node is, everybody else's as they are."""
    wanted: list[tuple[str, str]] = []
    ready = find_condition(node.status.conditions, READY)
    if state in (NodeState.UNKNOWN, NodeState.LOST):
        wanted += [(UNREACHABLE_TAINT, "NoSchedule"), (UNREACHABLE_TAINT, "NoExecute")]
    elif ready is not None and ready.status == FALSE:
        wanted += [(NOT_READY_TAINT, "NoSchedule"), (NOT_READY_TAINT, "NoExecute")]
    elif ready is not None and ready.status == UNKNOWN:
        # It is heard again, and its agent has yet to say how it is.
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
        made["timeAdded"] = format_time(now)  # from then on its tolerations count
    return made


def _differ(wanted: Sequence[dict[str, Any]], taints: Sequence[Taint]) -> bool:
    def said(taint: Taint) -> tuple[str, str, str, bool]:
        return taint.key, taint.value, taint.effect, taint.time_added is not None

    return [(t["key"], t.get("value", ""), t["effect"], "timeAdded" in t) for t in wanted] != [*map(said, taints)]


def _requeue_after_s(state: NodeState, health: NodeHealth, limits: Limits) -> float:
    """Until the next step could be due. Never longer than silence takes to be noticed: to look is also to see."""
    marks = {
        NodeState.READY: limits.node_suspect_s - health.silence_s,
        NodeState.SUSPECT: limits.node_unknown_s - health.trusted_s,
        NodeState.UNKNOWN: limits.node_lost_s - health.trusted_s,
        NodeState.LOST: limits.node_suspect_s,
    }
    return min(max(marks[state], limits.node_suspect_s / 10), limits.node_suspect_s)

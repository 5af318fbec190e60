"""Progress as state: the stage of each replica of a workload, and why the others are not further.

Stages: admitted, queued, scheduled, bound, starting, ready, serving; written as `status.progress` of Deployment,
ReplicaSet and Job. A replica on a silent node is at no stage: it is counted as unknown. Computed from pods and
EndpointSlices alone, so it can be checked against them; it reads no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from kedge.api.conditions import FALSE, UNKNOWN, find_condition
from kedge.api.timestamps import format_time
from kedge.api.views import PodView
from kedge.api.views.workloads import PendingReason, WorkloadProgress
from kedge.controllers.shared.pods import is_active, is_ready


class ReplicaStage(StrEnum):
    """The furthest stage that a replica has reached. Each replica is counted once."""

    ADMITTED = "admitted"
    """It exists, and a scheduling gate keeps it out of the scheduler's queue."""
    QUEUED = "queued"
    """It waits for the scheduler to choose a node."""
    SCHEDULED = "scheduled"
    """A node was chosen for it; the claim is not committed."""
    BOUND = "bound"
    """The node is committed; its agent has not reported the pod yet."""
    STARTING = "starting"
    """The agent starts it; or it was ready before and is not now."""
    READY = "ready"
    SERVING = "serving"
    """Ready, and listed in an EndpointSlice of its Service."""
    UNKNOWN = "unknown"
    """Its node is silent: it may run or not. Counted beside the stages."""


STAGES = tuple(stage for stage in ReplicaStage if stage is not ReplicaStage.UNKNOWN)
"""The stages that `status.progress.stages` counts, in order."""

UNDER_WAY = frozenset(
    {
        "WaitingForScheduler",
        "WaitingForBind",
        "WaitingForAgent",
        "ContainersNotReady",
        "ContainerCreating",
        "PodInitializing",
    }
)
"""Reasons of a replica that waits for its turn. They keep gates shut, but are neither a blocker nor a regression: no
component has refused the replica."""
_ORDER: dict[str, int] = {str(stage): place for place, stage in enumerate(ReplicaStage)}


def stage_of(pod: PodView, listed: Collection[str]) -> ReplicaStage | None:
    """The stage of a replica; None for a pod that is leaving or has ended. `listed` are the uids that receive work."""
    if not is_active(pod):
        return None
    if is_unknown(pod):
        return ReplicaStage.UNKNOWN
    if is_ready(pod):
        return ReplicaStage.SERVING if pod.uid in listed else ReplicaStage.READY
    if pod.spec.node_name:
        reported = pod.status.start_time is not None or bool(pod.status.container_statuses)
        return ReplicaStage.STARTING if reported or pod.status.phase not in ("", "Pending") else ReplicaStage.BOUND
    if pod.status.nominated_node_name:
        return ReplicaStage.SCHEDULED
    return ReplicaStage.ADMITTED if pod.spec.scheduling_gates else ReplicaStage.QUEUED


def is_unknown(pod: PodView) -> bool:
    """Its node is silent, so nothing is known of it; the node lifecycle controller has written that."""
    found = find_condition(pod.status.conditions, "Ready")
    return found is not None and found.status == UNKNOWN and bool(pod.spec.node_name)


def refusal_message(pod: PodView, stage: ReplicaStage) -> str:
    """The scheduler's message about a replica that it could not place; empty for any other."""
    if stage not in (ReplicaStage.QUEUED, ReplicaStage.SCHEDULED):
        return ""
    found = find_condition(pod.status.conditions, "PodScheduled")
    return found.message if found is not None and found.status == FALSE else ""


def pending_reason(pod: PodView, stage: ReplicaStage) -> str:
    """Why a replica is not further: the reason that the scheduler or the agent wrote, or the component it waits for."""
    match stage:
        case ReplicaStage.ADMITTED:
            return "SchedulingGated"
        case ReplicaStage.QUEUED | ReplicaStage.SCHEDULED:
            found = find_condition(pod.status.conditions, "PodScheduled")
            reason = found.reason if found is not None and found.status == FALSE else ""
            return reason or ("WaitingForScheduler" if stage is ReplicaStage.QUEUED else "WaitingForBind")
        case ReplicaStage.BOUND:
            return "WaitingForAgent"
        case ReplicaStage.STARTING:
            statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
            waiting = [each.state.waiting.reason for each in statuses if each.state.waiting is not None]
            return next(filter(None, waiting), "ContainersNotReady")
        case ReplicaStage.UNKNOWN:
            found = find_condition(pod.status.conditions, "Ready")
            return (found.reason if found is not None else "") or "NodeUnknown"
        case ReplicaStage.READY | ReplicaStage.SERVING:
            return ""


@dataclass(frozen=True, slots=True)
class LastAction:
    """The last write of a reconcile, and its error."""

    action: str = ""
    error: str = ""
    at: datetime | None = None


NO_ACTION = LastAction()


def progress_of(
    pods: Iterable[PodView],
    *,
    desired: int,
    listed: Collection[str],
    generation: int,
    before: WorkloadProgress,
    last_action: LastAction = NO_ACTION,
    deadline: datetime | None = None,
) -> dict[str, Any]:
    """`status.progress` of a workload with these replicas. Without a `last_action`, the previous one stays."""
    stages: Counter[ReplicaStage] = Counter()
    reasons: dict[tuple[str, str], PendingReason] = {}
    leaving = 0
    for pod in pods:
        stage = stage_of(pod, listed)
        if stage is None:
            leaving += not pod.finished
            continue
        stages[stage] += 1
        reason = pending_reason(pod, stage)
        if reason:
            _count(reasons, PendingReason(str(stage), reason, 1, refusal_message(pod, stage)))
    return _written(
        desired,
        {str(stage): stages[stage] for stage in STAGES},
        stages[ReplicaStage.UNKNOWN],
        leaving,
        reasons,
        generation,
        before,
        last_action,
        deadline,
    )


def sum_of_progress(
    parts: Sequence[WorkloadProgress],
    *,
    desired: int,
    generation: int,
    before: WorkloadProgress,
    last_action: LastAction = NO_ACTION,
    deadline: datetime | None = None,
) -> dict[str, Any]:
    """`status.progress` of a workload whose parts count its replicas, as ReplicaSets do for a Deployment."""
    reasons: dict[tuple[str, str], PendingReason] = {}
    for part in parts:
        for each in part.pending:
            _count(reasons, each)
    return _written(
        desired,
        {str(stage): sum(getattr(part.stages, stage) for part in parts) for stage in STAGES},
        sum(part.unknown for part in parts),
        sum(part.leaving for part in parts),
        reasons,
        generation,
        before,
        last_action,
        deadline,
    )


def _count(reasons: dict[tuple[str, str], PendingReason], each: PendingReason) -> None:
    """Add to the counts by stage and reason. The first of several messages is kept."""
    known = reasons.get((each.stage, each.reason))
    if known is not None:
        each = PendingReason(each.stage, each.reason, known.count + each.count, known.message or each.message)
    reasons[each.stage, each.reason] = each


def _written(
    desired: int,
    stages: dict[str, int],
    unknown: int,
    leaving: int,
    reasons: Mapping[tuple[str, str], PendingReason],
    generation: int,
    before: WorkloadProgress,
    last_action: LastAction,
    deadline: datetime | None,
) -> dict[str, Any]:
    # Absent values are written as null: a merge patch keeps the fields that it does not name.
    action = last_action.action or before.last_action
    error = last_action.error if last_action.action or last_action.error else before.last_error
    at = last_action.at if last_action.action else before.last_action_time
    return {
        "desired": desired,
        "stages": stages,
        "unknown": unknown,
        "leaving": leaving,
        "pending": [_pending_json(each) for each in sorted(reasons.values(), key=_pending_order)],
        "lastAction": action or None,
        "lastActionTime": None if at is None else format_time(at),
        "lastError": error or None,
        "observedGeneration": generation,
        "deadline": None if deadline is None else format_time(deadline),
    }


def _pending_json(each: PendingReason) -> dict[str, Any]:
    found = {"stage": each.stage, "reason": each.reason, "count": each.count}
    return {**found, "message": each.message} if each.message else found


def _pending_order(each: PendingReason) -> tuple[int, str]:
    return _ORDER.get(each.stage, len(_ORDER)), each.reason

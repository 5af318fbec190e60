"""Progress as state: how far each replica of a workload has come, and why the rest has not come further.

admitted, queued, scheduled, bound, starting, ready, serving; written as `status.progress` of Deployment, ReplicaSet and
Job. Computed from pods and EndpointSlices alone, so it can be checked against them; it never reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from kedge.api.conditions import FALSE, find_condition
from kedge.api.timestamps import format_time
from kedge.api.views import PodView
from kedge.api.views.workloads import WorkloadProgress
from kedge.controllers.shared.pods import is_active, is_ready


class ReplicaStage(StrEnum):
    """How far a replica has come. Each is counted once, at its furthest stage."""

    ADMITTED = "admitted"
    """It exists, and something still keeps it from the scheduler's queue."""
    QUEUED = "queued"
    """The scheduler is to find a node for it."""
    SCHEDULED = "scheduled"
    """A node was chosen for it; the claim is not committed."""
    BOUND = "bound"
    """The node is committed; its agent has not answered."""
    STARTING = "starting"
    """The agent is at it; or it was ready once and is not now."""
    READY = "ready"
    SERVING = "serving"
    """Ready, and listed in an EndpointSlice of its Service."""


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
"""Reasons that only say whose turn it is. They keep gates shut, and neither block nor regress: nobody has refused."""
_ORDER: dict[str, int] = {str(stage): place for place, stage in enumerate(ReplicaStage)}


def stage_of(pod: PodView, listed: Collection[str]) -> ReplicaStage | None:
    """The stage of a replica; None for a pod that is leaving or has ended. `listed` are the uids that get work."""
    if not is_active(pod):
        return None
    if is_ready(pod):
        return ReplicaStage.SERVING if pod.uid in listed else ReplicaStage.READY
    if pod.spec.node_name:
        answered = pod.status.start_time is not None or bool(pod.status.container_statuses)
        return ReplicaStage.STARTING if answered or pod.status.phase not in ("", "Pending") else ReplicaStage.BOUND
    if pod.status.nominated_node_name:
        return ReplicaStage.SCHEDULED
    return ReplicaStage.ADMITTED if pod.spec.scheduling_gates else ReplicaStage.QUEUED


def pending_reason(pod: PodView, stage: ReplicaStage) -> str:
    """Why a replica is not further, in one word: what the scheduler or the agent wrote, or whose turn it is."""
    match stage:
        case ReplicaStage.ADMITTED:
            return "SchedulingGated"
        case ReplicaStage.QUEUED | ReplicaStage.SCHEDULED:
            found = find_condition(pod.status.conditions, "PodScheduled")
            told = found.reason if found is not None and found.status == FALSE else ""
            return told or ("WaitingForScheduler" if stage is ReplicaStage.QUEUED else "WaitingForBind")
        case ReplicaStage.BOUND:
            return "WaitingForAgent"
        case ReplicaStage.STARTING:
            statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
            waiting = [each.state.waiting.reason for each in statuses if each.state.waiting is not None]
            return next(filter(None, waiting), "ContainersNotReady")
        case ReplicaStage.READY | ReplicaStage.SERVING:
            return ""


@dataclass(frozen=True, slots=True)
class LastAction:
    """What a reconcile did last, and how that went."""

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
    """`status.progress` of a workload whose replicas these are. Without an attempt, the last one stays on record."""
    stages: Counter[ReplicaStage] = Counter()
    reasons: Counter[tuple[ReplicaStage, str]] = Counter()
    leaving = 0
    for pod in pods:
        stage = stage_of(pod, listed)
        if stage is None:
            leaving += not pod.finished
            continue
        stages[stage] += 1
        reason = pending_reason(pod, stage)
        if reason:
            reasons[stage, reason] += 1
    pending = sorted(reasons.items(), key=lambda item: (_ORDER[item[0][0]], item[0][1]))
    return _written(
        desired,
        {str(stage): stages[stage] for stage in ReplicaStage},
        leaving,
        [{"stage": str(stage), "reason": reason, "count": count} for (stage, reason), count in pending],
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
    """`status.progress` of a workload whose replicas are counted by its parts, as a Deployment's by ReplicaSets."""
    reasons: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for each in part.pending:
            reasons[each.stage, each.reason] += each.count
    pending = sorted(reasons.items(), key=lambda item: (_ORDER.get(item[0][0], len(_ORDER)), item[0][1]))
    return _written(
        desired,
        {stage: sum(getattr(part.stages, stage) for part in parts) for stage in _ORDER},
        sum(part.leaving for part in parts),
        [{"stage": stage, "reason": reason, "count": count} for (stage, reason), count in pending],
        generation,
        before,
        last_action,
        deadline,
    )


def _written(
    desired: int,
    stages: dict[str, int],
    leaving: int,
    pending: list[dict[str, Any]],
    generation: int,
    before: WorkloadProgress,
    last_action: LastAction,
    deadline: datetime | None,
) -> dict[str, Any]:
    # What is not there is written as null: a merge leaves alone what is not named.
    action = last_action.action or before.last_action
    error = last_action.error if last_action.action or last_action.error else before.last_error
    at = last_action.at if last_action.action else before.last_action_time
    return {
        "desired": desired,
        "stages": stages,
        "leaving": leaving,
        "pending": pending,
        "lastAction": action or None,
        "lastActionTime": None if at is None else format_time(at),
        "lastError": error or None,
        "observedGeneration": generation,
        "deadline": None if deadline is None else format_time(deadline),
    }

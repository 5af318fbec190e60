"""Conditions that Deployments, ReplicaSets and Jobs share: `Bound`, `SchedulingRetrying`, `ReplicaFailure`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.api.conditions import TRUE, condition, find_condition
from kedge.api.views import JobView, ReplicaSetView
from kedge.errors import OperatingError
from kedge.placement.reasons import refusal_reason

REPLICA_FAILURE = "ReplicaFailure"

BOUND = "Bound"
SCHEDULING_RETRYING = "SchedulingRetrying"
_WITHOUT_NODE = ("admitted", "queued", "scheduled")


def stage_conditions(
    progress: Mapping[str, Any],
    *,
    desired: int,
    stages: Mapping[str, int] | None = None,
    counted: bool = True,
    stages_counted: bool = True,
) -> list[dict[str, Any]]:
    """`Bound` and `SchedulingRetrying` of a workload that requests `desired` replicas.

    `stages` counts the replicas of the current template, if the progress counts others too. While fewer are counted
    than requested, the workload is not bound even if none waits: the missing replicas have no node.

    Without `counted` the progress is that of an earlier generation: `SchedulingRetrying` then stays as it is, with the
    generation that it observed. Without `stages_counted` the stages are those of an earlier generation: a workload
    that was bound stays so, unless they are too few.
    """
    refused = next((each for each in progress["pending"] if _is_refusal(each)), None)
    retrying = condition(SCHEDULING_RETRYING, status=False, reason="NothingToRetry")
    why = ""
    if refused is not None:
        why = refused.get("message", "")
        retrying = condition(
            SCHEDULING_RETRYING, status=True, reason=refusal_reason(why) or refused["reason"], message=why
        )
    found = {**progress["stages"], "unknown": progress["unknown"]} if stages is None else stages
    bound = _bound(found, desired, why)
    kept = not stages_counted and bound["status"] == TRUE
    return [*([] if kept else [bound]), *([retrying] if counted else [])]


def _bound(stages: Mapping[str, int], desired: int, why: str) -> dict[str, Any]:
    waiting = sum(stages.get(each, 0) for each in _WITHOUT_NODE)
    placed = sum(stages.values()) - waiting
    if waiting:
        return condition(BOUND, status=False, reason="WaitingForNodes", message=why)
    if placed < desired:
        return condition(BOUND, status=False, reason="WaitingForReplicas")
    return condition(BOUND, status=True, reason="AllBound")


def _is_refusal(pending: Mapping[str, Any]) -> bool:
    """The scheduler tried the pod and gave a reason; not a pod that still waits for its turn."""
    return pending["stage"] in ("queued", "scheduled") and not pending["reason"].startswith("WaitingFor")


def failure_condition(view: ReplicaSetView | JobView, refusal: OperatingError | None) -> list[dict[str, Any]]:
    """`ReplicaFailure`: a pod could not be created or deleted. It turns false when that is over."""
    if refusal is not None:
        return [condition(REPLICA_FAILURE, status=True, reason=f"{type(refusal).__name__}", message=refusal.message)]
    if find_condition(view.status.conditions, REPLICA_FAILURE) is None:
        return []
    return [condition(REPLICA_FAILURE, status=False, reason="Succeeded")]

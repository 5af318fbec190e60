"""Conditions that Deployments, ReplicaSets and Jobs share: `Bound`, `SchedulingRetrying`, `ReplicaFailure`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.api.conditions import condition, find_condition
from kedge.api.views import JobView, ReplicaSetView
from kedge.errors import OperatingError

REPLICA_FAILURE = "ReplicaFailure"

BOUND = "Bound"
SCHEDULING_RETRYING = "SchedulingRetrying"
_WITHOUT_NODE = ("admitted", "queued", "scheduled")


def stage_conditions(
    progress: Mapping[str, Any], *, desired: int, stages: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """`Bound` and `SchedulingRetrying` of a workload that requests `desired` replicas.

    `stages` counts the replicas of the current template, if the progress counts others too. While fewer are counted
    than requested, the workload is not bound even if none waits: the missing replicas have no node.
    """
    refused = [each["reason"] for each in progress["pending"] if _is_refusal(each)]
    retrying = condition(SCHEDULING_RETRYING, status=bool(refused), reason=refused[0] if refused else "NothingToRetry")
    return [_bound(progress["stages"] if stages is None else stages, desired), retrying]


def _bound(stages: Mapping[str, int], desired: int) -> dict[str, Any]:
    waiting = sum(stages.get(each, 0) for each in _WITHOUT_NODE)
    placed = sum(stages.values()) - waiting
    if waiting:
        return condition(BOUND, status=False, reason="WaitingForNodes")
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

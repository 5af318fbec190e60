"""How a missing replica's repair stands, as conditions: unknown, release requested, replacing, complete. Pure.

Requested and completed are told apart: `RepairComplete` is true only when every replacement is ready. Nothing here
decides; `replicas` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kedge.api.conditions import UNKNOWN, condition, find_condition
from kedge.api.views import PodView, ReplicaSetView
from kedge.api.wellknown import REPLACES
from kedge.controllers.shared.pods import is_active, is_lost, is_ready
from kedge.controllers.shared.progress import UNDER_WAY, pending_reason, stage_of

REPAIR_COMPLETE = "RepairComplete"
BLOCKED = "ReplacementBlocked"
"""Why a repair is not complete: something refuses the replacement, and the message names it."""
BOUND = "Bound"
SCHEDULING_RETRYING = "SchedulingRetrying"
_WITHOUT_NODE = ("admitted", "queued", "scheduled")


def repair_condition(view: ReplicaSetView, pods: Sequence[PodView], refusal: str = "") -> list[dict[str, Any]]:
    """`RepairComplete`, for a ReplicaSet that has or had something to repair. `refusal`: why no pod could be made."""
    reason, about = repair_stage(view.spec.replicas, pods)
    if reason == "Replacing" and refusal:
        reason, about = BLOCKED, [refusal]
    if reason:
        message = f"{', '.join(about[:5])}{' and more' if len(about) > 5 else ''}"
        return [condition(REPAIR_COMPLETE, status=False, reason=reason, message=message)]
    if find_condition(view.status.conditions, REPAIR_COMPLETE) is None:
        return []
    return [condition(REPAIR_COMPLETE, status=True, reason="Repaired")]


def repair_stage(want: int, pods: Sequence[PodView]) -> tuple[str, list[str]]:
    """The earliest stage that some replica is at, with the pods it is about; an empty reason if there is none."""
    lost = [pod.name for pod in pods if is_lost(pod)]
    if lost:
        return "ReleaseRequested", lost
    unknown = [pod.name for pod in pods if is_active(pod) and _is_unknown(pod)]
    if unknown:
        return "ReplicaUnknown", unknown
    copies = sum(not pod.finished for pod in pods)
    ended = [pod.name for pod in pods if pod.finished]
    if ended and copies < want:
        return "Replacing", ended
    waiting = [pod for pod in pods if pod.metadata.annotations.get(REPLACES) and is_active(pod) and not is_ready(pod)]
    blocked = [f"{pod.name}: {words}" for pod in waiting if (words := _blocker(pod))]
    if blocked:
        return BLOCKED, blocked
    return ("ReplacementStarting", [pod.name for pod in waiting]) if waiting else ("", [])


def _blocker(pod: PodView) -> str:
    """What keeps a replacement from running, in its own words; empty if only its turn has not come."""
    stage = stage_of(pod, ())
    reason = pending_reason(pod, stage) if stage is not None else ""
    return f"{stage}, {reason}" if reason and reason not in UNDER_WAY else ""


def _is_unknown(pod: PodView) -> bool:
    found = find_condition(pod.status.conditions, "Ready")
    return found is not None and found.status == UNKNOWN


def stage_conditions(
    progress: Mapping[str, Any], *, asked: int, stages: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """`Bound` and `SchedulingRetrying` of a workload that asks for so many replicas.

    `stages` counts those of its present template, where its progress counts others too. That none waits for a node
    says nothing while fewer are counted than are asked for: those that are missing have none.
    """
    refused = [each["reason"] for each in progress["pending"] if _is_refusal(each)]
    retrying = condition(SCHEDULING_RETRYING, status=bool(refused), reason=refused[0] if refused else "NothingToRetry")
    return [_bound(progress["stages"] if stages is None else stages, asked), retrying]


def _bound(stages: Mapping[str, int], asked: int) -> dict[str, Any]:
    waiting = sum(stages.get(each, 0) for each in _WITHOUT_NODE)
    placed = sum(stages.values()) - waiting
    if waiting:
        return condition(BOUND, status=False, reason="WaitingForNodes")
    if placed < asked:
        return condition(BOUND, status=False, reason="WaitingForReplicas")
    return condition(BOUND, status=True, reason="AllBound")


def _is_refusal(pending: Mapping[str, Any]) -> bool:
    """The scheduler tried and said why it could not; as against a pod whose turn has not come."""
    return pending["stage"] in ("queued", "scheduled") and not pending["reason"].startswith("WaitingFor")

"""The status of a ReplicaSet: its counts, and how the repair of a missing replica stands. Pure.

A repair that is requested and one that is complete are two states: `RepairComplete` is true only when every replacement
is ready. Nothing here decides; `plan` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.api.conditions import UNKNOWN, condition, find_condition
from kedge.api.views import PodView, ReplicaSetView
from kedge.api.wellknown import REPLACES
from kedge.controllers.shared.pods import (
    is_active,
    is_available,
    is_lost,
    is_ready,
)
from kedge.controllers.shared.progress import UNDER_WAY, pending_reason, stage_of

REPAIR_COMPLETE = "RepairComplete"

BLOCKED = "ReplacementBlocked"
"""The reason of an incomplete repair whose replacement is refused; the message names the cause."""


def repair_condition(view: ReplicaSetView, pods: Sequence[PodView], refusal: str = "") -> list[dict[str, Any]]:
    """`RepairComplete`, for a ReplicaSet that needs or needed a repair. `refusal`: why no pod could be created."""
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
    """The earliest repair stage of any replica, and its pods; an empty reason if no replica needs repair."""
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
    blocked = [f"{pod.name}: {blocker}" for pod in waiting if (blocker := _blocker(pod))]
    if blocked:
        return BLOCKED, blocked
    return ("ReplacementStarting", [pod.name for pod in waiting]) if waiting else ("", [])


def _blocker(pod: PodView) -> str:
    """The stage and reason that keep a replacement from running; empty if it only waits for its turn."""
    stage = stage_of(pod, ())
    reason = pending_reason(pod, stage) if stage is not None else ""
    return f"{stage}, {reason}" if reason and reason not in UNDER_WAY else ""


def _is_unknown(pod: PodView) -> bool:
    found = find_condition(pod.status.conditions, "Ready")
    return found is not None and found.status == UNKNOWN


def replica_counts(replica_set: ReplicaSetView, pods: Sequence[PodView], now: datetime) -> dict[str, Any]:
    """The counts of a ReplicaSet's status. Pods that drain or are being deleted are no replicas."""
    spec = replica_set.spec
    template_labels = spec.template.metadata.labels
    active = [pod for pod in pods if is_active(pod)]
    return {
        "replicas": len(active),
        "fullyLabeledReplicas": sum(_has_all(pod.labels, template_labels) for pod in active),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": sum(is_available(pod, spec.min_ready_seconds, now) for pod in active),
        "terminatingReplicas": sum(not pod.finished for pod in pods) - len(active),
    }


def _has_all(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())

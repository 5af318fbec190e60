"""The status of a ReplicaSet: its counts, and how the repair of a missing replica stands. Pure.

A repair that is requested and one that is complete are two states: `RepairComplete` is true only when every replacement
is ready and no replica is missing. Nothing here decides; `plan` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from kedge.api.conditions import condition, find_condition
from kedge.api.views import PodView, ReplicaSetView
from kedge.api.wellknown import REPLACES
from kedge.controllers.shared.pods import (
    is_active,
    is_available,
    is_lost,
    is_ready,
)
from kedge.controllers.shared.progress import UNDER_WAY, is_unknown, pending_reason, refusal_message, stage_of
from kedge.errors import OperatingError
from kedge.placement.reasons import creation_blocker, refusal_reason

REPAIR_COMPLETE = "RepairComplete"

MISSING = "ReplicasMissing"
"""The reason of an incomplete repair whose evidence is gone: fewer replicas exist than are requested."""


def repair_condition(
    view: ReplicaSetView, pods: Sequence[PodView], refusal: OperatingError | None = None, *, created: int = 0
) -> list[dict[str, Any]]:
    """`RepairComplete`, for a ReplicaSet that needs or needed a repair. The reason of a blocked one is its blocker.

    `refusal`: why no pod could be created. `created`: pods that exist, although they are not in `pods` yet.
    """
    want = view.spec.replicas
    reason, about = repair_stage(want, pods)
    missing = want - sum(map(is_active, pods)) - created
    if not reason and missing > 0 and find_condition(view.status.conditions, REPAIR_COMPLETE) is not None:
        reason, about = MISSING, [f"{missing} of {want} replicas do not exist"]
    if reason in ("Replacing", MISSING) and refusal is not None:
        reason, about = creation_blocker(type(refusal).__name__, refusal.message), [refusal.message]
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
    unknown = [pod.name for pod in pods if is_active(pod) and is_unknown(pod)]
    if unknown:
        return "ReplicaUnknown", unknown
    copies = sum(not pod.finished for pod in pods)
    ended = [pod.name for pod in pods if pod.finished]
    if ended and copies < want:
        return "Replacing", ended
    waiting = [pod for pod in pods if pod.metadata.annotations.get(REPLACES) and is_active(pod) and not is_ready(pod)]
    blocked = [(pod.name, *blocker) for pod in waiting if (blocker := _blocker(pod)) is not None]
    if blocked:
        return blocked[0][1], [f"{name}: {about}" for name, _, about in blocked]
    return ("ReplacementStarting", [pod.name for pod in waiting]) if waiting else ("", [])


def _blocker(pod: PodView) -> tuple[str, str] | None:
    """The reason that keeps a replacement from running, and its stage with the message; None if it waits its turn."""
    stage = stage_of(pod, ())
    if stage is None:
        return None
    reason, message = pending_reason(pod, stage), refusal_message(pod, stage)
    if not reason or reason in UNDER_WAY:
        return None
    return refusal_reason(message) or reason, f"{stage}, {message or reason}"


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

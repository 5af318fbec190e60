"""The status of a Deployment: counts, conditions and the progress deadline of its rollout. Pure.

Progress is computed from the counts. The deadline restarts with each step forward and with each new generation, and
stops when the rollout is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kedge.api.conditions import FALSE, TRUE, condition, find_condition
from kedge.api.timestamps import format_time
from kedge.api.views import DeploymentView, ReplicaSetView
from kedge.api.wellknown import AVAILABILITY_FLOOR, DEPLOYMENT_REVISION, DEPLOYMENT_REVISION_HISTORY
from kedge.controllers.deployment.plan import RollingBounds
from kedge.controllers.replicaset.status import REPAIR_COMPLETE
from kedge.controllers.shared.conditions import REPLICA_FAILURE
from kedge.controllers.shared.pods import is_ahead
from kedge.placement.reasons import creation_blocker

AVAILABLE, PROGRESSING, ROLLBACK_OBSERVED = "Available", "Progressing", "RollbackObserved"
FLOOR_HOLDS = "AvailabilityFloor"
NO_DEADLINE = 2**31 - 1
"""The `progressDeadlineSeconds` that means no deadline."""


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The replicas of a Deployment, as its ReplicaSets report them."""

    replicas: int
    updated: int
    ready: int
    available: int
    unavailable: int
    terminating: int

    def as_json(self) -> dict[str, int]:
        return {
            "replicas": self.replicas,
            "updatedReplicas": self.updated,
            "readyReplicas": self.ready,
            "availableReplicas": self.available,
            "unavailableReplicas": self.unavailable,
            "terminatingReplicas": self.terminating,
        }


def count_replicas(current: ReplicaSetView | None, sets: Sequence[ReplicaSetView]) -> ReplicaCounts:
    available = sum(each.status.available_replicas for each in sets)
    return ReplicaCounts(
        replicas=sum(each.status.replicas for each in sets),
        updated=current.status.replicas if current is not None else 0,
        ready=sum(each.status.ready_replicas for each in sets),
        available=available,
        unavailable=max(0, sum(each.spec.replicas for each in sets) - available),
        terminating=sum(each.status.terminating_replicas for each in sets),
    )


def is_complete(view: DeploymentView, counts: ReplicaCounts) -> bool:
    """All replicas have the current template and are available, and no other replica is left."""
    desired = view.spec.replicas
    return counts.updated == counts.replicas == counts.available == desired and counts.terminating == 0


def has_progressed(view: DeploymentView, counts: ReplicaCounts) -> bool:
    """Whether the counts have advanced since the last status."""
    before = view.status
    return (
        counts.updated > before.updated_replicas
        or counts.replicas - counts.updated < before.replicas - before.updated_replicas
        or counts.ready > before.ready_replicas
        or counts.available > before.available_replicas
        or counts.terminating < before.terminating_replicas
    )


@dataclass(frozen=True, slots=True)
class ProgressResult:
    """The `Progressing` condition, and the deadline for the next step."""

    condition: dict[str, Any]
    deadline: datetime | None = None


def evaluate_progress(
    view: DeploymentView, counts: ReplicaCounts, now: datetime, *, waits_for: str = ""
) -> ProgressResult:
    """The `Progressing` condition."""
    known = find_condition(view.status.conditions, PROGRESSING)
    generation = view.generation
    if view.spec.paused:
        return ProgressResult(
            condition(PROGRESSING, status=None, reason="DeploymentPaused", observed_generation=generation)
        )
    message = (
        f"{counts.updated} of {view.spec.replicas} updated, {counts.available} available, {counts.replicas} in all"
    )
    if is_complete(view, counts):
        return ProgressResult(
            condition(
                PROGRESSING,
                status=True,
                reason="NewReplicaSetAvailable",
                message=message,
                observed_generation=generation,
            )
        )
    since = known.last_update_time if known is not None else None
    restarts = (
        known is None
        or since is None
        or known.observed_generation != generation
        or known.reason in ("DeploymentPaused", "NewReplicaSetAvailable")
        or has_progressed(view, counts)
    )
    ahead = since is not None and is_ahead(since, now)
    restarts = restarts or ahead
    began = now if restarts or since is None else since
    deadline = None
    if view.spec.progress_deadline_seconds < NO_DEADLINE:
        deadline = began + timedelta(seconds=view.spec.progress_deadline_seconds)
    if deadline is not None and deadline <= now and not restarts:
        late = f"no progress for {view.spec.progress_deadline_seconds} s: {message}"
        if waits_for:
            late += f"; it waits for {waits_for}"
        return ProgressResult(
            condition(
                PROGRESSING,
                status=False,
                reason="ProgressDeadlineExceeded",
                message=late,
                observed_generation=generation,
            )
        )
    # A status write skips times that change alone: after a clock correction the reason changes too, so it is written.
    reason = "ClockRestarted" if ahead else "ReplicaSetUpdated"
    progressing = condition(PROGRESSING, status=True, reason=reason, message=message, observed_generation=generation)
    if restarts:
        progressing["lastUpdateTime"] = format_time(now)
    return ProgressResult(progressing, deadline)


def availability(view: DeploymentView, counts: ReplicaCounts, bounds: RollingBounds) -> dict[str, Any]:
    enough = counts.available >= view.spec.replicas - bounds.unavailable
    return condition(
        AVAILABLE,
        status=enough,
        reason="MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        message="" if enough else f"{counts.available} of {view.spec.replicas} replicas are available",
        observed_generation=view.generation,
    )


def failures(view: DeploymentView, sets: Sequence[ReplicaSetView]) -> list[dict[str, Any]]:
    """`ReplicaFailure`: true if some ReplicaSet has one; false if the Deployment still shows one that is over."""
    for each in sets:
        found = find_condition(each.status.conditions, REPLICA_FAILURE)
        if found is not None and found.status == TRUE:
            message = f"{each.name}: {found.message}"
            return [condition(REPLICA_FAILURE, status=True, reason=found.reason, message=message)]
    if find_condition(view.status.conditions, REPLICA_FAILURE) is None:
        return []
    return [condition(REPLICA_FAILURE, status=False, reason="Succeeded")]


def have_counted(sets: Sequence[ReplicaSetView]) -> bool:
    """Whether the status of every ReplicaSet is about the replicas that its spec requests now."""
    return all(each.status.observed_generation >= each.generation for each in sets)


def repairs(view: DeploymentView, sets: Sequence[ReplicaSetView]) -> list[dict[str, Any]]:
    """`RepairComplete`, if some ReplicaSet needs or needed a repair: true when all repairs are complete and every
    replica exists.

    While the ReplicaSets have not counted as many replicas as this generation requests, the condition stays as it is,
    with the generation that it observed.
    """
    known = [find_condition(view.status.conditions, REPAIR_COMPLETE)]
    for each in sets:
        found = find_condition(each.status.conditions, REPAIR_COMPLETE)
        known.append(found)
        if found is not None and found.status == FALSE:
            message = f"{each.name}: {found.message}"
            return [condition(REPAIR_COMPLETE, status=False, reason=found.reason, message=message)]
    if not any(known):
        return []
    for each in sets:
        refused = find_condition(each.status.conditions, REPLICA_FAILURE)
        if refused is not None and refused.status == TRUE and each.status.replicas < each.spec.replicas:
            blocker = creation_blocker(refused.reason, refused.message)
            return [condition(REPAIR_COMPLETE, status=False, reason=blocker, message=f"{each.name}: {refused.message}")]
    if not have_counted(sets) or sum(each.status.replicas for each in sets) < view.spec.replicas:
        return []
    return [condition(REPAIR_COMPLETE, status=True, reason="Repaired")]


def rollback(view: DeploymentView, current: ReplicaSetView | None, *, rolls_back: bool) -> list[dict[str, Any]]:
    """`RollbackObserved`: the current template was rolled out before.

    While a ReplicaSet that `rolls_back` has not been given its new revision, the condition stays as it is: it would be
    False now and True at once.
    """
    if current is None:
        return []
    earlier = current.metadata.annotations.get(DEPLOYMENT_REVISION_HISTORY, "")
    if earlier:
        revision = current.metadata.annotations.get(DEPLOYMENT_REVISION, "")
        message = f"revision {revision} is what revision {earlier.rpartition(',')[2]} was"
        return [condition(ROLLBACK_OBSERVED, status=True, reason="RevisionReused", message=message)]
    if rolls_back or find_condition(view.status.conditions, ROLLBACK_OBSERVED) is None:
        return []
    return [condition(ROLLBACK_OBSERVED, status=False, reason="RevisionIsNew")]


def availability_floor(view: DeploymentView, kept: str) -> list[dict[str, Any]]:
    """`AvailabilityFloor`: true while a rollback keeps the last available replica, which its strategy would remove."""
    if kept:
        message = f"the last available replica of {kept} stays until one of the rollback is available"
        message += f'; the annotation {AVAILABILITY_FLOOR}: "off" removes it at once'
        return [condition(FLOOR_HOLDS, status=True, reason="LastAvailableReplica", message=message)]
    if find_condition(view.status.conditions, FLOOR_HOLDS) is None:
        return []
    return [condition(FLOOR_HOLDS, status=False, reason="NothingHeldBack")]

"""Predicates on pods, and the order in which a surplus is deleted. Pure.

The workload controllers share them, and decide what follows from the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from kedge.api.conditions import TRUE, find_condition
from kedge.api.views import PodTemplate, PodView
from kedge.api.wellknown import AT_MOST_ONE, DISRUPTION_TARGET, DRAINING, NODE_LOST, POD_DELETION_COST

CLOCK_SKEW_S = 30.0
"""A time further ahead than this was written by a wrong clock. No controller waits for it: that could take days."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_PHASE_RANK = {"Pending": 0, "Unknown": 1}


def is_ahead(moment: datetime, now: datetime) -> bool:
    """Whether a time is so far in the future that only a wrong clock can have written it."""
    return moment > now + timedelta(seconds=CLOCK_SKEW_S)


def is_ready(pod: PodView) -> bool:
    found = find_condition(pod.status.conditions, "Ready")
    return found is not None and found.status == TRUE and not pod.finished


def ready_since(pod: PodView) -> datetime | None:
    """Since when it is ready; None if it is not ready, or if the condition has no time."""
    found = find_condition(pod.status.conditions, "Ready")
    return found.last_transition_time if found is not None and found.status == TRUE else None


def is_available(pod: PodView, min_ready_s: int, now: datetime) -> bool:
    """Whether it has been ready for as long as its owner requires."""
    if not is_ready(pod):
        return False
    since = ready_since(pod)
    if min_ready_s == 0:
        return True
    return since is not None and (since + timedelta(seconds=min_ready_s) <= now or is_ahead(since, now))


def available_at(pod: PodView, min_ready_s: int, now: datetime) -> datetime | None:
    """When a pod that is not ready for long enough yet becomes available, if it stays ready."""
    since = ready_since(pod)
    if since is None or not is_ready(pod) or is_available(pod, min_ready_s, now):
        return None
    return since + timedelta(seconds=min_ready_s)


def is_draining(pod: PodView) -> bool:
    return DRAINING in pod.metadata.annotations


def is_active(pod: PodView) -> bool:
    """It counts as a replica: it has not ended, and it is neither draining nor being deleted."""
    return not pod.finished and not pod.terminating and not is_draining(pod)


def is_lost(pod: PodView) -> bool:
    """The node lifecycle controller declared its node lost, and requests that the owner releases the pod. A suspected
    node is not enough."""
    found = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return found is not None and found.status == TRUE and found.reason == NODE_LOST and not pod.finished


def requires_at_most_one(template: PodTemplate) -> bool:
    return template.metadata.annotations.get(AT_MOST_ONE) == "true"


def restarts(pod: PodView) -> int:
    return sum(each.restart_count for each in pod.status.container_statuses)


def in_deletion_order(
    pods: Sequence[PodView],
    *,
    siblings: Sequence[PodView] = (),
    min_ready_s: int = 0,
    now: datetime,
    first: Collection[str] = (),
) -> list[PodView]:
    """Pods in the order in which a surplus is deleted.

    Kubernetes' order: unassigned, pending, unknown, not ready, cheaper to delete, more of `siblings` on the same node,
    ready for a shorter time, restarted more often, younger. Two steps are added after readiness: not yet available, so
    that no available replica is deleted while there is another; then the uids in `first`.
    """
    crowd: dict[str, int] = {}
    for each in siblings or pods:
        if is_active(each) and each.spec.node_name:
            crowd[each.spec.node_name] = crowd.get(each.spec.node_name, 0) + 1
    return sorted(pods, key=lambda pod: _deletion_rank(pod, crowd, min_ready_s, now, first))


def _deletion_rank(
    pod: PodView, crowd: Mapping[str, int], min_ready_s: int, now: datetime, first: Collection[str]
) -> tuple[object, ...]:
    return (
        bool(pod.spec.node_name),
        _PHASE_RANK.get(pod.status.phase, 2),
        is_ready(pod),
        is_available(pod, min_ready_s, now),
        pod.uid not in first,
        _deletion_cost(pod),
        -crowd.get(pod.spec.node_name, 0),
        -_seconds(ready_since(pod)),
        -restarts(pod),
        -_seconds(pod.metadata.creation_timestamp),
        pod.uid,  # the order of equal pods is the same every time
    )


def _deletion_cost(pod: PodView) -> int:
    text = pod.metadata.annotations.get(POD_DELETION_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0


def _seconds(moment: datetime | None) -> float:
    return ((moment or _LONG_AGO) - _LONG_AGO).total_seconds()

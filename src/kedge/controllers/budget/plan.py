"""The plan of a disruption budget: how many pods are healthy, wanted and allowed to be disrupted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kedge.api.views import PodDisruptionBudgetView, PodView
from kedge.controllers.deployment.plan import scaled
from kedge.controllers.shared.pods import is_active, is_ready


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """What the status is to say."""

    current_healthy: int
    desired_healthy: int
    expected_pods: int
    disruptions_allowed: int
    disrupted: dict[str, datetime] = field(default_factory=dict)
    """Evictions whose pods have not been seen to leave."""


def plan_budget(
    budget: PodDisruptionBudgetView, pods: Sequence[PodView], expected: int, *, pods_are_current: bool
) -> BudgetPlan:
    """Count. `expected` is how many pods their owners ask for.

    `pods_are_current` if they are as new as the budget at least: then whatever was evicted is seen to leave, or has
    left.
    """
    disrupted = {} if pods_are_current else still_disrupted(budget, pods)
    healthy = sum(is_active(pod) and is_ready(pod) and pod.name not in disrupted for pod in pods)
    spec = budget.spec
    if spec.max_unavailable is not None:
        desired = max(0, expected - scaled(spec.max_unavailable, expected, round_up=True))
    elif isinstance(spec.min_available, str):
        desired = scaled(spec.min_available, expected, round_up=True)
    else:
        desired, expected = spec.min_available or 0, len(pods)
    allowed = max(0, healthy - desired) if expected > 0 else 0
    return BudgetPlan(healthy, desired, expected, allowed, disrupted)


def still_disrupted(budget: PodDisruptionBudgetView, pods: Sequence[PodView]) -> dict[str, datetime]:
    """Evictions of pods that look as if nothing had happened to them.

    An eviction names its pod here in the very commit that tells the pod to go, so it is for revisions to say whether
    this is that pod or another of its name. Times cannot: they are of several servers' clocks.
    """
    staying = {pod.name for pod in pods if not pod.terminating and not pod.finished}
    return {name: at for name, at in budget.status.disrupted_pods.items() if name in staying}

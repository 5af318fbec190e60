"""The plan of a disruption budget: how many pods are healthy, wanted and allowed to be disrupted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kedge.api.conditions import find_condition
from kedge.api.views import PodDisruptionBudgetView, PodView
from kedge.api.wellknown import DISRUPTION_ALLOWED
from kedge.controllers.deployment.plan import scaled
from kedge.controllers.shared.pods import is_active, is_ready


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """The counts of the status."""

    current_healthy: int
    desired_healthy: int
    expected_pods: int
    disruptions_allowed: int
    disrupted: dict[str, datetime] = field(default_factory=dict)
    """Evicted pods that have not been seen to leave, and when they were evicted."""


def plan_budget(
    budget: PodDisruptionBudgetView, pods: Sequence[PodView], expected: int, *, pods_are_current: bool
) -> BudgetPlan:
    """Count. `expected` is the number of pods that their owners request.

    `pods_are_current` if they are at least as new as the budget: then every evicted pod is terminating or gone.
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


def starts_to_match_none(budget: PodDisruptionBudgetView, plan: BudgetPlan) -> bool:
    """Whether no pod counts any more, or none ever did: the status before this plan has other counts, or none."""
    is_new = find_condition(budget.status.conditions, DISRUPTION_ALLOWED) is None
    return plan.expected_pods == 0 and (is_new or budget.status.expected_pods > 0)


def still_disrupted(budget: PodDisruptionBudgetView, pods: Sequence[PodView]) -> dict[str, datetime]:
    """Evictions whose pods do not show it yet.

    An eviction names its pod here in the commit that deletes the pod. Only revisions distinguish it from a new pod of
    its name; times cannot, because they come from the clocks of several servers.
    """
    staying = {pod.name for pod in pods if not pod.terminating and not pod.finished}
    return {name: at for name, at in budget.status.disrupted_pods.items() if name in staying}

"""Disruption budgets, as preemption reads them. The service checks each eviction against them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kedge.api.objects import Object
from kedge.api.selectors import label_selector
from kedge.api.views import PodDisruptionBudgetView
from kedge.keys import Key


def evictable(pods: Sequence[Object], budgets_of: Callable[[str], Sequence[Object]]) -> list[Object]:
    """The pods whose budgets allow them to be evicted together, in the same order. A pod without a budget always is."""
    budgets: dict[str, Sequence[Object]] = {}
    left: dict[Key, int] = {}
    going = []
    for pod in pods:
        tenant = pod.key.namespace
        if tenant not in budgets:
            budgets[tenant] = budgets_of(tenant)
        covering = [
            each
            for each in budgets[tenant]
            if label_selector(each.as_view(PodDisruptionBudgetView).spec.selector).matches(pod.metadata.labels)
        ]
        for each in covering:
            left.setdefault(each.key, allowed_by(each))
        if all(left[each.key] > 0 for each in covering):
            going.append(pod)
            for each in covering:
                left[each.key] -= 1
    return going


def allowed_by(budget_object: Object) -> int:
    """The evictions that a budget allows now: none until its controller has seen its latest generation."""
    budget = budget_object.as_view(PodDisruptionBudgetView)
    if budget.status.observed_generation < budget.metadata.generation:
        return 0
    return budget.status.disruptions_allowed

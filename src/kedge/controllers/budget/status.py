"""The plan of a disruption budget as its status. Pure."""

from __future__ import annotations

from typing import Any

from kedge.api.conditions import condition
from kedge.api.views import PodDisruptionBudgetView
from kedge.api.wellknown import DISRUPTION_ALLOWED
from kedge.controllers.budget.plan import BudgetPlan


def budget_status(budget: PodDisruptionBudgetView, plan: BudgetPlan) -> dict[str, Any]:
    """The plan as a status patch; pods that are no longer disrupted are removed."""
    enough = plan.disruptions_allowed > 0
    allowed = condition(DISRUPTION_ALLOWED, status=enough, reason="SufficientPods" if enough else "InsufficientPods")
    gone = {name: None for name in budget.status.disrupted_pods if name not in plan.disrupted}
    return {
        "currentHealthy": plan.current_healthy,
        "desiredHealthy": plan.desired_healthy,
        "expectedPods": plan.expected_pods,
        "disruptionsAllowed": plan.disruptions_allowed,
        "conditions": [allowed],
        **({"disruptedPods": gone} if gone else {}),
    }

"""The conditions of a Job: its end, decided and reached, and its suspension. Pure."""

from __future__ import annotations

from typing import Any

from kedge.api.conditions import condition, find_condition
from kedge.api.views import JobView
from kedge.controllers.job.plan import (
    COMPLETE,
    FAILED,
    FAILURE_TARGET,
    SUCCESS_TARGET,
    SUSPENDED,
    JobPlan,
)


def end_conditions(plan: JobPlan) -> list[dict[str, Any]]:
    """Two conditions: the outcome is decided, and it is reached once the last pod has ended."""
    outcome = plan.outcome
    if outcome is None:
        return []
    kind, final = (SUCCESS_TARGET, COMPLETE) if outcome.succeeds else (FAILURE_TARGET, FAILED)
    found = [condition(kind, status=True, reason=outcome.reason, message=outcome.message)]
    if plan.over:
        found.append(condition(final, status=True, reason=outcome.reason, message=outcome.message))
    return found


def suspension(view: JobView, plan: JobPlan, *, held: bool) -> list[dict[str, Any]]:
    if held or plan.outcome is not None:
        return []
    if plan.suspended:
        return [condition(SUSPENDED, status=True, reason="JobSuspended")]
    if find_condition(view.status.conditions, SUSPENDED) is None:
        return []
    return [condition(SUSPENDED, status=False, reason="JobResumed")]

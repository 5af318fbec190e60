"""PodDisruptionBudgets: how many pods may be disrupted, as the eviction verb reads it."""

from __future__ import annotations

from kedge.controllers.budget.controller import NAME, BudgetReconciler, budget_controller

__all__ = ["NAME", "BudgetReconciler", "budget_controller"]

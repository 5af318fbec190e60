"""Safeguards of repair and of what is not known: orphans are found, evictions remembered, lost replies looked for.

Each function stands in for the one that has the safeguard; its docstring says what is missing.
"""

from __future__ import annotations

from typing import Any

from kedge.controllers import budgets, orphans
from kedge.controllers.orphans import BindingRepair, ReservationRepair
from kedge.runtime.action import Action
from kedge.sim.zoo.entries import without

_ORPHANS = "testing: repair eventually removes orphaned state"

_plan_budget = budgets.plan_budget


# -- what nothing stands for any more ----------------------------------------------------------------


@without(ReservationRepair, "reconcile", source=_ORPHANS, breaks="reservations end", theme="leftovers")
async def reservations_kept_for_nobody(self: ReservationRepair, ctx: Any, key: Any) -> Action:  # noqa: ARG001
    """A reservation goes when its deadline has passed."""
    return Action.await_change()


@without(orphans, "plan_ledger", source=_ORPHANS, breaks="accounts are even", theme="leftovers")
def claims_of_the_dead_kept(ledger: Any, pods: Any, reserved: Any, *, out_of_service: bool) -> Any:  # noqa: ARG001
    """What a machine held that a person has given up is freed."""
    return orphans.LedgerPlan()


@without(BindingRepair, "reconcile", source=_ORPHANS, breaks="the bound have claims", theme="leftovers")
async def bindings_to_nowhere_kept(self: BindingRepair, ctx: Any, key: Any) -> Action:  # noqa: ARG001
    """A pod whose node is another by now is given up."""
    return Action.await_change()


@without(
    budgets,
    "plan_budget",
    source="watch streams: the cache taken for truth",
    breaks="evictions spare the budget",
    theme="evictions",
)
def evictions_forgotten(budget: Any, pods: Any, expected: int, *, pods_are_current: bool) -> Any:  # noqa: ARG001
    """An eviction counts until its pod is seen to leave."""
    return _plan_budget(budget, pods, expected, pods_are_current=True)

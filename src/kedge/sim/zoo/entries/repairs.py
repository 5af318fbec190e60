"""Safeguards of repair and of what is not known: orphans are found, evictions remembered, lost replies looked for.

Each function stands in for the one that has the safeguard; its docstring says what is missing.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from kedge.api.objects import Object
from kedge.client.contract import Client
from kedge.controllers.budget import controller as budgets
from kedge.controllers.budget.plan import plan_budget
from kedge.controllers.repair import controller as orphans
from kedge.controllers.repair.controller import BindingRepair, ReservationRepair
from kedge.controllers.repair.plan import LedgerPlan
from kedge.errors import Compacted, OutcomeUnknown, Unavailable
from kedge.keys import NO_REVISION
from kedge.runtime.action import Action
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.floors import WriteFloors
from kedge.runtime.queue.loops import LoopDetector
from kedge.runtime.queue.order import Order
from kedge.scheduler.state.cache_follower import CacheFollower
from kedge.server.service import operations
from kedge.sim.zoo.entry import without
from kedge.store.memory import MemoryStore

_ORPHANS = "testing: repair eventually removes orphaned state"
TOO_MANY_HANDS = "no crew has more hands than it was asked for"
SHORT = "crews are whole and say so"

_plan_budget = plan_budget
_push = Order.push
_edit = Object.edit
_list_nowait = MemoryStore.list_nowait


# -- what nothing stands for any more ----------------------------------------------------------------


@without(ReservationRepair, "reconcile", source=_ORPHANS, breaks="reservations end", world="leftovers")
async def reservations_kept_for_nobody(self: ReservationRepair, ctx: Any, key: Any) -> Action:  # noqa: ARG001
    """A reservation goes when its deadline has passed."""
    return Action.await_change()


@without(orphans, "plan_ledger", source=_ORPHANS, breaks="claims belong to pods", world="leftovers")
def claims_of_the_dead_kept(ledger: Any, pods: Any, reserved: Any, *, out_of_service: bool) -> Any:  # noqa: ARG001
    """What a machine held that a person has given up is freed."""
    return LedgerPlan()


@without(BindingRepair, "reconcile", source=_ORPHANS, breaks="the bound have claims", world="leftovers")
async def bindings_to_nowhere_kept(self: BindingRepair, ctx: Any, key: Any) -> Action:  # noqa: ARG001
    """A pod whose node is another by now is given up."""
    return Action.await_change()


@without(
    budgets,
    "plan_budget",
    source="watch streams: the cache taken for truth",
    breaks="evictions spare the budget",
    world="evictions",
)
def evictions_forgotten(budget: Any, pods: Any, expected: int, *, pods_are_current: bool) -> Any:  # noqa: ARG001
    """An eviction counts until its pod is seen to leave."""
    return _plan_budget(budget, pods, expected, pods_are_current=True)


# -- what became of a write --------------------------------------------------------------------------


@without(
    Client,
    "_write",
    source="reconciliation: a timed-out write that committed; k0smotron#1534",
    breaks=TOO_MANY_HANDS,
    world="unanswered",
)
async def lost_reply_taken_for_failure(self: Client, request: Any) -> Any:
    """A write whose reply was lost may have been made."""
    try:
        return await self._write_once(request)
    except OutcomeUnknown as error:
        raise Unavailable(f"{request.target} was not written") from error


@without(WriteFloors, "note_unknown", source="k0smotron#1534", breaks=TOO_MANY_HANDS, world="unanswered")
def unknown_not_read(self: WriteFloors, key: Any, wrote: Any) -> None:
    """A key reads what became of a write before it runs again."""


@without(
    operations,
    "first_outcome",
    source="reconciliation: non-idempotent create; duplicate work on retry",
    breaks=TOO_MANY_HANDS,
    world="unanswered",
)
async def repeated_is_done_again(
    core: Any,  # noqa: ARG001
    proof: Any,  # noqa: ARG001
    verb: Any,  # noqa: ARG001
    key: Any,  # noqa: ARG001
    options: Any,  # noqa: ARG001
    *,
    named: bool = True,  # noqa: ARG001
    reads: Any = (),  # noqa: ARG001
) -> None:
    """What comes again under one operation id is answered with its first outcome."""
    return


# -- what is read ------------------------------------------------------------------------------------


@without(
    Cache,
    "reached",
    source="karpenter#3176",
    breaks=SHORT,
    world="crews",
    by=("late views", "broken watches"),
)
def gone_before_it_was_seen(self: Cache, revision: int, wrote: Any = None) -> bool:
    """What came and went before a list is seen by the list."""
    if not self._listed:
        return False
    return self._revision >= revision if wrote is None else self._known(wrote) >= revision


@without(MemoryStore, "list_nowait", source="kine#676", breaks=(TOO_MANY_HANDS, SHORT), world="crews")
def list_ahead_of_itself(self: MemoryStore, kind: str, *, at: int = NO_REVISION, **asked: Any) -> Any:
    """A list holds all that was committed up to the revision that it names."""
    newest = self.revision_nowait()
    if not at and newest > 1:
        try:
            return _list_nowait(self, kind, at=newest - 1, **asked)._replace(revision=newest)
        except Compacted:
            pass  # there is no older one to pass for the newest
    return _list_nowait(self, kind, at=at, **asked)


_LENT: WeakKeyDictionary[Any, dict[int, tuple[bytes, dict[str, Any]]]] = WeakKeyDictionary()
"""By the run: what was lent, by the version it is of. Each version is kept, so that no other can pass for it."""


@without(
    Object,
    "edit",
    source="kubernetes#140702",
    breaks="nobody is refused for what another tried",
    world="evictions",
)
def edited_in_place(self: Object) -> dict[str, Any]:
    """Who changes an object changes a copy of it."""
    lent = _LENT.setdefault(asyncio.get_running_loop(), {})
    _, document = lent.setdefault(id(self.value), (self.value, {}))
    if not document:
        document.update(_edit(self))
    return document


@without(CacheFollower, "_pod_changed", source="kubernetes#138434", breaks="pods that fit are bound", world="replaced")
def namesake_takes_over(self: CacheFollower, change: Any) -> None:
    """A pod that another of its name has replaced leaves nothing behind in the scheduler."""
    old, new = change.old, change.new
    if new is not None:
        self._state.place(new, old if old is not None and old.uid == new.uid else None)
    elif old is not None:
        self._state.pod_gone(old, change.revision)


# -- who gets in another's way -----------------------------------------------------------------------


@without(LoopDetector, "hold_until_s", source="crossplane#6751, #7108", breaks="fights are slowed", world="rivals")
def fights_at_full_speed(self: LoopDetector[Any], key: Any, wakes: Any) -> float:  # noqa: ARG001
    """Who writes the same again and again is slowed."""
    return 0.0


@without(Order, "push", source="kubernetes#25744", breaks="tenants take turns", world="tenants")
def first_come_first_served(self: Order[Any], entry: Any) -> None:
    """Each tenant has its share, however many keys another has."""
    entry.tenant = ""
    _push(self, entry)

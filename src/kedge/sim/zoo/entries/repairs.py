"""Safeguards of repair and of unknown outcomes: orphans are removed, evictions counted, lost replies resolved.

Each function replaces the one that has the safeguard; its docstring describes the safeguard that is missing.
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
from kedge.errors import Compacted, OutcomeUnknown, TooManyRequests, Unavailable
from kedge.keys import NO_REVISION
from kedge.runtime.action import Action
from kedge.runtime.cache.cache import Cache
from kedge.runtime.cache.floors import WriteFloors
from kedge.runtime.queue.loops import LoopDetector
from kedge.runtime.queue.order import Order
from kedge.scheduler.state.cache_follower import CacheFollower
from kedge.server.service import eviction, operations
from kedge.server.service.budgets import budget_of
from kedge.sim.zoo.entry import without
from kedge.store.memory import MemoryStore

_ORPHANS = "testing: repair eventually removes orphaned state"
TOO_MANY_MEMBERS = "no group has more members than its size"
SHORT = "groups are complete and report it"

_plan_budget = plan_budget
_push = Order.push
_edit = Object.edit
_list_nowait = MemoryStore.list_nowait


# -- orphaned state --------------------------------------------------------------------------------


@without(ReservationRepair, "reconcile", source=_ORPHANS, breaks="reservations end", world="orphans")
async def expired_reservations_kept(self: ReservationRepair, ctx: Any, key: Any) -> Action:  # noqa: ARG001
    """A reservation is deleted when its deadline has passed."""
    return Action.await_change()


@without(orphans, "plan_ledger", source=_ORPHANS, breaks="claims belong to pods", world="orphans")
def claims_of_lost_machines_kept(ledger: Any, pods: Any, reserved: Any, *, out_of_service: bool) -> Any:  # noqa: ARG001
    """The claims of a machine that is marked out of service are released."""
    return LedgerPlan()


@without(BindingRepair, "reconcile", source=_ORPHANS, breaks="bound pods have claims", world="orphans")
async def bindings_to_replaced_nodes_kept(self: BindingRepair, ctx: Any, key: Any) -> Action:  # noqa: ARG001
    """A pod that is bound to a former incarnation of its node is given up."""
    return Action.await_change()


@without(
    budgets,
    "plan_budget",
    source="watch streams: the cache taken for truth",
    breaks="evictions respect the budget",
    world="evictions",
)
def evictions_forgotten(budget: Any, pods: Any, expected: int, *, pods_are_current: bool) -> Any:  # noqa: ARG001
    """An eviction counts until the cache shows that its pod is terminating."""
    return _plan_budget(budget, pods, expected, pods_are_current=True)


@without(
    eviction,
    "_charge_budget",
    source="kubectl drain, which retries refused evictions for ever",
    breaks="allowed evictions are granted",
    world="evictions",
)
async def evictions_always_refused(core: Any, proof: Any, pod: Object) -> None:
    """An eviction that the budget allows is granted."""
    if await budget_of(core, proof, pod) is not None:
        raise TooManyRequests("the budget allows no eviction", key=pod.key, retry_after_s=1.0)


# -- outcomes of writes ----------------------------------------------------------------------------


@without(
    Client,
    "_write",
    source="reconciliation: a timed-out write that committed; k0smotron#1534",
    breaks=TOO_MANY_MEMBERS,
    world="unanswered",
)
async def lost_reply_taken_for_failure(self: Client, request: Any) -> Any:
    """A write whose reply was lost may have been carried out."""
    try:
        return await self._write_once(request)
    except OutcomeUnknown as error:
        raise Unavailable(f"{request.target} was not written") from error


@without(WriteFloors, "note_unknown", source="k0smotron#1534", breaks=TOO_MANY_MEMBERS, world="unanswered")
def unknown_outcome_not_read(self: WriteFloors, key: Any, wrote: Any) -> None:
    """A key with a write of unknown outcome reads the object before it runs again."""


@without(
    operations,
    "first_outcome",
    source="reconciliation: non-idempotent create; duplicate work on retry",
    breaks=TOO_MANY_MEMBERS,
    world="unanswered",
)
async def operation_id_ignored(
    core: Any,  # noqa: ARG001
    proof: Any,  # noqa: ARG001
    verb: Any,  # noqa: ARG001
    key: Any,  # noqa: ARG001
    options: Any,  # noqa: ARG001
    *,
    named: bool = True,  # noqa: ARG001
    reads: Any = (),  # noqa: ARG001
) -> None:
    """A repeated request with the same operation id gets its first outcome."""
    return


# -- reads -----------------------------------------------------------------------------------------


@without(
    Cache,
    "reached",
    source="karpenter#3176",
    breaks=SHORT,
    world="groups",
    by=("late views", "broken watches"),
)
def deleted_before_it_was_seen(self: Cache, revision: int, wrote: Any = None) -> bool:
    """A list accounts for objects that were created and deleted before it."""
    if not self._listed:
        return False
    return self._revision >= revision if wrote is None else self._known(wrote) >= revision


@without(MemoryStore, "list_nowait", source="kine#676", breaks=(TOO_MANY_MEMBERS, SHORT), world="groups")
def list_revision_too_new(self: MemoryStore, kind: str, *, at: int = NO_REVISION, **options: Any) -> Any:
    """A list has everything that was committed up to its revision."""
    newest = self.revision_nowait()
    if not at and newest > 1:
        try:
            return _list_nowait(self, kind, at=newest - 1, **options)._replace(revision=newest)
        except Compacted:
            pass  # no older revision is left
    return _list_nowait(self, kind, at=at, **options)


_LENT: WeakKeyDictionary[Any, dict[int, tuple[bytes, dict[str, Any]]]] = WeakKeyDictionary()
"""By run: the shared document of each version, by the `id` of its bytes. The bytes are kept, so no id is reused."""


@without(
    Object,
    "edit",
    source="kubernetes#140702",
    breaks=("evictions respect the budget", "the ledger equals the bindings"),
    world="evictions",
)
def edited_in_place(self: Object) -> dict[str, Any]:
    """A change is made on a copy of the object."""
    lent = _LENT.setdefault(asyncio.get_running_loop(), {})
    _, document = lent.setdefault(id(self.value), (self.value, {}))
    if not document:
        document.update(_edit(self))
    return document


@without(CacheFollower, "_pod_changed", source="kubernetes#138434", breaks="pods that fit are bound", world="replaced")
def replaced_pod_left_behind(self: CacheFollower, change: Any) -> None:
    """A pod that was replaced by another of the same name leaves no state in the scheduler."""
    old, new = change.old, change.new
    if new is not None:
        self._state.place(new, old if old is not None and old.uid == new.uid else None)
    elif old is not None:
        self._state.pod_gone(old, change.revision)


# -- interference ----------------------------------------------------------------------------------


@without(LoopDetector, "hold_until_s", source="crossplane#6751, #7108", breaks="fights are slowed", world="rivals")
def fights_not_slowed(self: LoopDetector[Any], key: Any, wakes: Any) -> float:  # noqa: ARG001
    """A key that writes the same change again and again is slowed down."""
    return 0.0


@without(Order, "push", source="kubernetes#25744", breaks="tenants take turns", world="tenants")
def first_come_first_served(self: Order[Any], entry: Any) -> None:
    """Each tenant gets its share, however many keys another has."""
    entry.tenant = ""
    _push(self, entry)

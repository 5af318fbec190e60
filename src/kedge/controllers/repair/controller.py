"""The repair controllers: release reservations, claims and bindings whose pod or node is gone.

Candidates come from the caches and are checked at the API server; the service's own verbs release them, and check once
more. A claim of a pod that may still run is only reported: its agent, its node's next incarnation or a person frees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kedge.api.conditions import condition
from kedge.api.holds import active_hold
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import NodeAllocationView, NodeView, PodView, ReservationView
from kedge.api.wellknown import DISRUPTION_TARGET, NODE_LOST
from kedge.controllers.node.plan import is_out_of_service
from kedge.controllers.repair.plan import LedgerPlan, due_at, has_lost_node, orphan_reason, plan_ledger
from kedge.controllers.shared.actions import requeue_at
from kedge.controllers.shared.holds import hold_off
from kedge.controllers.shared.kinds import NODE, NODE_ALLOCATION, POD, RESERVATION
from kedge.controllers.shared.pods import is_lost
from kedge.env import Env
from kedge.errors import Conflict, NotFound
from kedge.keys import Key
from kedge.placement.ledger import ClaimState
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import CacheChange, CacheSet, Index

RESERVATIONS, LEDGERS, BINDINGS = "reservation-repair", "ledger-repair", "binding-repair"
BY_INTENT = Index("intent", lambda each: _intent(each.as_view(ReservationView)))
"""Reservations by intent: workload, generation and slot."""


def _intent(view: ReservationView) -> tuple[str, ...]:
    spec = view.spec
    return (f"{spec.workload_uid}/{spec.generation}/{spec.slot}",) if spec.workload_uid and spec.pod.uid else ()


# -- reservations ----------------------------------------------------------------------------------


class ReservationRepair:
    """Reconciles one reservation."""

    def __init__(self, env: Env) -> None:
        self._repairs = _repairs(env)

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Action.await_change()
        view, now = found.as_view(ReservationView), ctx.now()
        hold = active_hold(view, RESERVATIONS, now)
        if hold is not None:
            return await hold_off(ctx, found, hold, now)
        pod_key = Key(POD.key_kind, key.namespace, view.spec.pod.name)
        grace_s = ctx.limits.orphan_s

        def because(view: ReservationView, pod: PodView | None, older: Iterable[ReservationView]) -> str:
            held = partial(_is_held, ctx, key)
            return orphan_reason(view, pod, now, older=older, held=held, grace_s=grace_s)

        if not because(view, _pod(ctx.get(pod_key)), self._older(ctx, found)):
            due = due_at(view, now, grace_s)
            if due is not None and due <= now:  # a gang that is bound late: its record stays until all of it is bound
                return Action.requeue(delay_s=grace_s, reason="its members have reservations")
            return requeue_at(now, due)
        # An orphan by the cache. Check it at the API server.
        live = await ctx.fresh(key)
        if live is None or live.uid != found.uid:
            return Action.await_change(reason="deleted meanwhile")
        pod = _pod(await ctx.fresh(pod_key)) if view.spec.pod.uid else None
        older = [
            each.as_view(ReservationView)
            for each in [await ctx.fresh(other.key) for other in self._older_objects(ctx, found)]
            if each is not None and each.created < live.created
        ]
        why = because(live.as_view(ReservationView), pod, older)
        if not why:
            return Action.requeue(delay_s=1.0, reason="the cache was behind")
        try:
            self._repairs.labels("reservation").inc()
            await ctx.delete(live)
            ctx.event(live, "ReservationRepaired", f"Deleted: {why}")
        except Conflict as error:
            # It has changed, or its gang is committed: the members will be bound.
            return Action.requeue(delay_s=grace_s, reason=error.message)
        except NotFound:
            pass
        return Action.await_change(reason=why)

    def _older(self, ctx: Context, found: Object) -> list[ReservationView]:
        return [each.as_view(ReservationView) for each in self._older_objects(ctx, found)]

    def _older_objects(self, ctx: Context, found: Object) -> list[Object]:
        """Older reservations of the same intent whose pods also wait."""
        intents = _intent(found.as_view(ReservationView))
        others = [each for value in intents for each in ctx.by_index(RESERVATION, BY_INTENT, value)]
        return [
            each
            for each in others
            if each.key.namespace == found.key.namespace and each.created < found.created and self._waits(ctx, each)
        ]

    def _waits(self, ctx: Context, each: Object) -> bool:
        spec = each.as_view(ReservationView).spec
        pod = _pod(ctx.get(Key(POD.key_kind, each.key.namespace, spec.pod.name)))
        return pod is not None and pod.uid == spec.pod.uid and not pod.finished and not pod.spec.node_name


def _is_held(ctx: Context, record: Key, uid: str) -> bool:
    """Whether a member of a gang still has its reservation, by the cache; the delete of the record checks it."""
    return ctx.get(record._replace(name=uid)) is not None


def _pod(found: Object | None) -> PodView | None:
    return None if found is None else found.as_view(PodView)


# -- ledgers ---------------------------------------------------------------------------------------


class LedgerRepair:
    """Reconciles the ledger of one node."""

    def __init__(self, env: Env) -> None:
        self._repairs = _repairs(env)
        self._leaked = env.metrics.gauge(
            "kedge_ledger_leaked", "Claims without a pod, of containers that may still run", ("node",)
        )

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        ledger = ctx.get(key)
        if ledger is None:
            return Action.await_change()
        now = ctx.now()
        node = ctx.get(Key(NODE.key_kind, "", key.name))
        hold = active_hold(node.metadata, LEDGERS, now) if node is not None else None
        if hold is not None:
            return requeue_at(now, hold.until, reason=str(hold))
        plan = self._plan(ctx, ledger, out_of_service=_is_out(node))
        self._leaked.labels(key.name).set(len(plan.leaked))
        if plan.free:
            live = await ctx.fresh(key)
            node_now = await ctx.fresh(Key(NODE.key_kind, "", key.name))
            if live is not None:
                for uid in plan.free:
                    await self._free(ctx, live, node_now, uid)
        leaked = f"{len(plan.leaked)} claims wait for the agent or a person to confirm their end" if plan.leaked else ""
        return Action.requeue(delay_s=ctx.limits.repair_every_s, reason=leaked)

    def _plan(self, ctx: Context, ledger: Object, *, out_of_service: bool) -> LedgerPlan:
        view = ledger.as_view(NodeAllocationView)
        pods, reserved = {}, []
        for uid, entry in view.status.entries.items():
            pod = _pod(ctx.get(Key(POD.key_kind, entry.namespace, entry.name)))
            if pod is not None and pod.uid == uid:
                pods[uid] = pod
            elif entry.state == "Reserved" and ctx.get(Key(RESERVATION.key_kind, entry.namespace, uid)) is not None:
                reserved.append(uid)
        return plan_ledger(view, pods, reserved, out_of_service=out_of_service)

    async def _free(self, ctx: Context, live: Object, node_now: Object | None, uid: str) -> None:
        """Free one claim, if the API server has neither its pod nor its reservation."""
        entry = live.as_view(NodeAllocationView).status.entries.get(uid)
        if entry is None:
            return
        if entry.state == "Reserved":
            if await ctx.fresh(Key(RESERVATION.key_kind, entry.namespace, uid)) is not None:
                return
        elif entry.state != ClaimState.UNADMITTED and not _is_out(node_now):
            return  # only the out-of-service taint frees this, and it was removed
        self._repairs.labels("claim").inc()
        try:
            await ctx.confirm_ended(live, uid)
            if node_now is not None:
                ctx.event(
                    node_now, "ClaimReleased", "Released the claim of a pod", subject=f"{entry.namespace}/{entry.name}"
                )
        except Conflict:
            return  # the pod still runs, or the node has a new incarnation


def _is_out(node: Object | None) -> bool:
    return node is not None and is_out_of_service(node.as_view(NodeView))


# -- bindings --------------------------------------------------------------------------------------


class BindingRepair:
    """Reconciles one pod: whether the node that it is bound to still has it."""

    def __init__(self, env: Env) -> None:
        self._repairs = _repairs(env)

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None:
            return Action.await_change()
        pod, now = found.as_view(PodView), ctx.now()
        name = pod.spec.node_name
        node_key, ledger_key = Key(NODE.key_kind, "", name), Key(NODE_ALLOCATION.key_kind, "", name)
        if not has_lost_node(pod, _node(ctx.get(node_key)), _ledger(ctx.get(ledger_key))) or is_lost(pod):
            return Action.await_change()
        hold = active_hold(pod, BINDINGS, now)
        if hold is not None:
            return requeue_at(now, hold.until, reason=str(hold))
        # The pod first: node and ledger are read after it, so that they are not older than the pod.
        live = await ctx.fresh(key)
        node, ledger = _node(await ctx.fresh(node_key)), _ledger(await ctx.fresh(ledger_key))
        if live is None or live.uid != found.uid or not has_lost_node(live.as_view(PodView), node, ledger):
            return Action.requeue(delay_s=1.0, reason="the cache was behind")
        self._repairs.labels("binding").inc()
        if controller_of(pod) is None or pod.terminating:
            await ctx.delete(live, grace_s=0)
            return Action.await_change(reason="its node is gone: no agent will finish it")
        message = f"node {name} is gone, or has a new incarnation"
        target = condition(DISRUPTION_TARGET, status=True, reason=NODE_LOST, message=message)
        await ctx.write_status(live, {"conditions": [target]})
        ctx.event(live, NODE_LOST, message, warning=True)
        return Action.await_change(reason=message)


def _node(found: Object | None) -> NodeView | None:
    return None if found is None else found.as_view(NodeView)


def _ledger(found: Object | None) -> NodeAllocationView | None:
    return None if found is None else found.as_view(NodeAllocationView)


# -- wakes and controllers -------------------------------------------------------------------------


def _repairs(env: Env) -> Any:
    return env.metrics.counter("kedge_repairs_total", "Releases by repair, by kind of record", ("what",))


def wake_reservation(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    """Wakes the reservation of a pod: its name is the pod's uid."""
    for pod in dict.fromkeys(each for each in (change.old, change.new) if each is not None):
        yield Key(RESERVATION.key_kind, change.key.namespace, pod.uid)


def wake_ledger(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    """Wakes the ledger of a pod's node when the pod ends or is deleted."""
    pod = _pod(change.new or change.old)
    if pod is not None and pod.spec.node_name and (change.new is None or pod.finished):
        yield Key(NODE_ALLOCATION.key_kind, "", pod.spec.node_name)


def wake_ledger_of_node(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    if change.old is None or change.new is None or _is_out(change.old) != _is_out(change.new):
        yield Key(NODE_ALLOCATION.key_kind, "", change.key.name)


def wake_pods_of_node(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
    """Wakes the pods of a node when its incarnation changes: it was created, deleted, or its ledger was taken over."""
    if change.old is not None and change.new is not None and _incarnation(change.old) == _incarnation(change.new):
        return
    for cache in caches.of_kind(POD.key_kind):
        if not str(cache.scope):
            for pod in cache.list().value:
                if pod.as_view(PodView).spec.node_name == change.key.name:
                    yield pod.key


def _incarnation(found: Object) -> str:
    return found.view.spec.node_uid if found.key.kind == NODE_ALLOCATION.key_kind else found.uid


def reservation_repair_controller(runtime: ControllerRuntime) -> Controller:
    return Controller(
        ControllerSpec(
            name=RESERVATIONS,
            kind=RESERVATION,
            writes=(*writes("delete", RESERVATION), *writes("patch", RESERVATION, "status")),
            indexes=(BY_INTENT,),
            watches=(WatchSpec(kind=POD, keys_of=wake_reservation),),
        ),
        ReservationRepair(runtime.env),
        runtime,
    )


def ledger_repair_controller(runtime: ControllerRuntime) -> Controller:
    return Controller(
        ControllerSpec(
            name=LEDGERS,
            kind=NODE_ALLOCATION,
            writes=writes("create", NODE_ALLOCATION, "ended"),
            watches=(
                WatchSpec(kind=POD, keys_of=wake_ledger),
                WatchSpec(kind=RESERVATION),
                WatchSpec(kind=NODE, keys_of=wake_ledger_of_node),
            ),
        ),
        LedgerRepair(runtime.env),
        runtime,
    )


def binding_repair_controller(runtime: ControllerRuntime) -> Controller:
    return Controller(
        ControllerSpec(
            name=BINDINGS,
            kind=POD,
            writes=(*writes("delete", POD), *writes("patch", POD, "status")),
            watches=(
                WatchSpec(kind=NODE, keys_of=wake_pods_of_node),
                WatchSpec(kind=NODE_ALLOCATION, keys_of=wake_pods_of_node),
            ),
        ),
        BindingRepair(runtime.env),
        runtime,
    )

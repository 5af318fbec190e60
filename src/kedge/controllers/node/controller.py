"""The node lifecycle controller: writes the state of each node, and evicts the pods of lost, tainted and drained nodes.

`plan` and `evacuation` decide; this carries it out. Before a write that cannot be undone it reads the lease from the
API server: a cache that missed a renewal must not cost a pod.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any

from kedge.api.conditions import TRUE, condition, find_condition
from kedge.api.holds import active_hold, hold_conditions
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import DRAIN_NODE, DRAINED, NODE_LEASE_NAMESPACE, NODE_LOST, ZONE_LABEL
from kedge.controllers.node.evacuation import NODE_UNKNOWN, EvacuationPlan, lost_condition, plan_evacuation
from kedge.controllers.node.heartbeats import UNDATED, Heartbeats, NodeHealth
from kedge.controllers.node.plan import (
    READY,
    NodePlan,
    NodeState,
    is_out_of_service,
    next_state,
    plan_node,
    state_of,
)
from kedge.controllers.shared.holds import hold_off
from kedge.controllers.shared.kinds import LEASE, NODE, POD
from kedge.controllers.shared.node_leases import lease_key
from kedge.env import Env
from kedge.errors import BadRequest, NotFound, TooManyRequests
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import BY_NODE, Cache, CacheChange, CacheSet

NAME = "node-lifecycle"
STATE_REASONS = {
    NodeState.READY: "NodeReady",
    NodeState.SUSPECT: "NodeSuspect",
    NodeState.UNKNOWN: "NodeNotReady",
    NodeState.LOST: NODE_LOST,
}
"""The reason of the Event about a node that enters a state; where Kubernetes has the state, its reason."""


class NodeLifecycle:
    """Reconciles one node. `heartbeats` is its only state between reconciles, and is read through `measured`."""

    def __init__(
        self, env: Env, heartbeats: Heartbeats | None = None, lease_cache: Callable[[], Cache] | None = None
    ) -> None:
        self._heartbeats = heartbeats or Heartbeats(env)
        self._lease_cache = lease_cache
        self._acts = env.metrics.counter("kedge_node_acts_total", "Writes to nodes and their pods, by action", ("act",))
        self._states = env.metrics.gauge("kedge_nodes", "Nodes by state when last reconciled", ("state",))
        self._last: dict[str, str] = {}
        """For the gauge alone."""

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        node = ctx.get(key)
        if node is None:
            self._count(key.name, "")
            self._heartbeats.forget(key.name)
            return Action.await_change(reason="deleted")
        view, now = node.as_view(NodeView), ctx.now()
        health = self._health_of(ctx, node, view)
        hold = active_hold(view, NAME, now)
        if hold is not None:
            return await hold_off(ctx, node, hold, now)
        plan = plan_node(view, health, ctx.limits, now, may_lose=False)
        if plan.state is NodeState.UNKNOWN and next_state(plan.state, health, ctx.limits) is NodeState.LOST:
            # Before it is declared lost: check the lease at the API server, then the rate limit of its zone.
            if not await self._is_silent(ctx, key.name):
                return Action.requeue(delay_s=1.0, reason="its lease was renewed")
            zone = view.labels.get(ZONE_LABEL, "")
            if ctx.measured(f"the turn of {zone}", lambda: self._heartbeats.may_lose(zone)):
                plan = plan_node(view, health, ctx.limits, now)
        returned = plan.state is NodeState.READY and state_of(view) is not NodeState.READY
        again_s = None
        if returned:  # pods first, so that a ready node has no pods marked as lost
            again_s = await self._evacuate(ctx, node, plan, health, now)
        node = await self._write_node(ctx, node, view, plan, now)
        if not returned:
            again_s = await self._evacuate(ctx, node, plan, health, now)
        drain_s = await self._drain(ctx, node, plan, now)
        self._count(key.name, plan.state)
        delays = [each for each in (plan.requeue_after_s, again_s, drain_s) if each is not None]
        return Action.requeue(delay_s=min(delays), condition=plan.state, reason=plan.reason)

    # -- evidence ----------------------------------------------------------------------------------

    def _health_of(self, ctx: Context, node: Object, view: NodeView) -> NodeHealth:
        """The node's silence as this process has seen it, and its zone's if the node is silent."""
        lease = ctx.get(lease_key(node.key.name))
        about = node.key.name
        ready = find_condition(view.status.conditions, READY)
        # Only its agent sets Ready to true, and does so again after another writer has set it to unknown.
        report = str(ready.last_transition_time or UNDATED) if ready is not None and ready.status == TRUE else ""
        seen = ctx.measured(
            f"the silence of {about}", lambda: self._heartbeats.observe(about, self._lease_age_s(), report=report)
        )
        silence_s, alive = float(seen["silence_s"]), bool(seen["alive"]) and lease is not None
        if silence_s < ctx.limits.node_suspect_s:
            return NodeHealth(silence_s, silence_s, alive)
        zone = view.labels.get(ZONE_LABEL, "")
        members: dict[str, list[str]] = {}
        for each in ctx.list(NODE):
            if not is_out_of_service(each.as_view(NodeView)):
                members.setdefault(each.metadata.labels.get(ZONE_LABEL, ""), []).append(each.key.name)
        found = ctx.measured(f"the visibility of {zone}", lambda: self._heartbeats.survey(zone, members))
        return NodeHealth(silence_s, min(silence_s, float(found["clear_s"])), alive, str(found["blind"]))

    async def _is_silent(self, ctx: Context, name: str) -> bool:
        """Whether the API server has the lease as the cache has it. If not, the cache missed a renewal and relists."""
        known, now = ctx.get(lease_key(name)), await ctx.fresh(lease_key(name))
        silent = (known.revision if known else 0) == (now.revision if now else 0)
        if not silent and self._lease_cache is not None:
            self._lease_cache().request_relist()
        return silent

    def _lease_age_s(self) -> float:
        return math.inf if self._lease_cache is None else self._lease_cache().age_s

    # -- the node ----------------------------------------------------------------------------------

    async def _write_node(self, ctx: Context, node: Object, view: NodeView, plan: NodePlan, now: datetime) -> Object:
        conditions = [*plan.conditions, *hold_conditions(view, view.status.conditions, now)]
        if conditions:
            self._acts.labels(f"mark {plan.state}").inc()
            node = await ctx.write_status(node, {"conditions": conditions})
        if plan.state is not state_of(view):
            text = f"the node is now {plan.state}" + (f": {plan.reason}" if plan.reason else "")
            ctx.event(node, STATE_REASONS[plan.state], text, warning=plan.state is not NodeState.READY)
        if plan.taints is not None or plan.cordon:
            spec: dict[str, Any] = {}
            if plan.taints is not None:
                spec["taints"] = list(plan.taints)
            if plan.cordon:
                spec["unschedulable"] = True
            self._acts.labels("taint").inc()
            node = await ctx.patch(node, {"spec": spec})
        return node

    # -- pods --------------------------------------------------------------------------------------

    async def _evacuate(
        self, ctx: Context, node: Object, plan: NodePlan, health: NodeHealth, now: datetime
    ) -> float | None:
        view = node.as_view(NodeView)
        troubled = plan.state is not NodeState.READY or state_of(view) is not NodeState.READY
        if not troubled and not any(taint.effect == "NoExecute" for taint in view.spec.taints):
            return None
        pods = {pod.uid: pod for pod in ctx.by_index(POD, BY_NODE, node.key.name)}
        views = [pod.as_view(PodView) for pod in pods.values()]
        held = frozenset(pod.uid for pod in views if active_hold(pod, NAME, now) is not None)
        out = is_out_of_service(view)
        steps = plan_evacuation(view, plan.state, health, views, ctx.limits, now, held=held, out_of_service=out)
        if steps.rests_on_silence and not out and not await self._is_silent(ctx, view.name):
            return 1.0  # or agent and controller would keep overwriting each other's condition
        await self._carry_out(ctx, steps, pods)
        if plan.state is NodeState.LOST and (out or not health.blind):
            await self._remove_abandoned(ctx, [pod for uid, pod in pods.items() if uid not in held])
        return steps.requeue_after_s

    async def _carry_out(self, ctx: Context, steps: EvacuationPlan, pods: dict[str, Object]) -> None:
        burst = ctx.limits.pod_burst
        unknown = condition("Ready", status=None, reason=NODE_UNKNOWN, message="its node is silent")
        for pod in steps.unknown[:burst]:
            await self._run("unknown", ctx.write_status(pods[pod.uid], {"conditions": [unknown]}))
        for pod in steps.take_back[:burst]:
            back = {"conditions": [lost_condition(pod, lost=False)]}
            await self._run("take back", ctx.write_status(pods[pod.uid], back))
        for pod in steps.release[:burst]:
            # A pod marked unknown above has a new revision: read it again.
            known = pods[pod.uid] if pod not in steps.unknown else await ctx.fresh(pods[pod.uid].key)
            if known is not None and known.uid == pod.uid:
                lost = {"conditions": [lost_condition(pod, lost=True)]}
                await self._run("release", ctx.write_status(known, lost))
                ctx.event(known, NODE_LOST, f"node {pod.spec.node_name} was declared lost", warning=True)
        for pod in steps.remove[:burst]:
            await self._run("remove", ctx.delete(pods[pod.uid], any_version=True, grace_s=0))
            ctx.event(pods[pod.uid], NODE_LOST, f"Deleted: node {pod.spec.node_name} is lost", warning=True)
        for pod in steps.end[:burst]:
            await self._run("end", ctx.delete(pods[pod.uid]))
            ctx.event(pods[pod.uid], "TaintManagerEviction", f"Deleted: a taint of node {pod.spec.node_name}")

    async def _remove_abandoned(self, ctx: Context, pods: Iterable[Object]) -> None:
        """Delete terminating pods whose owner is gone: the agent of a lost node will not finish them."""
        for pod in pods:
            view = pod.as_view(PodView)
            reference = controller_of(view)
            if not view.terminating or view.metadata.finalizers or view.finished or reference is None:
                continue
            try:
                kind = KINDS.of_api(reference.api_version, reference.kind)
            except (BadRequest, NotFound):
                continue  # an unknown kind: whether that owner exists cannot be checked
            owner = await ctx.fresh(Key(kind.key_kind, pod.key.namespace if kind.namespaced else "", reference.name))
            if owner is None or owner.uid != reference.uid:
                await self._run("remove", ctx.delete(pod, any_version=True, grace_s=0))

    async def _drain(self, ctx: Context, node: Object, plan: NodePlan, now: datetime) -> float | None:
        """Evict every pod of a node that is being drained, as the budgets allow."""
        view = node.as_view(NodeView)
        before = find_condition(view.status.conditions, DRAINED)
        if DRAIN_NODE not in view.metadata.annotations:
            if before is not None and before.status == "True":
                over = condition(DRAINED, status=False, reason="NotDraining")
                await ctx.write_status(node, {"conditions": [over]})
            return None
        left, blocked = [], []
        for pod in ctx.by_index(POD, BY_NODE, node.key.name):
            shown = pod.as_view(PodView)
            if shown.finished:
                continue
            left.append(pod.key.name)
            if shown.terminating or active_hold(shown, NAME, now) is not None or plan.state is NodeState.LOST:
                continue
            try:
                await self._run("evict", ctx.evict(pod))
                ctx.event(pod, "Evicted", f"Evicted: node {node.key.name} is being drained")
            except TooManyRequests:
                blocked.append(pod.key.name)
            except NotFound:
                continue
        names = ", ".join((blocked or left)[:5])
        reason = "BudgetsForbid" if blocked else "PodsLeaving" if left else "Empty"
        drained = condition(DRAINED, status=not left, reason=reason, message=names)
        await ctx.write_status(node, {"conditions": [drained]})
        if not left and (before is None or before.status != "True"):
            ctx.event(node, "NodeDrained", "Every pod has left the node")
        return ctx.limits.node_drain_retry_s if left else None

    async def _run(self, act: str, work: Awaitable[Object]) -> None:
        self._acts.labels(act).inc()
        await work

    def _count(self, node: str, state: str) -> None:
        before = self._last.pop(node, "")
        if state:
            self._last[node] = state
        if before != state:
            if before:
                self._states.labels(before).dec()
            if state:
                self._states.labels(state).inc()


# -- wakes -----------------------------------------------------------------------------------------


def needs_attention(node: Object) -> bool:
    """Whether changes of its pods wake the node: most nodes are ready, and their pods need nothing from here."""
    view = node.as_view(NodeView)
    return (
        state_of(view) is not NodeState.READY
        or DRAIN_NODE in view.metadata.annotations
        or any(taint.effect == "NoExecute" for taint in view.spec.taints)
    )


def _known_node(caches: CacheSet, name: str) -> Object | None:
    for cache in caches.of_kind(NODE.key_kind):
        return cache.get(Key(NODE.key_kind, "", name)).value
    return None


def wake_node_of_pod(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
    for pod in (change.new, change.old):
        name = pod.as_view(PodView).spec.node_name if pod is not None else ""
        node = _known_node(caches, name) if name else None
        if node is not None and needs_attention(node):
            return (node.key,)
    return ()


def lifecycle_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    heartbeats = Heartbeats(runtime.env)

    def lease_cache() -> Cache:
        return controller.caches.cache(LEASE, namespace=NODE_LEASE_NAMESPACE)

    def note_renewal(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
        """Note every renewal; wake only a node that needs attention."""
        if change.new is None:
            if _known_node(caches, change.key.name) is None:
                heartbeats.forget(change.key.name)  # leases without nodes come and go under any name
            return ()
        heartbeats.note(change.key.name, lease_cache().age_s, renewed=change.old is not None)
        if heartbeats.crowded:  # a standby reconciles no node, so it may have nodes that went after their leases
            leases = {each.key.name for each in lease_cache().list().value}
            heartbeats.forget_all_but(lambda name: name in leases or _known_node(caches, name) is not None)
        node = _known_node(caches, change.key.name)
        return (node.key,) if node is not None and needs_attention(node) else ()

    controller = Controller(
        ControllerSpec(
            name=NAME,
            kind=NODE,
            writes=(
                *writes("patch", NODE),
                *writes("patch", NODE, "status"),
                *writes("delete", POD),
                *writes("patch", POD, "status"),
                *writes("create", POD, "eviction"),
            ),
            watches=(
                WatchSpec(kind=LEASE, namespace=NODE_LEASE_NAMESPACE, keys_of=note_renewal),
                WatchSpec(kind=POD, keys_of=wake_node_of_pod, indexes=(BY_NODE,)),
            ),
        ),
        NodeLifecycle(runtime.env, heartbeats, lease_cache),
        runtime,
    )
    return controller

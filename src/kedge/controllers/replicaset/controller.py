"""The ReplicaSet controller: keeps the requested number of pods of one template, one per slot.

`plan` decides; this carries it out. A pod's name follows from its slot, so that a second create collides. Writes name
the uid and revision that were read. It never deletes on suspicion: it records the end of a pod when the node lifecycle
controller requests that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from kedge.api.holds import active_hold, hold_conditions, next_hold_end
from kedge.api.objects import Object
from kedge.api.owners import controller_of, owner_reference
from kedge.api.selectors import label_selector
from kedge.api.views import EndpointSliceView, PodView, ReplicaSetView
from kedge.api.wellknown import GIVE_UP_IN, PODS_IN, REPLACES, SLOT
from kedge.controllers.replicaset.plan import ReplicaPlan, ReplicaRules, plan_replicas
from kedge.controllers.replicaset.status import repair_condition, replica_counts
from kedge.controllers.shared.actions import POD_EVENTS, REFUSALS, ActionRecorder, requeue_at
from kedge.controllers.shared.conditions import REPLICA_FAILURE, failure_condition, stage_conditions
from kedge.controllers.shared.drain import drain_patch, resume_patch
from kedge.controllers.shared.endpoint_slices import listed_uids, wake_listed
from kedge.controllers.shared.ghosts import find_ghosts
from kedge.controllers.shared.holds import held_until, split_held
from kedge.controllers.shared.kinds import ENDPOINT_SLICE, NODE, POD, REPLICA_SET, RESOURCE_QUOTA
from kedge.controllers.shared.orphan_search import OrphanSearch
from kedge.controllers.shared.ownership import ORPHANS, adoption, release, to_release, wake_claimants
from kedge.controllers.shared.pods import is_active, requires_at_most_one
from kedge.controllers.shared.progress import progress_of
from kedge.controllers.shared.quota_room import wake_blocked
from kedge.controllers.shared.replicas import PRIORITY_CLASSES, lost_status, template_priority
from kedge.controllers.shared.slots import free_slots, slot_name, slot_of
from kedge.controllers.shared.topology import parse_topology, pin_to_topology
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import BY_CONTROLLER

NAME = "replicaset"


class ReplicaSetReconciler:
    """Reconciles one ReplicaSet."""

    def __init__(self, env: Env) -> None:
        self._metrics = env.metrics
        self._orphans = OrphanSearch(env, POD, NAME)
        self._ghosts = env.metrics.counter(
            "kedge_workload_ghosts_total", "Copies found that may still run although their pods are gone"
        )

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="deleted or being deleted: its pods are garbage")
        view, now = owner.as_view(ReplicaSetView), ctx.now()
        held = held_until(view, NAME, now)
        claimed, held_off = (False, []) if held is not None else await self._claim_pods(ctx, owner, view, now)
        if claimed:
            return Action.requeue(delay_s=0.0, reason="its pods have changed")
        pods = ctx.owned(POD, owner)
        views = [pod.as_view(PodView) for pod in pods]
        listed = listed_uids(
            each.as_view(EndpointSliceView) for each in ctx.list(ENDPOINT_SLICE, namespace=key.namespace)
        )
        rules = self._rules(ctx, view)
        plan = ReplicaPlan() if held is not None else self._plan(ctx, owner, rules, views, listed, now)
        ghosts: tuple[str, ...] = ()
        if plan.create and requires_at_most_one(view.spec.template):
            ghosts = await self._find_ghosts(ctx, owner, views)
            rules = replace(rules, ghosts=len(ghosts))
            plan = self._plan(ctx, owner, rules, views, listed, now)
        actions, refusal, created = ActionRecorder(ctx, self._metrics, NAME, owner, POD_EVENTS), None, 0
        if plan.release:
            # Recorded before it is carried out: a release that is requested and one that is committed are two states.
            owner = await ctx.write_status(owner, self._status(view, views, listed, actions, None, now, 0))
        try:
            await self._carry_out(ctx, actions, plan, {pod.uid: pod for pod in pods}, now)
            created = await self._create(ctx, actions, owner, plan.create, {*ghosts, *(pod.name for pod in views)})
        except REFUSALS as error:
            refusal = error
            actions.refused(error)
        await ctx.write_status(owner, self._status(view, views, listed, actions, refusal, now, created))
        if refusal is not None:
            raise refusal
        ghosts_at = now + timedelta(seconds=ctx.limits.ghost_look_s) if rules.ghosts else None
        pod_holds = [held_until(pod, NAME, now) for pod in views]
        return requeue_at(
            now, next_hold_end(view, now), ghosts_at, plan.requeue_at, *pod_holds, *held_off, at_once=plan.curtailed
        )

    # -- plan --------------------------------------------------------------------------------------

    def _rules(self, ctx: Context, view: ReplicaSetView) -> ReplicaRules:
        return ReplicaRules(
            view.spec.replicas,
            min_ready_s=view.spec.min_ready_seconds,
            burst=ctx.limits.pod_burst,
            drain_s=ctx.limits.drain_s,
        )

    def _plan(
        self,
        ctx: Context,
        owner: Object,
        rules: ReplicaRules,
        views: Sequence[PodView],
        listed: frozenset[str],
        now: datetime,
    ) -> ReplicaPlan:
        held = frozenset(pod.uid for pod in views if active_hold(pod, NAME, now) is not None)
        shrinks = sum(map(is_active, views)) > rules.want
        siblings = self._siblings(ctx, owner) if shrinks else ()
        first = self._in_the_way(ctx, owner, views) if shrinks else ()
        return plan_replicas(rules, views, now=now, listed=listed, held=held, siblings=siblings, first=first)

    def _in_the_way(self, ctx: Context, owner: Object, views: Sequence[PodView]) -> Collection[str]:
        """The uids of the pods in zones or regions where another template is rolled out."""
        topology = parse_topology(owner.metadata.annotations.get(GIVE_UP_IN))
        if topology is None:
            return ()
        names = dict.fromkeys(pod.spec.node_name for pod in views if pod.spec.node_name)
        nodes = {name: ctx.get(Key(NODE.key_kind, "", name)) for name in names}
        there = [name for name, node in nodes.items() if node is not None and topology.matches(node.metadata.labels)]
        return frozenset(pod.uid for pod in views if pod.spec.node_name in there)

    def _siblings(self, ctx: Context, owner: Object) -> Sequence[PodView]:
        """The pods of every ReplicaSet of the same Deployment."""
        deployment = controller_of(owner.metadata)
        if deployment is None:
            return ()
        sets = ctx.by_index(REPLICA_SET, BY_CONTROLLER, deployment.uid)
        return [pod.as_view(PodView) for each in sets for pod in ctx.owned(POD, each)]

    async def _find_ghosts(self, ctx: Context, owner: Object, views: Iterable[PodView]) -> tuple[str, ...]:
        """The names of pods of this owner that are gone while their claims are not."""
        ghosts = await find_ghosts(
            ctx, owner.key.namespace, lambda name: slot_of(owner.key.name, name) is not None, views
        )
        self._ghosts.inc(len(ghosts))
        return ghosts

    # -- writes ------------------------------------------------------------------------------------

    async def _claim_pods(
        self, ctx: Context, owner: Object, view: ReplicaSetView, now: datetime
    ) -> tuple[bool, list[datetime]]:
        """Adopt pods that are selected and have no controller; release pods that are no longer selected.

        Returns whether there was anything to do, and when the holds on the other pods end.
        """
        selector = label_selector(view.spec.selector)
        burst = ctx.limits.pod_burst
        adopt, ends = await self._orphans.find(ctx, owner.key.namespace, selector, now, most=burst)
        released, _ = split_held(to_release(ctx.owned(POD, owner), selector), NAME, now)
        if adopt:
            # The cache may still show an owner that is gone; adopting for it would turn live pods into garbage.
            fresh = await ctx.fresh(owner.key)
            if fresh is None or fresh.uid != owner.uid or fresh.metadata.deletion_timestamp is not None:
                adopt = []
        actions = ActionRecorder(ctx, self._metrics, NAME)
        for pod in adopt[:burst]:
            await actions.run("adopt", pod.key.name, ctx.patch(pod, adoption(pod, REPLICA_SET, owner)))
        for pod in released[:burst]:
            await actions.run("orphan", pod.key.name, ctx.patch(pod, release(pod, owner)))
        return bool(adopt or released), ends

    async def _carry_out(
        self, ctx: Context, actions: ActionRecorder, plan: ReplicaPlan, pods: Mapping[str, Object], now: datetime
    ) -> None:
        for pod in plan.release:
            found = pods[pod.uid]
            await actions.run_on("release", pod.name, ctx.patch(found, lost_status(found, now), subresource="status"))
        for pod in plan.resume:
            await actions.run_on("keep", pod.name, ctx.patch(pods[pod.uid], resume_patch()))
        for pod in plan.drain:
            await actions.run_on("drain", pod.name, ctx.patch(pods[pod.uid], drain_patch(now)))
        for pod in plan.delete:
            await actions.run_on("delete", pod.name, ctx.delete(pods[pod.uid]))
        for pod in plan.sweep:
            await actions.run_on("sweep", pod.name, ctx.delete(pods[pod.uid]))

    async def _create(
        self, ctx: Context, actions: ActionRecorder, owner: Object, replaced: Sequence[str], names: Collection[str]
    ) -> int:
        """Create pods in the lowest free slots, and return how many. `names` are taken: pods or claims have them."""
        if not replaced:
            return 0
        name, namespace = owner.key.name, owner.key.namespace

        def is_taken(each: str) -> bool:
            # The last pod of a name may still run: other names are free, this one is not. A pod that this reconcile
            # swept counts too: its claim stays, and was not searched for.
            return each in names or ctx.get(Key(POD.key_kind, namespace, each)) is not None

        slots = free_slots(name, len(replaced), is_taken)
        template = owner.edit()["spec"]["template"]
        topology = parse_topology(owner.metadata.annotations.get(PODS_IN))
        if topology is not None:
            template["spec"] = pin_to_topology(template["spec"], topology)
        for slot, uid in zip(slots, replaced, strict=True):
            about = slot_name(name, slot) + (f" in place of {uid}" if uid else "")
            await actions.run("create", about, ctx.ensure(POD, replica(owner, template, slot, uid)))
        return len(replaced)

    # -- status ------------------------------------------------------------------------------------

    def _status(
        self,
        view: ReplicaSetView,
        pods: Sequence[PodView],
        listed: frozenset[str],
        actions: ActionRecorder,
        refusal: OperatingError | None,
        now: datetime,
        created: int,
    ) -> dict[str, Any]:
        progress = progress_of(
            pods,
            desired=view.spec.replicas,
            listed=listed,
            generation=view.generation,
            before=view.status.progress,
            last_action=actions.last,
        )
        return {
            **replica_counts(view, pods, now),
            "progress": progress,
            "conditions": [
                *failure_condition(view, refusal),
                *stage_conditions(progress, desired=view.spec.replicas),
                *repair_condition(view, pods, refusal, created=created),
                *hold_conditions(view, view.status.conditions, now),
            ],
        }


def replica(owner: Object, template: Mapping[str, Any], slot: int, replaces: str = "") -> dict[str, Any]:
    """The pod of a slot, as JSON."""
    metadata = template.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), SLOT: str(slot)}
    if replaces:
        annotations[REPLACES] = replaces
    made: dict[str, Any] = {
        "name": slot_name(owner.key.name, slot),
        "namespace": owner.key.namespace,
        "labels": metadata.get("labels") or {},
        "annotations": annotations,
        "ownerReferences": [owner_reference(REPLICA_SET, owner.metadata)],
    }
    if metadata.get("finalizers"):
        made["finalizers"] = metadata["finalizers"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template["spec"]}


wake_adopters = wake_claimants(REPLICA_SET)


def replica_set_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=REPLICA_SET,
            writes=(
                *writes("patch", REPLICA_SET, "status"),
                *writes("create patch delete", POD),
                *writes("patch", POD, "status"),
            ),
            indexes=(BY_CONTROLLER,),
            watches=(
                WatchSpec(kind=POD, keys_of=wake_adopters, indexes=(BY_CONTROLLER, ORPHANS)),
                WatchSpec(kind=ENDPOINT_SLICE, keys_of=wake_listed(REPLICA_SET)),
                WatchSpec(kind=NODE),
                WatchSpec(kind=RESOURCE_QUOTA, keys_of=wake_blocked(REPLICA_SET, condition=REPLICA_FAILURE)),
                PRIORITY_CLASSES,
            ),
            priority_of=template_priority,
        ),
        ReplicaSetReconciler(runtime.env),
        runtime,
    )

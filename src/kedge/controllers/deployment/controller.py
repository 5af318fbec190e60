"""The Deployment controller: one ReplicaSet per template; replicas move from the old ones to the current one.

`plan` bounds each step and `status` reports it; this carries both out. A rollback is a rollout of a known template: its
ReplicaSet is reused, and its revision moves up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kedge.api.holds import active_hold, hold_conditions, next_hold_end
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.selectors import label_selector
from kedge.api.views import DeploymentView, ReplicaSetView
from kedge.api.wellknown import AVAILABILITY_FLOOR, DEPLOYMENT_REVISION, DESIRED_REPLICAS, MAX_REPLICAS, UPDATED_MAX
from kedge.controllers.deployment.plan import RollingBounds, ScalePlan, SetFacts, plan_scales, resolve_bounds
from kedge.controllers.deployment.status import (
    availability,
    availability_floor,
    count_replicas,
    evaluate_progress,
    failures,
    have_counted,
    is_complete,
    repairs,
    rollback,
)
from kedge.controllers.shared.actions import REFUSALS, ActionRecorder, requeue_at
from kedge.controllers.shared.conditions import REPLICA_FAILURE, stage_conditions
from kedge.controllers.shared.holds import held_until, split_held
from kedge.controllers.shared.kinds import DEPLOYMENT, REPLICA_SET, RESOURCE_QUOTA
from kedge.controllers.shared.orphan_search import OrphanSearch
from kedge.controllers.shared.ownership import ORPHANS, adoption, release, to_release, wake_claimants
from kedge.controllers.shared.pods import requires_at_most_one
from kedge.controllers.shared.progress import STAGES, sum_of_progress
from kedge.controllers.shared.quota_room import wake_blocked
from kedge.controllers.shared.replicas import PRIORITY_CLASSES, template_priority
from kedge.controllers.shared.templates import (
    find_current,
    is_rollback,
    next_revision,
    number_of,
    replica_set_body,
    revision_of,
    set_annotations,
    template_digest,
    template_hash,
    template_of,
)
from kedge.controllers.shared.topology import topology_annotations
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import BY_CONTROLLER

NAME = "deployment"
SCALING_EVENTS = {
    "create": ("ScalingReplicaSet", "Created replica set"),
    "scale": ("ScalingReplicaSet", "Scaled replica set"),
    "drop": ("DroppedReplicaSet", "Deleted a replica set past the history limit"),
}
"""By act: the reason and the text of the Event about the Deployment."""


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """A Deployment and its ReplicaSets, as one reconcile read them."""

    deployment: Object
    view: DeploymentView
    sets: tuple[Object, ...]
    current: Object | None
    template: Mapping[str, Any]
    digest: str
    bounds: RollingBounds
    now: datetime

    @property
    def old(self) -> list[Object]:
        return [each for each in self.sets if each is not self.current]

    @property
    def most(self) -> int:
        return self.view.spec.replicas + self.bounds.surge if self.view.spec.replicas else 0


class DeploymentReconciler:
    """Reconciles one Deployment."""

    def __init__(self, env: Env) -> None:
        self._metrics = env.metrics
        self._orphans = OrphanSearch(env, REPLICA_SET, NAME)

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        deployment = ctx.get(key)
        if deployment is None or deployment.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="deleted or being deleted: its ReplicaSets are garbage")
        view, now = deployment.as_view(DeploymentView), ctx.now()
        held = held_until(view, NAME, now)
        claimed, held_off = (False, []) if held is not None else await self._claim_sets(ctx, deployment, view, now)
        if claimed:
            return Action.requeue(delay_s=0.0, reason="its ReplicaSets have changed")
        facts = _gather(ctx, deployment, view, now)
        plan = self._plan(facts) if held is None else ScalePlan({})
        actions, refusal = ActionRecorder(ctx, self._metrics, NAME, deployment, SCALING_EVENTS), None
        collides = False
        try:
            if held is None:
                collides = await self._carry_out(ctx, actions, facts, plan)
                deployment = await self._write_revision(ctx, actions, facts)
        except REFUSALS as error:
            refusal = error
            actions.refused(error)
        status, deadline = self._status(facts, plan, actions, refusal, collides=collides)
        await ctx.write_status(deployment, status)
        if refusal is not None:
            raise refusal
        set_holds = [held_until(each.as_view(ReplicaSetView), NAME, now) for each in facts.sets]
        return requeue_at(now, next_hold_end(view, now), deadline, *set_holds, *held_off, reason=plan.waits_for)

    # -- plan --------------------------------------------------------------------------------------

    def _plan(self, facts: DeploymentFacts) -> ScalePlan:
        spec = facts.view.spec
        current = facts.current
        return plan_scales(
            spec.replicas,
            facts.bounds,
            new=None if current is None else set_facts(current, facts.now),
            old=[set_facts(each, facts.now) for each in facts.old],
            recreate=spec.strategy.type == "Recreate",
            paused=spec.paused,
            updated_max=number_of(facts.deployment, UPDATED_MAX),
            floor=_has_floor(facts),
        )

    # -- writes ------------------------------------------------------------------------------------

    async def _claim_sets(
        self, ctx: Context, deployment: Object, view: DeploymentView, now: datetime
    ) -> tuple[bool, list[datetime]]:
        """Adopt and release ReplicaSets by the selector.

        Returns whether there was anything to do, and when the holds on the other ReplicaSets end.
        """
        selector = label_selector(view.spec.selector)
        adopt, ends = await self._orphans.find(ctx, deployment.key.namespace, selector, now)
        released, _ = split_held(to_release(ctx.owned(REPLICA_SET, deployment), selector), NAME, now)
        if adopt:
            # The cache may still show an owner that is gone; adopting for it would turn live pods into garbage.
            fresh = await ctx.fresh(deployment.key)
            if fresh is None or fresh.uid != deployment.uid or fresh.metadata.deletion_timestamp is not None:
                adopt = []
        actions = ActionRecorder(ctx, self._metrics, NAME)
        for each in adopt:
            await actions.run("adopt", each.key.name, ctx.patch(each, adoption(each, DEPLOYMENT, deployment)))
        for each in released:
            await actions.run("orphan", each.key.name, ctx.patch(each, release(each, deployment)))
        return bool(adopt or released), ends

    async def _carry_out(self, ctx: Context, actions: ActionRecorder, facts: DeploymentFacts, plan: ScalePlan) -> bool:
        """Scale the ReplicaSets, create the current one, delete those past the history limit.

        Returns whether another object has the name of the current one.
        """
        if plan.first_size is not None and not facts.view.spec.paused:
            return await self._create(ctx, actions, facts, plan.first_size)
        for each in facts.sets:
            patch = self._set_patch(facts, each, plan.sizes.get(each.key.name))
            if "replicas" in patch.get("spec", {}):
                await actions.run_on("scale", f"{each.key.name} to {patch['spec']['replicas']}", ctx.patch(each, patch))
            elif patch:
                await actions.run_on("annotate", each.key.name, ctx.patch(each, patch))
        for each in past_history(facts):
            await actions.run_on("drop", each.key.name, ctx.delete(each))
        return False

    async def _create(self, ctx: Context, actions: ActionRecorder, facts: DeploymentFacts, size: int) -> bool:
        suffix = template_hash(facts.digest, facts.view.status.collision_count)
        name, namespace = f"{facts.deployment.key.name}-{suffix}", facts.deployment.key.namespace
        there = ctx.get(Key(REPLICA_SET.key_kind, namespace, name))
        if there is not None:
            # This Deployment's, and being deleted: wait until the name is free. Any other: use another name.
            owner = controller_of(there.metadata)
            ours = owner is not None and owner.uid == facts.deployment.uid
            return not (ours and there.metadata.deletion_timestamp is not None)
        revision = next_revision(None, facts.old)
        annotations = set_annotations(
            facts.deployment, facts.digest, revision, facts.view.spec.replicas, facts.most, None
        )
        annotations |= {
            name: text for name, text in topology_annotations(facts.deployment).current.items() if text is not None
        }
        body = replica_set_body(facts.deployment, facts.template, suffix, size, annotations)
        await actions.run("create", f"{name} with {size}", ctx.ensure(REPLICA_SET, body))
        return False

    def _set_patch(self, facts: DeploymentFacts, each: Object, size: int | None) -> dict[str, Any]:
        """The patch of one ReplicaSet; empty if it is up to date."""
        view, spec = each.as_view(ReplicaSetView), facts.view.spec
        if each.metadata.deletion_timestamp is not None or active_hold(view, NAME, facts.now) is not None:
            return {}
        marks, wanted = topology_annotations(facts.deployment), dict[str, str | None]()
        if each is facts.current:
            wanted |= set_annotations(
                facts.deployment, facts.digest, next_revision(each, facts.old), spec.replicas, facts.most, each
            )
            wanted |= marks.current
        elif size is not None or view.spec.replicas:
            wanted |= {DESIRED_REPLICAS: str(spec.replicas), MAX_REPLICAS: str(facts.most), **marks.old}
        notes = {name: text for name, text in wanted.items() if each.metadata.annotations.get(name) != text}
        changed: dict[str, Any] = {}
        if size is not None and size != view.spec.replicas:
            changed["replicas"] = size
        if each is facts.current and view.spec.min_ready_seconds != spec.min_ready_seconds:
            changed["minReadySeconds"] = spec.min_ready_seconds
        patch: dict[str, Any] = {"spec": changed} if changed else {}
        return {**patch, "metadata": {"annotations": notes}} if notes else patch

    async def _write_revision(self, ctx: Context, actions: ActionRecorder, facts: DeploymentFacts) -> Object:
        """Write the current revision to the Deployment, where `kubectl rollout history` reads it."""
        if facts.current is None:
            return facts.deployment
        revision = str(next_revision(facts.current, facts.old))
        if facts.deployment.metadata.annotations.get(DEPLOYMENT_REVISION) == revision:
            return facts.deployment
        patch = {"metadata": {"annotations": {DEPLOYMENT_REVISION: revision}}}
        return await actions.run("revise", f"to {revision}", ctx.patch(facts.deployment, patch))

    # -- status ------------------------------------------------------------------------------------

    def _status(
        self,
        facts: DeploymentFacts,
        plan: ScalePlan,
        actions: ActionRecorder,
        refusal: OperatingError | None,
        *,
        collides: bool,
    ) -> tuple[dict[str, Any], datetime | None]:
        view, now = facts.view, facts.now
        sets = [each.as_view(ReplicaSetView) for each in facts.sets]
        current = None if facts.current is None else facts.current.as_view(ReplicaSetView)
        counts = count_replicas(current, sets)
        verdict = evaluate_progress(view, counts, now, waits_for=plan.waits_for)
        # A ReplicaSet that this run has resized has not counted the replicas that it should have now.
        resized = any(plan.sizes.get(each.name, each.spec.replicas) != each.spec.replicas for each in sets)
        progress = sum_of_progress(
            [each.status.progress for each in sets],
            desired=view.spec.replicas,
            generation=view.generation,
            before=view.status.progress,
            last_action=actions.last,
            deadline=verdict.deadline,
        )
        status: dict[str, Any] = {
            **counts.as_json(),
            "progress": progress,
            "conditions": [
                availability(view, counts, facts.bounds),
                verdict.condition,
                *(failures(view, sets) if refusal is None else [_refused(refusal)]),
                *repairs(view, sets),
                *rollback(view, current, rolls_back=is_rollback(facts.current, facts.old)),
                *availability_floor(view, plan.floor),
                *stage_conditions(
                    progress,
                    desired=view.spec.replicas,
                    stages=stages_of(current),
                    counted=have_counted(sets) and not resized,
                    stages_counted=current is not None and have_counted([current]),
                ),
                *hold_conditions(view, view.status.conditions, now),
            ],
        }
        if collides:
            status["collisionCount"] = view.status.collision_count + 1
        return status, verdict.deadline


def stages_of(current: ReplicaSetView | None) -> dict[str, int]:
    """The stages of the replicas of the current template, as their ReplicaSet has counted them last."""
    if current is None:
        return {}
    progress = current.status.progress
    return {"unknown": progress.unknown, **{str(stage): getattr(progress.stages, stage) for stage in STAGES}}


def _refused(refusal: OperatingError) -> dict[str, Any]:
    return {
        "type": REPLICA_FAILURE,
        "status": "True",
        "reason": type(refusal).__name__,
        "message": refusal.message,
    }


def _has_floor(facts: DeploymentFacts) -> bool:
    """Whether a rollback must keep an available replica. A single one of at-most-one cannot: it needs a second copy."""
    if facts.deployment.metadata.annotations.get(AVAILABILITY_FLOOR) == "off":
        return False
    single = facts.view.spec.replicas <= 1 and requires_at_most_one(facts.view.spec.template)
    return is_rollback(facts.current, facts.old) and not single


def _gather(ctx: Context, deployment: Object, view: DeploymentView, now: datetime) -> DeploymentFacts:
    sets = ctx.owned(REPLICA_SET, deployment)
    template = template_of(deployment)
    digest = template_digest(template)
    current = find_current(sets, template, digest)
    return DeploymentFacts(deployment, view, sets, current, template, digest, resolve_bounds(view.spec), now)


def set_facts(each: Object, now: datetime) -> SetFacts:
    """The plan's input for a ReplicaSet. One that is being deleted has size 0, but still has copies."""
    view = each.as_view(ReplicaSetView)
    going = each.metadata.deletion_timestamp is not None
    return SetFacts(
        each.key.name,
        0 if going else view.spec.replicas,
        copies=view.status.replicas + view.status.terminating_replicas,
        available=view.status.available_replicas,
        observed=going or view.status.observed_generation >= view.generation,
        created=str(view.metadata.creation_timestamp),
        revision=revision_of(each),
        desired=number_of(each, DESIRED_REPLICAS),
        most=number_of(each, MAX_REPLICAS),
        held=active_hold(view, NAME, now) is not None,
    )


def past_history(facts: DeploymentFacts) -> list[Object]:
    """Old empty ReplicaSets beyond the history limit, the oldest first, once the rollout is complete."""
    if facts.current is None:
        return []
    sets = [each.as_view(ReplicaSetView) for each in facts.sets]
    counts = count_replicas(facts.current.as_view(ReplicaSetView), sets)
    if not is_complete(facts.view, counts):
        return []
    empty = [each for each in facts.old if _is_empty(each, facts.now)]
    empty.sort(key=lambda each: (revision_of(each), str(each.metadata.creation_timestamp), each.key.name))
    surplus = len(facts.old) - facts.view.spec.revision_history_limit
    return empty[: max(0, surplus)]


def _is_empty(each: Object, now: datetime) -> bool:
    view = each.as_view(ReplicaSetView)
    facts = set_facts(each, now)
    return not facts.held and not view.terminating and facts.observed and facts.copies_max == 0


wake_set_owner = wake_claimants(DEPLOYMENT)


def deployment_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=DEPLOYMENT,
            writes=(
                *writes("patch", DEPLOYMENT),
                *writes("patch", DEPLOYMENT, "status"),
                *writes("create patch delete", REPLICA_SET),
            ),
            watches=(
                WatchSpec(kind=REPLICA_SET, keys_of=wake_set_owner, indexes=(BY_CONTROLLER, ORPHANS)),
                WatchSpec(kind=RESOURCE_QUOTA, keys_of=wake_blocked(DEPLOYMENT, condition=REPLICA_FAILURE)),
                PRIORITY_CLASSES,
            ),
            priority_of=template_priority,
        ),
        DeploymentReconciler(runtime.env),
        runtime,
    )

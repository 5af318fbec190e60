"""The rollout controller: changes a SchedulingPolicy or a Deployment stage by stage.

`policy_target` and `deployment_target` gather the facts and make the patches, `plan` decides, `gates` evaluates. The
status is written before the target, and the target only at the version that was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from kedge.api.holds import active_hold, hold_conditions, next_hold_end
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.timestamps import format_micro_time
from kedge.api.views import RolloutView
from kedge.api.wellknown import NODE_LEASE_NAMESPACE
from kedge.controllers.rollout.deployment_target import DeploymentTarget
from kedge.controllers.rollout.gates import CacheFact
from kedge.controllers.rollout.plan import RolloutAction, RolloutPhase, RolloutPlan, plan_rollout
from kedge.controllers.rollout.policy_target import PolicyTarget
from kedge.controllers.shared.actions import requeue_at
from kedge.controllers.shared.holds import hold_off
from kedge.controllers.shared.kinds import BUDGET, DEPLOYMENT, LEASE, NODE, POD, POLICY, REPLICA_SET, ROLLOUT
from kedge.controllers.shared.node_leases import LeaseAges
from kedge.controllers.shared.templates import template_digest, template_of
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import BY_CONTROLLER, CacheChange, CacheSet
from kedge.runtime.status import status_of

NAME = "rollout"
READ = (POD, REPLICA_SET, NODE, LEASE, DEPLOYMENT, POLICY)
"""The kinds that gates read: all of their caches must have reached the change."""


_TROUBLED = (RolloutPhase.PAUSED, RolloutPhase.ROLLING_BACK, RolloutPhase.ROLLED_BACK)
"""Phases whose Events are warnings."""


class RolloutReconciler:
    """Reconciles one Rollout. It reads only cache and lease ages of its process, through `measured`."""

    def __init__(self, env: Env, cache_facts: Callable[[], list[list[Any]]] | None = None) -> None:
        self._cache_facts = cache_facts or list
        self.lease_ages = LeaseAges(env)
        self._plans = env.metrics.counter("kedge_rollout_plans_total", "Plans of rollouts, by phase", ("phase",))

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="deleted or being deleted: its target stays as it is")
        view, now = found.as_view(RolloutView), ctx.now()
        hold = active_hold(view, NAME, now)
        if hold is not None:
            return await hold_off(ctx, found, hold, now)
        caches = tuple(CacheFact(*each) for each in ctx.measured("the caches", self._cache_facts))
        target: PolicyTarget | DeploymentTarget
        target = (PolicyTarget if view.spec.policy is not None else DeploymentTarget)(ctx, found, self.lease_ages)
        plan = _without_held_action(plan_rollout(target.facts(caches, now)), target.object, now)
        self._plans.labels(plan.phase).inc()
        found = await self._write_status(ctx, found, view, plan, target, now)
        if plan.phase != view.status.phase:
            text = f"{plan.reason}: {plan.message}" if plan.message else plan.reason
            ctx.event(found, f"Rollout{plan.phase}", text, warning=plan.phase in _TROUBLED)
        if plan.act is not RolloutAction.NONE:
            await self._write_target(ctx, found, plan, target)
        if not plan.requeues:
            return requeue_at(now, next_hold_end(view, now), reason=plan.reason)
        return Action.requeue(delay_s=ctx.limits.rollout_look_s, reason=plan.reason)

    async def _write_status(
        self,
        ctx: Context,
        found: Object,
        view: RolloutView,
        plan: RolloutPlan,
        target: PolicyTarget | DeploymentTarget,
        now: datetime,
    ) -> Object:
        times = plan.times_as_json()
        old = status_of(found)
        if any(old.get(field) != value for field, value in times.items()):
            found = await ctx.patch(found, {"status": times}, subresource="status")
        status = plan.as_json()
        if plan.begins:
            status |= target.before()
        conditions = [*status["conditions"], *hold_conditions(view, view.status.conditions, now)]
        return await ctx.write_status(found, {**status, "conditions": conditions})

    async def _write_target(
        self, ctx: Context, rollout: Object, plan: RolloutPlan, target: PolicyTarget | DeploymentTarget
    ) -> None:
        found = target.object
        if found is None:
            return
        match plan.act:
            case RolloutAction.ACTIVATE:
                written = await ctx.patch(found, target.staged(plan.stage))
                # After the patch: only evidence from after this revision and time counts.
                status = {"activationRevision": written.revision, "stageStartedAt": format_micro_time(ctx.now())}
                if isinstance(target, DeploymentTarget):
                    status["activeDigest"] = template_digest(template_of(written))
                await ctx.patch(rollout, {"status": status}, subresource="status")
            case RolloutAction.PROMOTE:
                await ctx.patch(found, target.promoted())
            case RolloutAction.ROLL_BACK:
                await ctx.patch(found, target.original())
            case RolloutAction.NONE:
                pass


def _without_held_action(plan: RolloutPlan, target: Object | None, now: datetime) -> RolloutPlan:
    """The plan without its action, and with the reason, if a person holds the target."""
    hold = (
        active_hold(target.metadata, NAME, now) if target is not None and plan.act is not RolloutAction.NONE else None
    )
    return plan if hold is None else replace(plan, act=RolloutAction.NONE, reason="TargetHeld", message=str(hold))


# -- the controller --------------------------------------------------------------------------------


def _wake_rollouts(change: CacheChange, caches: CacheSet) -> list[Key]:
    """Wakes the rollouts of a target whose generation has changed."""
    generations = [each.metadata.generation for each in (change.old, change.new) if each is not None]
    if len(generations) == 2 and generations[0] == generations[1]:
        return []
    kind = KINDS.of_key_kind(change.key.kind).kind
    found = []
    for cache in caches.of_kind(ROLLOUT.key_kind):
        for each in cache.list(namespace=change.key.namespace).value:
            target = each.as_view(RolloutView).spec.target
            if (target.kind, target.name) == (kind, change.key.name):
                found.append(each.key)
    return found


def rollout_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""

    def cache_facts() -> list[list[Any]]:
        caches = [
            controller.caches.cache(each, namespace=NODE_LEASE_NAMESPACE if each is LEASE else "") for each in READ
        ]
        # Without one history for all kinds no revision can be compared with the change: no cache counts as past it.
        return [
            [each.kind.kind, each.revision if runtime.client.one_history else 0, min(each.age_s, 1e9)]
            for each in caches
        ]

    reconciler = RolloutReconciler(runtime.env, cache_facts)
    controller = Controller(
        ControllerSpec(
            name=NAME,
            kind=ROLLOUT,
            writes=(
                *writes("patch", ROLLOUT, "status"),
                *writes("patch", DEPLOYMENT),
                *writes("patch", POLICY),
            ),
            watches=(
                WatchSpec(kind=POLICY, keys_of=_wake_rollouts),
                WatchSpec(kind=DEPLOYMENT, keys_of=_wake_rollouts),
                WatchSpec(kind=REPLICA_SET, indexes=(BY_CONTROLLER,)),
                WatchSpec(kind=POD, indexes=(BY_CONTROLLER,)),
                WatchSpec(kind=NODE),
                WatchSpec(kind=LEASE, namespace=NODE_LEASE_NAMESPACE, keys_of=reconciler.lease_ages.observe),
                WatchSpec(kind=BUDGET),
            ),
        ),
        reconciler,
        runtime,
    )
    return controller

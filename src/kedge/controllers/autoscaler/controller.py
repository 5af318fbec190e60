"""The autoscaler controller: scales the target of a HorizontalPodAutoscaler by the usage of its pods.

`usage` proposes a size for each metric and `plan` decides. The size is written only to the version of the target whose
counts were read, so the bound on unserved replicas holds at the commit, not just in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Any

from kedge.api.conditions import condition, find_condition, is_true
from kedge.api.holds import hold_conditions
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.quantity import NANO, Quantity
from kedge.api.usage import parse_usage
from kedge.api.views import DeploymentView, HorizontalPodAutoscalerView, PodView, ReplicaSetView
from kedge.api.wellknown import NODE_LEASE_NAMESPACE, USAGE
from kedge.controllers.autoscaler.plan import ABLE, ACTIVE, ScalingLimits, ScalingPlan, TargetFacts, plan_scaling
from kedge.controllers.autoscaler.usage import PodUsage, Proposal, UsageRules, propose
from kedge.controllers.shared.conditions import REPLICA_FAILURE
from kedge.controllers.shared.holds import held_until
from kedge.controllers.shared.kinds import AUTOSCALER, DEPLOYMENT, LEASE, POD, REPLICA_SET
from kedge.controllers.shared.node_leases import LeaseAges, lease_key
from kedge.controllers.shared.pods import is_active, is_ahead
from kedge.controllers.shared.progress import is_unknown
from kedge.env import Env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import BY_CONTROLLER, Stale

NAME = "autoscaler"
_TARGETS: dict[tuple[str, str], Kind] = {(each.api_version, each.kind): each for each in (DEPLOYMENT, REPLICA_SET)}


class AutoscalerReconciler:
    """Reconciles one autoscaler."""

    def __init__(self, env: Env) -> None:
        self.lease_ages = LeaseAges(env)
        self._plans = env.metrics.counter(
            "kedge_autoscaler_plans_total", "Plans of autoscalers, by result", ("result",)
        )
        self._scalings = env.metrics.counter(
            "kedge_autoscaler_scalings_total", "Changes of a target's replicas, by direction", ("direction",)
        )

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="deleted or being deleted")
        view, now = found.as_view(HorizontalPodAutoscalerView), ctx.now()
        target, problem = _target_of(ctx, found, view)
        again = Action.requeue(delay_s=ctx.limits.autoscaler_look_s)
        if target is None:
            self._plans.labels("no target").inc()
            known = find_condition(view.status.conditions, problem["type"])
            await ctx.write_status(found, {"conditions": [problem, *_hold(view, now)]})
            if known is None or known.reason != problem["reason"]:
                ctx.event(found, problem["reason"], problem["message"], warning=True)
            return again
        pods = _pods_of(ctx, target)
        plan = self._plan(ctx, view, target, pods, now)
        held = held_until(view, NAME, now) or held_until(target.as_view(_view_of(target)), NAME, now)
        if plan.clock_mended:
            found = await ctx.patch(found, {"status": {"advice": plan.advice_as_json()}}, subresource="status")
        if plan.scales and held is None:
            # Recorded before the write: after a crash the next plan still counts this change towards the rates.
            found = await ctx.patch(found, {"status": plan.past_as_json()}, subresource="status")
            await ctx.patch(target, {"spec": {"replicas": plan.desired}})
            self._scalings.labels("up" if plan.desired > plan.current else "down").inc_by(ctx.decision)
            ctx.event(found, "SuccessfulRescale", f"New size: {plan.desired}; it was {plan.current}")
        self._plans.labels("held" if held is not None else "scaled" if plan.scales else "kept").inc()
        status = plan.as_json()
        await ctx.write_status(found, {**status, "conditions": [*status["conditions"], *_hold(view, now)]})
        return again

    def _plan(
        self, ctx: Context, view: HorizontalPodAutoscalerView, target: Object, pods: Sequence[PodView], now: datetime
    ) -> ScalingPlan:
        limits = ctx.limits
        stale = _too_old(ctx)
        facts = replace(_facts_of(target, stale), undecided=_undecided(pods, limits.node_lost_s, now))
        usage = _usage_of(ctx, pods, self.lease_ages)
        rules = _usage_rules(view, limits)
        proposals: list[Proposal] = [
            propose(metric, facts.replicas, pods, usage, rules, now) for metric in view.spec.metrics
        ]
        bounds = ScalingLimits(
            limits.autoscaler_unserved_max, limits.autoscaler_cooldown_s, limits.autoscaler_history_max
        )
        return plan_scaling(view.spec, view.status, facts, proposals, bounds, now)


# -- inputs ----------------------------------------------------------------------------------------


def _target_of(ctx: Context, found: Object, view: HorizontalPodAutoscalerView) -> tuple[Object | None, dict[str, Any]]:
    """The target; or None, and the condition with the reason."""
    ref, namespace = view.spec.scale_target_ref, found.key.namespace
    kind = _TARGETS.get((ref.api_version, ref.kind))
    if kind is None:
        message = (
            f"kedge scales Deployments and ReplicaSets of apps/v1, not {ref.kind} of {ref.api_version or 'no group'}"
        )
        return None, condition(ABLE, status=False, reason="FailedGetScale", message=message)
    rival = _rival(ctx, found, view)
    if rival:
        message = f"{rival} scales {ref.kind} {ref.name} too, and was first: remove one of the two"
        return None, condition(ACTIVE, status=False, reason="AmbiguousSelector", message=message)
    target = ctx.get(Key(kind.key_kind, namespace, ref.name))
    if target is None or target.metadata.deletion_timestamp is not None:
        message = f"there is no {ref.kind} {ref.name}"
        return None, condition(ABLE, status=False, reason="FailedGetScale", message=message)
    return target, {}


def _rival(ctx: Context, found: Object, view: HorizontalPodAutoscalerView) -> str:
    """An older autoscaler of the same target: two would overwrite each other's sizes."""
    own = (str(found.metadata.creation_timestamp), found.key.name)
    for other in ctx.list(AUTOSCALER, namespace=found.key.namespace):
        age = (str(other.metadata.creation_timestamp), other.key.name)
        same = other.as_view(HorizontalPodAutoscalerView).spec.scale_target_ref == view.spec.scale_target_ref
        if same and age < own and other.metadata.deletion_timestamp is None:
            return other.key.name
    return ""


def _view_of(target: Object) -> type[DeploymentView] | type[ReplicaSetView]:
    return DeploymentView if target.kind is DEPLOYMENT else ReplicaSetView


def _pods_of(ctx: Context, target: Object) -> tuple[PodView, ...]:
    owners = ctx.owned(REPLICA_SET, target) if target.kind is DEPLOYMENT else (target,)
    return tuple(pod.as_view(PodView) for owner in owners for pod in ctx.owned(POD, owner))


def _facts_of(target: Object, stale: str) -> TargetFacts:
    view: Any = target.as_view(_view_of(target))
    status = view.status
    failure = find_condition(status.conditions, REPLICA_FAILURE)
    return TargetFacts(
        replicas=view.spec.replicas,
        ready=status.ready_replicas,
        progress=status.progress,
        observed=status.observed_generation >= view.generation
        and status.progress.observed_generation >= view.generation,
        failure=failure.message if failure is not None and is_true(status.conditions, REPLICA_FAILURE) else "",
        stale=stale,
    )


def _undecided(pods: Sequence[PodView], lost_s: float, now: datetime) -> int:
    """Replicas whose nodes have been silent for less than it takes to declare a node lost. After that they are just
    not ready: a zone that stays cut off must not stop the others from growing."""
    ready = (find_condition(pod.status.conditions, "Ready") for pod in pods if is_active(pod) and is_unknown(pod))
    since = (found.last_transition_time for found in ready if found is not None)
    return sum(at is not None and not is_ahead(at, now) and (now - at).total_seconds() < lost_s for at in since)


def _too_old(ctx: Context) -> str:
    """A cache that is too old to decide on scaling up; empty if none is."""
    for kind in (DEPLOYMENT, REPLICA_SET, POD, LEASE):
        try:
            ctx.check_fresh(kind, max_age_s=ctx.limits.autoscaler_cache_age_s)
        except Stale:
            return kind.kind
    return ""


def _usage_of(ctx: Context, pods: Sequence[PodView], lease_ages: LeaseAges) -> dict[str, PodUsage]:
    """Usage by pod uid, from the leases of the pods' nodes. A report that cannot be parsed is ignored."""
    found: dict[str, PodUsage] = {}
    for node in dict.fromkeys(pod.spec.node_name for pod in pods if pod.spec.node_name):
        lease = ctx.get(lease_key(node))
        text = "" if lease is None else lease.metadata.annotations.get(USAGE, "")
        if not text:
            continue
        try:
            report = parse_usage(text)
        except ValueError:
            continue
        if report.at is not None:
            age_s = ctx.measured(f"the age of the report of {node}", partial(lease_ages.report_age_s, node))
            for uid, containers in report.pods.items():
                found[uid] = PodUsage(report.at, age_s, report.window_seconds, containers)
    return found


def _usage_rules(view: HorizontalPodAutoscalerView, limits: Limits) -> UsageRules:
    default = Fraction(limits.autoscaler_tolerance_milli, 1000)
    behavior = view.spec.behavior
    up = behavior.scale_up.tolerance if behavior is not None and behavior.scale_up is not None else None
    down = behavior.scale_down.tolerance if behavior is not None and behavior.scale_down is not None else None
    return UsageRules(limits.autoscaler_sample_s, limits.autoscaler_start_s, _share(up, default), _share(down, default))


def _share(given: Quantity | None, default: Fraction) -> Fraction:
    return default if given is None else Fraction(given.nano, NANO)


def _hold(view: HorizontalPodAutoscalerView, now: datetime) -> list[dict[str, Any]]:
    return hold_conditions(view, view.status.conditions, now)


def autoscaler_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    reconciler = AutoscalerReconciler(runtime.env)
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=AUTOSCALER,
            writes=(
                *writes("patch", AUTOSCALER, "status"),
                *writes("patch", DEPLOYMENT),
                *writes("patch", REPLICA_SET),
            ),
            watches=(
                WatchSpec(kind=DEPLOYMENT),
                WatchSpec(kind=REPLICA_SET, indexes=(BY_CONTROLLER,)),
                WatchSpec(kind=POD, indexes=(BY_CONTROLLER,)),
                WatchSpec(kind=LEASE, namespace=NODE_LEASE_NAMESPACE, keys_of=reconciler.lease_ages.observe),
            ),
        ),
        reconciler,
        runtime,
    )

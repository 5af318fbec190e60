"""The budget controller: writes how many pods may be disrupted to the status, where the eviction verb reads it.

An eviction charges the budget in its own commit and names its pod in `disruptedPods`. The pod stays there until this
controller has seen it leave: an eviction counts however old the cache of pods is.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from kedge.api.holds import active_hold, hold_conditions, next_hold_end
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.selectors import label_selector
from kedge.api.views import DeploymentView, JobView, PodDisruptionBudgetView, PodView, ReplicaSetView
from kedge.controllers.budget.plan import plan_budget, starts_to_match_none, still_disrupted
from kedge.controllers.budget.status import budget_status
from kedge.controllers.shared.actions import requeue_at
from kedge.controllers.shared.holds import hold_off
from kedge.controllers.shared.kinds import BUDGET, DEPLOYMENT, JOB, POD, REPLICA_SET
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import CacheChange, CacheSet

NAME = "disruption"


class BudgetReconciler:
    """Reconciles one budget."""

    def __init__(self, env: Env) -> None:
        self._allowed = env.metrics.gauge("kedge_budgets_allowed", "Disruptions allowed now", ("namespace", "name"))

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="deleted or being deleted")
        budget, now = found.as_view(PodDisruptionBudgetView), ctx.now()
        hold = active_hold(budget, NAME, now)
        if hold is not None:
            return await hold_off(ctx, found, hold, now)
        selector = label_selector(budget.spec.selector)
        listed = [each for each in ctx.list(POD, namespace=key.namespace) if selector.matches(each.metadata.labels)]
        living = [pod for pod in (each.as_view(PodView) for each in listed) if not pod.finished]
        # Nothing was awaited since the pods were read, so this is about the same state of the cache.
        current = ctx.has_seen(POD, found.revision)
        if current is None:
            doubted = still_disrupted(budget, living)
            current = await self._are_current(ctx, [each for each in listed if each.key.name in doubted])
        plan = plan_budget(budget, living, self._expected(ctx, living), pods_are_current=current)
        status = budget_status(budget, plan)
        status["conditions"] += hold_conditions(budget, budget.status.conditions, now)
        await ctx.write_status(found, status)
        if starts_to_match_none(budget, plan):
            ctx.event(found, "NoPods", "No pod matches the selector, so no disruption is counted")
        self._allowed.labels(key.namespace, key.name).set(plan.disruptions_allowed)
        again = now + timedelta(seconds=ctx.limits.budget_again_s) if plan.disrupted else None
        return requeue_at(now, again, next_hold_end(budget, now))

    async def _are_current(self, ctx: Context, pods: Iterable[Object]) -> bool:
        """Whether the API server has these very revisions: then none of the pods was evicted before the read."""
        for pod in pods:
            now = await ctx.fresh(pod.key)
            if now is None or now.revision != pod.revision:
                return False
        return True

    def _expected(self, ctx: Context, pods: Iterable[PodView]) -> int:
        """The replicas that the owners of these pods request. A pod without a controller counts as one."""
        owners: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is None:
                owners[pod.uid] = 1
                continue
            uid, size = self._size(ctx, owner.kind, Key("", pod.namespace, owner.name), owner.uid)
            owners[uid] = size if size is not None else owners.get(uid, 0) + 1
        return sum(owners.values())

    def _size(self, ctx: Context, kind: str, name: Key, uid: str) -> tuple[str, int | None]:
        """The uid of the workload that sets the number of pods, and that number; None if it is unknown."""
        if kind == JOB.kind:
            job = ctx.get(name._replace(kind=JOB.key_kind))
            return uid, job.as_view(JobView).spec.parallelism if job is not None and job.uid == uid else None
        if kind != REPLICA_SET.kind:
            return uid, None
        found = ctx.get(name._replace(kind=REPLICA_SET.key_kind))
        if found is None or found.uid != uid:
            return uid, None
        above = controller_of(found.metadata)
        if above is not None and above.kind == DEPLOYMENT.kind:
            deployment = ctx.get(Key(DEPLOYMENT.key_kind, name.namespace, above.name))
            if deployment is not None and deployment.uid == above.uid:
                return above.uid, deployment.as_view(DeploymentView).spec.replicas
        return uid, found.as_view(ReplicaSetView).spec.replicas


def _budgets(caches: CacheSet, namespace: str) -> Iterable[Object]:
    for cache in caches.of_kind(BUDGET.key_kind):
        yield from cache.list(namespace=namespace).value


def wake_covering(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
    """Wakes the budgets that select a pod, before or after the change."""
    labels = [each.metadata.labels for each in (change.old, change.new) if each is not None]
    for budget in _budgets(caches, change.key.namespace):
        selector = label_selector(budget.as_view(PodDisruptionBudgetView).spec.selector)
        if any(selector.matches(each) for each in labels):
            yield budget.key


def wake_resized(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
    """Wakes every budget of the namespace when a workload is created, deleted or changed."""
    if (
        change.old is not None
        and change.new is not None
        and change.old.metadata.generation == change.new.metadata.generation
    ):
        return ()
    return [budget.key for budget in _budgets(caches, change.key.namespace)]


def budget_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=BUDGET,
            writes=(*writes("patch", BUDGET, "status"),),
            watches=(
                WatchSpec(kind=POD, keys_of=wake_covering),
                WatchSpec(kind=REPLICA_SET, keys_of=wake_resized),
                WatchSpec(kind=DEPLOYMENT, keys_of=wake_resized),
                WatchSpec(kind=JOB, keys_of=wake_resized),
            ),
        ),
        BudgetReconciler(runtime.env),
        runtime,
    )

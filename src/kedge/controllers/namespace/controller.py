"""Namespaces: one that is being deleted is emptied, and goes when it is empty. The plan is pure.

From the commit that marks it nothing more can be created there, so what the authority lists after that only becomes
less: once every kind is listed empty, it is empty for good.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kedge.api.conditions import condition, find_condition
from kedge.api.holds import active_hold
from kedge.api.kinds import KINDS, Kind, Registry
from kedge.api.objects import Object
from kedge.api.views import NamespaceView, ObjectMeta
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    JOB_KIND,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
)
from kedge.controllers.shared.reconcile import wait_out
from kedge.env import Env
from kedge.errors import Conflict, Forbidden, NotFound
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec

NAME = "namespace"
NAMESPACE = KINDS.of_key_kind(NAMESPACE_KIND)
FINALIZER = "kubernetes"
_FIRST = (DEPLOYMENT_KIND, REPLICA_SET_KIND, JOB_KIND, POD_KIND)
"""Those who make others go first, then what runs; what they stand on (quotas, settings) goes after them."""
_NEVER = (NODE_ALLOCATION_KIND,)
CONTENT, FINALIZERS, FAILURE = (
    "NamespaceContentRemaining",
    "NamespaceFinalizersRemaining",
    "NamespaceDeletionContentFailure",
)


@dataclass(frozen=True, slots=True)
class EmptyingPlan:
    """What to delete of a namespace now, and what still stands."""

    delete: tuple[Key, ...] = ()
    remaining: Mapping[str, int] = field(default_factory=dict)
    """How many there are of each kind, those that are on their way out included."""
    finalizers: Mapping[str, int] = field(default_factory=dict)
    """What they wait for."""

    @property
    def empty(self) -> bool:
        return not self.remaining


def plan_emptying(
    found: Mapping[str, Sequence[tuple[Key, ObjectMeta]]], *, burst: int, held: Collection[Key] = ()
) -> EmptyingPlan:
    """Delete what is there, stage by stage: a later one waits until the earlier ones are gone.

    What a person holds stays, and takes nobody's turn.
    """
    remaining = {kind: len(each) for kind, each in found.items() if each}
    finalizers: dict[str, int] = {}
    for each in found.values():
        for _, metadata in each:
            for name in metadata.finalizers if metadata.deletion_timestamp is not None else ():
                finalizers[name] = finalizers.get(name, 0) + 1
    first = [kind for kind in _FIRST if kind in remaining]
    stage = first or sorted(remaining)
    delete = [
        key
        for kind in stage
        for key, metadata in found[kind]
        if metadata.deletion_timestamp is None and key not in held
    ]
    return EmptyingPlan(tuple(delete[:burst]), remaining, finalizers)


def emptying_conditions(view: NamespaceView, plan: EmptyingPlan, failure: str) -> list[dict[str, Any]]:
    """What keeps the namespace, in Kubernetes' words; nothing for what was never in the way."""
    said = (
        (CONTENT, "SomeResourcesRemain", "ContentRemoved", plan.remaining),
        (FINALIZERS, "SomeFinalizersRemain", "ContentHasNoFinalizers", plan.finalizers),
    )
    found = []
    for type_, reason, otherwise, counts in said:
        if counts or find_condition(view.status.conditions, type_) is not None:
            words = ", ".join(f"{name}: {count}" for name, count in sorted(dict(counts).items()))
            found.append(condition(type_, status=bool(counts), reason=reason if counts else otherwise, message=words))
    if failure or find_condition(view.status.conditions, FAILURE) is not None:
        reason = "ContentDeletionFailed" if failure else "ContentDeleted"
        found.append(condition(FAILURE, status=bool(failure), reason=reason, message=failure))
    return found


class NamespaceReconciler:
    """One look at one namespace."""

    def __init__(self, env: Env, kinds: Registry = KINDS) -> None:
        self._kinds = tuple(kind for kind in kinds if kind.namespaced and kind.key_kind not in _NEVER)
        self._ending = env.metrics.counter("kedge_namespaces_ending", "What was deleted with its namespace", ("kind",))

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or found.metadata.deletion_timestamp is None:
            return Action.await_change()
        view, now = found.as_view(NamespaceView), ctx.now()
        hold = active_hold(view, NAME, now)
        if hold is not None:
            return await wait_out(ctx, found, hold, now)
        if FINALIZER not in view.spec.finalizers:
            return Action.await_change(reason="it waits for the finalizers of others")
        objects = {kind.key_kind: await self._list(ctx, kind, key.name) for kind in self._kinds}
        by_key = {each.key: each for there in objects.values() for each in there}
        holds = {each: hold for each in by_key if (hold := active_hold(by_key[each].metadata, NAME, now)) is not None}
        plan = plan_emptying(
            {kind: [(each.key, each.metadata) for each in there] for kind, there in objects.items()},
            burst=ctx.limits.pod_burst,
            held=holds,
        )
        failure = ""
        for each in plan.delete:
            failure = await self._delete(ctx, by_key[each]) or failure
        if plan.empty:
            left = [name for name in view.spec.finalizers if name != FINALIZER]
            await ctx.patch(found, {"spec": {"finalizers": left}}, subresource="finalize")
            return Action.await_change(reason="it is empty")
        await ctx.write_status(found, {"conditions": emptying_conditions(view, plan, failure)})
        reason = "; ".join(["it is not empty yet", *(f"{each}: {hold}" for each, hold in holds.items())][:5])
        return Action.requeue(delay_s=ctx.limits.namespace_retry_s, condition=CONTENT, reason=reason)

    async def _list(self, ctx: Context, kind: Kind, namespace: str) -> Sequence[Object]:
        """At the authority: an object that a cache missed would be lost with its namespace."""
        return await ctx.fresh_list(kind, namespace=namespace)

    async def _delete(self, ctx: Context, each: Object) -> str:
        self._ending.labels(each.key.kind).inc()
        try:
            await ctx.delete(each, any_version=True, propagation="Background")
        except NotFound:
            return ""
        except (Forbidden, Conflict) as error:
            return f"{each.key}: {error.message}"
        return ""


def namespace_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(name=NAME, kind=NAMESPACE), NamespaceReconciler(runtime.env, runtime.client.kinds), runtime
    )

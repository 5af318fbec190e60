"""The namespace controller: empties a namespace that is being deleted, then removes its finalizer.

After the commit that sets the deletion timestamp nothing can be created in the namespace, so later lists at the API
server only shrink: once every kind lists empty, the namespace stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence

from kedge.api.holds import active_hold
from kedge.api.kinds import KINDS, Kind, Registry
from kedge.api.objects import Object
from kedge.api.views import NamespaceView
from kedge.api.wellknown import (
    NODE_ALLOCATION_KIND,
)
from kedge.controllers.namespace.plan import plan_namespace
from kedge.controllers.namespace.status import CONTENT, namespace_conditions, namespace_events
from kedge.controllers.shared.holds import hold_off
from kedge.controllers.shared.kinds import NAMESPACE
from kedge.env import Env
from kedge.errors import Conflict, Forbidden, NotFound
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, writes

NAME = "namespace"
FINALIZER = "kubernetes"
_NEVER = (NODE_ALLOCATION_KIND,)


class NamespaceReconciler:
    """Reconciles one namespace."""

    def __init__(self, env: Env, kinds: Registry = KINDS) -> None:
        self._kinds = tuple(kind for kind in kinds if kind.namespaced and kind.key_kind not in _NEVER)
        self._ending = env.metrics.counter(
            "kedge_namespace_deletions_total", "Objects deleted with their namespace", ("kind",)
        )

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None or found.metadata.deletion_timestamp is None:
            return Action.await_change()
        view, now = found.as_view(NamespaceView), ctx.now()
        hold = active_hold(view, NAME, now)
        if hold is not None:
            return await hold_off(ctx, found, hold, now)
        if FINALIZER not in view.spec.finalizers:
            return Action.await_change(reason="other finalizers are left")
        objects = {kind.key_kind: await self._list(ctx, kind, key.name) for kind in self._kinds}
        by_key = {each.key: each for there in objects.values() for each in there}
        holds = {each: hold for each in by_key if (hold := active_hold(by_key[each].metadata, NAME, now)) is not None}
        plan = plan_namespace(
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
        conditions = namespace_conditions(view, plan, failure)
        await ctx.write_status(found, {"conditions": conditions})
        for why, text, warning in namespace_events(view, conditions):
            ctx.event(found, why, text, warning=warning)
        reason = "; ".join(["it is not empty yet", *(f"{each}: {hold}" for each, hold in holds.items())][:5])
        return Action.requeue(delay_s=ctx.limits.namespace_retry_s, condition=CONTENT, reason=reason)

    async def _list(self, ctx: Context, kind: Kind, namespace: str) -> Sequence[Object]:
        """List at the API server: an object that a cache missed would be left without its namespace."""
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
        ControllerSpec(
            name=NAME,
            kind=NAMESPACE,
            writes=(
                *writes("delete", None),
                *writes("patch", NAMESPACE, "status"),
                *writes("patch", NAMESPACE, "finalize"),
            ),
        ),
        NamespaceReconciler(runtime.env, runtime.client.kinds),
        runtime,
    )

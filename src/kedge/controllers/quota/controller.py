"""The quota controller: requests a recount when the use in a quota differs from the cached objects.

The service counts the use in every commit. A recount of a correct quota changes nothing. `shared.quota_room` wakes
workloads that a quota refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from kedge.api.holds import Hold, active_hold
from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, PodView, ResourceQuotaView, ZoneQuotaView
from kedge.controllers.quota.plan import needs_count, zones_need_count
from kedge.controllers.shared.actions import requeue_at
from kedge.controllers.shared.kinds import NAMESPACE, NODE_ALLOCATION, POD, RESOURCE_QUOTA, ZONE_QUOTA
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import CacheChange, CacheSet

NAME = "quota"


class QuotaReconciler:
    """Reconciles the quotas of one namespace."""

    def __init__(self, env: Env) -> None:
        self._recounts = env.metrics.counter("kedge_quota_recounts_total", "Recounts requested, by kind", ("kind",))

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        namespace = ctx.get(key)
        if namespace is None or namespace.metadata.deletion_timestamp is not None:
            return Action.await_change()
        now = ctx.now()
        quotas = ctx.list(RESOURCE_QUOTA, namespace=key.name)
        zones = ctx.list(ZONE_QUOTA, namespace=key.name)
        if not quotas and not zones:
            return Action.await_change(reason="it has no quotas")
        pods = [pod.as_view(PodView) for pod in ctx.list(POD, namespace=key.name)] if quotas else []
        ledgers = [each.as_view(NodeAllocationView) for each in ctx.list(NODE_ALLOCATION)] if zones else []
        wrong = [(each, "used") for each in quotas if needs_count(each.as_view(ResourceQuotaView), pods)]
        wrong += [(each, "zones") for each in zones if zones_need_count(each.as_view(ZoneQuotaView), key.name, ledgers)]
        holds = [await self._count(ctx, quota, field, now) for quota, field in wrong]
        again = now + timedelta(seconds=ctx.limits.repair_every_s)
        ends = [hold.until for hold in holds if hold is not None]
        return requeue_at(now, again, *ends, reason="; ".join(str(hold) for hold in holds if hold is not None))

    async def _count(self, ctx: Context, quota: Object, field: str, now: datetime) -> Hold | None:
        """Request a recount. Safe for any version: the service counts in the commit that writes it.

        Returns the hold that prevents it, if there is one.
        """
        hold = active_hold(quota.metadata, NAME, now)
        if hold is None:
            self._recounts.labels(quota.key.kind).inc()
            await ctx.patch(quota, {"status": {field: None}}, subresource="status", any_version=True)
            if getattr(quota.view.status, field):  # the first count is no repair
                ctx.event(
                    quota, "QuotaRecounted", "Its use differed from the pods that it pays for, and was counted again"
                )
        return hold


# -- wakes -----------------------------------------------------------------------------------------


def wake_uncounted(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    """Wakes the namespace of a quota that is not counted yet. A change of its use, as in every write, wakes nothing."""
    if change.new is None:
        return
    view = change.new.view
    if change.key.kind == RESOURCE_QUOTA.key_kind:
        counted = set(view.status.used) == set(view.spec.hard)
    else:
        counted = set(view.status.zones) >= set(view.spec.zones)
    if not counted:
        yield Key(NAMESPACE.key_kind, "", change.key.namespace)


def quota_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=NAMESPACE,
            writes=(
                *writes("patch", RESOURCE_QUOTA, "status"),
                *writes("patch", ZONE_QUOTA, "status"),
            ),
            watches=(
                WatchSpec(kind=RESOURCE_QUOTA, keys_of=wake_uncounted),
                WatchSpec(kind=ZONE_QUOTA, keys_of=wake_uncounted),
                WatchSpec(kind=POD),
                WatchSpec(kind=NODE_ALLOCATION),
            ),
        ),
        QuotaReconciler(runtime.env),
        runtime,
    )

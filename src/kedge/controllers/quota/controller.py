"""Quotas: their use is counted by the service in every commit; this sees that each is counted, and still right.

It compares what a quota says with what caches hold, and asks the service to count anew when they differ: a count that
was right stays as it is. `wake_blocked` is how whoever was refused by a quota learns that there is room again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from kedge.api.conditions import is_true
from kedge.api.holds import Hold, active_hold
from kedge.api.kinds import KINDS, Kind
from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, PodView, ResourceQuotaView, ZoneQuotaView
from kedge.api.wellknown import NAMESPACE_KIND, RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND
from kedge.controllers.shared.reconcile import NODE_ALLOCATION, POD, look_again
from kedge.env import Env
from kedge.keys import Key
from kedge.placement.ledger import claim_of
from kedge.placement.quota import count_name, in_scope, object_cost, tracked, zone_used
from kedge.placement.resources import Units, add, to_units
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec
from kedge.runtime.cache import CacheChange, CacheSet
from kedge.runtime.spec import KeysOf

NAME = "quota"
NAMESPACE = KINDS.of_key_kind(NAMESPACE_KIND)
RESOURCE_QUOTA = KINDS.of_key_kind(RESOURCE_QUOTA_KIND)
ZONE_QUOTA = KINDS.of_key_kind(ZONE_QUOTA_KIND)


def expected_use(quota: ResourceQuotaView, pods: Sequence[PodView]) -> dict[str, int]:
    """What pods come to, of all that a quota speaks of and pods can cost. Other kinds are the service's to count."""
    hard = set(quota.spec.hard)
    costs = [tracked(object_cost(POD, pod), hard) for pod in pods if in_scope(quota, pod)]
    return add(*costs) if costs else {}


def needs_count(quota: ResourceQuotaView, pods: Sequence[PodView]) -> bool:
    """Whether the quota was never counted, or says another number of something than there is."""
    used = to_units(quota.status.used)
    if set(used) != set(quota.spec.hard):
        return True
    expected = expected_use(quota, pods)
    return any(used[name] != expected.get(name, 0) for name in used if _costs_pods(name))


def _costs_pods(name: str) -> bool:
    """Whether only pods can cost this."""
    return name in ("pods", "cpu", "memory", count_name(POD)) or name.startswith(("requests.", "limits."))


def expected_zone_use(
    quota: ZoneQuotaView, tenant: str, ledgers: Iterable[NodeAllocationView]
) -> dict[str, dict[str, int]]:
    """What a tenant's claims in each limited zone come to."""
    sums: dict[str, dict[str, int]] = {zone: {} for zone in quota.spec.zones}
    for ledger in ledgers:
        for entry in ledger.status.entries.values():
            if entry.namespace == tenant and entry.zone in sums:
                sums[entry.zone] = add(sums[entry.zone], claim_of(entry).requests)
    return sums


def zones_need_count(quota: ZoneQuotaView, tenant: str, ledgers: Iterable[NodeAllocationView]) -> bool:
    for zone, expected in expected_zone_use(quota, tenant, ledgers).items():
        used = zone_used(quota, zone)
        if used is None or _amounts(used) != _amounts(expected):
            return True
    return False


def _amounts(units: Units) -> dict[str, int]:
    """Nothing of something is as good as no word of it."""
    return {name: amount for name, amount in units.items() if amount}


class QuotaReconciler:
    """One look at the quotas of one namespace."""

    def __init__(self, env: Env) -> None:
        self._recounts = env.metrics.counter("kedge_quota_recounts_total", "Counts asked for, by kind", ("kind",))

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
        return look_again(now, again, *ends, reason="; ".join(str(hold) for hold in holds if hold is not None))

    async def _count(self, ctx: Context, quota: Object, field: str, now: datetime) -> Hold | None:
        """Ask for a count. Right whatever else was written: the service counts in the commit that writes it.

        Returns the hold that keeps off, if one does.
        """
        hold = active_hold(quota.metadata, NAME, now)
        if hold is None:
            self._recounts.labels(quota.key.kind).inc()
            await ctx.patch(quota, {"status": {field: None}}, subresource="status", any_version=True)
        return hold


# -- waking ----------------------------------------------------------------------------------------


def wake_uncounted(change: CacheChange, _: CacheSet) -> Iterable[Key]:
    """The namespace of a quota that nobody has counted yet. Its use changes with every write: that wakes nobody."""
    if change.new is None:
        return
    view = change.new.view
    if change.key.kind == RESOURCE_QUOTA.key_kind:
        counted = set(view.status.used) == set(view.spec.hard)
    else:
        counted = set(view.status.zones) >= set(view.spec.zones)
    if not counted:
        yield Key(NAMESPACE.key_kind, "", change.key.namespace)


def has_freed(old: Object | None, new: Object | None) -> bool:
    """Whether a quota has more room than it had: it limits more, or less is used, or it is gone."""
    if old is None or new is None:
        return new is None
    if old.key.kind == RESOURCE_QUOTA.key_kind:
        return _more_room([(old.view.spec.hard, old.view.status.used)], [(new.view.spec.hard, new.view.status.used)])
    return _more_room(_zone_rooms(old.view), _zone_rooms(new.view)) or not set(old.view.spec.zones) <= set(
        new.view.spec.zones
    )


def _zone_rooms(view: ZoneQuotaView) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    zones = sorted(view.spec.zones)
    return [(view.spec.zones[z].hard, view.status.zones[z].used if z in view.status.zones else {}) for z in zones]


def _more_room(
    before: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    after: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> bool:
    for (hard, used), (hard_now, used_now) in zip(before, after, strict=False):
        was, now = _room(hard, used), _room(hard_now, used_now)
        if any(name not in now or now[name] > room for name, room in was.items()):
            return True  # what is no longer limited has all the room there is
    return False


def _room(hard: Mapping[str, Any], used: Mapping[str, Any]) -> dict[str, int]:
    limits, taken = to_units(hard), to_units(used)
    return {name: amount - taken.get(name, 0) for name, amount in limits.items()}


def wake_blocked(kind: Kind, *, condition: str) -> KeysOf:
    """For a controller of `kind` that creates what quotas count: wake those whose `condition` says that a create was
    refused, as soon as there is room again."""

    def keys_of(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
        if not has_freed(change.old, change.new):
            return
        for cache in caches.of_kind(kind.key_kind):
            for each in cache.list(namespace=change.key.namespace).value:
                if is_true(each.view.status.conditions, condition):
                    yield each.key

    return keys_of


def quota_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=NAMESPACE,
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

"""The expected use of a quota, computed from pods and ledgers, and whether the quota differs from it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kedge.api.views import NodeAllocationView, PodView, ResourceQuotaView, ZoneQuotaView
from kedge.controllers.shared.kinds import POD
from kedge.placement.ledger import claim_of
from kedge.placement.quota import count_name, in_scope, object_cost, tracked, zone_used
from kedge.placement.resources import Units, add, to_units


def expected_use(quota: ResourceQuotaView, pods: Sequence[PodView]) -> dict[str, int]:
    """The use of pods, for the resources that the quota limits. The service alone counts other kinds."""
    hard = set(quota.spec.hard)
    costs = [tracked(object_cost(POD, pod), hard) for pod in pods if in_scope(quota, pod)]
    return add(*costs) if costs else {}


def needs_count(quota: ResourceQuotaView, pods: Sequence[PodView]) -> bool:
    """Whether the quota was never counted, or differs from the expected use."""
    used = to_units(quota.status.used)
    if set(used) != set(quota.spec.hard):
        return True
    expected = expected_use(quota, pods)
    return any(used[name] != expected.get(name, 0) for name in used if _costs_pods(name))


def _costs_pods(name: str) -> bool:
    """Whether only pods use this resource."""
    return name in ("pods", "cpu", "memory", count_name(POD)) or name.startswith(("requests.", "limits."))


def expected_zone_use(
    quota: ZoneQuotaView, tenant: str, ledgers: Iterable[NodeAllocationView]
) -> dict[str, dict[str, int]]:
    """The sum of a tenant's claims in each limited zone."""
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
    """Without zeros: an amount of 0 equals a missing one."""
    return {name: amount for name, amount in units.items() if amount}

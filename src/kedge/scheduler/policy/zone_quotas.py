"""Zone quotas from the caches: how much each leaves to its tenant, with assumed pods counted.

`placement.quota` is the arithmetic, shared with the service; the bind checks the quota again.
"""

from __future__ import annotations

from collections.abc import Mapping

from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, ZoneQuotaView
from kedge.api.wellknown import NODE_ALLOCATION_KIND
from kedge.keys import Key
from kedge.placement.ledger import claim_of
from kedge.placement.quota import zone_hard, zone_used
from kedge.placement.resources import Units, add
from kedge.runtime.cache import Cache
from kedge.scheduler.state.assumptions import Assumptions


class ZoneQuotas:
    """The quotas of every tenant."""

    def __init__(self, caches: Mapping[str, Cache], assumed: Assumptions) -> None:
        self._caches = caches
        self._assumed = assumed
        self._quotas: dict[str, dict[str, Object]] = {}
        """By tenant and name."""

    def put(self, key: Key, quota: Object | None) -> None:
        """Set the latest version of a quota; None if it was deleted."""
        quotas = self._quotas.setdefault(key.namespace, {})
        if quota is not None:
            quotas[key.name] = quota
            return
        quotas.pop(key.name, None)
        if not quotas:
            del self._quotas[key.namespace]

    def has(self, tenant: str) -> bool:
        return tenant in self._quotas

    def room_of(self, tenant: str) -> Mapping[str, Units] | None:
        """The rest of the tenant's quotas in each zone. Binds that a quota does not count yet are subtracted."""
        quotas = self._quotas.get(tenant)
        if not quotas:
            return None
        room: dict[str, dict[str, int]] = {}
        for quota in quotas.values():
            view = quota.as_view(ZoneQuotaView)
            for zone in view.spec.zones:
                hard = zone_hard(view, zone) or {}
                counted = zone_used(view, zone)
                used = counted if counted is not None else self._claimed_in(tenant, zone)
                left = room.setdefault(zone, {})
                ahead = self._assumed.requests_in(tenant, zone, quota.revision)
                for resource, amount in hard.items():
                    free = amount - used.get(resource, 0) - sum(each.get(resource, 0) for each in ahead)
                    left[resource] = min(free, left.get(resource, free))
        return room

    def _claimed_in(self, tenant: str, zone: str) -> Units:
        """The usage of a quota that has no count yet: the sum of ledgers, as the bind will count it."""
        claims = (
            claim_of(entry)
            for ledger in self._caches[NODE_ALLOCATION_KIND].list().value  # a leader's caches are all synced
            for entry in ledger.as_view(NodeAllocationView).status.entries.values()
        )
        return add(*(each.requests for each in claims if (each.namespace, each.zone) == (tenant, zone)))

"""Tenants' zone quotas: charged by the commit that makes a claim in the zone, refunded by the commit that releases it.

A quota's use in a zone is the sum of its tenant's claims there. The first claim or release that finds it uncounted
counts it. Every claim since the quota was registered writes the quota, so two concurrent counts cannot both commit.
"""

from __future__ import annotations

from typing import Any

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.quantity import format_units
from kedge.api.views import NamespaceView, ZoneQuotaView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, ZONE_QUOTA_KIND
from kedge.errors import Refused
from kedge.keys import Key
from kedge.placement.ledger import Claim
from kedge.placement.quota import zone_hard, zone_used
from kedge.placement.reasons import Reason
from kedge.placement.resources import Units, add, shortages, subtract
from kedge.server.service.core import Core, Proof, part, staged_object, staged_value
from kedge.server.service.namespaces import namespace_key


def may_be_limited(proof: Proof, tenant: str, zone: str) -> bool:
    """False if no quota of the tenant can limit `zone`: then there is nothing to charge."""
    if not zone:
        return False
    namespace = proof.known(namespace_key(tenant))  # the commit proves it, so no quota can be added meanwhile
    return namespace is None or bool(namespace.as_view(NamespaceView).status.zone_quotas)


async def charge_zone(core: Core, proof: Proof, pod: Key, zone: str, asked: Units) -> None:
    for quota in await _zone_quotas(proof, pod.namespace, zone):
        view = quota.as_view(ZoneQuotaView)
        hard = zone_hard(view, zone)
        if hard is None:
            continue
        used = zone_used(view, zone)
        if used is None:
            used = await _count_zone(core, proof, pod.namespace, zone)
        short = shortages({resource: asked[resource] for resource in asked.keys() & hard.keys()}, used, hard)
        if short:
            amounts = ", ".join(
                f"{r} (asked {format_units(r, asked[r])}, used {format_units(r, used.get(r, 0))}"
                f" of {format_units(r, hard[r])})"
                for r in short
            )
            raise Refused(
                f"zone quota {quota.key.name} has no room in {zone} for {pod}: {amounts}",
                refusal=Reason.ZONE_QUOTA.value,
                key=quota.key,
                revision=quota.revision,
            )
        _write_zone_use(proof, quota, zone, add(used, asked))


async def refund_zone(core: Core, proof: Proof, claim: Claim) -> None:
    """Refund a claim to its tenant's quotas. The claim is still in its ledger, so a count includes it."""
    for quota in await _zone_quotas(proof, claim.namespace, claim.zone):
        view = quota.as_view(ZoneQuotaView)
        if zone_hard(view, claim.zone) is None:
            continue
        used = zone_used(view, claim.zone)
        if used is None:
            used = await _count_zone(core, proof, claim.namespace, claim.zone)
        _write_zone_use(proof, quota, claim.zone, subtract(used, claim.requests))


async def recount_zones(core: Core, proof: Proof, quota: Object, document: dict[str, Any]) -> None:
    """Write the sum of the tenant's claims in each limited zone into `document`. As safe as `quotas.recount`."""
    zones = {}
    for zone in sorted(part(part(document, "spec"), "zones")):
        used = await _count_zone(core, proof, quota.key.namespace, zone)
        zones[zone] = {"used": {resource: format_units(resource, amount) for resource, amount in used.items()}}
    document["status"] = {**part(document, "status"), "zones": zones}


async def _zone_quotas(proof: Proof, tenant: str, zone: str) -> list[Object]:
    """The tenant's zone quotas, as this attempt has already changed them."""
    namespace = await proof.object(namespace_key(tenant))
    if namespace is None or not zone:
        return []
    names = namespace.as_view(NamespaceView).status.zone_quotas
    if not names:
        return []  # the commit proves the namespace, so no quota can be added meanwhile
    quotas = await proof.objects(*(Key(ZONE_QUOTA_KIND, tenant, name) for name in names))
    return [staged_object(proof, quota) for quota in quotas if quota is not None]


async def _count_zone(core: Core, proof: Proof, tenant: str, zone: str) -> dict[str, int]:
    listing = await core.store.list(NODE_ALLOCATION_KIND)
    ledgers = (core.ledgers.decoded(entry.key, staged_value(proof, entry)) for entry in listing.entries)
    claims = (claim for ledger in ledgers for _, claim in ledger.claims())
    return add(*(claim.requests for claim in claims if (claim.namespace, claim.zone) == (tenant, zone)))


def _write_zone_use(proof: Proof, quota: Object, zone: str, used: Units) -> None:
    document = quota.edit()
    zones = part(part(document, "status"), "zones")
    zones[zone] = {"used": {resource: format_units(resource, amount) for resource, amount in used.items()}}
    proof.put(quota.key, encode_object(document))

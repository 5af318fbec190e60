"""Tenants' zone quotas: charged by the commit that makes a claim in the zone, refunded by the commit that releases it.

A quota's use in a zone is the sum of its tenant's claims there. The first claim or release that finds it uncounted has
it counted in a commit of its own. Every claim since the quota was registered writes the quota, so a count that missed a
claim cannot be committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.quantity import format_units
from kedge.api.requests import WriteOptions
from kedge.api.views import NamespaceView, ZoneQuotaView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, ZONE_QUOTA_KIND
from kedge.errors import Forbidden, NotFound, Refused
from kedge.keys import Key
from kedge.placement.ledger import Claim
from kedge.placement.quota import zone_hard, zone_used
from kedge.placement.reasons import Reason
from kedge.placement.resources import Units, add, shortages, subtract
from kedge.server.service.core import Core, Proof, Staged, Unsettled, part, staged_object, staged_value
from kedge.server.service.namespaces import namespace_key
from kedge.server.service.slices import entries_in_slices


def may_be_limited(proof: Proof, tenant: str, zone: str) -> bool:
    """False if no quota of the tenant can limit `zone`: then there is nothing to charge."""
    if not zone:
        return False
    namespace = proof.known(namespace_key(tenant))  # the commit proves it, so no quota can be added meanwhile
    return namespace is None or bool(namespace.as_view(NamespaceView).status.zone_quotas)


async def charge_zone(core: Core, proof: Proof, pod: Key, zone: str, asked: Units) -> None:
    for quota, hard, used in await _limiting_quotas(core, proof, pod.namespace, zone):
        short = shortages({resource: asked[resource] for resource in asked.keys() & hard.keys()}, used, hard)
        if short:
            raise Refused(
                f"zone quota {quota.key.name} has no room in {zone} for {pod}: {_shortage(short, asked, used, hard)}",
                refusal=Reason.ZONE_QUOTA.value,
                key=quota.key,
                revision=quota.revision,
            )
        _write_zone_use(proof, quota, zone, add(used, asked))


async def recharge_zone(core: Core, proof: Proof, pod: Key, claim: Claim, requests: Units, *, enforced: bool) -> None:
    """Charge a claim with other requests than it has. The claim is still in its ledger as it was.

    `Forbidden` names the quota that it would exceed, if that is `enforced`: a report of a node cannot be refused.
    """
    grown = {r: amount - claim.requests.get(r, 0) for r, amount in requests.items()}
    for quota, hard, used in await _limiting_quotas(core, proof, claim.namespace, claim.zone):
        short = shortages({r: grown[r] for r in grown.keys() & hard.keys()}, used, hard)
        if short and enforced:
            proof.note(quota.key, "refused", _shortage(short, grown, used, hard))
            raise Forbidden(
                f'pods "{pod.name}" is forbidden: zone quota {quota.key.name} has no room in {claim.zone}'
                f" for the resize: {_shortage(short, grown, used, hard)}",
                key=pod,
            )
        _write_zone_use(proof, quota, claim.zone, add(subtract(used, claim.requests), requests))


def _shortage(short: Sequence[str], asked: Units, used: Units, hard: Units) -> str:
    return ", ".join(
        f"{r} (asked {format_units(r, asked[r])}, used {format_units(r, used.get(r, 0))} of {format_units(r, hard[r])})"
        for r in short
    )


async def refund_zone(core: Core, proof: Proof, claim: Claim) -> None:
    """Refund a claim to its tenant's quotas. The claim is still in its ledger, so a count includes it."""
    for quota, _, used in await _limiting_quotas(core, proof, claim.namespace, claim.zone):
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


async def _limiting_quotas(core: Core, proof: Proof, tenant: str, zone: str) -> list[tuple[Object, Units, Units]]:
    """The quotas that limit a tenant in a zone, each with its limits and its use.

    If some were never counted, the attempt begins again once their counts are committed. A dry run counts here.
    """
    found, uncounted = [], []
    for quota in await _zone_quotas(proof, tenant, zone):
        view = quota.as_view(ZoneQuotaView)
        hard, used = zone_hard(view, zone), zone_used(view, zone)
        if hard is None:
            continue
        if used is None:
            uncounted.append(quota.key)
            used = await _count_zone(core, proof, tenant, zone) if proof.dry_run else {}
        found.append((quota, hard, used))
    if uncounted and not proof.dry_run:
        raise Unsettled(lambda options: _ensure_counted(core, uncounted, zone, options))
    return found


async def _ensure_counted(core: Core, keys: Sequence[Key], zone: str, options: WriteOptions) -> None:
    """Count the use of quotas in a zone, once for all the writes that wait for it."""
    for key in keys:

        async def attempt(proof: Proof, key: Key = key) -> Staged:
            quota = await proof.object(key)
            if quota is None:
                raise NotFound(f'zonequotas "{key.name}" not found: it was removed while it was counted', key=key)
            view = quota.as_view(ZoneQuotaView)
            if zone_hard(view, zone) is not None and zone_used(view, zone) is None:
                _write_zone_use(proof, quota, zone, await _count_zone(core, proof, key.namespace, zone))
            return Staged(quota.kind, key, staged_value(proof, quota), created=quota.created)

        core.queue_on(key)  # the first attempt counts; the others wait, and find it counted
        with suppress(NotFound):
            await core.prove(attempt, options)


async def _count_zone(core: Core, proof: Proof, tenant: str, zone: str) -> dict[str, int]:
    """The sum of the tenant's claims in the zone. The quota was read before, and each claim writes it."""
    used: dict[str, int] = {}
    async for entries in entries_in_slices(core, NODE_ALLOCATION_KIND):
        for entry in entries:
            ledger = core.ledgers.decoded(entry.key, staged_value(proof, entry))
            charged = (each for _, each in ledger.claims() if (each.namespace, each.zone) == (tenant, zone))
            used = add(used, *(each.requests for each in charged))
    return used


def _write_zone_use(proof: Proof, quota: Object, zone: str, used: Units) -> None:
    document = quota.edit()
    zones = part(part(document, "status"), "zones")
    zones[zone] = {"used": {resource: format_units(resource, amount) for resource, amount in used.items()}}
    proof.put(quota.key, encode_object(document))

"""Whether the objects of a store agree: ledgers with pods and their own sums, quotas with what they count. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, PodView, ResourceQuotaView, ZoneQuotaView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, POD_KIND, RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND
from kedge.controllers.quota.plan import needs_count, zones_need_count
from kedge.errors import KedgeError
from kedge.placement.ledger import ledger_of
from kedge.placement.resources import Units, add
from kedge.store import Entry
from kedge.store.sqlite import StoreFinding

_READ = (POD_KIND, NODE_ALLOCATION_KIND, RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND)


def disagreements(entries: Sequence[Entry]) -> Iterator[StoreFinding]:
    """Every object that cannot be read, and every ledger and quota that differs from what it sums up."""
    objects: dict[str, list[Object]] = {kind: [] for kind in _READ}
    for entry in entries:
        if entry.key.kind in _READ:
            kind = KINDS.of_key_kind(entry.key.kind)
            found = Object(kind, entry.key, entry.value, revision=entry.modified, created=entry.created)
            try:
                _ = found.view
            except (KedgeError, msgspec.MsgspecError, ValueError) as error:
                yield StoreFinding("versions", f"{entry.key} cannot be decoded: {error}")
            else:
                objects[entry.key.kind].append(found)
    pods = [each.as_view(PodView) for each in objects[POD_KIND]]
    ledgers = [each.as_view(NodeAllocationView) for each in objects[NODE_ALLOCATION_KIND]]
    yield from _ledgers(pods, ledgers)
    for each in objects[RESOURCE_QUOTA_KIND]:
        quota = each.as_view(ResourceQuotaView)
        in_namespace = [pod for pod in pods if pod.metadata.namespace == each.key.namespace]
        if quota.status.used.keys() == quota.spec.hard.keys() and needs_count(quota, in_namespace):
            yield StoreFinding("quotas", f"{each.key} differs from the pods of its namespace")
    for each in objects[ZONE_QUOTA_KIND]:
        zone_quota = each.as_view(ZoneQuotaView)
        if zone_quota.status.zones and zones_need_count(zone_quota, each.key.namespace, ledgers):
            yield StoreFinding("quotas", f"{each.key} differs from the claims of its namespace")


def _ledgers(pods: Sequence[PodView], ledgers: Sequence[NodeAllocationView]) -> Iterator[StoreFinding]:
    claimed: dict[str, set[str]] = {}
    for view in ledgers:
        ledger = ledger_of(view)
        total = add(*(claim.requests for claim in ledger.claims.values())) if ledger.claims else {}
        if _amounts(total) != _amounts(ledger.allocated):
            yield StoreFinding("ledgers", f"the ledger of {ledger.node} is not the sum of its claims")
        for uid in ledger.claims:
            claimed.setdefault(uid, set()).add(ledger.node)
    for pod in pods:
        node, name = pod.spec.node_name, f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        nodes = claimed.get(pod.metadata.uid, set())
        if node and not pod.finished and node not in nodes:
            yield StoreFinding("ledgers", f"{name} is bound to {node}, whose ledger has no claim of it")
        if others := nodes - {node} if node else set():
            yield StoreFinding("ledgers", f"{name} is bound to {node} and has a claim on {', '.join(sorted(others))}")


def _amounts(units: Units) -> dict[str, int]:
    return {name: amount for name, amount in units.items() if amount}

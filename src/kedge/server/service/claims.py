"""Claims on nodes and on tenants' zone quotas: made, moved and released inside the commit they belong to.

A claim is an entry in its node's `NodeAllocation`, keyed by pod uid; it says for which zone the tenant's quotas
were charged. Binding and reserving make claims; a pod's end or removal and a reservation's removal release them.
A forced deletion proves no end: the claim stays until the agent confirms or the node's incarnation changes.
"""

from __future__ import annotations

from typing import Any

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.quantity import format_units
from kedge.api.requests import WriteOptions
from kedge.api.views import NamespaceView, NodeAllocationView, NodeView, PodView, ReservationView, ZoneQuotaView
from kedge.errors import Refused, check
from kedge.keys import NO_REVISION, Key, Revision
from kedge.placement.ledger import Claim, ClaimState, Ledger, ledger_of, write_ledger
from kedge.placement.predicates import first_misfit, host_ports
from kedge.placement.quota import zone_hard, zone_used
from kedge.placement.reasons import Misfit, Reason
from kedge.placement.resources import Units, add, pod_requests, shortages, subtract
from kedge.server.service.core import Core, Proof, Staged, Unsettled, part
from kedge.server.service.namespaces import namespace_key

ALLOCATION = "NodeAllocation.kedge.dev"
RESERVATION = "Reservation.kedge.dev"
ZONE_QUOTA = "ZoneQuota.kedge.dev"
NODE = "Node"
ZONE_LABEL = "topology.kubernetes.io/zone"


def node_key(name: str) -> Key:
    return Key(NODE, "", name)


def allocation_key(node: str) -> Key:
    return Key(ALLOCATION, "", node)


def reservation_key(namespace: str, pod_uid: str) -> Key:
    return Key(RESERVATION, namespace, pod_uid)


def refuse(misfit: Misfit, key: Key, revision: Revision) -> Refused:
    return Refused(misfit.message, refusal=misfit.reason.value, key=key, revision=revision)


async def claim(core: Core, proof: Proof, pod: Object, node: Object, state: ClaimState) -> None:
    """Prove that `pod` may have its place on `node`, and stage the claim. Replaces a claim it has there already.

    Raises:
        Refused: it does not fit what is committed now: reason, object and revision to see before trying again.
    """
    pod_view, node_view = pod.as_view(PodView), node.as_view(NodeView)
    ledger, allocation = await _ledger(core, proof, node)
    uid = pod_view.metadata.uid
    if await release(core, proof, node.key.name, uid):
        ledger = ledger.release(uid)
    misfit = first_misfit(pod_view, node_view, ledger)
    if misfit is not None:
        about = allocation if misfit.reason in (Reason.RESOURCE, Reason.PORT) and allocation is not None else node
        raise refuse(misfit, about.key, about.revision)
    asked = pod_requests(pod_view)
    zone = node_view.metadata.labels.get(ZONE_LABEL, "")
    await _charge_zone(core, proof, pod.key, zone, asked)
    made = Claim(
        namespace=pod.key.namespace,
        name=pod.key.name,
        state=state,
        requests=asked,
        ports=host_ports(pod_view),
        zone=zone,
    )
    _write_allocation(core, proof, ledger.charge(uid, made), allocation)


def check_pod_claimable(pod: Object, uid: str) -> None:
    """Raise `Refused` unless the pod is the one that was meant and still waits for a node."""
    view = pod.as_view(PodView)
    misfit = None
    if uid and uid != pod.uid:
        misfit = Misfit(
            Reason.POD_REPLACED, f"{pod.key} was replaced by another of its name (uid {pod.uid}, not {uid})"
        )
    elif view.terminating:
        misfit = Misfit(Reason.POD_TERMINATING, f"{pod.key} is being deleted")
    elif view.finished:
        misfit = Misfit(Reason.POD_ENDED, f"{pod.key} has ended ({view.status.phase})")
    elif view.spec.node_name:
        misfit = Misfit(Reason.POD_BOUND, f"{pod.key} is bound to {view.spec.node_name} already")
    elif view.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in view.spec.scheduling_gates)
        misfit = Misfit(Reason.POD_GATED, f"{pod.key} is held back by scheduling gates: {gates}")
    if misfit is not None:
        raise refuse(misfit, pod.key, pod.revision)


def existing_node(node: Object | None, name: str, uid: str) -> Object:
    """The node a claim is for; `Refused` if it is gone or came back as another."""
    if node is None:
        raise refuse(Misfit(Reason.NODE_GONE, f"node {name} does not exist"), node_key(name), NO_REVISION)
    misfit = None
    if uid and uid != node.uid:
        misfit = Misfit(Reason.NODE_REPLACED, f"node {name} came back as another (uid {node.uid}, not {uid})")
    elif node.metadata.deletion_timestamp is not None:
        misfit = Misfit(Reason.NODE_TERMINATING, f"node {name} is being deleted")
    if misfit is not None:
        raise refuse(misfit, node.key, node.revision)
    return node


async def release(core: Core, proof: Proof, node: str, pod_uid: str) -> bool:
    """Stage the release of a pod's claim on a node. False if it has none there."""
    allocation = await proof.object(allocation_key(node))
    if allocation is None:
        return False
    ledger = _staged_ledger(proof, allocation)
    claim = ledger.claims.get(pod_uid)
    if claim is None:
        return False
    await _refund_zone(core, proof, claim)
    _write_allocation(core, proof, ledger.release(pod_uid), allocation)
    return True


async def release_reservation(core: Core, proof: Proof, namespace: str, pod_uid: str) -> None:
    """Stage the end of a pod's reservation and of what it claims, if there is one."""
    reservation = await proof.object(reservation_key(namespace, pod_uid))
    if reservation is None:
        return
    await release_reserved(core, proof, reservation)
    proof.delete(reservation.key)


async def release_reserved(core: Core, proof: Proof, reservation: Object) -> None:
    """Stage the release of what a reservation claims. A claim that was bound meanwhile is the pod's, and stays."""
    spec = reservation.as_view(ReservationView).spec
    if not spec.node_name:
        return
    allocation = await proof.object(allocation_key(spec.node_name))
    if allocation is None:
        return
    held = _staged_ledger(proof, allocation).claims.get(spec.pod.uid)
    if held is not None and held.state is ClaimState.RESERVED:
        await release(core, proof, spec.node_name, spec.pod.uid)


# -- ledgers ---------------------------------------------------------------------------------------


async def _ledger(core: Core, proof: Proof, node: Object) -> tuple[Ledger, Object | None]:
    """The node's ledger; an empty one if it has none, or has come back as another incarnation."""
    allocation = await proof.object(allocation_key(node.key.name))
    if allocation is None:
        return Ledger(node.key.name, node.uid), None
    ledger = _staged_ledger(proof, allocation)
    if ledger.node_uid != node.uid:
        if ledger.claims and not proof.dry_run:
            raise Unsettled(lambda options: _retire_all(core, node, options))
        await retire(core, proof, node)
        ledger = _staged_ledger(proof, allocation)
    return ledger, allocation


async def retire(core: Core, proof: Proof, node: Object) -> None:
    """Stage the release of what an earlier incarnation of `node` held, as much of it as one commit may carry.

    The rest stays on the ledger, which stays that of the earlier incarnation until it is empty.
    """
    allocation = await proof.object(allocation_key(node.key.name))
    if allocation is None:
        return
    ledger = _staged_ledger(proof, allocation)
    if ledger.node_uid == node.uid:
        return
    by_tenant = sorted(ledger.claims.items(), key=lambda item: (item[1].namespace, item[0]))
    for uid, claim in by_tenant:
        if not proof.dry_run and len(proof.reads) + len(proof.writes) > core.env.limits.commit_ops_max // 2:
            break
        await _refund_zone(core, proof, claim)
        ledger = ledger.release(uid)
    if not ledger.claims:
        ledger = Ledger(node.key.name, node.uid)
    _write_allocation(core, proof, ledger, allocation)


async def _retire_all(core: Core, node: Object, options: WriteOptions) -> None:
    """Release everything an earlier incarnation still holds, in as many commits as that takes."""

    async def attempt(proof: Proof) -> Staged:
        now, allocation = await proof.objects(node.key, allocation_key(node.key.name))
        if now is not None and now.uid == node.uid:  # else it changed once more: for the claim to judge
            await retire(core, proof, now)
        check(allocation is not None, "ledgers are never removed")
        assert allocation is not None
        return Staged(allocation.kind, allocation.key, staged(proof, allocation).value, created=allocation.created)

    while (await core.prove(attempt, options)).object.as_view(NodeAllocationView).spec.node_uid != node.uid:
        (found,) = (await core.store.get([node.key])).entries
        if found is None or core.object_of(found).uid != node.uid:
            return


def _staged_ledger(proof: Proof, allocation: Object) -> Ledger:
    return ledger_of(staged(proof, allocation).as_view(NodeAllocationView))


def staged(proof: Proof, found: Object) -> Object:
    """`found` as this attempt has already changed it: two effects on one object must add up."""
    write = proof.writes.get(found.key)
    value = getattr(write, "value", None)
    if value is None:
        return found
    return Object(found.kind, found.key, value, revision=found.revision, created=found.created)


def _write_allocation(core: Core, proof: Proof, ledger: Ledger, old: Object | None) -> None:
    if old is None:
        kind = core.kinds.of_key_kind(ALLOCATION)
        document: dict[str, Any] = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {
                "name": ledger.node,
                "uid": core.env.new_uid(),
                "creationTimestamp": core.timestamp(),
                "generation": 1,
            },
        }
    else:
        document = old.edit()
    proof.put(allocation_key(ledger.node), encode_object(write_ledger(ledger, document)))


# -- zone quotas -----------------------------------------------------------------------------------
#
# A quota's use in a zone is the sum of its tenant's claims there. It is counted by the first claim or release that
# finds it uncounted: each since the quota was registered writes it, so two that count at once cannot both commit.


async def _charge_zone(core: Core, proof: Proof, pod: Key, zone: str, asked: Units) -> None:
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
            words = ", ".join(
                f"{r} (asked {format_units(r, asked[r])}, used {format_units(r, used.get(r, 0))}"
                f" of {format_units(r, hard[r])})"
                for r in short
            )
            misfit = Misfit(Reason.ZONE_QUOTA, f"zone quota {quota.key.name} has no room in {zone} for {pod}: {words}")
            raise refuse(misfit, quota.key, quota.revision)
        _write_zone_use(proof, quota, zone, add(used, asked))


async def _refund_zone(core: Core, proof: Proof, claim: Claim) -> None:
    """Give a claim back to its tenant's quotas. The claim is still in its ledger, and so in any count."""
    for quota in await _zone_quotas(proof, claim.namespace, claim.zone):
        view = quota.as_view(ZoneQuotaView)
        if zone_hard(view, claim.zone) is None:
            continue
        used = zone_used(view, claim.zone)
        if used is None:
            used = await _count_zone(core, proof, claim.namespace, claim.zone)
        _write_zone_use(proof, quota, claim.zone, subtract(used, claim.requests))


async def _zone_quotas(proof: Proof, tenant: str, zone: str) -> list[Object]:
    """The tenant's zone quotas, as this attempt has already changed them."""
    namespace = await proof.object(namespace_key(tenant))
    if namespace is None or not zone:
        return []
    names = namespace.as_view(NamespaceView).status.zone_quotas
    quotas = await proof.objects(*(Key(ZONE_QUOTA, tenant, name) for name in names))
    return [staged(proof, quota) for quota in quotas if quota is not None]


async def _count_zone(core: Core, proof: Proof, tenant: str, zone: str) -> dict[str, int]:
    listing = await core.store.list(ALLOCATION)
    claims = (
        claim for entry in listing.entries for claim in _staged_ledger(proof, core.object_of(entry)).claims.values()
    )
    return add(*(claim.requests for claim in claims if (claim.namespace, claim.zone) == (tenant, zone)))


def _write_zone_use(proof: Proof, quota: Object, zone: str, used: Units) -> None:
    document = quota.edit()
    zones = part(part(document, "status"), "zones")
    zones[zone] = {"used": {resource: format_units(resource, amount) for resource, amount in used.items()}}
    proof.put(quota.key, encode_object(document))

"""Claims on nodes: made, moved and released inside the commit they belong to.

A claim is an entry in its node's `NodeAllocation`, keyed by pod uid, with the zone for which the tenant's quotas were
charged. Binds and reservations make claims; the end or removal of a pod and the removal of a reservation release them.
`assignment` has the claims of pods that were created with a node's name.
A forced deletion proves no end: the claim stays until the agent confirms it or the node's incarnation changes.
A ledger without a node is removed with its last claim.
"""

from __future__ import annotations

from contextlib import suppress

from kedge.api.names import remembered_name
from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.api.views import NodeAllocationView, NodeView, PodView
from kedge.api.wellknown import NODE_ALLOCATION_KIND, NODE_KIND, ZONE_LABEL
from kedge.errors import NotFound, Refused
from kedge.keys import NO_REVISION, Key, Revision
from kedge.placement.ledger import Claim, ClaimState
from kedge.placement.predicates import demand_of, first_misfit
from kedge.placement.reasons import Misfit, Reason
from kedge.placement.stored_ledger import StoredLedger
from kedge.server.service import gangs
from kedge.server.service.core import Core, Proof, Staged, Unsettled, staged_value
from kedge.server.service.zones import charge_zone, may_be_limited, refund_zone
from kedge.store import DeleteKey, Entry, Put


@remembered_name
def node_key(name: str) -> Key:
    return Key(NODE_KIND, "", name)


@remembered_name
def allocation_key(node: str) -> Key:
    return Key(NODE_ALLOCATION_KIND, "", node)


def refuse(misfit: Misfit, key: Key, revision: Revision) -> Refused:
    return Refused(misfit.message, refusal=misfit.reason.value, key=key, revision=revision)


async def claim(core: Core, proof: Proof, pod: Object, node: Object, state: ClaimState) -> None:
    """Prove that `pod` fits on `node`, and stage the claim. Replaces a claim that it has there already.

    Raises:
        Refused: it does not fit the committed state; has the reason, the object and the revision to see before a retry.
    """
    pod_view, node_view = pod.as_view(PodView), node.as_view(NodeView)
    node_uid = node_view.metadata.uid
    key = allocation_key(node.key.name)
    if key not in proof.reads:
        await proof.entries(key)
    allocation = proof.reads[key]
    ledger = _known_ledger(core, proof, key)
    if ledger is None:
        ledger = blank_ledger(core, node.key.name, node_uid)
    elif ledger.node_uid != node_uid:
        ledger, allocation = await _ledger_for(core, proof, node)
    uid = pod_view.metadata.uid
    if uid in ledger:
        await release(core, proof, node.key.name, uid)
        ledger, _ = await _ledger_for(core, proof, node)
    misfit = first_misfit(pod_view, node_view, ledger)
    if misfit is not None:
        if misfit.reason in (Reason.RESOURCE, Reason.PORT) and allocation is not None:
            raise refuse(misfit, allocation.key, allocation.modified)
        raise refuse(misfit, node.key, node.revision)
    asked = demand_of(pod_view)
    zone = node_view.metadata.labels.get(ZONE_LABEL, "")
    if may_be_limited(proof, pod.key.namespace, zone):
        await charge_zone(core, proof, pod.key, zone, asked.requests)
    made = Claim(pod.key.namespace, pod.key.name, state, asked.requests, asked.ports, zone)
    write_ledger(core, proof, node.key.name, ledger.charge(uid, made))


def check_pod_claimable(pod: Object, uid: str) -> None:
    """Raise `Refused` unless the pod is the named incarnation and still waits for a node."""
    view = pod.as_view(PodView)
    metadata, misfit = view.metadata, None
    if uid and uid != metadata.uid:
        misfit = Misfit(
            Reason.POD_REPLACED, f"{pod.key} was replaced by another pod of its name (uid {metadata.uid}, not {uid})"
        )
    elif metadata.deletion_timestamp is not None:
        misfit = Misfit(Reason.POD_TERMINATING, f"{pod.key} is being deleted")
    elif view.finished:
        misfit = Misfit(Reason.POD_ENDED, f"{pod.key} has ended ({view.status.phase})")
    elif view.spec.node_name:
        misfit = Misfit(Reason.POD_BOUND, f"{pod.key} is bound to {view.spec.node_name} already")
    elif view.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in view.spec.scheduling_gates)
        misfit = Misfit(Reason.POD_GATED, f"{pod.key} has scheduling gates: {gates}")
    if misfit is not None:
        raise refuse(misfit, pod.key, pod.revision)


def existing_node(node: Object | None, name: str, uid: str) -> Object:
    """The node of a claim; `Refused` if it does not exist or is another incarnation."""
    if node is None:
        raise refuse(Misfit(Reason.NODE_GONE, f"node {name} does not exist"), node_key(name), NO_REVISION)
    metadata, misfit = node.metadata, None
    if uid and uid != metadata.uid:
        misfit = Misfit(Reason.NODE_REPLACED, f"node {name} is another incarnation now (uid {metadata.uid}, not {uid})")
    elif metadata.deletion_timestamp is not None:
        misfit = Misfit(Reason.NODE_TERMINATING, f"node {name} is being deleted")
    if misfit is not None:
        raise refuse(misfit, node.key, node.revision)
    return node


async def keeps_its_place(core: Core, proof: Proof, pod: Object | None, pod_uid: str, node: str, node_uid: str) -> bool:
    """Whether a pod could be bound now, on its claim on a node."""
    found = await proof.object(node_key(node))
    ledger = await stored_ledger_of(core, proof, node)
    if pod is None or ledger is None or pod_uid not in ledger:
        return False
    try:
        check_pod_claimable(pod, pod_uid)
        found = existing_node(found, node, node_uid)
    except Refused:
        return False
    fits = first_misfit(pod.as_view(PodView), found.as_view(NodeView), ledger.release(pod_uid)) is None
    return ledger.node_uid == found.uid and fits


async def release(core: Core, proof: Proof, node: str, pod_uid: str) -> bool:
    """Stage the release of a pod's claim on a node. False if it has none there."""
    ledger = await stored_ledger_of(core, proof, node)
    claim = ledger.claim(pod_uid) if ledger is not None else None
    if ledger is None or claim is None:
        return False
    await refund_zone(core, proof, claim)
    left = ledger.release(pod_uid)
    if left or await proof.object(node_key(node)) is not None:
        write_ledger(core, proof, node, left)
    else:
        proof.delete(allocation_key(node))
    return True


async def release_reserved(core: Core, proof: Proof, node: str, pod_uid: str) -> None:
    """Stage the release of a pod's reserved claim. A claim that was bound meanwhile stays."""
    ledger = await stored_ledger_of(core, proof, node)
    held = ledger.claim(pod_uid) if ledger is not None else None
    if held is not None and held.state is ClaimState.RESERVED:
        await release(core, proof, node, pod_uid)


# -- ledgers ---------------------------------------------------------------------------------------


async def stored_ledger_of(core: Core, proof: Proof, node: str) -> StoredLedger | None:
    """A node's ledger, with the changes of this attempt; None if it has none."""
    key = allocation_key(node)
    if key not in proof.reads:
        await proof.entries(key)
    return _known_ledger(core, proof, key)


def _known_ledger(core: Core, proof: Proof, key: Key) -> StoredLedger | None:
    """As `stored_ledger_of`, for a ledger that was read."""
    entry = proof.reads[key]
    write = proof.writes.get(key)
    if isinstance(write, DeleteKey):
        return None
    value = write.value if isinstance(write, Put) else entry.value if entry is not None else None
    return None if value is None else core.ledgers.decoded(key, value)


async def _ledger_for(core: Core, proof: Proof, node: Object) -> tuple[StoredLedger, Entry | None]:
    """The ledger of a node that a claim is for: blank if it has none, or is a new incarnation."""
    name = node.key.name
    ledger = await stored_ledger_of(core, proof, name)
    if ledger is None:
        return blank_ledger(core, name, node.uid), None
    if ledger.node_uid != node.uid:
        if ledger.has_proved() and not proof.dry_run:
            raise Unsettled(lambda options: _retire_all(core, node, options))
        await retire(core, proof, node)
        ledger = await stored_ledger_of(core, proof, name)
        assert ledger is not None
    return ledger, proof.reads[allocation_key(name)]


async def retire(core: Core, proof: Proof, node: Object) -> None:
    """Stage the release of an earlier incarnation's claims, as many as one commit may carry.

    The rest stays on the ledger, which belongs to the earlier incarnation until they are all released. Claims of pods
    that only wait for a node of this name stay too: the new incarnation takes them over.
    """
    ledger = await stored_ledger_of(core, proof, node.key.name)
    if ledger is None or ledger.node_uid == node.uid:
        return
    held = [(uid, claim) for uid, claim in ledger.claims() if claim.state is not ClaimState.UNADMITTED]
    held.sort(key=lambda item: (item[1].namespace, item[0]))
    left = len(held)
    for uid, claim in held:
        if not proof.dry_run and len(proof.reads) + len(proof.writes) > core.env.limits.commit_ops_max // 2:
            break
        await refund_zone(core, proof, claim)
        if claim.state is ClaimState.RESERVED:
            # Its claim is released, so it must not count as a member that holds a place.
            await gangs.drop_reservation(core, proof, claim.namespace, uid)
        ledger = ledger.release(uid)
        left -= 1
    if not left:
        ledger = ledger.handed_to(node.uid)
    write_ledger(core, proof, node.key.name, ledger)


async def _retire_all(core: Core, node: Object, options: WriteOptions) -> None:
    """Release all claims of an earlier incarnation, in as many commits as that takes."""
    key = allocation_key(node.key.name)

    async def attempt(proof: Proof) -> Staged:
        now, allocation = await proof.objects(node.key, key)
        if now is not None and now.uid == node.uid:  # else it changed again, and the claim fails on that
            await retire(core, proof, now)
        if allocation is None:  # the node was removed meanwhile, and its last claim released
            raise NotFound(f"node {node.key.name} has no ledger", key=key)
        return Staged(allocation.kind, key, staged_value(proof, allocation), created=allocation.created)

    with suppress(NotFound):
        while (await core.prove(attempt, options)).object.as_view(NodeAllocationView).spec.node_uid != node.uid:
            (found,) = (await core.store.get([node.key])).entries
            if found is None or core.object_of(found).uid != node.uid:
                return


def blank_ledger(core: Core, node: str, node_uid: str) -> StoredLedger:
    kind = core.kinds.of_key_kind(NODE_ALLOCATION_KIND)
    metadata = {"name": node, "uid": core.env.new_uid(), "creationTimestamp": core.timestamp(), "generation": 1}
    return StoredLedger.blank(kind.api_version, kind.kind, metadata, node_uid)


def write_ledger(core: Core, proof: Proof, node: str, ledger: StoredLedger) -> None:
    key = allocation_key(node)
    proof.put(key, ledger.value)
    core.ledgers.keep(key, ledger)

"""The bind: one transaction that proves a placement on committed state and claims what it takes.

The scheduler decides on a cache; this is where the decision becomes exclusive. It proves the pod, the node,
the node's ledger, the tenant's zone quotas, any reservation or gang, and the scheduler's fence.
"""

from __future__ import annotations

from kedge.api.codec import encode_json, encode_object
from kedge.api.conditions import set_condition
from kedge.api.objects import Object
from kedge.api.requests import Binding, WriteOptions, Written
from kedge.api.views import NodeAllocationView, PodView, ReservationView
from kedge.errors import BadRequest, Conflict, MethodNotAllowed, NotFound
from kedge.keys import NO_REVISION, Key
from kedge.placement.ledger import ClaimState
from kedge.placement.reasons import Misfit, Reason
from kedge.server.service import claims, operations
from kedge.server.service.core import Core, Proof, Staged, part

BIND_ANNOTATION = "kedge.dev/bind"
"""Both sides of the staleness boundary: the revisions the decision used, and those the commit proved."""


async def bind(core: Core, binding: Binding, options: WriteOptions) -> Written:
    if not core.kind_of(binding.pod).has("binding"):
        raise MethodNotAllowed(f"{binding.pod} cannot be bound: only pods are", key=binding.pod)
    if not binding.node:
        raise BadRequest(f"the binding of {binding.pod} names no node: set target.name", key=binding.pod)

    async def attempt(proof: Proof) -> Staged | Written:
        repeat = await operations.first_outcome(core, proof, "bind", binding.pod, options)
        if repeat is not None:
            return repeat
        pod, node, ledger = await proof.objects(
            binding.pod, claims.node_key(binding.node), claims.allocation_key(binding.node)
        )
        if pod is None:
            raise NotFound(f'pods "{binding.pod.name}" not found', key=binding.pod)
        if _is_bound(pod, ledger, binding):
            # It is as asked, so there is nothing to write. Kubernetes calls this a conflict; but whoever sends a bind
            # again under another operation id, having lost the first reply and itself, must learn that it was made.
            return Staged(pod.kind, pod.key, pod.value, created=pod.created)
        claims.check_pod_claimable(pod, binding.pod_uid)
        target = claims.existing_node(node, binding.node, binding.node_uid)
        await _use_reservation(proof, pod, binding.node)
        await claims.claim(core, proof, pod, target, ClaimState.BOUND)
        value = _bound(core, proof, pod, binding)
        proof.put(pod.key, value)
        operations.record(core, proof, "bind", pod.key, options)
        return Staged(pod.kind, pod.key, value, created=pod.created)

    return await core.prove(attempt, options)


def _is_bound(pod: Object, ledger: Object | None, binding: Binding) -> bool:
    """Whether the pod meant is bound to the node meant: that incarnation of each, where the request names one."""
    if pod.as_view(PodView).spec.node_name != binding.node or binding.pod_uid not in ("", pod.uid):
        return False
    if not binding.node_uid:
        return True
    held = ledger.as_view(NodeAllocationView) if ledger is not None else NodeAllocationView()
    return held.spec.node_uid == binding.node_uid and pod.uid in held.status.entries


async def confirm_ended(core: Core, node: str, node_uid: str, pod_uid: str, options: WriteOptions) -> Written:
    """The agent's word that nothing of a pod runs on its node any more: frees the claim a forced deletion left.

    Raises:
        NotFound: the node has no ledger.
        Conflict: the pod still exists; or the node is another incarnation now, for which this agent cannot speak.
    """

    async def attempt(proof: Proof) -> Staged | Written:
        repeat = await operations.first_outcome(core, proof, "confirm", claims.allocation_key(node), options)
        if repeat is not None:
            return repeat
        allocation = await proof.object(claims.allocation_key(node))
        if allocation is None:
            raise NotFound(f"node {node} has no ledger", key=claims.allocation_key(node))
        owner = allocation.as_view(NodeAllocationView).spec.node_uid
        if owner != node_uid:
            raise Conflict(
                f"node {node} is another incarnation now (uid {owner}, not {node_uid})",
                key=allocation.key,
                revision=allocation.revision,
            )
        held = allocation.as_view(NodeAllocationView).status.entries.get(pod_uid)
        if held is not None:
            pod = await proof.object(Key("Pod", held.namespace, held.name))
            if pod is not None and pod.uid == pod_uid and not pod.as_view(PodView).finished:
                raise Conflict(
                    f"{pod.key} still exists: record its end in its status instead", key=pod.key, revision=pod.revision
                )
            await claims.release(core, proof, node, pod_uid)
            operations.record(core, proof, "confirm", allocation.key, options)
        after = claims.staged(proof, allocation)
        return Staged(allocation.kind, allocation.key, after.value, created=allocation.created)

    return await core.prove(attempt, options)


async def _use_reservation(proof: Proof, pod: Object, node: str) -> None:
    """A reservation for this pod is used up by its bind; one for another node forbids it."""
    reservation = await proof.object(claims.reservation_key(pod.key.namespace, pod.uid))
    if reservation is None:
        return
    spec = reservation.as_view(ReservationView).spec
    if spec.node_name != node:
        message = (
            f"{pod.key} is reserved on {spec.node_name}, not on {node}: release or supersede the reservation first"
        )
        raise claims.refuse(Misfit(Reason.RESERVED_ELSEWHERE, message), reservation.key, reservation.revision)
    if spec.gang:
        gang_key = Key(claims.RESERVATION, pod.key.namespace, spec.gang)
        gang = await proof.object(gang_key)
        if gang is None or gang.as_view(ReservationView).status.phase != "Committed":
            phase = gang.as_view(ReservationView).status.phase if gang is not None else "gone"
            message = f"the gang {spec.gang} of {pod.key} is not committed ({phase or 'no phase'})"
            revision = gang.revision if gang is not None else NO_REVISION
            raise claims.refuse(Misfit(Reason.GANG_NOT_COMMITTED, message), gang_key, revision)
    proof.delete(reservation.key)


def _bound(core: Core, proof: Proof, pod: Object, binding: Binding) -> bytes:
    document = pod.edit()
    document["spec"]["nodeName"] = binding.node
    proved = {str(key): entry.modified for key, entry in proof.reads.items() if entry is not None}
    annotations = part(document["metadata"], "annotations")
    annotations[BIND_ANNOTATION] = encode_json({"decidedOn": dict(binding.decided_on), "provedOn": proved}).decode()
    status = part(document, "status")
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "observedGeneration": document["metadata"].get("generation", 0),
    }
    status["conditions"] = set_condition(status.get("conditions") or (), condition, core.env.now())
    return encode_object(document)

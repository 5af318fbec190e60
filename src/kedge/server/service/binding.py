"""The bind: one transaction that proves a placement on committed state and claims its resources.

The scheduler decides on a cache; the bind makes the decision exclusive. It proves the pod, the node, the node's ledger,
the tenant's zone quotas, any reservation or gang, and the scheduler's fence.
"""

from __future__ import annotations

from kedge.api.codec import encode_json
from kedge.api.requests import Bind, Binding, ConfirmEnded, Written
from kedge.api.views import NodeAllocationView, PodView
from kedge.api.wellknown import GANG_LABEL, NAMESPACE_KIND, OPERATION_KIND, POD_KIND
from kedge.errors import BadRequest, Conflict, MethodNotAllowed, NotFound
from kedge.keys import Key, Revision
from kedge.placement.ledger import ClaimState
from kedge.server.service import claims, operations
from kedge.server.service.bound_pod import bound_pod
from kedge.server.service.core import Core, Proof, Staged, staged_value
from kedge.server.service.fast.bind_splice import splice_bind
from kedge.server.service.gangs import reservation_key
from kedge.server.service.namespaces import namespace_key
from kedge.server.service.reservations import use_reservation
from kedge.store import DeleteKey, Entry

_UNRECORDED_KINDS = (NAMESPACE_KIND, OPERATION_KIND)
"""Kinds that every bind proves, and that are no part of a placement decision."""


async def bind(core: Core, request: Bind) -> Written:
    binding, options = request.binding, request.options
    if not core.kind_of(binding.pod).has("binding"):
        raise MethodNotAllowed(f"{binding.pod} cannot be bound: only a pod can", key=binding.pod)
    if not binding.node:
        raise BadRequest(f"the binding of {binding.pod} names no node: set target.name", key=binding.pod)
    node_key, allocation_key = claims.node_key(binding.node), claims.allocation_key(binding.node)
    keys = [binding.pod, node_key, allocation_key, namespace_key(binding.pod.namespace)]
    if binding.pod_uid:
        keys.append(reservation_key(binding.pod.namespace, binding.pod_uid))

    async def attempt(proof: Proof) -> Staged | Written:
        if options.origin.operation and options.recorded:
            repeat = await operations.first_outcome(core, proof, "bind", binding.pod, options)
            if repeat is not None:
                return repeat
        # One read for all keys: over a network each read is a round trip.
        pod_entry, node_entry, allocation, _, *reserved = await proof.entries(*keys)
        if pod_entry is None:
            raise NotFound(f'pods "{binding.pod.name}" not found', key=binding.pod)
        pod = core.object_of(pod_entry)
        old = pod.as_view(PodView)
        if old.spec.node_name == binding.node and _is_bound(core, old, allocation, binding):
            # Already bound as requested: nothing to write. Kubernetes replies with a conflict here. But a scheduler
            # that restarts after a lost reply repeats the bind under another operation id, and must see it as made.
            return Staged(pod.kind, pod.key, pod.value, created=pod.created)
        claims.check_pod_claimable(pod, binding.pod_uid)
        node = core.object_of(node_entry) if node_entry is not None else None
        target = claims.existing_node(node, binding.node, binding.node_uid)
        # Without a reservation under its uid and without a gang, there is no reservation to use.
        if reserved != [None] or old.metadata.labels.get(GANG_LABEL):
            await use_reservation(core, proof, pod, binding.node)
        await claims.claim(core, proof, pod, target, ClaimState.BOUND)
        record, now = _record(proof, binding), core.timestamp()
        value, view = splice_bind(pod, binding.node, record, now) or (
            bound_pod(pod, binding.node, record, now),
            None,
        )
        proof.put(pod.key, value)
        operations.record(core, proof, "bind", pod.key, options)
        return Staged(pod.kind, pod.key, value, created=pod.created, view=view)

    return await core.prove(attempt, options)


def _is_bound(core: Core, pod: PodView, allocation: Entry | None, binding: Binding) -> bool:
    """Whether the pod, and the node of that name, are the incarnations in the binding, if it names any."""
    uid = pod.metadata.uid
    if binding.pod_uid not in ("", uid):
        return False
    if not binding.node_uid:
        return True
    ledger = core.ledgers.decoded(allocation.key, allocation.value) if allocation is not None else None
    return ledger is not None and ledger.node_uid == binding.node_uid and uid in ledger


async def confirm_ended(core: Core, request: ConfirmEnded) -> Written:
    """The agent confirms that nothing of a pod runs on its node: release the claim that a forced deletion left.

    Raises:
        NotFound: the node has no ledger.
        Conflict: the pod still exists; or the node is a newer incarnation than this agent's.
    """
    node, node_uid, pod_uid, options = request.node, request.node_uid, request.pod_uid, request.options

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
            pod = await proof.object(Key(POD_KIND, held.namespace, held.name))
            if pod is not None and pod.uid == pod_uid and not pod.as_view(PodView).finished:
                raise Conflict(
                    f"{pod.key} still exists: record its end in its status instead", key=pod.key, revision=pod.revision
                )
            await claims.release(core, proof, node, pod_uid)
            operations.record(core, proof, "confirm", allocation.key, options)
        return Staged(
            allocation.kind,
            allocation.key,
            staged_value(proof, allocation),
            created=allocation.created,
            removed=isinstance(proof.writes.get(allocation.key), DeleteKey),
        )

    return await core.prove(attempt, options)


def _record(proof: Proof, binding: Binding) -> str:
    proved: dict[str, Revision] = {}
    for key, entry in proof.reads.items():
        if entry is not None and key.kind not in _UNRECORDED_KINDS:
            proved[str(key)] = entry.modified
    return encode_json({"decidedOn": dict(binding.decided_on), "provedOn": proved}).decode()

"""Side effects of a write in the same commit: its namespace's quotas, its claims, the registration of quotas.

Every verb stages its object through `stage`, so no object is created, ended or removed without its charges and claims.
"""

from __future__ import annotations

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.views import LeaseView, PodView
from kedge.api.wellknown import (
    DISRUPTION_BUDGET_KIND,
    LEASE_KIND,
    NAMESPACE_KIND,
    NODE_KIND,
    NODE_LEASE_NAMESPACE,
    NODE_LOST,
    POD_KIND,
    PRIORITY_CLASS_KIND,
    RESERVATION_KIND,
)
from kedge.errors import FieldError, Invalid
from kedge.keys import Key, fence_key
from kedge.placement.resize import same_counts
from kedge.server.service import claims
from kedge.server.service.assignment import admit, assign, release_unadmitted, reports_start
from kedge.server.service.budgets import follow_budget, forget_budgets
from kedge.server.service.core import Core, Proof
from kedge.server.service.namespaces import STATUS_FIELDS, active_namespace, add_default_account, register_quota
from kedge.server.service.priorities import follow_class
from kedge.server.service.quotas import charge_quotas
from kedge.server.service.reservations import follow_reservation, release_reservation
from kedge.server.service.resize import follow_resize


async def stage(core: Core, proof: Proof, kind: Kind, key: Key, old: Object | None, new: Object | None) -> None:
    """Stage the object's next state, or its removal if `new` is None, with all its side effects."""
    if kind.namespaced and (old is not None or (await active_namespace(proof, key)).status.resource_quotas):
        await _charge(core, proof, kind, key, old, new)
    if key.kind == POD_KIND:
        if old is not None or new is None or new.as_view(PodView).spec.node_name:
            await _follow_pod(core, proof, key, old, new)
    elif key.kind == RESERVATION_KIND:
        await follow_reservation(core, proof, key, old, new)
    elif key.kind in STATUS_FIELDS and (old is None or new is None):
        await register_quota(core, proof, key, present=new is not None)
    elif key.kind == NODE_KIND and old is None and new is not None:
        await claims.retire(core, proof, new)
    elif key.kind == NAMESPACE_KIND and new is None:
        await forget_budgets(proof, key.name)
    elif key.kind == NAMESPACE_KIND and old is None and new is not None:
        await add_default_account(core, proof, new)
    elif key.kind == DISRUPTION_BUDGET_KIND:
        await follow_budget(proof, key, old, new)
    elif key.kind == PRIORITY_CLASS_KIND:
        await follow_class(proof, key, old, new)
    elif key.kind == LEASE_KIND:
        await _follow_lease(proof, key, old, new)
    if new is None:
        proof.delete(key)
    else:
        proof.put(key, new.value, latest_only=kind.latest_only)


async def _follow_lease(proof: Proof, key: Key, old: Object | None, new: Object | None) -> None:
    """A new term of a lease, or its removal, writes the fence key: that revision is the new holder's token.

    A holder that acquires its own lease again, after an attempt whose reply was lost, begins a new term too: it never
    learned the first token. A node's lease is a heartbeat, not an election, and has no fence.
    """
    if key.namespace == NODE_LEASE_NAMESPACE:
        return
    before = _term(old.as_view(LeaseView)) if old is not None else None
    after = _term(new.as_view(LeaseView)) if new is not None else None
    if before != after:
        await proof.entries(fence_key(key))
        proof.put(fence_key(key), b"{}")


def _term(lease: LeaseView) -> tuple[object, ...]:
    """The fields that a renewal does not change."""
    return lease.spec.holder_identity, lease.spec.acquire_time, lease.spec.lease_transitions


async def _charge(core: Core, proof: Proof, kind: Kind, key: Key, old: Object | None, new: Object | None) -> None:
    exists = (new is not None) - (old is not None)
    before = old.as_view(PodView) if old is not None and key.kind == POD_KIND else None
    after = new.as_view(PodView) if new is not None and key.kind == POD_KIND else None
    enforced = True
    if exists == 0:
        if before is None or after is None or (before.finished == after.finished and same_counts(before, after)):
            return  # most writes change nothing that is charged
        enforced = before.spec != after.spec
    await charge_quotas(core, proof, kind, key, before, after, exists, enforced=enforced)


async def _follow_pod(core: Core, proof: Proof, key: Key, old: Object | None, new: Object | None) -> None:
    """Claims of a pod: made if it is created with a node, admitted as it starts, changed as it is resized, released as
    it ends or is removed."""
    before = old.as_view(PodView) if old is not None else None
    after = new.as_view(PodView) if new is not None else None
    if before is None:
        if new is not None and after is not None and after.spec.node_name:
            await assign(core, proof, new)
        return
    if before.finished:
        if after is not None and not after.finished:
            error = FieldError("status.phase", "FieldValueForbidden", "the pod has ended: it cannot run again")
            raise Invalid(f'Pod "{key.name}" is invalid: {error}', key=key, errors=[error])
        return
    if after is not None and not after.finished:
        if new is not None and after.spec.node_name and after.spec.node_name == before.spec.node_name:
            await follow_resize(core, proof, new, before)
        if new is not None and after.spec.node_name and reports_start(before, after):
            await admit(core, proof, new)
        return
    if not before.spec.node_name:
        await release_reservation(core, proof, key.namespace, before.uid)
    elif after is not None and after.status.reason != NODE_LOST:
        await claims.release(core, proof, before.spec.node_name, before.uid)
    else:
        await release_unadmitted(core, proof, before)
    # Otherwise a bound pod was removed by force, or its node was lost: its processes may still run. The claim stays
    # until the agent confirms their end (`confirm_ended`) or the node returns as another incarnation.

"""The resize subresource, and the claim of a pod that is resized in place.

A resize changes the desired resources in the spec. Its commit charges quotas and the ledger with the highest of what is
desired, allocated and applied, so that no bind takes the room. Only the part that the node was proved to have room for
is granted: the commit with the agent's report that it has allocated the resize proves the rest, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kedge.api.conditions import find_condition
from kedge.api.objects import Object
from kedge.api.quantity import format_units
from kedge.api.validation import check_resize, check_update
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import RESIZE_IN_PROGRESS
from kedge.errors import Conflict, Forbidden
from kedge.placement.admission import admitted
from kedge.placement.ledger import Claim, ClaimState
from kedge.placement.resize import same_counts
from kedge.placement.resources import (
    CPU,
    MEMORY,
    Units,
    held_requests,
    node_allocatable,
    pod_requests,
    shortages,
    spec_requests,
)
from kedge.placement.stored_ledger import StoredLedger
from kedge.server.service import claims
from kedge.server.service.core import Core, Proof
from kedge.server.service.limit_ranges import check_limits, limit_ranges_of
from kedge.server.service.namespaces import namespace_key
from kedge.server.service.patches import Document
from kedge.server.service.zones import recharge_zone

_RESIZED = ("resources", "resizePolicy")
_AMOUNTS = ("limits", "requests")


# -- the subresource -------------------------------------------------------------------------------


def resized(before: Document, proposed: Document) -> Document:
    """The pod with the resources of another version of it, and nothing else of that.

    If the containers are not the same ones, all of the proposed containers are taken, for validation to refuse.
    """
    spec, asked = dict(_mapping(before.get("spec"))), _mapping(proposed.get("spec"))
    for field in ("containers", "initContainers"):
        old, new = spec.get(field), asked.get(field)
        spec[field] = _merged(old or [], new or []) if _names(old or []) == _names(new or []) else new
        if spec[field] in (None, []):
            del spec[field]
    spec.pop("resources", None)
    if asked.get("resources") is not None:
        spec["resources"] = asked["resources"]
    return {**before, "spec": spec}


async def check_changed(
    proof: Proof, old: Object, new: Object, subresource: str, before: Document, after: Document
) -> None:
    """Check that an update through `subresource` may make this change. `before` and `after` are both contents."""
    if subresource == "resize":
        check_resize(old.kind, old.as_view(PodView), new.as_view(PodView))
        await check_resizable(proof, old, new)
    else:
        check_update(old.kind, before, after)


async def check_resizable(proof: Proof, old: Object, new: Object) -> None:
    """Refuse a resize that the pod's node could never allocate, or that a limit range does not allow."""
    before, after = old.as_view(PodView), new.as_view(PodView)
    if before.spec == after.spec:
        return
    await proof.entries(namespace_key(new.key.namespace))
    check_limits(proof, new, await limit_ranges_of(proof, new.key.namespace))
    name = after.spec.node_name
    if not name:
        return
    node = await proof.object(claims.node_key(name))
    if node is None:
        raise _forbidden(new, f'node "{name}" not found')
    asked, has = spec_requests(after.spec), node_allocatable(node.as_view(NodeView))
    short = [
        f"{resource}, requested: {asked[resource]}, allocatable: {has.get(resource, 0)}"
        for resource in (CPU, MEMORY)
        if asked.get(resource, 0) > has.get(resource, 0)
    ]
    if short:
        raise _forbidden(new, f"node didn't have enough allocatable resources: {'; '.join(short)}")


def _forbidden(pod: Object, why: str) -> Forbidden:
    return Forbidden(f'pods "{pod.key.name}" is forbidden: {why}', key=pod.key)


def _merged(old: list[Any], new: list[Any]) -> list[Any]:
    found = []
    for was, now in zip(old, new, strict=True):
        container = {name: value for name, value in was.items() if name not in _RESIZED}
        container |= {name: now[name] for name in _RESIZED if now.get(name) is not None}
        if isinstance(container.get("resources"), Mapping):  # `claims` stay as they are
            kept = {name: value for name, value in _mapping(was.get("resources")).items() if name not in _AMOUNTS}
            container["resources"] = kept | {n: v for n, v in container["resources"].items() if n in _AMOUNTS}
        found.append({name: container[name] for name in (*was, *container) if name in container})
    return found


def _names(containers: Any) -> list[Any] | None:
    """The names of containers, in order; None if they are malformed."""
    if not isinstance(containers, list) or not all(isinstance(each, Mapping) for each in containers):
        return None
    return [each.get("name") for each in containers]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# -- the claim -------------------------------------------------------------------------------------


async def follow_resize(core: Core, proof: Proof, pod: Object, before: PodView) -> None:
    """Stage the claim of a placed pod with the resources that count since this write.

    Raises:
        Conflict: the write reports an allocation that the node has no room for. Read the node's ledger again.
        Forbidden: a zone quota has no room for the resize.
    """
    after = pod.as_view(PodView)
    begins = _begins(before, after)
    if not begins and same_counts(before, after):
        return
    counted, held = pod_requests(after), held_requests(after)
    known, had = pod_requests(before), held_requests(before)
    if not begins and counted == known and (held or counted) == (had or known):
        return  # a first report, of what the bind has proved: the ledger, which others write, is not read
    name = after.spec.node_name
    ledger = await claims.stored_ledger_of(core, proof, name)
    claim = ledger.claim(after.uid) if ledger is not None else None
    if ledger is None or claim is None:
        return
    granted: Units | None = None
    if claim.state is ClaimState.BOUND:
        granted = await _granted(
            proof, pod, ledger, claim, _least(counted, claim.proved) if held is None else held, begins=begins
        )
        granted = _least(counted, granted)
    if counted != claim.requests:
        enforced = before.spec != after.spec
        await recharge_zone(core, proof, pod.key, claim, counted, enforced=enforced)
    changed = msgspec.structs.replace(claim, requests=counted, granted=None if granted == counted else granted)
    if changed != claim:
        claims.write_ledger(core, proof, name, ledger.charge(after.uid, changed))


async def _granted(
    proof: Proof, pod: Object, ledger: StoredLedger, claim: Claim, held: Units, *, begins: bool
) -> Units:
    """The part of what the pod holds that its node was proved to have room for, now or before."""
    more = {resource: amount for resource, amount in held.items() if amount > claim.proved.get(resource, 0)}
    if not more:
        return held
    node = await proof.object(claims.node_key(pod.as_view(PodView).spec.node_name))
    short = list(more)
    if node is not None and node.uid == ledger.node_uid:
        view = node.as_view(NodeView)
        others = admitted(view, ledger.claims(), but=pod.uid)
        short = shortages(more, others.allocated, node_allocatable(view))
    if not short:
        return held
    if begins:
        amounts = ", ".join(f"{resource} ({format_units(resource, held[resource])} in all)" for resource in short)
        raise Conflict(f"the node of {pod.key} has no room for its resize: {amounts}", key=pod.key)
    return _least(held, claim.proved)  # not by an agent: it counts, and is not granted


def _begins(before: PodView, after: PodView) -> bool:
    """Whether a write reports that the node begins to apply a resize."""
    now = find_condition(after.status.conditions, RESIZE_IN_PROGRESS)
    was = find_condition(before.status.conditions, RESIZE_IN_PROGRESS)
    return now is not None and (was is None or was.observed_generation != now.observed_generation)


def _least(one: Units, other: Units) -> dict[str, int]:
    return {resource: min(amount, other.get(resource, 0)) for resource, amount in one.items()}

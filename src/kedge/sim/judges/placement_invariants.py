"""Commit invariants of placement: capacity, quota, bindings, claims, reservations and slots.

Capacity and quota are invariants of the transition: either can shrink from outside, so an overfull node is legal, and
only a commit that adds to it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kedge.api.objects import Object
from kedge.api.views import NodeAllocationView, NodeView, PodView
from kedge.api.wellknown import (
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.placement.ledger import ClaimState
from kedge.placement.quota import in_scope
from kedge.placement.resources import add, node_allocatable, to_units
from kedge.sim.judges.facts import Changed, ClusterFacts, Finding, Step, entries_of, pod_cost
from kedge.sim.judges.pod_facts import requires_at_most_one, slot_of
from kedge.sim.judges.registry import InvariantSet

PLACEMENT = InvariantSet()


# -- capacity and quota ----------------------------------------------------------------------------


@PLACEMENT.invariant(NODE_ALLOCATION_KIND)
def no_commit_adds_to_an_overfull_node(step: Step) -> Iterator[Finding]:
    """A commit may only add to a node that has room.

    A pod created with the node's name is there by its user's will. It counts from the commit that admits it. A resize
    counts from the commit that grants it.
    """
    for changed in step.of(NODE_ALLOCATION_KIND):
        before, after = _proved(changed.old), _proved(changed.new)
        if before == after:
            continue
        node = step.facts.objects.get(changed.key._replace(kind=NODE_KIND))
        has = node_allocatable(node.as_view(NodeView)) if node is not None else {}
        for resource, amount in after.items():
            if amount > before.get(resource, 0) and amount > has.get(resource, 0):
                yield resource, f"{changed.key.name}: {amount} of {resource} claimed, has {has.get(resource, 0)}"


@PLACEMENT.invariant(POD_KIND)
def no_commit_adds_to_an_overfull_quota(step: Step) -> Iterator[Finding]:
    """A commit may add or resize a pod only in quotas with room for it, by the summed cost of the pods.

    A node's report of a pod's status is charged past the limit: a resize that it had called infeasible counts again.
    """
    facts = step.facts
    for changed in step.of(POD_KIND):
        if changed.new is None:
            continue
        was = changed.old if changed.old is not None and changed.old.uid == changed.new.uid else None
        if was is not None and was.as_view(PodView).spec == changed.new.as_view(PodView).spec:
            continue
        for quota in _quotas_of(facts, changed.key.namespace, RESOURCE_QUOTA_KIND):
            if not in_scope(quota.view, changed.new.as_view(PodView)):
                continue
            before = pod_cost(was) if was is not None and in_scope(quota.view, was.as_view(PodView)) else {}
            cost, used = pod_cost(changed.new), _use_of(facts, quota)
            for resource, hard in to_units(quota.view.spec.hard).items():
                if cost.get(resource, 0) > before.get(resource, 0) and used.get(resource, 0) > hard:
                    yield resource, f"{changed.key} takes {quota.key} to {used[resource]} of {hard} {resource}"


def _use_of(facts: ClusterFacts, quota: Object) -> Mapping[str, int]:
    """The cost of the pods that a quota counts: all of its namespace, or those in its scopes."""
    namespace, spec = quota.key.namespace, quota.view.spec
    if not spec.scopes and spec.scope_selector is None:
        return facts.use_of(namespace)
    pods = (each for each in facts.pods.values() if each.key.namespace == namespace)
    return add(*(pod_cost(each) for each in pods if in_scope(quota.view, each.as_view(PodView))))


@PLACEMENT.invariant(NODE_ALLOCATION_KIND)
def no_commit_adds_to_an_overfull_zone_quota(step: Step) -> Iterator[Finding]:
    """A claim may be added only where the zone quota of its tenant has room, by the sum of the claims."""
    facts = step.facts
    for changed in step.of(NODE_ALLOCATION_KIND):
        before = entries_of(changed.old)
        for uid, entry in entries_of(changed.new).items():
            if uid in before or not entry.zone:
                continue
            for quota in _quotas_of(facts, entry.namespace, ZONE_QUOTA_KIND):
                limits = quota.view.spec.zones.get(entry.zone)
                used = facts.zone_use.get((entry.namespace, entry.zone), {})
                for resource, hard in (to_units(limits.hard) if limits is not None else {}).items():
                    if to_units(entry.requests).get(resource, 0) > 0 and used.get(resource, 0) > hard:
                        yield "over", f"{entry.namespace} holds {used[resource]} of {hard} {resource} in {entry.zone}"


# -- bindings and claims ---------------------------------------------------------------------------


@PLACEMENT.invariant(POD_KIND, NODE_ALLOCATION_KIND)
def the_ledger_equals_the_bindings(step: Step) -> Iterator[Finding]:
    """A bound pod has a claim from that commit on; it is released only when the pod ends or the node is replaced."""
    facts = step.facts
    for changed in step.of(POD_KIND):
        new = changed.new
        if new is None or not new.as_view(PodView).spec.node_name or new.as_view(PodView).finished:
            continue
        view = new.as_view(PodView)
        same = changed.old is not None and changed.old.uid == new.uid
        was = changed.old.as_view(PodView).spec.node_name if changed.old is not None and same else ""
        claim = facts.claims.get(new.uid, {}).get(view.spec.node_name)
        states = (ClaimState.BOUND,) if same else (ClaimState.BOUND, ClaimState.UNADMITTED)
        if not was and (claim is None or claim.state not in states):
            yield (
                "bound without a claim",
                f"{changed.key} was bound to {view.spec.node_name}, which has no claim for it",
            )
    for changed in step.of(NODE_ALLOCATION_KIND):
        yield from _ledger_moves(facts, changed)


def _ledger_moves(facts: ClusterFacts, changed: Changed) -> Iterator[Finding]:
    before, after, name = entries_of(changed.old), entries_of(changed.new), changed.key.name
    for uid, entry in before.items():
        if entry.state == ClaimState.RESERVED:
            continue
        if uid in after:
            if entry.state == ClaimState.BOUND != after[uid].state:
                yield "unbound", f"{name} made the claim of {entry.namespace}/{entry.name} {after[uid].state}"
            continue
        pod = facts.pods.get(uid)
        node = facts.objects.get(changed.key._replace(kind=NODE_KIND))
        assert changed.old is not None
        retired = node is not None and node.uid != changed.old.as_view(NodeAllocationView).spec.node_uid
        retired = retired and entry.state == ClaimState.BOUND  # the next incarnation takes the others over
        if pod is not None and not pod.as_view(PodView).finished and not retired:
            yield "released too early", f"{name} released the claim of {pod.key}, which has not ended"
    for uid, entry in after.items():
        if entry.state != ClaimState.RESERVED and before.get(uid) != entry:
            pod = facts.pods.get(uid)
            if pod is None or pod.as_view(PodView).spec.node_name != name:
                yield (
                    "not bound there",
                    f"{name} has a claim of {entry.namespace}/{entry.name}, which is not bound there",
                )
    if changed.new is not None:
        total = add(*(to_units(entry.requests) for entry in after.values()))
        if {r: a for r, a in total.items() if a} != {r: a for r, a in _allocated(changed.new).items() if a}:
            yield "wrong sum", f"{name}: {_allocated(changed.new)} is not the sum of its claims, {total}"


@PLACEMENT.invariant(POD_KIND, NODE_ALLOCATION_KIND)
def a_pod_never_has_two_nodes(step: Step) -> Iterator[Finding]:
    """A pod uid is bound to one node for ever, and has claims on one node only."""
    for changed in step.of(POD_KIND):
        if changed.old is not None and changed.new is not None and changed.old.uid == changed.new.uid:
            was, now = (each.as_view(PodView).spec.node_name for each in (changed.old, changed.new))
            if was and now != was:
                yield "moved", f"{changed.key} was on {was} and is on {now or 'none'}"
    for changed in step.of(NODE_ALLOCATION_KIND):
        before = entries_of(changed.old)
        for uid in entries_of(changed.new):
            if uid not in before and len(nodes := step.facts.claims.get(uid, {})) > 1:
                yield "two claims", f"{uid} has claims on {', '.join(nodes)}"


@PLACEMENT.invariant(RESERVATION_KIND)
def an_intent_has_one_reservation(step: Step) -> Iterator[Finding]:
    """A workload, generation and slot has at most one reservation."""
    for changed in step.of(RESERVATION_KIND):
        spec = changed.new.view.spec if changed.new is not None else None
        if spec is not None and spec.workload_uid and spec.pod.uid:
            held = step.facts.intents.get((spec.workload_uid, spec.generation, spec.slot), {})
            if len(held) > 1:
                names = ", ".join(key.name for key in held)
                yield "two reservations", f"slot {spec.slot} of {spec.workload_uid} has {names}"


@PLACEMENT.invariant(POD_KIND)
def a_slot_has_one_unreleased_binding(step: Step) -> Iterator[Finding]:
    """The next pod of a slot is bound after the previous one ended; with at-most-one, after its claim is released."""
    facts = step.facts
    for changed in step.of(POD_KIND):
        view = changed.new.as_view(PodView) if changed.new is not None else None
        slot = slot_of(view) if view is not None else None
        if view is None or slot is None or not view.spec.node_name or view.finished:
            continue
        if changed.old is not None and changed.old.uid == view.uid and changed.old.as_view(PodView).spec.node_name:
            continue  # it was bound before
        for uid in facts.slots.get(slot, ()):
            other = facts.pods.get(uid)
            if uid != view.uid and other is not None and _is_unreleased(other.as_view(PodView)):
                yield "two bindings", f"slot {slot[1]}: {changed.key} and {other.key} are both bound"
        if requires_at_most_one(view):
            for uid, held in facts.claims.items():
                for node, entry in held.items():
                    same = (entry.namespace, entry.name) == (view.namespace, view.name)
                    if same and uid != view.uid and entry.state == ClaimState.BOUND and uid not in facts.pods:
                        yield "ghost", f"{changed.key} was bound while {node} still holds the claim of {uid}"


def _allocated(found: Object | None) -> Mapping[str, int]:
    return to_units(found.as_view(NodeAllocationView).status.allocated) if found is not None else {}


def _proved(found: Object | None) -> Mapping[str, int]:
    """The sum of the claims that a commit has proved."""
    entries = entries_of(found).values()
    return add(
        *(
            to_units(each.requests if each.granted is None else each.granted)
            for each in entries
            if each.state != ClaimState.UNADMITTED
        )
    )


def _quotas_of(facts: ClusterFacts, namespace: str, kind: str) -> list[Object]:
    """The quotas of a namespace: those that exist, whatever the namespace has registered."""
    return [each for key, each in facts.objects.items() if key.kind == kind and key.namespace == namespace]


def _is_unreleased(pod: PodView) -> bool:
    return bool(pod.spec.node_name) and not pod.finished

"""What must hold of every commit and of every process that starts. Each reads committed state, never a cache.

`Judge` asks those whose kinds a commit touched; what must hold in the end is in `endings`. Capacity and quota are
invariants of the transition: either can shrink from outside, so being over is no fault; adding to what is over is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kedge.agent.core import ContainerProcess
from kedge.api.conditions import find_condition
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import NodeAllocationView, NodeView, PodView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    DISRUPTION_TARGET,
    NAMESPACE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    NODE_LOST,
    OUT_OF_SERVICE,
    POD_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.keys import Key
from kedge.limits import Limits
from kedge.placement.ledger import ClaimState
from kedge.placement.quota import object_cost
from kedge.placement.resources import node_allocatable, to_units
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.cluster.agents import SimulatedDriver
from kedge.sim.judges.disruptions import taking_was_asked_for
from kedge.sim.judges.facts import (
    LAG_S,
    Changed,
    ClusterFacts,
    Finding,
    Step,
    asks_at_most_one,
    counts,
    entries_of,
    is_healthy,
    owner_uid,
    slot_of,
)
from kedge.sim.judges.outages import Outages
from kedge.sim.judges.process_starts import PROCESSES
from kedge.sim.kernel import Simulation

Rule = Callable[[Step], Iterator[Finding]]

CLOCK_ERROR = 0.06
"""How far the clocks of two hosts may run apart; the kernel's worst are a twentieth off."""


@dataclass(frozen=True, slots=True)
class CommitInvariant:
    """One promise, and the kinds whose changes may break it. `kinds` is empty for one about every commit."""

    rule: Rule
    kinds: frozenset[str]
    words: str


SAFETY: list[CommitInvariant] = []
"""Every invariant of commits, in the order in which they are asked."""


def invariant(*kinds: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        SAFETY.append(CommitInvariant(rule, frozenset(kinds), rule.__name__.replace("_", " ")))
        return rule

    return register


# -- capacity and quota ----------------------------------------------------------------------------


@invariant(NODE_ALLOCATION_KIND)
def no_commit_adds_to_an_overfull_node(step: Step) -> Iterator[Finding]:
    """A commit may only add to a node that has room."""
    for changed in step.of(NODE_ALLOCATION_KIND):
        before, after = _allocated(changed.old), _allocated(changed.new)
        if before == after:
            continue
        node = step.facts.objects.get(changed.key._replace(kind=NODE_KIND))
        has = node_allocatable(node.as_view(NodeView)) if node is not None else {}
        for resource, amount in after.items():
            if amount > before.get(resource, 0) and amount > has.get(resource, 0):
                yield resource, f"{changed.key.name}: {amount} of {resource} claimed, has {has.get(resource, 0)}"


@invariant(POD_KIND)
def no_commit_adds_to_an_overfull_quota(step: Step) -> Iterator[Finding]:
    """A commit may only add a pod's cost to a quota that has room for it, by what the pods really cost."""
    facts = step.facts
    for changed in step.of(POD_KIND):
        if changed.new is None or (changed.old is not None and changed.old.uid == changed.new.uid):
            continue  # a pod's cost is made when it is made; it only falls after that
        for name in _quotas_of(facts, changed.key.namespace, "resource_quotas"):
            quota = facts.objects.get(changed.key._replace(kind=RESOURCE_QUOTA_KIND, name=name))
            if quota is None or quota.view.spec.scopes:
                continue
            cost = object_cost(changed.new.kind, changed.new.as_view(PodView))
            used = facts.use_of(changed.key.namespace)
            for resource, hard in to_units(quota.view.spec.hard).items():
                if cost.get(resource, 0) > 0 and used.get(resource, 0) > hard:
                    yield resource, f"{changed.key} takes {quota.key} to {used[resource]} of {hard} {resource}"


@invariant(NODE_ALLOCATION_KIND)
def no_commit_adds_to_an_overfull_zone_quota(step: Step) -> Iterator[Finding]:
    """A claim may only be added where its tenant's zone quota has room, by what is really claimed."""
    facts = step.facts
    for changed in step.of(NODE_ALLOCATION_KIND):
        before = entries_of(changed.old)
        for uid, entry in entries_of(changed.new).items():
            if uid in before or not entry.zone:
                continue
            for name in _quotas_of(facts, entry.namespace, "zone_quotas"):
                quota = facts.objects.get(Key(ZONE_QUOTA_KIND, entry.namespace, name))
                limits = quota.view.spec.zones.get(entry.zone) if quota is not None else None
                used = facts.zone_use.get((entry.namespace, entry.zone), {})
                for resource, hard in (to_units(limits.hard) if limits is not None else {}).items():
                    if to_units(entry.requests).get(resource, 0) > 0 and used.get(resource, 0) > hard:
                        yield "over", f"{entry.namespace} holds {used[resource]} of {hard} {resource} in {entry.zone}"


# -- bindings and claims ---------------------------------------------------------------------------


@invariant(POD_KIND, NODE_ALLOCATION_KIND)
def the_ledger_equals_the_bindings(step: Step) -> Iterator[Finding]:
    """Who is bound has a claim from that commit on; a claim goes only with its pod's end or its node's incarnation."""
    facts = step.facts
    for changed in step.of(POD_KIND):
        new = changed.new
        if new is None or not new.as_view(PodView).spec.node_name or new.as_view(PodView).finished:
            continue
        view = new.as_view(PodView)
        same = changed.old is not None and changed.old.uid == new.uid
        was = changed.old.as_view(PodView).spec.node_name if changed.old is not None and same else ""
        claim = facts.claims.get(new.uid, {}).get(view.spec.node_name)
        if not was and (claim is None or claim.state != ClaimState.BOUND):
            yield "bound without a claim", f"{changed.key} was bound to {view.spec.node_name}, which has no claim of it"
    for changed in step.of(NODE_ALLOCATION_KIND):
        yield from _ledger_moves(facts, changed)


def _ledger_moves(facts: ClusterFacts, changed: Changed) -> Iterator[Finding]:
    before, after, name = entries_of(changed.old), entries_of(changed.new), changed.key.name
    for uid, entry in before.items():
        if entry.state != ClaimState.BOUND or uid in after:
            continue
        pod = facts.pods.get(uid)
        node = facts.objects.get(changed.key._replace(kind=NODE_KIND))
        assert changed.old is not None
        retired = node is not None and node.uid != changed.old.as_view(NodeAllocationView).spec.node_uid
        if pod is not None and not pod.as_view(PodView).finished and not retired:
            yield "released too early", f"{name} gave back the claim of {pod.key}, which has not ended"
    for uid, entry in after.items():
        if entry.state == ClaimState.BOUND and before.get(uid) != entry:
            pod = facts.pods.get(uid)
            if pod is None or pod.as_view(PodView).spec.node_name != name:
                yield (
                    "not bound there",
                    f"{name} has a claim of {entry.namespace}/{entry.name}, which is not bound there",
                )
    if changed.new is not None:
        total: dict[str, int] = {}
        for entry in after.values():
            for resource, amount in to_units(entry.requests).items():
                total[resource] = total.get(resource, 0) + amount
        if {r: a for r, a in total.items() if a} != {r: a for r, a in _allocated(changed.new).items() if a}:
            yield "wrong sum", f"{name}: {_allocated(changed.new)} is not the sum of its claims, {total}"


@invariant(POD_KIND, NODE_ALLOCATION_KIND)
def a_pod_never_has_two_nodes(step: Step) -> Iterator[Finding]:
    """One uid, one node, for ever; and claims on one node only."""
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


@invariant(RESERVATION_KIND)
def an_intent_has_one_reservation(step: Step) -> Iterator[Finding]:
    """For one workload, generation and slot there is at most one."""
    for changed in step.of(RESERVATION_KIND):
        spec = changed.new.view.spec if changed.new is not None else None
        if spec is not None and spec.workload_uid and spec.pod.uid:
            held = step.facts.intents.get((spec.workload_uid, spec.generation, spec.slot), {})
            if len(held) > 1:
                names = ", ".join(key.name for key in held)
                yield "two reservations", f"slot {spec.slot} of {spec.workload_uid} has {names}"


@invariant(POD_KIND)
def a_slot_has_one_unreleased_binding(step: Step) -> Iterator[Finding]:
    """A slot's next pod is bound only when the one before has ended; of at-most-one, when its claim is given back."""
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
        if asks_at_most_one(view):
            for uid, held in facts.claims.items():
                for node, entry in held.items():
                    same = (entry.namespace, entry.name) == (view.namespace, view.name)
                    if same and uid != view.uid and entry.state == ClaimState.BOUND and uid not in facts.pods:
                        yield "ghost", f"{changed.key} was bound while {node} still holds the claim of {uid}"


# -- deletion --------------------------------------------------------------------------------------


@invariant()
def finalizers_are_respected(step: Step) -> Iterator[Finding]:
    """Nothing with finalizers goes before it was marked; who waits for its children goes after those it had by then."""
    facts = step.facts
    for changed in step.changes:
        old = changed.old
        if old is None or (changed.new is not None and changed.new.uid == old.uid) or not old.metadata.finalizers:
            continue
        if old.metadata.deletion_timestamp is None:
            yield "not marked", f"{changed.key} went with finalizers {', '.join(old.metadata.finalizers)}"
        if "foregroundDeletion" in old.metadata.finalizers:
            for child, since in facts.children.get(old.uid, {}).items():
                found = facts.objects.get(child)
                if found is None or since > facts.marked.get(old.uid, since):
                    continue
                if any(ref.uid == old.uid and ref.block_owner_deletion for ref in found.metadata.owner_references):
                    yield "before its children", f"{changed.key} went before {child}"


@invariant()
def garbage_collection_spares_the_owned(step: Step) -> Iterator[Finding]:
    """What still has a living owner is not garbage."""
    if "garbage" not in step.controller:
        return
    for changed in step.changes:
        old, new = changed.old, changed.new
        if old is None or old.metadata.deletion_timestamp is not None:
            continue
        if new is not None and (new.metadata.deletion_timestamp is None or new.uid != old.uid):
            continue
        for ref in old.metadata.owner_references:
            owner = step.facts.by_uid(ref.uid)
            if owner is not None and owner.metadata.deletion_timestamp is None:
                yield "a live owner", f"{changed.key} was collected, and its owner {owner.key} lives"


@invariant(POD_KIND)
def nothing_is_destroyed_on_suspicion_alone(step: Step) -> Iterator[Finding]:
    """A pod is given up for lost only when its node has really been silent for as long as that takes."""
    for changed in step.of(POD_KIND):
        old = changed.old.as_view(PodView) if changed.old is not None else None
        new = changed.new.as_view(PodView) if changed.new is not None else None
        if old is None or new is None or old.uid != new.uid or not _newly_lost(old, new):
            continue
        node = step.facts.objects.get(changed.key._replace(kind=NODE_KIND, namespace="", name=new.spec.node_name))
        if node is None or OUT_OF_SERVICE in {t.key for t in node.as_view(NodeView).spec.taints}:
            continue  # it is gone, or a person has said so
        if new.spec.node_name not in step.facts.claims.get(new.uid, {}):
            continue  # the node was registered anew: this incarnation of it never had the pod
        if step.facts.is_blind(node, step.now_s):
            yield "blind", f"{changed.key} was given up while most of its zone was silent"
        silent_s = step.now_s - step.facts.renewed_s.get(new.spec.node_name, 0.0)
        needed_s = step.facts.limits.node_lost_s * (1 - CLOCK_ERROR)
        if silent_s < needed_s:
            yield "too early", f"{changed.key} was given up {silent_s:.0f}s after a renewal of {new.spec.node_name}"


@invariant(POD_KIND)
def the_last_healthy_replica_is_not_taken(step: Step) -> Iterator[Finding]:
    """No controller takes away the only ready replica of what wants one, having had time to see that it is.

    But where people asked for just that; see `allowed`.
    """
    if not step.controller:
        return
    facts = step.facts
    for changed in step.of(POD_KIND):
        old = changed.old.as_view(PodView) if changed.old is not None else None
        new = changed.new.as_view(PodView) if changed.new is not None else None
        if old is None or not is_healthy(old) or (new is not None and counts(new)):
            continue
        if new is not None and (new.finished or _is_lost(new)):
            continue
        top = facts.workload_of(old)
        if top is None:
            continue
        others = [pod for pod in facts.pods_under(top) if pod.uid != old.uid and is_healthy(pod)]
        since_s = facts.alone_since_s.get(top.uid, step.now_s)
        if others or step.now_s - since_s < LAG_S:
            continue
        if not taking_was_asked_for(step, old, top, lag_s=LAG_S):
            yield "the last one", f"{step.controller} takes {changed.key}, the only ready replica of {top.key}"


# -- owners, leaders, status -----------------------------------------------------------------------


@invariant(POD_KIND)
def live_copies_are_at_most_desired_plus_surge(step: Step) -> Iterator[Finding]:
    """A pod is only made where its owner, and the owner's owner, lately wanted that many."""
    facts = step.facts
    for changed in step.of(POD_KIND):
        new = changed.new
        if new is None or (changed.old is not None and changed.old.uid == new.uid):
            continue
        view = new.as_view(PodView)
        owner = facts.by_uid(owner_uid(view))
        if owner is None or owner.key.kind != REPLICA_SET_KIND:
            continue
        copies = [pod for pod in facts.pods_of(owner.uid) if counts(pod.as_view(PodView))]
        yield from _too_many(facts, step, owner, len(copies))
        above = controller_of(owner.metadata)
        top = facts.by_uid(above.uid) if above is not None else None
        if top is not None and top.key.kind == DEPLOYMENT_KIND:
            yield from _too_many(facts, step, top, sum(counts(pod) for pod in facts.pods_under(top)))


def _too_many(facts: ClusterFacts, step: Step, owner: Object, copies: int) -> Iterator[Finding]:
    most = facts.most_wanted(owner.uid, step.now_s - LAG_S)
    if most is not None and copies > most:
        yield owner.key.kind, f"{owner.key} has {copies} replicas, and never lately wanted more than {most}"


@invariant()
def one_leader_writes_in_an_epoch(step: Step) -> Iterator[Finding]:
    """Under one fence token one process writes; and a controller that is fenced once is fenced always."""
    facts, controller = step.facts, step.controller
    if not controller:
        return
    if step.fence is None:
        if controller in facts.fenced:
            keys = ", ".join(str(each.key) for each in step.changes)
            yield controller, f"{step.process} wrote {keys or 'something'} without its fence"
        return
    facts.fenced[controller] = None
    if (newest := facts.epoch_of(step.fence)) != step.fence.revision:
        yield controller, f"{step.process} wrote under {step.fence.key} at {step.fence.revision}, which is at {newest}"
    # One election may stand for several controllers of a process, but never for two processes.
    process = step.process.rpartition(":")[2] or step.process
    name = f"{controller}:{process}"
    leader = facts.leaders.setdefault(step.fence, name)
    if leader != name and leader.partition(":")[0] == controller:
        yield controller, f"{leader} and {name} both wrote under {step.fence.key} at {step.fence.revision}"


@invariant()
def conditions_refer_to_the_generation_they_observed(step: Step) -> Iterator[Finding]:
    """What a status says of a generation is true of one that existed; what changes in it is about the newest."""
    for changed in step.changes:
        new, old = changed.new, changed.old
        if new is None or new.kind.view is None or new.value == (old.value if old is not None else b""):
            continue
        status = getattr(new.view, "status", None)
        told = getattr(status, "observed_generation", 0) or 0
        generation = new.metadata.generation
        if told > generation:
            yield changed.key.kind, f"{changed.key} observed generation {told}, and is at {generation}"
        if old is None or old.uid != new.uid or old.metadata.generation != generation:
            continue
        if status is None:
            continue
        before = {each.type: each for each in getattr(old.view.status, "conditions", ())}
        for each in getattr(status, "conditions", ()):
            was = before.get(each.type)
            seen = each.observed_generation
            if seen and (was is None or was.status != each.status) and seen != generation:
                told_of = f"{each.type} is {each.status} of generation {seen}"
                yield changed.key.kind, f"{changed.key}: {told_of}, not of {generation}"


@invariant(DEPLOYMENT_KIND, REPLICA_SET_KIND)
def the_autoscaler_does_not_add_to_what_is_behind(step: Step) -> Iterator[Finding]:
    """Whatever keeps replicas from being ready: more are not asked for without a bound, nor to wait for the same thing.

    Whether metrics were a reason to add is no matter here: what waits for a node, or is not ready, is none.
    """
    if "autoscal" not in step.controller:
        return
    facts, lately_s = step.facts, step.now_s - LAG_S
    for changed in step.of(DEPLOYMENT_KIND, REPLICA_SET_KIND):
        if changed.old is None or changed.new is None:
            continue
        was, now = changed.old.view.spec.replicas, changed.new.view.spec.replicas
        if now <= was:
            continue
        pods = [pod for pod in facts.pods_under(changed.new) if counts(pod)]
        waiting = [pod.name for pod in pods if not pod.spec.node_name and facts.born_s.get(pod.uid, 0.0) < lately_s]
        if waiting:
            yield "without a node", f"{changed.key} was scaled from {was} to {now} while {waiting[0]} waits for a node"
        most = facts.most_ready(changed.new.uid, lately_s) + facts.limits.autoscaler_unserved_max
        if now > max(was, most):
            yield "unserved", f"{changed.key} was scaled from {was} to {now}, and at most {most} were to be asked for"


@invariant(DEPLOYMENT_KIND, REPLICA_SET_KIND)
def the_autoscaler_stays_within_its_bound(step: Step) -> Iterator[Finding]:
    """Whatever it reads, it asks for no more than it may."""
    if "autoscal" not in step.controller:
        return
    for changed in step.of(DEPLOYMENT_KIND, REPLICA_SET_KIND):
        if changed.old is None or changed.new is None:
            continue
        was, now = changed.old.view.spec.replicas, changed.new.view.spec.replicas
        for other in step.facts.objects.values():
            if other.key.kind != AUTOSCALER_KIND or other.key.namespace != changed.key.namespace:
                continue
            target = other.view.spec.scale_target_ref
            if target.name == changed.key.name and now > was and now > other.view.spec.max_replicas:
                yield "over its maximum", f"{changed.key} was scaled to {now}, over {other.view.spec.max_replicas}"


OUTAGES = "requests are bounded during an outage"
"""Asked when a request cannot be delivered: see `outages`."""


# -- the judge -------------------------------------------------------------------------------------


class Judge:
    """Holds a cluster to the invariants: make it before anything is committed."""

    def __init__(self, cluster: Cluster, *, without: tuple[str, ...] = (), limits: Limits | None = None) -> None:
        self._sim: Simulation = cluster.sim
        self.cluster = cluster
        self.facts = ClusterFacts(cluster.store, lambda: cluster.sim.now_s, limits or cluster.limits, cluster.drivers)
        self._every = [each for each in SAFETY if not each.kinds and each.rule.__name__ not in without]
        self._by_kind: dict[str, list[CommitInvariant]] = {}
        for each in SAFETY:
            if each.rule.__name__ not in without:
                for kind in sorted(each.kinds):
                    self._by_kind.setdefault(kind, []).append(each)
        self._processes = [each for each in PROCESSES if each.__name__ not in without]
        if OUTAGES.replace(" ", "_") not in without:
            Outages(cluster, self.facts.limits, self._on_storm)
        self.steps = 0
        cluster.sim.check_always(self)
        cluster.observe_starts(self._on_start)

    __name__ = "the judge"

    def __call__(self, commit: Commit) -> None:
        step = self.facts.step(commit)
        self.steps += 1
        asked = list(self._every)
        for kind in dict.fromkeys(each.key.kind for each in step.changes):
            asked.extend(each for each in self._by_kind.get(kind, ()) if each not in asked)
        for each in asked:
            for cause, message in each.rule(step):
                self._sim.violate(each.words, f"{message} (revision {step.revision})", cause=cause)
                return

    def _on_storm(self, cause: str, message: str) -> None:
        self._sim.violate(OUTAGES, message, cause=cause)

    def _on_start(self, driver: SimulatedDriver, process: ContainerProcess) -> None:
        for rule in self._processes:
            for cause, message in rule(self.facts, driver, process):
                self._sim.violate(rule.__name__.replace("_", " "), message, cause=cause)
                return


# -- helpers ---------------------------------------------------------------------------------------


def _allocated(found: Object | None) -> Mapping[str, int]:
    return to_units(found.as_view(NodeAllocationView).status.allocated) if found is not None else {}


def _quotas_of(facts: ClusterFacts, namespace: str, which: str) -> tuple[str, ...]:
    """The quotas that a namespace has registered, by name."""
    found = facts.objects.get(Key(NAMESPACE_KIND, "", namespace))
    names: tuple[str, ...] = getattr(found.view.status, which) if found is not None else ()
    return names


def _is_unreleased(pod: PodView) -> bool:
    return bool(pod.spec.node_name) and not pod.finished


def _is_lost(pod: PodView) -> bool:
    found = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return found is not None and found.status == "True" and found.reason == NODE_LOST


def _newly_lost(old: PodView, new: PodView) -> bool:
    """Whether this version is the first to say that the pod is lost with its node."""
    return bool(new.spec.node_name) and not new.finished and _is_lost(new) and not _is_lost(old)

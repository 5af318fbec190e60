"""Commit invariants of object lifecycles: deletion, replicas, leadership, conditions and autoscaling."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from kedge.api.conditions import find_condition
from kedge.api.objects import Object
from kedge.api.owners import controller_of
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    DISRUPTION_TARGET,
    NAMESPACE_KIND,
    NODE_KIND,
    NODE_LOST,
    OUT_OF_SERVICE,
    POD_KIND,
    REPLICA_SET_KIND,
)
from kedge.sim.judges.disruptions import removal_was_requested
from kedge.sim.judges.facts import ClusterFacts, Finding, Step
from kedge.sim.judges.pod_facts import counts, is_healthy, owner_uid
from kedge.sim.judges.registry import InvariantSet

CLOCK_ERROR = 0.06
"""How far the rates of two host clocks may differ; the worst clocks of the kernel are a twentieth off."""

WITHOUT_GENERATION = (NODE_KIND, NAMESPACE_KIND)
"""Kinds whose objects have no generation in Kubernetes, and whose conditions have no field for one."""

LIFECYCLE = InvariantSet()


# -- deletion --------------------------------------------------------------------------------------


@LIFECYCLE.invariant()
def finalizers_are_respected(step: Step) -> Iterator[Finding]:
    """An object with finalizers is marked before it is removed; with foreground deletion, its children go first.

    A user may delete it once more with another propagation, as in Kubernetes: then it does not wait for them.
    """
    facts = step.facts
    for changed in step.changes:
        old = changed.old
        if old is None or (changed.new is not None and changed.new.uid == old.uid) or not old.metadata.finalizers:
            continue
        if old.metadata.deletion_timestamp is None:
            yield "not marked", f"{changed.key} was removed with finalizers {', '.join(old.metadata.finalizers)}"
        if "foregroundDeletion" in old.metadata.finalizers and step.controller:
            for child, since in facts.children.get(old.uid, {}).items():
                found = facts.objects.get(child)
                if found is None or since > facts.marked.get(old.uid, since):
                    continue
                if any(ref.uid == old.uid and ref.block_owner_deletion for ref in found.metadata.owner_references):
                    yield "before its children", f"{changed.key} was removed before {child}"


@LIFECYCLE.invariant()
def garbage_collection_spares_owned_objects(step: Step) -> Iterator[Finding]:
    """An object with a live owner is not garbage."""
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
                yield "a live owner", f"{changed.key} was collected, but its owner {owner.key} is live"


@LIFECYCLE.invariant(POD_KIND)
def nothing_is_destroyed_on_suspicion_alone(step: Step) -> Iterator[Finding]:
    """A pod is marked lost only when its node has been silent for the whole `node_lost_s`."""
    for changed in step.of(POD_KIND):
        old = changed.old.as_view(PodView) if changed.old is not None else None
        new = changed.new.as_view(PodView) if changed.new is not None else None
        if old is None or new is None or old.uid != new.uid or not _newly_lost(old, new):
            continue
        node = step.facts.objects.get(changed.key._replace(kind=NODE_KIND, namespace="", name=new.spec.node_name))
        if node is None or OUT_OF_SERVICE in {t.key for t in node.as_view(NodeView).spec.taints}:
            continue  # the node is deleted, or a user tainted it
        if new.spec.node_name not in step.facts.claims.get(new.uid, {}):
            continue  # the node was registered again: this incarnation never had the pod
        if step.facts.is_blind(node, step.now_s):
            yield "blind", f"{changed.key} was marked lost while most of its zone was silent"
        silent_s = step.now_s - step.facts.renewed_s.get(new.spec.node_name, 0.0)
        needed_s = step.facts.limits.node_lost_s * (1 - CLOCK_ERROR)
        if silent_s < needed_s:
            yield "too early", f"{changed.key} was marked lost {silent_s:.0f}s after a renewal of {new.spec.node_name}"


@LIFECYCLE.invariant(POD_KIND)
def the_last_healthy_replica_is_not_removed(step: Step) -> Iterator[Finding]:
    """No controller removes the only ready replica of a workload, once it has had time to see that it is the last.

    Except where a user requested it; see `disruptions`.
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
        if others or step.now_s - since_s < step.facts.lag_s:
            continue
        if not removal_was_requested(step, old, top, lag_s=step.facts.lag_s):
            yield "the last one", f"{step.controller} removes {changed.key}, the only ready replica of {top.key}"


# -- owners, leaders, status -----------------------------------------------------------------------


@LIFECYCLE.invariant(POD_KIND)
def live_copies_are_at_most_desired_plus_surge(step: Step) -> Iterator[Finding]:
    """A pod is created only if its owner, and the owner of that, wanted as many replicas within the lag.

    A person may resize a ReplicaSet of a Deployment: until that is undone, only the ReplicaSet counts.
    """
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
        if top is not None and top.key.kind == DEPLOYMENT_KIND and not _is_resized(step, top):
            yield from _too_many(facts, step, top, sum(counts(pod) for pod in facts.pods_under(top)))


def _is_resized(step: Step, deployment: Object) -> bool:
    return step.facts.resized_s.get(deployment.uid, -inf) >= step.lag_begin_s


def _too_many(facts: ClusterFacts, step: Step, owner: Object, copies: int) -> Iterator[Finding]:
    most = facts.most_wanted(owner.uid, step.lag_begin_s)
    if most is not None and copies > most:
        yield owner.key.kind, f"{owner.key} has {copies} replicas, and wanted at most {most} lately"


@LIFECYCLE.invariant()
def one_leader_writes_in_an_epoch(step: Step) -> Iterator[Finding]:
    """One process writes under a fence token; a controller that once wrote with a fence always does."""
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
    # One election may serve several controllers of a process, but never two processes.
    process = step.process.rpartition(":")[2] or step.process
    name = f"{controller}:{process}"
    leader = facts.leaders.setdefault(step.fence, name)
    if leader != name and leader.partition(":")[0] == controller:
        yield controller, f"{leader} and {name} both wrote under {step.fence.key} at {step.fence.revision}"


@LIFECYCLE.invariant()
def conditions_refer_to_the_generation_they_observed(step: Step) -> Iterator[Finding]:
    """An observed generation has existed; a condition that changes refers to the newest generation, and every condition
    refers to one, whichever component writes it and however early."""
    for changed in step.changes:
        new, old = changed.new, changed.old
        if new is None or new.kind.view is None or new.value == (old.value if old is not None else b""):
            continue
        status = getattr(new.view, "status", None)
        observed = getattr(status, "observed_generation", 0) or 0
        generation = new.metadata.generation
        if observed > generation:
            yield changed.key.kind, f"{changed.key} observed generation {observed}, but is at {generation}"
        if status is None:
            continue
        same = old is not None and old.uid == new.uid
        before = {each.type: each for each in getattr(old.view.status, "conditions", ())} if old and same else {}
        moved = not same or old is None or old.metadata.generation != generation
        for each in getattr(status, "conditions", ()):
            was = before.get(each.type)
            seen = each.observed_generation
            if not seen and generation and was != each and changed.key.kind not in WITHOUT_GENERATION:
                yield changed.key.kind, f"{changed.key}: {each.type} has no observed generation"
            if seen and not moved and (was is None or was.status != each.status) and seen != generation:
                found = f"{each.type} is {each.status} at generation {seen}"
                yield changed.key.kind, f"{changed.key}: {found}, not at {generation}"


@LIFECYCLE.invariant(DEPLOYMENT_KIND, REPLICA_SET_KIND)
def the_autoscaler_waits_for_pending_replicas(step: Step) -> Iterator[Finding]:
    """While replicas are pending or not ready, the autoscaler adds at most a bounded number of others.

    A replica that is pending or not ready is no reason to add another, whatever the metrics are.
    """
    if "autoscal" not in step.controller:
        return
    facts, lately_s = step.facts, step.lag_begin_s
    for changed in step.of(DEPLOYMENT_KIND, REPLICA_SET_KIND):
        if changed.old is None or changed.new is None:
            continue
        was, now = changed.old.view.spec.replicas, changed.new.view.spec.replicas
        if now <= was:
            continue
        pods = [pod for pod in facts.pods_under(changed.new) if counts(pod)]
        waiting = [pod.name for pod in pods if not pod.spec.node_name and facts.born_s.get(pod.uid, 0.0) < lately_s]
        if waiting:
            yield "without a node", f"{changed.key} was scaled from {was} to {now} while {waiting[0]} is pending"
        most = facts.most_ready(changed.new.uid, lately_s) + facts.limits.autoscaler_unserved_max
        if now > max(was, most):
            yield "unserved", f"{changed.key} was scaled from {was} to {now}, over the bound of {most}"


@LIFECYCLE.invariant(DEPLOYMENT_KIND, REPLICA_SET_KIND)
def the_autoscaler_stays_within_its_bound(step: Step) -> Iterator[Finding]:
    """The autoscaler never exceeds `maxReplicas`."""
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


def _is_lost(pod: PodView) -> bool:
    found = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return found is not None and found.status == "True" and found.reason == NODE_LOST


def _newly_lost(old: PodView, new: PodView) -> bool:
    """Whether this version is the first that marks the pod as lost with its node."""
    return bool(new.spec.node_name) and not new.finished and _is_lost(new) and not _is_lost(old)

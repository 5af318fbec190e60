"""Commit invariants of accounts: each record, count and claim is recomputed from the objects that it is about.

Nothing is read from the record itself but the number under audit, and requests are summed here, without the code that
wrote the account. A plain sum of container requests is at most the real demand, so there are no false positives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kedge.api.objects import Object
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import (
    JOB_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    POD_KIND,
    RESERVATION_KIND,
    ZONE_LABEL,
)
from kedge.keys import Key
from kedge.placement.ledger import ClaimState
from kedge.placement.resources import to_units
from kedge.sim.judges.facts import Changed, ClusterFacts, Finding, Step, entries_of
from kedge.sim.judges.registry import InvariantSet

ACCOUNTS = InvariantSet()


def plain_requests(pod: PodView) -> Mapping[str, int]:
    """The requests of its containers, summed; init containers and overhead left out. A pod counts as one."""
    total = {"pods": 1}
    for container in pod.spec.containers:
        requests = container.resources.requests if container.resources is not None else {}
        for name, amount in to_units(requests or {}).items():
            total[name] = total.get(name, 0) + amount
    return total


def _newly_bound(step: Step) -> Iterator[tuple[Changed, PodView]]:
    """Pods that existed without a node, and have one from this commit on."""
    for changed in step.of(POD_KIND):
        if changed.old is None or changed.new is None or changed.old.uid != changed.new.uid:
            continue
        was, now = changed.old.as_view(PodView), changed.new.as_view(PodView)
        if now.spec.node_name and not was.spec.node_name:
            yield changed, now


def _node(facts: ClusterFacts, name: str) -> Object | None:
    return facts.objects.get(Key(NODE_KIND, "", name))


# -- claims ----------------------------------------------------------------------------------------


@ACCOUNTS.invariant(NODE_ALLOCATION_KIND)
def a_claim_covers_its_pod(step: Step) -> Iterator[Finding]:
    """A new claim has the namespace of its pod, the zone of its node, and at least the requests of its containers.

    So the sums of claims that other rules compare with capacities and quotas are those of the pods. A pod that was
    resized may have a claim of earlier requests, and is left out.
    """
    facts = step.facts
    for changed in step.of(NODE_ALLOCATION_KIND):
        before, node = entries_of(changed.old), _node(facts, changed.key.name)
        for uid, entry in entries_of(changed.new).items():
            pod = facts.pods.get(uid)
            if uid in before or pod is None or entry.state == ClaimState.UNADMITTED or pod.metadata.generation > 1:
                continue
            if entry.namespace != pod.key.namespace:
                yield "wrong tenant", f"the claim of {pod.key} on {changed.key.name} is one of {entry.namespace}"
            zone = node.metadata.labels.get(ZONE_LABEL, "") if node is not None else entry.zone
            if entry.zone != zone:
                yield "wrong zone", f"the claim of {pod.key} on {changed.key.name} is in {entry.zone}, not in {zone}"
            has = to_units(entry.requests)
            for resource, amount in plain_requests(pod.as_view(PodView)).items():
                if amount > has.get(resource, 0):
                    lacks = f"{has.get(resource, 0)} of the {amount} {resource} that it requests"
                    yield "too small", f"the claim of {pod.key} on {changed.key.name} has {lacks}"


@ACCOUNTS.invariant(RESERVATION_KIND)
def a_gang_is_committed_whole(step: Step) -> Iterator[Finding]:
    """When a gang is committed, as many pods as it needs hold a claim, whatever its record lists."""
    facts = step.facts
    for changed in step.of(RESERVATION_KIND):
        new, old = changed.new, changed.old
        if new is None or new.view.status.phase != "Committed":
            continue
        if old is not None and old.uid == new.uid and old.view.status.phase == "Committed":
            continue
        reserved = (
            each.view.spec.pod.uid
            for key, each in facts.objects.items()
            if key.kind == RESERVATION_KIND and key.namespace == changed.key.namespace
            if each.view.spec.gang == changed.key.name
        )
        held = sum(uid in facts.claims for uid in set(reserved))
        if held < new.view.spec.gang_size:
            yield "in part", f"{changed.key} is committed, and {held} of {new.view.spec.gang_size} members hold a claim"


# -- nodes, priorities -----------------------------------------------------------------------------


@ACCOUNTS.invariant(POD_KIND)
def nothing_is_bound_to_a_suspect_node(step: Step) -> Iterator[Finding]:
    """A pod is bound only to a node that exists, is not being deleted and is not suspected, at that commit."""
    for changed, pod in _newly_bound(step):
        node = _node(step.facts, pod.spec.node_name)
        if node is None:
            yield "no node", f"{changed.key} was bound to {pod.spec.node_name}, which does not exist"
        elif node.metadata.deletion_timestamp is not None:
            yield "deleted node", f"{changed.key} was bound to {pod.spec.node_name}, which is being deleted"
        elif any(each.type == "Suspect" and each.status == "True" for each in node.as_view(NodeView).status.conditions):
            yield "suspect node", f"{changed.key} was bound to {pod.spec.node_name}, which is suspect"


@ACCOUNTS.invariant(POD_KIND)
def only_a_higher_priority_preempts(step: Step) -> Iterator[Finding]:
    """A scheduler removes a pod only while a pod of higher priority waits for it, or did within the lag."""
    pods = step.facts.pod_histories
    if step.controller not in pods.schedulers:
        return
    for changed in step.of(POD_KIND):
        old, new = changed.old, changed.new
        if old is None or old.metadata.deletion_timestamp is not None:
            continue
        if new is not None and new.uid == old.uid and new.metadata.deletion_timestamp is None:
            continue
        rank = old.as_view(PodView).spec.priority or 0
        highest = pods.highest_waiting(step.controller, step.now_s)
        if highest is None or highest <= rank:
            why = "none waits" if highest is None else f"the highest that waits has {highest}"
            yield "not lower", f"{step.controller} removes {changed.key} of priority {rank}, and {why}"


# -- ends ------------------------------------------------------------------------------------------


@ACCOUNTS.invariant(POD_KIND)
def a_failed_pod_never_succeeds(step: Step) -> Iterator[Finding]:
    """A pod is reported as succeeded only if the last process of each of its containers ended with 0.

    By the exit codes in its own status, and by those that its machine saw.
    """
    for changed in step.of(POD_KIND):
        new = changed.new
        pod = new.as_view(PodView) if new is not None else None
        if pod is None or pod.status.phase != "Succeeded":
            continue
        if changed.old is not None and changed.old.uid == pod.uid:
            was = changed.old.as_view(PodView).status.phase
            if was == "Succeeded":
                continue
            if was == "Failed":
                yield "after its end", f"{changed.key} had failed, and is reported as succeeded"
        for each in pod.status.container_statuses:
            ended = each.state.terminated
            if ended is not None and ended.exit_code:
                yield "exit code", f"{changed.key} succeeded, and {each.name} ended with {ended.exit_code}"
        machine = step.facts.drivers.get(pod.spec.node_name)
        for container in pod.spec.containers if machine is not None else ():
            code = machine.exit_codes.get((pod.uid, container.name), 0) if machine is not None else 0
            if code:
                yield "process", f"{changed.key} succeeded, and the last process of {container.name} ended with {code}"


@ACCOUNTS.invariant(JOB_KIND)
def a_job_counts_pods_that_succeeded(step: Step) -> Iterator[Finding]:
    """A Job counts no more successes than pods of it were seen to succeed."""
    for changed in step.of(JOB_KIND):
        if changed.new is None:
            continue
        status = changed.new.view.status
        counted = status.succeeded + len(status.uncounted_terminated_pods.succeeded)
        seen = step.facts.pod_histories.succeeded(changed.new.uid)
        if counted > seen:
            yield "too many", f"{changed.key} counts {counted} successes, and {seen} of its pods have succeeded"

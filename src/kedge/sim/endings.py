"""What must come true once faults have stopped, and stay true: replicas there, nobody orphaned, accounts even, silence.

Handed to `Simulation.check_eventually`. Like `invariants`, these read committed state and the machines themselves, and
share no code with the controllers they judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kedge.api.views import NodeView, PodView
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.facts import DEPLOYMENT, REPLICA_SET, RESERVATION, counts, is_healthy
from kedge.sim.invariants import Judge

NOT_WORK = ("Lease.coordination.k8s.io", "Fence.kedge.dev", "Operation.kedge.dev", "Event")
"""Kinds that are written for ever, or by the way."""


def expect_settled(judge: Judge) -> None:
    """Demand every ending of `converge`; `judge` has the facts."""
    endings = [partial(each, judge) for each in ENDINGS]
    for ending, each in zip(endings, ENDINGS, strict=True):
        ending.__name__ = each.__name__  # type: ignore[attr-defined]
    judge.cluster.sim.check_eventually(*endings)


def replicas_converge(judge: Judge) -> bool:
    """Every workload has as many ready replicas as it wants, no others, and says so of its newest generation."""
    facts = judge.facts
    for key, found in facts.objects.items():
        if key.kind not in (DEPLOYMENT, REPLICA_SET) or found.metadata.deletion_timestamp is not None:
            continue
        want, status = found.view.spec.replicas, found.view.status
        pods = list(facts.pods_under(found))
        if sum(is_healthy(pod) for pod in pods) != want or len(pods) != want:
            return False
        if status.observed_generation != found.metadata.generation or status.ready_replicas != want:
            return False
    return True


def stage_counts_equal_the_store(judge: Judge) -> bool:
    """What a workload's progress says is what there is."""
    facts = judge.facts
    for key, found in facts.objects.items():
        if key.kind not in (DEPLOYMENT, REPLICA_SET) or found.metadata.deletion_timestamp is not None:
            continue
        told = found.view.status.progress.stages
        pods = [pod for pod in facts.pods_under(found) if counts(pod)]
        waiting = told.admitted + told.queued + told.scheduled
        placed = told.bound + told.starting + told.ready + told.serving
        if waiting != sum(not pod.spec.node_name for pod in pods) or placed != len(pods) - waiting:
            return False
        if told.ready + told.serving != sum(is_healthy(pod) for pod in pods):
            return False
    return True


def children_go_with_their_owner(judge: Judge) -> bool:
    """Nothing is left of which every owner is gone."""
    facts = judge.facts
    for found in facts.objects.values():
        owners = found.metadata.owner_references
        if owners and not any(ref.uid in facts.uids for ref in owners):
            return False
    return True


def accounts_are_even(judge: Judge) -> bool:
    """Every claim is of a pod that is bound there or reserved for, and every reservation of a pod that waits."""
    facts = judge.facts
    for uid in facts.claims:
        pod = facts.pods.get(uid)
        if pod is None or pod.as_view(PodView).finished:
            return False
    for key, found in facts.objects.items():
        if key.kind == RESERVATION and found.view.spec.pod.uid and found.view.spec.pod.uid not in facts.pods:
            return False
    return True


def processes_are_those_of_the_bound(judge: Judge) -> bool:
    """What runs on a machine that is up is what is bound to it, and all of it."""
    facts = judge.facts
    bound: dict[str, set[str]] = {name: set() for name in facts.drivers}
    for uid, pod in facts.pods.items():
        view = pod.as_view(PodView)
        if view.spec.node_name in bound and not view.finished:
            bound[view.spec.node_name].add(uid)
    return all(
        {process.identity.pod_uid for process in driver.live()} == bound[name] for name, driver in facts.drivers.items()
    )


def nodes_are_well(judge: Judge) -> bool:
    """Every machine has its node, and nobody holds anything against it any more."""
    for name in judge.facts.drivers:
        node = judge.facts.objects.get(Key("Node", "", name))
        told = {each.type: each.status for each in node.as_view(NodeView).status.conditions} if node is not None else {}
        if told.get("Ready") != "True" or told.get("Suspect", "False") != "False":
            return False
    return True


ENDINGS: tuple[Callable[[Judge], bool], ...] = (
    replicas_converge,
    stage_counts_equal_the_store,
    children_go_with_their_owner,
    accounts_are_even,
    processes_are_those_of_the_bound,
    nodes_are_well,
)


async def check_silence(cluster: Cluster, *, for_s: float = 60.0) -> None:
    """Fail the run if anybody still writes although there is nothing left to do."""
    before = cluster.versions(but=NOT_WORK)
    await asyncio.sleep(for_s)
    after = cluster.versions(but=NOT_WORK)
    changed = sorted(str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if changed:
        kinds = ", ".join(sorted({each.partition("/")[0] for each in changed}))
        cluster.sim.violate("then silence", f"written after everything was done: {', '.join(changed[:8])}", cause=kinds)

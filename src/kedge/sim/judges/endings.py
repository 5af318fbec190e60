"""Endings: conditions that must come true after faults have stopped, and stay true: replicas, owners, claims, silence.

They are passed to `Simulation.check_eventually`. Like the invariants they read committed state and the machines, and
share no code with the controllers they judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kedge.api.conditions import is_true
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.views import NodeView, OwnerReference, PodView
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    ENDPOINT_SLICE_KIND,
    EVENT_KIND,
    FENCE_KIND,
    JOB_KIND,
    LEASE_KIND,
    NODE_KIND,
    OPERATION_KIND,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    ROLLOUT_KIND,
    SERVICE_KIND,
    SERVICE_NAME_LABEL,
    UPDATED_MAX,
)
from kedge.errors import BadRequest
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.judges.facts import ClusterFacts
from kedge.sim.judges.invariants import Judge
from kedge.sim.judges.pod_facts import counts, is_healthy

NOT_WORK = (LEASE_KIND, FENCE_KIND, OPERATION_KIND, EVENT_KIND)
"""Kinds that are written for ever, or as a side effect."""


def expect_settled(judge: Judge) -> None:
    """Require every ending; those of one controller only where that controller runs."""
    at_work = {getattr(each, "name", "") for process in judge.cluster.processes for each in process.components}
    for each in (*ENDINGS, *(ending for name, ending in ENDINGS_OF.items() if name in at_work)):
        ending = partial(each, judge)
        ending.__name__ = each.__name__  # type: ignore[attr-defined]
        judge.cluster.sim.check_eventually(ending)


def replicas_converge(judge: Judge) -> bool:
    """Every workload has exactly the ready replicas it wants, and its status shows that for the newest generation."""
    facts = judge.facts
    for key, found in facts.objects.items():
        if key.kind not in (DEPLOYMENT_KIND, REPLICA_SET_KIND) or found.metadata.deletion_timestamp is not None:
            continue
        want, status = found.view.spec.replicas, found.view.status
        pods = list(facts.pods_under(found))
        if sum(is_healthy(pod) for pod in pods) != want or len(pods) != want:
            return False
        if status.observed_generation != found.metadata.generation or status.ready_replicas != want:
            return False
        if key.kind == DEPLOYMENT_KIND and not _is_rolled_out(found, pods):
            return False
    return True


def _is_rolled_out(deployment: Object, pods: Sequence[PodView]) -> bool:
    """Whether every replica is of the newest template. In mid-rollout the counts alone may be right too."""
    spec = deployment.view.spec
    if spec.paused or UPDATED_MAX in deployment.metadata.annotations:
        return True  # a paused rollout
    wanted = [each.image for each in spec.template.spec.containers]
    as_wanted = all([each.image for each in pod.spec.containers] == wanted for pod in pods)
    return bool(as_wanted and deployment.view.status.updated_replicas == spec.replicas)


def jobs_finish(judge: Judge) -> bool:
    """Every Job that is not suspended has finished, and so have its pods."""
    for key, found in judge.facts.objects.items():
        if key.kind != JOB_KIND or found.metadata.deletion_timestamp is not None or found.view.spec.suspend:
            continue
        over = any(is_true(found.view.status.conditions, each) for each in ("Complete", "Failed"))
        if not over or any(not pod.finished for pod in _views(judge.facts.pods_of(found.uid))):
            return False
    return True


def endpoints_are_the_ready_pods(judge: Judge) -> bool:
    """The ready endpoints of a Service are its ready pods, and no endpoint refers to a pod that is gone."""
    facts = judge.facts
    listed: dict[tuple[str, str], set[str]] = {}
    for key, found in facts.objects.items():
        if key.kind == ENDPOINT_SLICE_KIND:
            targets = [each for each in found.view.endpoints if each.target_ref is not None]
            if any(each.target_ref.uid not in facts.pods for each in targets):
                return False
            service = (key.namespace, found.metadata.labels.get(SERVICE_NAME_LABEL, ""))
            ready = {each.target_ref.uid for each in targets if each.conditions.ready is not False}
            listed.setdefault(service, set()).update(ready)
    for key, found in facts.objects.items():
        selector = found.view.spec.selector if key.kind == SERVICE_KIND else None
        if selector and found.metadata.deletion_timestamp is None:
            ready = {pod.uid for pod in _matching(facts, key.namespace, selector) if is_healthy(pod)}
            if listed.get((key.namespace, key.name), set()) != ready:
                return False
    return True


def budgets_count_the_healthy_pods(judge: Judge) -> bool:
    """The status of a disruption budget, which evictions read, counts the healthy pods."""
    for key, found in judge.facts.objects.items():
        if key.kind != DISRUPTION_BUDGET_KIND or found.metadata.deletion_timestamp is not None:
            continue
        selector, status = found.view.spec.selector, found.view.status
        pods = _matching(judge.facts, key.namespace, selector.match_labels if selector is not None else {})
        if status.observed_generation != found.metadata.generation:
            return False
        if status.current_healthy != sum(map(is_healthy, pods)):
            return False
    return True


def rollouts_come_to_rest(judge: Judge) -> bool:
    """No Rollout is between two stages: it is complete, paused, taken back, or waits for a person."""
    return not any(
        key.kind == ROLLOUT_KIND and found.view.status.phase in ("Progressing", "Holding")
        for key, found in judge.facts.objects.items()
        if found.metadata.deletion_timestamp is None
    )


def _matching(facts: ClusterFacts, namespace: str, labels: Mapping[str, str]) -> list[PodView]:
    """Matches by equality alone: simulations use no other selectors."""
    pods = _views(pod for pod in facts.pods.values() if pod.key.namespace == namespace)
    return [pod for pod in pods if all(pod.labels.get(name) == value for name, value in labels.items())]


def _views(pods: Iterable[Object]) -> list[PodView]:
    return [pod.as_view(PodView) for pod in pods]


def stage_counts_equal_the_store(judge: Judge) -> bool:
    """The stage counts in the status of a workload match its pods."""
    facts = judge.facts
    for key, found in facts.objects.items():
        if key.kind not in (DEPLOYMENT_KIND, REPLICA_SET_KIND) or found.metadata.deletion_timestamp is not None:
            continue
        progress = found.view.status.progress
        stages = progress.stages
        pods = [pod for pod in facts.pods_under(found) if counts(pod)]
        waiting = stages.admitted + stages.queued + stages.scheduled
        placed = stages.bound + stages.starting + stages.ready + stages.serving + progress.unknown
        if waiting != sum(not pod.spec.node_name for pod in pods) or placed != len(pods) - waiting:
            return False
        if stages.ready + stages.serving != sum(is_healthy(pod) for pod in pods):
            return False
    return True


AT_REST = {
    "Bound": "True",
    "RepairComplete": "True",
    "Available": "True",
    "SchedulingRetrying": "False",
    "ReplicaFailure": "False",
    "AvailabilityFloor": "False",
}
"""The conditions of a workload whose replicas are all there; one that it does not have is not missed."""


def conditions_show_the_end(judge: Judge) -> bool:
    """No condition of a workload still shows a trouble that is over."""
    for key, found in judge.facts.objects.items():
        if key.kind in (DEPLOYMENT_KIND, REPLICA_SET_KIND) and found.metadata.deletion_timestamp is None:
            for each in found.view.status.conditions:
                if AT_REST.get(each.type, each.status) != each.status:
                    return False
    return True


def orphans_are_collected(judge: Judge) -> bool:
    """No object is left whose owners are all gone. An owner of an unknown kind counts as present."""
    facts = judge.facts
    for found in facts.objects.values():
        owners = found.metadata.owner_references
        if owners and not any(ref.uid in facts.uids or not _is_known(ref) for ref in owners):
            return False
    return True


def _is_known(ref: OwnerReference) -> bool:
    try:
        KINDS.of_api(ref.api_version, ref.kind)
    except BadRequest:
        return False
    return True


def claims_belong_to_pods(judge: Judge) -> bool:
    """Every claim and every reservation belongs to a pod that exists."""
    facts = judge.facts
    for uid in facts.claims:
        pod = facts.pods.get(uid)
        if pod is None or pod.as_view(PodView).finished:
            return False
    for key, found in facts.objects.items():
        if key.kind == RESERVATION_KIND and found.view.spec.pod.uid and found.view.spec.pod.uid not in facts.pods:
            return False
    return True


def machines_run_the_bound_pods(judge: Judge) -> bool:
    """Each machine runs exactly the pods that are bound to it."""
    facts = judge.facts
    bound: dict[str, set[str]] = {name: set() for name in facts.drivers}
    for uid, pod in facts.pods.items():
        view = pod.as_view(PodView)
        if view.spec.node_name in bound and not view.finished:
            bound[view.spec.node_name].add(uid)
    return all(
        {process.identity.pod_uid for process in driver.live()} == bound[name] for name, driver in facts.drivers.items()
    )


def nodes_are_ready(judge: Judge) -> bool:
    """Every machine has a Node that is ready and not suspected."""
    for name in judge.facts.drivers:
        node = judge.facts.objects.get(Key(NODE_KIND, "", name))
        conditions = node.as_view(NodeView).status.conditions if node is not None else ()
        status = {each.type: each.status for each in conditions}
        if status.get("Ready") != "True" or status.get("Suspect", "False") != "False":
            return False
    return True


ENDINGS: tuple[Callable[[Judge], bool], ...] = (
    replicas_converge,
    stage_counts_equal_the_store,
    conditions_show_the_end,
    orphans_are_collected,
    claims_belong_to_pods,
    machines_run_the_bound_pods,
    nodes_are_ready,
)
ENDINGS_OF: Mapping[str, Callable[[Judge], bool]] = {
    "job": jobs_finish,
    "endpoints": endpoints_are_the_ready_pods,
    "disruption": budgets_count_the_healthy_pods,
    "rollout": rollouts_come_to_rest,
}
"""By controller: the ending that it brings about."""


async def check_silence(cluster: Cluster, *, for_s: float = 60.0) -> None:
    """Fail the run if a component still writes after convergence."""
    before = cluster.versions(but=NOT_WORK)
    await asyncio.sleep(for_s)
    after = cluster.versions(but=NOT_WORK)
    changed = sorted(str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if changed:
        kinds = ", ".join(sorted({each.partition("/")[0] for each in changed}))
        cluster.sim.violate("then silence", f"written after everything was done: {', '.join(changed[:8])}", cause=kinds)

"""Endings: conditions that must come true after faults have stopped, and stay true: replicas, owners, claims, silence.

They are passed to `Simulation.check_eventually`. Like the invariants they read committed state and the machines, and
share no code with the controllers they judge. `explanations` adds the decisions and faults behind an unmet one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kedge.api.conditions import is_true
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.views import NodeView, OwnerReference, PodView
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    DEPLOYMENT_REVISION,
    DISRUPTION_BUDGET_KIND,
    ENDPOINT_SLICE_KIND,
    EVENT_KIND,
    FENCE_KIND,
    JOB_KIND,
    LEASE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    OPERATION_KIND,
    POD_KIND,
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
from kedge.sim.judges.costs import UpkeepCommits
from kedge.sim.judges.explanations import explain_unmet
from kedge.sim.judges.facts import ClusterFacts
from kedge.sim.judges.invariants import Judge
from kedge.sim.judges.pod_facts import counts, is_healthy

NOT_WORK = (LEASE_KIND, FENCE_KIND, OPERATION_KIND, EVENT_KIND)
"""Kinds that are written for ever, or as a side effect."""


class Unmet(NamedTuple):
    """An object that is not yet as an ending requires."""

    key: Key
    waits_for: str
    by: str
    """The component that should act next: a controller, `scheduler`, or `agent` of a node."""


class EndingRule:
    """A condition of the whole cluster: a predicate of the judge, which can name the objects that do not meet it."""

    def __init__(self, find_unmet: Callable[[Judge], Iterator[Unmet]]) -> None:
        self.find_unmet = find_unmet
        self.__name__ = find_unmet.__name__
        self.__doc__ = find_unmet.__doc__

    def __call__(self, judge: Judge) -> bool:
        return next(self.find_unmet(judge), None) is None


def expect_settled(judge: Judge) -> None:
    """Require every ending; those of one controller only where that controller runs."""
    sim = judge.cluster.sim
    at_work = {getattr(each, "name", "") for process in judge.cluster.processes for each in process.components}
    for each in (*ENDINGS, *(ending for name, ending in ENDINGS_OF.items() if name in at_work)):
        ending = partial(each, judge)
        ending.__name__ = each.__name__  # type: ignore[attr-defined]
        sim.check_eventually(ending)
        sim.explain(ending, partial(_explain, judge, each))


def _explain(judge: Judge, ending: EndingRule) -> str:
    unmet = next(ending.find_unmet(judge), None)
    return "" if unmet is None else explain_unmet(judge, unmet.key, unmet.waits_for, unmet.by)


def _workloads(judge: Judge, *kinds: str) -> Iterator[tuple[Key, Object]]:
    """The objects of some kinds that are not being deleted."""
    for key, found in judge.facts.objects.items():
        if key.kind in kinds and found.metadata.deletion_timestamp is None:
            yield key, found


@EndingRule
def replicas_converge(judge: Judge) -> Iterator[Unmet]:
    """Every workload has exactly the ready replicas it wants, and its status shows that for the newest generation."""
    for key, found in _workloads(judge, DEPLOYMENT_KIND, REPLICA_SET_KIND):
        want, status = found.view.spec.replicas, found.view.status
        pods = list(judge.facts.pods_under(found))
        healthy = [pod for pod in pods if is_healthy(pod)]
        controller = "deployment" if key.kind == DEPLOYMENT_KIND else "replicaset"
        if len(pods) != want:
            yield Unmet(key, f"{want} replicas: it has {len(pods)} pods, {len(healthy)} of them ready", controller)
        elif len(healthy) != want:
            yield _unready(next(pod for pod in pods if not is_healthy(pod)))
        elif status.observed_generation != found.metadata.generation:
            text = f"a status of generation {found.metadata.generation}: it is of {status.observed_generation}"
            yield Unmet(key, text, controller)
        elif status.ready_replicas != want:
            yield Unmet(key, f"a status with {want} ready replicas: it has {status.ready_replicas}", controller)
        elif key.kind == DEPLOYMENT_KIND and not _is_rolled_out(found, pods):
            yield Unmet(key, "replicas that are all of its newest template", controller)


def _unready(pod: PodView) -> Unmet:
    """A replica that is not ready: its scheduler or its agent acts next."""
    key, node = Key(POD_KIND, pod.namespace, pod.name), pod.spec.node_name
    if not node:
        return Unmet(key, "a node", "scheduler")
    if pod.terminating:
        return Unmet(key, f"its end on {node}", f"agent-{node}")
    return Unmet(key, f"its ready condition: {node} reports the phase {pod.status.phase}", f"agent-{node}")


def _is_rolled_out(deployment: Object, pods: Sequence[PodView]) -> bool:
    """Whether every replica is of the newest template. In mid-rollout the counts alone may be right too."""
    spec = deployment.view.spec
    if spec.paused or UPDATED_MAX in deployment.metadata.annotations:
        return True  # a paused rollout
    wanted = [each.image for each in spec.template.spec.containers]
    as_wanted = all([each.image for each in pod.spec.containers] == wanted for pod in pods)
    return bool(as_wanted and deployment.view.status.updated_replicas == spec.replicas)


@EndingRule
def jobs_finish(judge: Judge) -> Iterator[Unmet]:
    """Every Job that is not suspended has finished, and so have its pods."""
    for key, found in _workloads(judge, JOB_KIND):
        if found.view.spec.suspend:
            continue
        if not any(is_true(found.view.status.conditions, each) for each in ("Complete", "Failed")):
            yield Unmet(key, "its condition Complete or Failed", "job")
        for pod in _views(judge.facts.pods_of(found.uid)):
            if not pod.finished:
                yield _unready(pod)


@EndingRule
def endpoints_are_the_ready_pods(judge: Judge) -> Iterator[Unmet]:
    """The ready endpoints of a Service are its ready pods, and no endpoint refers to a pod that is gone."""
    facts = judge.facts
    listed: dict[tuple[str, str], set[str]] = {}
    for key, found in facts.objects.items():
        if key.kind == ENDPOINT_SLICE_KIND:
            targets = [each for each in found.view.endpoints if each.target_ref is not None]
            for gone in (each for each in targets if each.target_ref.uid not in facts.pods):
                yield Unmet(key, f"the removal of {gone.target_ref.name}, which is gone", "endpoints")
            service = (key.namespace, found.metadata.labels.get(SERVICE_NAME_LABEL, ""))
            ready = {each.target_ref.uid for each in targets if each.conditions.ready is not False}
            listed.setdefault(service, set()).update(ready)
    for key, found in _workloads(judge, SERVICE_KIND):
        selector = found.view.spec.selector
        if selector:
            ready = {pod.uid for pod in _matching(facts, key.namespace, selector) if is_healthy(pod)}
            shown = listed.get((key.namespace, key.name), set())
            if shown != ready:
                yield Unmet(key, f"{len(ready)} ready endpoints: {len(shown & ready)} of them are listed", "endpoints")


@EndingRule
def budgets_count_the_healthy_pods(judge: Judge) -> Iterator[Unmet]:
    """The status of a disruption budget, which evictions read, counts the healthy pods."""
    for key, found in _workloads(judge, DISRUPTION_BUDGET_KIND):
        selector, status = found.view.spec.selector, found.view.status
        pods = _matching(judge.facts, key.namespace, selector.match_labels if selector is not None else {})
        healthy = sum(map(is_healthy, pods))
        if status.observed_generation != found.metadata.generation:
            yield Unmet(key, f"a status of generation {found.metadata.generation}", "disruption")
        elif status.current_healthy != healthy:
            yield Unmet(key, f"a status with {healthy} healthy pods: it has {status.current_healthy}", "disruption")


@EndingRule
def rollouts_come_to_rest(judge: Judge) -> Iterator[Unmet]:
    """No Rollout is between two stages: it is complete, paused, taken back, or waits for a person."""
    for key, found in _workloads(judge, ROLLOUT_KIND):
        if found.view.status.phase in ("Progressing", "Holding"):
            yield Unmet(key, f"the end of its phase {found.view.status.phase}", "rollout")


@EndingRule
def revisions_are_recorded(judge: Judge) -> Iterator[Unmet]:
    """Every Deployment has the number of its newest revision, which is the highest of its ReplicaSets."""
    facts = judge.facts
    for key, found in _workloads(judge, DEPLOYMENT_KIND):
        if found.view.spec.paused:
            continue
        sets = (facts.objects.get(each) for each in facts.children.get(found.uid, ()) if each.kind == REPLICA_SET_KIND)
        numbers = (int(each.metadata.annotations.get(DEPLOYMENT_REVISION, "0")) for each in sets if each is not None)
        newest = max(numbers, default=0)
        has = found.metadata.annotations.get(DEPLOYMENT_REVISION)
        if newest and has != str(newest):
            yield Unmet(key, f"revision {newest} in its annotation: it has {has}", "deployment")


def _matching(facts: ClusterFacts, namespace: str, labels: Mapping[str, str]) -> list[PodView]:
    """Matches by equality alone: simulations use no other selectors."""
    pods = _views(pod for pod in facts.pods.values() if pod.key.namespace == namespace)
    return [pod for pod in pods if all(pod.labels.get(name) == value for name, value in labels.items())]


def _views(pods: Iterable[Object]) -> list[PodView]:
    return [pod.as_view(PodView) for pod in pods]


@EndingRule
def stage_counts_equal_the_store(judge: Judge) -> Iterator[Unmet]:
    """The stage counts in the status of a workload match its pods."""
    for key, found in _workloads(judge, DEPLOYMENT_KIND, REPLICA_SET_KIND):
        progress = found.view.status.progress
        stages = progress.stages
        pods = [pod for pod in judge.facts.pods_under(found) if counts(pod)]
        waiting = stages.admitted + stages.queued + stages.scheduled
        placed = stages.bound + stages.starting + stages.ready + stages.serving + progress.unknown
        unbound, healthy = sum(not pod.spec.node_name for pod in pods), sum(is_healthy(pod) for pod in pods)
        by = "deployment" if key.kind == DEPLOYMENT_KIND else "replicaset"
        if waiting != unbound or placed != len(pods) - waiting:
            text = f"stages of {unbound} pods without a node and {len(pods) - unbound} with one: it has {waiting} and"
            yield Unmet(key, f"{text} {placed}", by)
        elif stages.ready + stages.serving != healthy:
            yield Unmet(key, f"stages of {healthy} ready pods: it has {stages.ready + stages.serving}", by)


AT_REST = {
    "Bound": "True",
    "RepairComplete": "True",
    "Available": "True",
    "SchedulingRetrying": "False",
    "ReplicaFailure": "False",
    "AvailabilityFloor": "False",
}
"""The conditions of a workload whose replicas are all there; one that it does not have is not missed."""


@EndingRule
def conditions_show_the_end(judge: Judge) -> Iterator[Unmet]:
    """No condition of a workload still shows a trouble that is over."""
    for key, found in _workloads(judge, DEPLOYMENT_KIND, REPLICA_SET_KIND):
        for each in found.view.status.conditions:
            if AT_REST.get(each.type, each.status) != each.status:
                by = "deployment" if key.kind == DEPLOYMENT_KIND else "replicaset"
                yield Unmet(key, f"the condition {each.type}={AT_REST[each.type]}: it is {each.status}", by)


@EndingRule
def orphans_are_collected(judge: Judge) -> Iterator[Unmet]:
    """No object is left whose owners are all gone. An owner of an unknown kind counts as present."""
    facts = judge.facts
    for key, found in facts.objects.items():
        owners = found.metadata.owner_references
        if owners and not any(ref.uid in facts.uids or not _is_known(ref) for ref in owners):
            yield Unmet(key, f"its deletion: its owner {owners[0].kind} {owners[0].name} is gone", "garbage")


def _is_known(ref: OwnerReference) -> bool:
    try:
        KINDS.of_api(ref.api_version, ref.kind)
    except BadRequest:
        return False
    return True


@EndingRule
def claims_belong_to_pods(judge: Judge) -> Iterator[Unmet]:
    """Every claim and every reservation belongs to a pod that exists."""
    facts = judge.facts
    for uid, held in facts.claims.items():
        pod = facts.pods.get(uid)
        if pod is None or pod.as_view(PodView).finished:
            node, entry = next(iter(held.items()))
            text = f"the release of the claim of pod {entry.namespace}/{uid}, which is gone or has ended"
            yield Unmet(Key(NODE_ALLOCATION_KIND, "", node), text, f"agent-{node}")
    for key, found in facts.objects.items():
        if key.kind == RESERVATION_KIND and found.view.spec.pod.uid and found.view.spec.pod.uid not in facts.pods:
            yield Unmet(key, f"its deletion: its pod {found.view.spec.pod.name} is gone", "reservation-repair")


@EndingRule
def machines_run_the_bound_pods(judge: Judge) -> Iterator[Unmet]:
    """Each machine runs exactly the pods that are bound to it."""
    facts = judge.facts
    bound: dict[str, dict[str, Key]] = {name: {} for name in facts.drivers}
    for uid, pod in facts.pods.items():
        view = pod.as_view(PodView)
        if view.spec.node_name in bound and not view.finished:
            bound[view.spec.node_name][uid] = pod.key
    for name, driver in facts.drivers.items():
        running = {process.identity.pod_uid for process in driver.live()}
        for uid, key in bound[name].items():
            if uid not in running:
                yield Unmet(key, f"its process on {name}", f"agent-{name}")
        for uid in sorted(running - bound[name].keys()):
            yield Unmet(Key(NODE_KIND, "", name), f"the end of the process of pod {uid}", f"agent-{name}")


@EndingRule
def nodes_are_ready(judge: Judge) -> Iterator[Unmet]:
    """Every machine has a Node that is ready and not suspected."""
    for name in judge.facts.drivers:
        key = Key(NODE_KIND, "", name)
        node = judge.facts.objects.get(key)
        conditions = node.as_view(NodeView).status.conditions if node is not None else ()
        status = {each.type: each.status for each in conditions}
        if status.get("Ready") != "True":
            yield Unmet(key, f"the condition Ready=True: it is {status.get('Ready', 'absent')}", f"agent-{name}")
        elif status.get("Suspect", "False") != "False":
            yield Unmet(key, f"the condition Suspect=False: it is {status['Suspect']}", "node-lifecycle")


ENDINGS: tuple[EndingRule, ...] = (
    replicas_converge,
    stage_counts_equal_the_store,
    conditions_show_the_end,
    orphans_are_collected,
    claims_belong_to_pods,
    machines_run_the_bound_pods,
    nodes_are_ready,
)
ENDINGS_OF: Mapping[str, EndingRule] = {
    "deployment": revisions_are_recorded,
    "job": jobs_finish,
    "endpoints": endpoints_are_the_ready_pods,
    "disruption": budgets_count_the_healthy_pods,
    "rollout": rollouts_come_to_rest,
}
"""By controller: the ending that it brings about."""


async def check_silence(cluster: Cluster, *, for_s: float = 60.0) -> None:
    """Fail the run if a component still writes after convergence. Leases are renewed, and only as often as agreed."""
    before = cluster.versions(but=NOT_WORK)
    upkeep = UpkeepCommits(cluster)
    await asyncio.sleep(for_s)
    after = cluster.versions(but=NOT_WORK)
    changed = sorted(str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if changed:
        kinds = ", ".join(sorted({each.partition("/")[0] for each in changed}))
        cluster.sim.violate("then silence", f"written after everything was done: {', '.join(changed[:8])}", cause=kinds)
    for cause, message in upkeep.too_many(for_s):
        cluster.sim.violate("then silence", message, cause=cause)

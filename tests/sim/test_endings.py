"""Each ending rejects an unfinished state: the state is committed past the service, and the ending does not hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.kit.cluster import led
from tests.kit.raw_cluster import RawCluster, ready, replica_set, slotted
from tests.objects import node, pod, pod_key

from kedge.api.objects import Object
from kedge.controllers import CONTROLLERS
from kedge.controllers.replicaset import replica_set_controller
from kedge.keys import Key
from kedge.runtime import Controller
from kedge.sim.cluster import Cluster, ProcessContext
from kedge.sim.judges.endings import (
    ENDINGS,
    ENDINGS_OF,
    EndingRule,
    Unmet,
    budgets_count_the_healthy_pods,
    claims_belong_to_pods,
    conditions_show_the_end,
    endpoints_are_the_ready_pods,
    expect_settled,
    jobs_finish,
    machines_run_the_bound_pods,
    nodes_are_ready,
    orphans_are_collected,
    replicas_converge,
    revisions_are_recorded,
    rollouts_come_to_rest,
    stage_counts_equal_the_store,
)
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.standard import quota
from kedge.store import DeleteKey

Break = Callable[[RawCluster], Awaitable[None]]


async def leave_a_failure_that_is_over(raw: RawCluster) -> None:
    body = replica_set(0)
    body["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "Forbidden"}]}
    await raw.add(body, "rs-1")


async def leave_a_job_unfinished(raw: RawCluster) -> None:
    spec = {"template": {"spec": pod()["spec"]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sums", "namespace": "default"}, "spec": spec}
    await raw.add(job, "j-1")


async def leave_a_rollout_under_way(raw: RawCluster) -> None:
    metadata = {"name": "web", "namespace": "default"}
    rollout = {"apiVersion": "kedge.dev/v1", "kind": "Rollout", "metadata": metadata, "status": {"phase": "Holding"}}
    await raw.add(rollout, "rollout-1")


async def list_no_endpoints(raw: RawCluster) -> None:
    await raw.add(ready("web-0"), "u-1")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}}
    await raw.add({**service, "spec": {"selector": {"app": "web"}}}, "s-1")


async def list_a_deleted_pod(raw: RawCluster, ready: bool = True) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}}
    await raw.add({**service, "spec": {"selector": {"app": "web"}}}, "s-1")
    labels = {"kubernetes.io/service-name": "web"}
    listed = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-0", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": "web-9", "uid": "u-9"},
            }
        ],
    }
    await raw.add(listed, "e-1")


async def list_a_deleted_pod_as_not_ready(raw: RawCluster) -> None:
    await list_a_deleted_pod(raw, ready=False)


async def miscount_healthy_pods(raw: RawCluster) -> None:
    await raw.add(ready("web-0"), "u-1")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
        "status": {"observedGeneration": 1, "currentHealthy": 0},
    }
    await raw.add(budget, "b-1")


async def want_more_replicas(raw: RawCluster) -> None:
    await raw.add(replica_set(2), "rs-1")


async def stop_in_mid_rollout(raw: RawCluster) -> None:
    """All replicas are ready, but of the previous template."""
    old = replica_set(1)
    old["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-1", "controller": True}
    ]
    old["status"] = {"observedGeneration": 1, "readyReplicas": 1}
    newer = replica_set(1)
    newer["kind"] = "Deployment"
    newer["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2"
    newer["status"] = {"observedGeneration": 1, "readyReplicas": 1, "updatedReplicas": 0}
    await raw.add(newer, "d-1")
    await raw.add(old, "rs-1")
    await raw.add(ready("web-0"), "u-1")


async def miscount_stages(raw: RawCluster) -> None:
    status = {"observedGeneration": 1, "readyReplicas": 1, "progress": {"stages": {"starting": 1}}}
    await raw.add({**replica_set(1), "status": status}, "rs-1")
    await raw.add(ready("web-0"), "u-1")


async def leave_an_orphan(raw: RawCluster) -> None:
    await raw.add(slotted("web-1"), "u-9")


async def leak_a_claim(raw: RawCluster) -> None:
    await raw.bound()
    await raw.cluster.store.commit([], [DeleteKey(pod_key())])  # forced: its claim stays


async def run_no_bound_pod(raw: RawCluster) -> None:
    await raw.bound()


async def leave_a_node_suspect(raw: RawCluster) -> None:
    suspect = [{"type": "Ready", "status": "True"}, {"type": "Suspect", "status": "True"}]
    await raw.put(Key("Node", "", "node-a"), lambda found: found["status"].update(conditions=suspect))


async def leave_a_revision_unrecorded(raw: RawCluster) -> None:
    revision = "deployment.kubernetes.io/revision"
    deployment = {**replica_set(0), "kind": "Deployment"}
    deployment["metadata"] = {**deployment["metadata"], "annotations": {revision: "1"}}
    await raw.add(deployment, "d-1")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-1", "controller": True}
    newer = replica_set(0)
    newer["metadata"] |= {"name": "web-2", "annotations": {revision: "2"}, "ownerReferences": [owner]}
    await raw.add(newer, "rs-2")


UNFINISHED: list[tuple[Break, EndingRule]] = [
    (leave_a_failure_that_is_over, conditions_show_the_end),
    (want_more_replicas, replicas_converge),
    (stop_in_mid_rollout, replicas_converge),
    (miscount_stages, stage_counts_equal_the_store),
    (leave_an_orphan, orphans_are_collected),
    (leak_a_claim, claims_belong_to_pods),
    (run_no_bound_pod, machines_run_the_bound_pods),
    (leave_a_node_suspect, nodes_are_ready),
    (leave_a_job_unfinished, jobs_finish),
    (list_no_endpoints, endpoints_are_the_ready_pods),
    (list_a_deleted_pod, endpoints_are_the_ready_pods),
    (list_a_deleted_pod_as_not_ready, endpoints_are_the_ready_pods),
    (miscount_healthy_pods, budgets_count_the_healthy_pods),
    (leave_a_rollout_under_way, rollouts_come_to_rest),
    (leave_a_revision_unrecorded, revisions_are_recorded),
]


@pytest.mark.parametrize(("leave", "ending"), UNFINISHED, ids=[make.__name__ for make, _ in UNFINISHED])
def test_an_ending_does_not_hold_in_an_unfinished_state(leave: Break, ending: Callable[[Judge], bool]) -> None:
    async def program(sim: Simulation) -> tuple[bool, bool]:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        await cluster.create(node("node-a"))
        cluster.add_node("node-a")
        cluster.nodes["node-a"].host.crash()
        conditions = [{"type": "Ready", "status": "True"}]
        raw = RawCluster(cluster, judge)
        await raw.put(Key("Node", "", "node-a"), lambda found: found["status"].update(conditions=conditions))
        before = ending(judge)
        await leave(raw)
        return before, ending(judge)

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.result == (True, False), outcome.violation


def test_every_ending_has_an_unfinished_state() -> None:
    assert {*ENDINGS, *ENDINGS_OF.values()} == {ending for _, ending in UNFINISHED}


@pytest.mark.parametrize(("leave", "ending"), UNFINISHED, ids=[make.__name__ for make, _ in UNFINISHED])
def test_an_unmet_ending_names_the_object_what_it_waits_for_and_the_next_component(
    leave: Break, ending: EndingRule
) -> None:
    async def program(sim: Simulation) -> tuple[Unmet, Object | None]:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        await cluster.create(node("node-a"))
        cluster.add_node("node-a").host.crash()
        raw = RawCluster(cluster, judge)
        conditions = [{"type": "Ready", "status": "True"}]
        await raw.put(Key("Node", "", "node-a"), lambda found: found["status"].update(conditions=conditions))
        await leave(raw)
        unmet = next(ending.find_unmet(judge))
        return unmet, cluster.find(unmet.key)

    unmet, found = run(program, 1, faults=NO_FAULTS).result
    assert found is not None, unmet
    assert unmet.waits_for
    assert unmet.by in CONTROLLERS or unmet.by in ("scheduler", "agent-node-a")


def test_a_failure_to_converge_is_explained_by_decision_component_and_fault() -> None:
    """Two replicas are wanted, and no component starts them."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, hostile=True)
        await cluster.set_up()
        judge = Judge(cluster)
        cluster.boot("manager", [led(replica_set_controller, "replicaset")])
        await cluster.create(replica_set(2))
        await asyncio.sleep(20)
        sim.heal()
        expect_settled(judge)
        await sim.converge(within_s=10)

    violation = run(program, 1, faults=NO_FAULTS).violation
    assert violation is not None
    assert violation.invariant == "replicas converge"
    assert "after the faults stopped: Pod/default/web-0 (revision" in violation.message
    assert "waits for a node" in violation.message
    assert "next: scheduler, which does not run" in violation.detail

    async def without_pods(sim: Simulation) -> None:
        cluster = Cluster(sim, hostile=True)
        await cluster.set_up()
        judge = Judge(cluster)
        sim.faults.script("reply of api.create", "lose", where=lambda about: about.startswith("manager>"))
        cluster.boot("manager", [led(replica_set_controller, "replicaset")])
        await cluster.create(quota("all", pods="1"))
        await cluster.create(replica_set(2))
        await asyncio.sleep(20)
        sim.heal()
        expect_settled(judge)
        await sim.converge(within_s=10)

    violation = run(without_pods, 1, faults=NO_FAULTS).violation
    assert violation is not None
    assert "ReplicaSet.apps/default/web (revision" in violation.message
    assert "waits for 2 replicas: it has 1 pods, 0 of them ready" in violation.message
    lines = violation.detail.splitlines()
    assert lines[1].startswith("last decision: replicaset:")
    assert " on manager ended at " in lines[1]
    assert any(line.startswith("  get ReplicaSet.apps default/web: revision ") for line in lines)
    assert any(line.startswith("next: replicaset on manager leads; the key is ") for line in lines)
    assert lines[-1].startswith("last fault: lose: reply of api.create manager>api-0")


def test_a_component_that_crashes_is_reported_with_host_task_and_decision() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        Judge(cluster)

        def broken(context: ProcessContext) -> Controller:
            made = replica_set_controller(context.runtime())
            made.reconciler = Broken()
            return made

        cluster.boot("manager", [broken])
        await cluster.create(replica_set(2))
        await asyncio.sleep(20)

    violation = run(program, 1, faults=NO_FAULTS).violation
    assert violation is not None
    assert violation.invariant == "no unhandled error"
    assert "task replicaset reconciling ReplicaSet.apps/default/web failed" in violation.message
    assert "on host manager, in decision replicaset:" in violation.message


class Broken:
    async def reconcile(self, ctx: object, key: Key) -> None:
        raise ZeroDivisionError(f"{key} in {ctx is None}")

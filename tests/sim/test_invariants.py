"""Each invariant finds a commit that breaks it. The commits go past the service, which would refuse them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.kit.account_breaks import ACCOUNT_BREAKS
from tests.kit.cluster import run_without_faults
from tests.kit.raw_cluster import RawCluster, replica_set, slotted
from tests.objects import config_map, node, pod, pod_key, resource_quota, zone_quota

from kedge.agent.core import ContainerSetup, Identity
from kedge.api.requests import Binding, DeleteOptions
from kedge.api.views import PodView
from kedge.api.wellknown import AT_MOST_ONE, DRAINING, SLOT
from kedge.keys import Fence, Key, Origin
from kedge.sim.cluster import Cluster
from kedge.sim.judges.facts import LAG_S, STANDING_LAGS
from kedge.sim.judges.invariants import SAFETY, Judge
from kedge.sim.judges.process_starts import PROCESSES
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store import DeleteKey, Put

LEDGER = Key("NodeAllocation.kedge.dev", "", "node-a")


Break = Callable[[RawCluster], Awaitable[None]]


async def overfill_a_node(raw: RawCluster) -> None:
    uid = await raw.bound()

    def more(ledger: dict[str, Any]) -> None:
        ledger["status"]["allocated"]["cpu"] = ledger["status"]["entries"][uid]["requests"]["cpu"] = "9"

    await raw.put(LEDGER, more)


async def overrun_a_quota(raw: RawCluster) -> None:
    await raw.cluster.create(resource_quota(pods="1"))
    await raw.cluster.create(pod())
    await raw.add(pod("web-1"), "u-2")


async def overrun_a_quota_of_a_scope(raw: RawCluster) -> None:
    quota = resource_quota(pods="1")
    quota["spec"]["scopes"] = ["NotBestEffort"]
    await raw.cluster.create(quota)
    best_effort = pod("plain")
    del best_effort["spec"]["containers"][0]["resources"]
    await raw.add(best_effort, "u-0")
    await raw.add(pod("web-0"), "u-1")
    await raw.add(pod("web-1"), "u-2")


async def overrun_a_zone_quota(raw: RawCluster) -> None:
    await raw.bound()
    await raw.cluster.create(zone_quota(zone_a={"pods": "1"}))
    await raw.add(pod("web-1", nodeName="node-a"), "u-2")
    raise AssertionError("a pod was bound without a claim, and no invariant broke")


async def claim_over_a_zone_quota(raw: RawCluster) -> None:
    await raw.bound()
    await raw.cluster.create(zone_quota(zone_a={"pods": "1"}))
    waiting = await raw.cluster.create(pod("web-1"))

    def more(ledger: dict[str, Any]) -> None:
        entry = dict(next(iter(ledger["status"]["entries"].values())))
        ledger["status"]["entries"][waiting.uid] = {**entry, "name": "web-1", "state": "Reserved"}
        ledger["status"]["allocated"] = {"cpu": "200m", "memory": "128Mi", "pods": "2"}

    await raw.put(LEDGER, more)


async def bind_without_a_claim(raw: RawCluster) -> None:
    await raw.cluster.create(pod())
    await raw.put(pod_key(), lambda found: found["spec"].update(nodeName="node-a"))


async def release_the_claim_of_a_live_pod(raw: RawCluster) -> None:
    await raw.bound()
    await raw.put(LEDGER, lambda ledger: ledger["status"].update(entries={}, allocated={}))


async def move_a_pod(raw: RawCluster) -> None:
    await raw.bound()
    await raw.put(pod_key(), lambda found: found["spec"].update(nodeName="node-b"))


def reservation(name: str) -> dict[str, Any]:
    spec = {"pod": {"name": name, "uid": name}, "nodeName": "node-a", "workloadUID": "w", "generation": 4, "slot": 2}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "kedge.dev/v1", "kind": "Reservation", "metadata": metadata, "spec": spec}


async def reserve_twice_for_one_intent(raw: RawCluster) -> None:
    await raw.add(reservation("res-a"), "r-1")
    await raw.add(reservation("res-b"), "r-2")


async def bind_two_pods_of_one_slot(raw: RawCluster) -> None:
    for name in ("web-0", "web-00"):
        made = await raw.cluster.create(slotted(name))
        await raw.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))


async def remove_an_object_with_finalizers(raw: RawCluster) -> None:
    body = pod()
    body["metadata"]["finalizers"] = ["example.com/wait"]
    await raw.cluster.create(body)
    await raw.cluster.store.commit([], [DeleteKey(pod_key())])


def blocking(name: str, owner: str) -> dict[str, Any]:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner, "blockOwnerDeletion": True}
    metadata = {"name": name, "namespace": "default", "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def remove_an_owner_before_its_children(raw: RawCluster) -> None:
    owner = await raw.cluster.create(config_map("owner"))
    await raw.cluster.create(blocking("child", owner.uid))
    await raw.cluster.authority.delete(owner.key, DeleteOptions(propagation="Foreground"))
    await raw.cluster.store.commit([], [DeleteKey(owner.key)], origin=Origin("", "garbage:p1:1"))


async def collect_an_object_with_an_owner(raw: RawCluster) -> None:
    await raw.add(replica_set(1), "rs-1")
    await raw.add(slotted("web-0"), "u-1")
    await raw.cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "garbage-collector:p1:1"))


async def mark_a_pod_of_a_live_node_lost(raw: RawCluster) -> None:
    await raw.bound()
    await mark_lost(raw)


async def mark_lost(raw: RawCluster) -> None:
    def change(found: dict[str, Any]) -> None:
        lost = {"type": "DisruptionTarget", "status": "True", "reason": "NodeLost"}
        found["status"]["conditions"] = [{**lost, "observedGeneration": found["metadata"]["generation"]}]

    await raw.put(pod_key(), change)


async def remove_the_last_healthy_replica(raw: RawCluster) -> None:
    await raw.add(replica_set(2), "rs-1")
    ready = {**slotted("web-0"), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await raw.add(ready, "u-1")
    await asyncio.sleep(120)
    await raw.cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "replicaset:p1:1"))


async def create_a_surplus_replica(raw: RawCluster) -> None:
    await raw.add(replica_set(1), "rs-1")
    await raw.add(slotted("web-0"), "u-1")
    await raw.add(slotted("web-1"), "u-2")


async def write_without_the_fence(raw: RawCluster) -> None:
    fence = Key("Fence.kedge.dev", "default", "web")
    token = await raw.cluster.store.commit([], [Put(fence, b"{}")])
    await raw.add(replica_set(1), "rs-1", fence=Fence(fence, token), origin=Origin("", "deployment:p1:1"))
    await raw.add(replica_set(2), "rs-1", origin=Origin("", "deployment:p1:2"))


async def write_as_another_leader_of_one_epoch(raw: RawCluster) -> None:
    fence = Key("Fence.kedge.dev", "default", "web")
    token = await raw.cluster.store.commit([], [Put(fence, b"{}")])
    for n in (1, 2):
        decided = Origin("", f"deployment:p{n}:1")
        await raw.add(replica_set(n), "rs-1", fence=Fence(fence, token), origin=decided)


async def observe_a_future_generation(raw: RawCluster) -> None:
    await raw.add({**replica_set(1), "status": {"observedGeneration": 2}}, "rs-1")


async def report_without_a_generation(raw: RawCluster) -> None:
    """No controller writes it: an agent does."""
    await raw.bound()
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    await raw.put(pod_key(), lambda found: found["status"]["conditions"].append(ready))


async def create_with_a_condition_without_a_generation(raw: RawCluster) -> None:
    body = replica_set(1)
    body["status"] = {"conditions": [{"type": "Bound", "status": "False", "reason": "WaitingForReplicas"}]}
    await raw.add(body, "rs-1")


async def change_a_condition_of_an_old_generation(raw: RawCluster) -> None:
    newer = replica_set(1)
    newer["metadata"]["generation"] = 2
    await raw.add(newer, "rs-1")
    stale = {"type": "Available", "status": "True", "observedGeneration": 1}
    await raw.add({**newer, "status": {"conditions": [stale]}}, "rs-1")


async def scale_over_the_maximum(raw: RawCluster) -> None:
    target = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 3},
    }
    await raw.add(scaler, "h-1")
    await raw.add(replica_set(1), "rs-1")
    await raw.add(replica_set(4), "rs-1", origin=Origin("", "autoscaler:p1:1"))


async def scale_up_while_a_replica_is_pending(raw: RawCluster) -> None:
    await raw.add(replica_set(1), "rs-1")
    await raw.add(slotted("web-0"), "u-1")
    await asyncio.sleep(2 * LAG_S)
    await raw.add(replica_set(2), "rs-1", origin=Origin("", "autoscaler:p1:1"))


async def scale_far_beyond_the_ready_replicas(raw: RawCluster) -> None:
    await raw.add(replica_set(1), "rs-1")
    most = raw.judge.facts.limits.autoscaler_unserved_max
    await raw.add(replica_set(most + 1), "rs-1", origin=Origin("", "autoscaler:p1:1"))


async def run_a_surplus_copy(raw: RawCluster) -> None:
    """A draining pod still runs, and counts."""
    await raw.add(replica_set(1), "rs-1")
    for name in ("web-0", "web-1"):
        body = slotted(name)
        body["metadata"]["annotations"] |= {DRAINING: "2026-01-01T00:00:00Z", SLOT: name[-1]}
        made = await raw.cluster.create(body)
        await raw.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
        await start(raw, "node-a", made.uid, name, node_uid(raw, "node-a"))


async def start(raw: RawCluster, where: str, uid: str, name: str = "web-0", node_uid: str = "n") -> None:
    driver = raw.cluster.nodes[where].driver
    found = raw.cluster.find(pod_key(name))
    view = found.as_view(PodView) if found is not None else PodView()
    await driver.start(
        Identity(uid, "main", 0, 0, node_uid), view, view.spec.containers[0], ContainerSetup(), keep_s=None
    )


async def start_a_pod_twice(raw: RawCluster) -> None:
    uid = await raw.bound()
    for where in ("node-a", "node-b"):
        await start(raw, where, uid, node_uid=node_uid(raw, where))


async def start_a_second_copy_of_at_most_one(raw: RawCluster) -> None:
    """As an agent would that confirms the end of a process that still runs."""
    here = node_uid(raw, "node-a")
    for _ in range(2):
        made = await raw.cluster.create(slotted("web-0", **{AT_MOST_ONE: "true"}))
        await raw.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
        await start(raw, "node-a", made.uid, node_uid=here)
        await raw.cluster.store.commit([], [DeleteKey(pod_key())])
        await raw.cluster.authority.confirm_ended(node="node-a", node_uid=here, pod_uid=made.uid)


async def start_on_another_node(raw: RawCluster) -> None:
    await start(raw, "node-b", await raw.bound(), node_uid=node_uid(raw, "node-b"))


def node_uid(raw: RawCluster, name: str) -> str:
    found = raw.cluster.find(Key("Node", "", name))
    assert found is not None
    return found.uid


RS_KEY = Key("ReplicaSet.apps", "default", "web")
BY_CONTROLLER = Origin("", "replicaset:p1:1")


async def write_condition(raw: RawCluster, status: str, reason: str, type_: str = "ReplicaFailure") -> None:
    def change(found: dict[str, Any]) -> None:
        written = {"type": type_, "status": status, "reason": reason, "observedGeneration": 1}
        found["status"] = {"observedGeneration": 1, "conditions": [written]}

    await raw.put(RS_KEY, change, origin=BY_CONTROLLER)


async def claim_that_missing_replicas_have_a_node(raw: RawCluster) -> None:
    await raw.add(replica_set(2), "rs-1")
    await write_condition(raw, "True", "AllBound", "Bound")


async def fail_on_a_pod_that_is_gone(raw: RawCluster) -> None:
    await raw.add(replica_set(2), "rs-1")
    await write_condition(raw, "True", "NotFound")


async def fail_for_a_moment(raw: RawCluster) -> None:
    await raw.add(replica_set(2), "rs-1")
    await asyncio.sleep(2 * LAG_S)
    await write_condition(raw, "True", "Forbidden")
    await write_condition(raw, "False", "Succeeded")


async def stay_bound_without_replicas(raw: RawCluster) -> None:
    await raw.add(replica_set(1), "rs-1")
    await raw.add(slotted("web-0"), "u-1")
    await raw.cluster.authority.bind(Binding(pod=pod_key(), pod_uid="u-1", node="node-a"))
    await write_condition(raw, "True", "AllBound", "Bound")
    await raw.cluster.store.commit([], [DeleteKey(pod_key())])
    await asyncio.sleep(STANDING_LAGS * LAG_S + 1)
    await raw.cluster.create(config_map("any"))


BREAKS: list[tuple[Break, str]] = [
    (claim_that_missing_replicas_have_a_node, "a true condition holds"),
    (fail_on_a_pod_that_is_gone, "a true condition holds"),
    (fail_for_a_moment, "no condition flaps"),
    (stay_bound_without_replicas, "a standing condition holds"),
    (overfill_a_node, "no commit adds to an overfull node"),
    (overrun_a_quota, "no commit adds to an overfull quota"),
    (overrun_a_quota_of_a_scope, "no commit adds to an overfull quota"),
    (overrun_a_zone_quota, "the ledger equals the bindings"),
    (claim_over_a_zone_quota, "no commit adds to an overfull zone quota"),
    (bind_without_a_claim, "the ledger equals the bindings"),
    (release_the_claim_of_a_live_pod, "the ledger equals the bindings"),
    (move_a_pod, "a pod never has two nodes"),
    (reserve_twice_for_one_intent, "an intent has one reservation"),
    (bind_two_pods_of_one_slot, "a slot has one unreleased binding"),
    (remove_an_object_with_finalizers, "finalizers are respected"),
    (remove_an_owner_before_its_children, "finalizers are respected"),
    (collect_an_object_with_an_owner, "garbage collection spares owned objects"),
    (mark_a_pod_of_a_live_node_lost, "nothing is destroyed on suspicion alone"),
    (remove_the_last_healthy_replica, "the last healthy replica is not removed"),
    (create_a_surplus_replica, "live copies are at most desired plus surge"),
    (write_without_the_fence, "one leader writes in an epoch"),
    (write_as_another_leader_of_one_epoch, "one leader writes in an epoch"),
    (observe_a_future_generation, "conditions refer to the generation they observed"),
    (report_without_a_generation, "conditions refer to the generation they observed"),
    (create_with_a_condition_without_a_generation, "conditions refer to the generation they observed"),
    (change_a_condition_of_an_old_generation, "conditions refer to the generation they observed"),
    (scale_over_the_maximum, "the autoscaler stays within its bound"),
    (scale_up_while_a_replica_is_pending, "the autoscaler waits for pending replicas"),
    (scale_far_beyond_the_ready_replicas, "the autoscaler waits for pending replicas"),
    (run_a_surplus_copy, "running copies are at most desired plus surge"),
    (start_a_pod_twice, "a pod uid has one live process"),
    (start_a_second_copy_of_at_most_one, "an at most one slot has one live copy"),
    (start_on_another_node, "a process is started only for its binding"),
    *ACCOUNT_BREAKS,
]


@pytest.mark.parametrize(("break_it", "name"), BREAKS, ids=[make.__name__ for make, _ in BREAKS])
def test_a_commit_that_breaks_an_invariant_is_found(break_it: Break, name: str) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        for node_name in ("node-a", "node-b"):
            await cluster.create(node(node_name))
            cluster.add_node(node_name)
            cluster.nodes[node_name].host.crash()  # machines without an agent
        await break_it(RawCluster(cluster, judge))
        await asyncio.sleep(1)

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is not None
    assert outcome.violation.invariant == name, outcome.violation.detail or outcome.violation


def test_every_invariant_has_a_commit_that_breaks_it() -> None:
    declared = {each.name for each in SAFETY} | {each.__name__.replace("_", " ") for each in PROCESSES}
    assert declared == {name for _, name in BREAKS}


@pytest.mark.parametrize("existed", [False, True])
def test_foreground_deletion_need_not_wait_for_later_children(existed: bool) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        Judge(cluster)
        owner = await cluster.create(config_map("owner"))
        child = blocking("child", owner.uid)
        if existed:
            await cluster.create({**child, "metadata": {**child["metadata"], "ownerReferences": []}})
        await cluster.authority.delete(owner.key, DeleteOptions(propagation="Foreground"))
        if existed:  # it gets the owner reference only now
            owners = {"metadata": {"ownerReferences": child["metadata"]["ownerReferences"]}}
            await cluster.authority.patch(Key("ConfigMap", "default", "child"), owners)
        else:
            await cluster.create(child)
        await cluster.store.commit([], [DeleteKey(owner.key)])

    run_without_faults(program)


def test_a_controller_may_remove_a_replica_that_has_just_become_the_only_ready_one() -> None:
    """It decided when the replica was not ready: it has had no time to see the change."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        raw = RawCluster(cluster, Judge(cluster))
        await raw.add(replica_set(2), "rs-1")
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await raw.add({**slotted("web-0"), "status": ready}, "u-1")
        await raw.add(slotted("web-1"), "u-2")
        await asyncio.sleep(120)
        await raw.put(pod_key(), lambda found: found.update(status={}))
        await asyncio.sleep(10)
        await raw.put(pod_key("web-1"), lambda found: found.update(status=ready))
        await cluster.store.commit([], [DeleteKey(pod_key("web-1"))], origin=Origin("", "replicaset:p1:1"))

    run_without_faults(program)


def test_a_pod_of_a_former_incarnation_of_its_node_may_be_marked_lost_at_once() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        raw = RawCluster(cluster, Judge(cluster))
        await cluster.create(node("node-a"))
        await raw.bound()
        await cluster.authority.delete(Key("Node", "", "node-a"))
        await cluster.create(node("node-a"))
        await mark_lost(raw)

    run_without_faults(program)


def test_capacity_that_shrinks_from_outside_breaks_no_invariant() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        await cluster.create(node("node-a"))
        raw = RawCluster(cluster, judge)
        await raw.bound("web-0")
        await raw.bound("web-1")
        await raw.put(Key("Node", "", "node-a"), lambda found: found["status"].update(allocatable={"cpu": "0"}))
        await cluster.authority.patch(pod_key(), {"status": {"phase": "Failed"}}, subresource="status")
        assert judge.steps > 5

    run_without_faults(program)

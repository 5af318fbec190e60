"""Each invariant bites: a commit that breaks it, made past the service, which would never make it, is found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.objects import config_map, node, pod, pod_key, resource_quota, zone_quota

from kedge.agent.core import Identity
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.requests import Binding, DeleteOptions
from kedge.api.views import PodView
from kedge.api.wellknown import AT_MOST_ONE, DRAINING, SLOT
from kedge.keys import Fence, Key, Origin
from kedge.sim.cluster import Cluster
from kedge.sim.judges.endings import (
    ENDINGS,
    ENDINGS_OF,
    budgets_count_the_healthy_pods,
    claims_belong_to_pods,
    endpoints_are_the_ready_pods,
    jobs_finish,
    machines_run_the_bound_pods,
    nodes_are_ready,
    orphans_are_collected,
    replicas_converge,
    stage_counts_equal_the_store,
)
from kedge.sim.judges.facts import LAG_S
from kedge.sim.judges.invariants import SAFETY, Judge
from kedge.sim.judges.process_starts import PROCESSES
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store import DeleteKey, Put

LEDGER = Key("NodeAllocation.kedge.dev", "", "node-a")
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}


class World:
    """A store that can be written past the service, under a judge."""

    def __init__(self, cluster: Cluster, judge: Judge) -> None:
        self.cluster = cluster
        self.judge = judge

    async def put(self, key: Key, change: Callable[[dict[str, Any]], None], **by: Any) -> None:
        found = self.cluster.find(key)
        assert found is not None
        document = found.edit()
        change(document)
        await self.cluster.store.commit([], [Put(key, encode_object(document))], **by)

    async def add(self, body: dict[str, Any], uid: str, **by: Any) -> None:
        """Write an object as it is, uid included."""
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        metadata = {"uid": uid, **body["metadata"]}
        key = Key(kind.key_kind, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])
        await self.cluster.store.commit([], [Put(key, encode_object({**body, "metadata": metadata}))], **by)

    async def bound(self, name: str = "web-0", where: str = "node-a") -> str:
        made = await self.cluster.create(pod(name))
        await self.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node=where))
        return made.uid


Break = Callable[[World], Awaitable[None]]


async def overfill_a_node(world: World) -> None:
    uid = await world.bound()

    def more(ledger: dict[str, Any]) -> None:
        ledger["status"]["allocated"]["cpu"] = ledger["status"]["entries"][uid]["requests"]["cpu"] = "9"

    await world.put(LEDGER, more)


async def overrun_a_quota(world: World) -> None:
    await world.cluster.create(resource_quota(pods="1"))
    await world.cluster.create(pod())
    await world.add(pod("web-1"), "u-2")


async def overrun_a_zone_quota(world: World) -> None:
    await world.bound()
    await world.cluster.create(zone_quota(zone_a={"pods": "1"}))
    await world.add(pod("web-1", nodeName="node-a"), "u-2")
    raise AssertionError("a pod was bound without a claim, and nobody minded")


async def claim_over_a_zone_quota(world: World) -> None:
    await world.bound()
    await world.cluster.create(zone_quota(zone_a={"pods": "1"}))
    waiting = await world.cluster.create(pod("web-1"))

    def more(ledger: dict[str, Any]) -> None:
        entry = dict(next(iter(ledger["status"]["entries"].values())))
        ledger["status"]["entries"][waiting.uid] = {**entry, "name": "web-1", "state": "Reserved"}
        ledger["status"]["allocated"] = {"cpu": "200m", "memory": "128Mi", "pods": "2"}

    await world.put(LEDGER, more)


async def bind_without_a_claim(world: World) -> None:
    await world.cluster.create(pod())
    await world.put(pod_key(), lambda found: found["spec"].update(nodeName="node-a"))


async def give_back_the_claim_of_a_live_pod(world: World) -> None:
    await world.bound()
    await world.put(LEDGER, lambda ledger: ledger["status"].update(entries={}, allocated={}))


async def move_a_pod(world: World) -> None:
    await world.bound()
    await world.put(pod_key(), lambda found: found["spec"].update(nodeName="node-b"))


def reservation(name: str) -> dict[str, Any]:
    spec = {"pod": {"name": name, "uid": name}, "nodeName": "node-a", "workloadUID": "w", "generation": 4, "slot": 2}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "kedge.dev/v1", "kind": "Reservation", "metadata": metadata, "spec": spec}


async def reserve_twice_for_one_intent(world: World) -> None:
    await world.add(reservation("res-a"), "r-1")
    await world.add(reservation("res-b"), "r-2")


def slotted(name: str, **annotations: str) -> dict[str, Any]:
    body = pod(name)
    body["metadata"] |= {"annotations": {SLOT: "0", **annotations}, "ownerReferences": [OWNER]}
    return body


async def bind_two_pods_of_one_slot(world: World) -> None:
    for name in ("web-0", "web-00"):
        made = await world.cluster.create(slotted(name))
        await world.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))


async def remove_what_has_finalizers(world: World) -> None:
    body = pod()
    body["metadata"]["finalizers"] = ["example.com/wait"]
    await world.cluster.create(body)
    await world.cluster.store.commit([], [DeleteKey(pod_key())])


def blocking(name: str, owner: str) -> dict[str, Any]:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mum", "uid": owner, "blockOwnerDeletion": True}
    metadata = {"name": name, "namespace": "default", "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


async def let_an_owner_go_before_its_children(world: World) -> None:
    mum = await world.cluster.create(config_map("mum"))
    await world.cluster.create(blocking("kid", mum.uid))
    await world.cluster.authority.delete(mum.key, DeleteOptions(propagation="Foreground"))
    await world.cluster.store.commit([], [DeleteKey(mum.key)])


async def collect_what_has_an_owner(world: World) -> None:
    await world.add(replica_set(1), "rs-1")
    await world.add(slotted("web-0"), "u-1")
    await world.cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "garbage-collector:p1:1"))


async def give_up_a_pod_of_a_node_that_is_heard_of(world: World) -> None:
    await world.bound()
    await give_up(world)


async def give_up(world: World) -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "NodeLost"}
    await world.put(pod_key(), lambda found: found["status"].update(conditions=[lost]))


def replica_set(replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod()["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    metadata = {"name": "web", "namespace": "default", "generation": 1}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}


async def take_the_last_healthy_replica(world: World) -> None:
    await world.add(replica_set(2), "rs-1")
    ready = {**slotted("web-0"), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await world.add(ready, "u-1")
    await asyncio.sleep(120)
    await world.cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "replicaset:p1:1"))


async def make_a_replica_too_many(world: World) -> None:
    await world.add(replica_set(1), "rs-1")
    await world.add(slotted("web-0"), "u-1")
    await world.add(slotted("web-1"), "u-2")


async def write_without_the_fence(world: World) -> None:
    fence = Key("Fence.kedge.dev", "default", "web")
    token = await world.cluster.store.commit([], [Put(fence, b"{}")])
    await world.add(replica_set(1), "rs-1", fence=Fence(fence, token), origin=Origin("", "deployment:p1:1"))
    await world.add(replica_set(2), "rs-1", origin=Origin("", "deployment:p1:2"))


async def write_as_another_leader_of_one_epoch(world: World) -> None:
    fence = Key("Fence.kedge.dev", "default", "web")
    token = await world.cluster.store.commit([], [Put(fence, b"{}")])
    for n in (1, 2):
        decided = Origin("", f"deployment:p{n}:1")
        await world.add(replica_set(n), "rs-1", fence=Fence(fence, token), origin=decided)


async def observe_a_generation_that_never_was(world: World) -> None:
    await world.add({**replica_set(1), "status": {"observedGeneration": 2}}, "rs-1")


async def change_a_condition_of_an_old_generation(world: World) -> None:
    newer = replica_set(1)
    newer["metadata"]["generation"] = 2
    await world.add(newer, "rs-1")
    stale = {"type": "Available", "status": "True", "observedGeneration": 1}
    await world.add({**newer, "status": {"conditions": [stale]}}, "rs-1")


async def scale_over_the_maximum(world: World) -> None:
    target = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web"}
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"scaleTargetRef": target, "maxReplicas": 3},
    }
    await world.add(scaler, "h-1")
    await world.add(replica_set(1), "rs-1")
    await world.add(replica_set(4), "rs-1", origin=Origin("", "autoscaler:p1:1"))


async def scale_what_waits_for_a_node(world: World) -> None:
    await world.add(replica_set(1), "rs-1")
    await world.add(slotted("web-0"), "u-1")
    await asyncio.sleep(2 * LAG_S)
    await world.add(replica_set(2), "rs-1", origin=Origin("", "autoscaler:p1:1"))


async def scale_far_beyond_the_ready(world: World) -> None:
    await world.add(replica_set(1), "rs-1")
    most = world.judge.facts.limits.autoscaler_unserved_max
    await world.add(replica_set(most + 1), "rs-1", origin=Origin("", "autoscaler:p1:1"))


async def run_a_copy_too_many(world: World) -> None:
    """One that drains still runs, and counts."""
    await world.add(replica_set(1), "rs-1")
    for name in ("web-0", "web-1"):
        body = slotted(name)
        body["metadata"]["annotations"] |= {DRAINING: "2026-01-01T00:00:00Z", SLOT: name[-1]}
        made = await world.cluster.create(body)
        await world.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
        await start(world, "node-a", made.uid, name, node_uid(world, "node-a"))


async def start(world: World, where: str, uid: str, name: str = "web-0", node_uid: str = "n") -> None:
    driver = world.cluster.nodes[where].driver
    found = world.cluster.find(pod_key(name))
    view = found.as_view(PodView) if found is not None else PodView()
    await driver.start(Identity(uid, "main", 0, 0, node_uid), view, view.spec.containers[0], keep_s=None)


async def start_a_pod_twice(world: World) -> None:
    uid = await world.bound()
    for where in ("node-a", "node-b"):
        await start(world, where, uid, node_uid=node_uid(world, where))


async def start_a_second_copy_of_at_most_one(world: World) -> None:
    """As an agent does that confirms the end of what still runs."""
    here = node_uid(world, "node-a")
    for _ in range(2):
        made = await world.cluster.create(slotted("web-0", **{AT_MOST_ONE: "true"}))
        await world.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
        await start(world, "node-a", made.uid, node_uid=here)
        await world.cluster.store.commit([], [DeleteKey(pod_key())])
        await world.cluster.authority.confirm_ended(node="node-a", node_uid=here, pod_uid=made.uid)


async def start_where_it_is_not_bound(world: World) -> None:
    await start(world, "node-b", await world.bound(), node_uid=node_uid(world, "node-b"))


def node_uid(world: World, name: str) -> str:
    found = world.cluster.find(Key("Node", "", name))
    assert found is not None
    return found.uid


BREAKS: list[tuple[Break, str]] = [
    (overfill_a_node, "no commit adds to an overfull node"),
    (overrun_a_quota, "no commit adds to an overfull quota"),
    (overrun_a_zone_quota, "the ledger equals the bindings"),
    (claim_over_a_zone_quota, "no commit adds to an overfull zone quota"),
    (bind_without_a_claim, "the ledger equals the bindings"),
    (give_back_the_claim_of_a_live_pod, "the ledger equals the bindings"),
    (move_a_pod, "a pod never has two nodes"),
    (reserve_twice_for_one_intent, "an intent has one reservation"),
    (bind_two_pods_of_one_slot, "a slot has one unreleased binding"),
    (remove_what_has_finalizers, "finalizers are respected"),
    (let_an_owner_go_before_its_children, "finalizers are respected"),
    (collect_what_has_an_owner, "garbage collection spares the owned"),
    (give_up_a_pod_of_a_node_that_is_heard_of, "nothing is destroyed on suspicion alone"),
    (take_the_last_healthy_replica, "the last healthy replica is not taken"),
    (make_a_replica_too_many, "live copies are at most desired plus surge"),
    (write_without_the_fence, "one leader writes in an epoch"),
    (write_as_another_leader_of_one_epoch, "one leader writes in an epoch"),
    (observe_a_generation_that_never_was, "conditions refer to the generation they observed"),
    (change_a_condition_of_an_old_generation, "conditions refer to the generation they observed"),
    (scale_over_the_maximum, "the autoscaler stays within its bound"),
    (scale_what_waits_for_a_node, "the autoscaler does not add to what is behind"),
    (scale_far_beyond_the_ready, "the autoscaler does not add to what is behind"),
    (run_a_copy_too_many, "running copies are at most desired plus surge"),
    (start_a_pod_twice, "a pod uid has one live process"),
    (start_a_second_copy_of_at_most_one, "an at most one slot has one live copy"),
    (start_where_it_is_not_bound, "a process is started only for its binding"),
]


@pytest.mark.parametrize(("make", "words"), BREAKS, ids=[make.__name__ for make, _ in BREAKS])
def test_who_does_this_is_found_out(make: Break, words: str) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        for name in ("node-a", "node-b"):
            await cluster.create(node(name))
            cluster.add_node(name)
            cluster.nodes[name].host.crash()  # the machines are there; nobody looks after them
        await make(World(cluster, judge))
        await asyncio.sleep(1)

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is not None
    assert outcome.violation.invariant == words, outcome.violation.detail or outcome.violation


def test_every_invariant_has_something_that_breaks_it() -> None:
    promised = {each.name for each in SAFETY} | {each.__name__.replace("_", " ") for each in PROCESSES}
    assert promised == {words for _, words in BREAKS}


@pytest.mark.parametrize("existed", [False, True])
def test_a_child_that_came_after_its_owner_was_told_to_go_need_not_be_waited_for(existed: bool) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        Judge(cluster)
        mum = await cluster.create(config_map("mum"))
        kid = blocking("kid", mum.uid)
        if existed:
            await cluster.create({**kid, "metadata": {**kid["metadata"], "ownerReferences": []}})
        await cluster.authority.delete(mum.key, DeleteOptions(propagation="Foreground"))
        if existed:  # somebody gives it that owner now
            owners = {"metadata": {"ownerReferences": kid["metadata"]["ownerReferences"]}}
            await cluster.authority.patch(Key("ConfigMap", "default", "kid"), owners)
        else:
            await cluster.create(kid)
        await cluster.store.commit([], [DeleteKey(mum.key)])

    assert run(program, 1, faults=NO_FAULTS).violation is None


def test_a_pod_of_a_former_incarnation_of_its_node_may_be_given_up_at_once() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        world = World(cluster, Judge(cluster))
        await cluster.create(node("node-a"))
        await world.bound()
        await cluster.authority.delete(Key("Node", "", "node-a"))
        await cluster.create(node("node-a"))
        await give_up(world)

    assert run(program, 1, faults=NO_FAULTS).violation is None


def test_capacity_that_shrinks_from_outside_is_nobodys_fault() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        await cluster.create(node("node-a"))
        world = World(cluster, judge)
        await world.bound("web-0")
        await world.bound("web-1")
        await world.put(Key("Node", "", "node-a"), lambda found: found["status"].update(allocatable={"cpu": "0"}))
        await cluster.authority.patch(pod_key(), {"status": {"phase": "Failed"}}, subresource="status")
        assert judge.steps > 5

    assert run(program, 1, faults=NO_FAULTS).violation is None


async def leave_a_job_unfinished(world: World) -> None:
    spec = {"template": {"spec": pod()["spec"]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sums", "namespace": "default"}, "spec": spec}
    await world.add(job, "j-1")


async def list_nobody(world: World) -> None:
    await world.add(ready("web-0"), "u-1")
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}}
    await world.add({**service, "spec": {"selector": {"app": "web"}}}, "s-1")


async def list_the_dead(world: World, ready: bool = True) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"}}
    await world.add({**service, "spec": {"selector": {"app": "web"}}}, "s-1")
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
    await world.add(listed, "e-1")


async def tell_of_the_dead_that_they_are_not_ready(world: World) -> None:
    await list_the_dead(world, ready=False)


async def miscount_the_healthy(world: World) -> None:
    await world.add(ready("web-0"), "u-1")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
        "status": {"observedGeneration": 1, "currentHealthy": 0},
    }
    await world.add(budget, "b-1")


async def want_more_than_there_is(world: World) -> None:
    await world.add(replica_set(2), "rs-1")


async def stop_in_mid_rollout(world: World) -> None:
    """As many as are wanted are ready, and of the template before."""
    old = replica_set(1)
    old["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-1", "controller": True}
    ]
    old["status"] = {"observedGeneration": 1, "readyReplicas": 1}
    newer = replica_set(1)
    newer["kind"] = "Deployment"
    newer["spec"]["template"]["spec"]["containers"][0]["image"] = "web:2"
    newer["status"] = {"observedGeneration": 1, "readyReplicas": 1, "updatedReplicas": 0}
    await world.add(newer, "d-1")
    await world.add(old, "rs-1")
    await world.add(ready("web-0"), "u-1")


async def miscount_the_stages(world: World) -> None:
    told = {"observedGeneration": 1, "readyReplicas": 1, "progress": {"stages": {"starting": 1}}}
    await world.add({**replica_set(1), "status": told}, "rs-1")
    await world.add(ready("web-0"), "u-1")


async def leave_an_orphan(world: World) -> None:
    await world.add(slotted("web-1"), "u-9")


async def leak_a_claim(world: World) -> None:
    await world.bound()
    await world.cluster.store.commit([], [DeleteKey(pod_key())])  # by force: its claim stays


async def run_nothing_of_what_is_bound(world: World) -> None:
    await world.bound()


async def leave_a_node_suspect(world: World) -> None:
    suspect = [{"type": "Ready", "status": "True"}, {"type": "Suspect", "status": "True"}]
    await world.put(Key("Node", "", "node-a"), lambda found: found["status"].update(conditions=suspect))


def ready(name: str) -> dict[str, Any]:
    body = slotted(name)
    body["metadata"]["labels"] = {"app": "web"}
    return {**body, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


UNFINISHED: list[tuple[Break, Callable[[Judge], bool]]] = [
    (want_more_than_there_is, replicas_converge),
    (stop_in_mid_rollout, replicas_converge),
    (miscount_the_stages, stage_counts_equal_the_store),
    (leave_an_orphan, orphans_are_collected),
    (leak_a_claim, claims_belong_to_pods),
    (run_nothing_of_what_is_bound, machines_run_the_bound_pods),
    (leave_a_node_suspect, nodes_are_ready),
    (leave_a_job_unfinished, jobs_finish),
    (list_nobody, endpoints_are_the_ready_pods),
    (list_the_dead, endpoints_are_the_ready_pods),
    (tell_of_the_dead_that_they_are_not_ready, endpoints_are_the_ready_pods),
    (miscount_the_healthy, budgets_count_the_healthy_pods),
]


@pytest.mark.parametrize(("make", "ending"), UNFINISHED, ids=[make.__name__ for make, _ in UNFINISHED])
def test_an_end_that_is_none_is_not_taken_for_one(make: Break, ending: Callable[[Judge], bool]) -> None:
    async def program(sim: Simulation) -> tuple[bool, bool]:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster)
        await cluster.create(node("node-a"))
        cluster.add_node("node-a")
        cluster.nodes["node-a"].host.crash()
        well = [{"type": "Ready", "status": "True"}]
        world = World(cluster, judge)
        await world.put(Key("Node", "", "node-a"), lambda found: found["status"].update(conditions=well))
        before = ending(judge)
        await make(world)
        return before, ending(judge)

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.result == (True, False), outcome.violation


def test_every_ending_has_something_that_is_none() -> None:
    assert {*ENDINGS, *ENDINGS_OF.values()} == {ending for _, ending in UNFINISHED}

"""Cluster state that followed every change equals one built at once from the caches, and decides the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.controllers import new_cluster, until
from tests.kit.scheduler import LIMITS, SchedulerHarness, with_scheduler
from tests.objects import NODE, POD, RESERVATION, ZONE_QUOTA, node, pod, reservation, zone_quota

from kedge.api.kinds import KINDS
from kedge.api.requests import Binding, DeleteOptions
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.observe.records import LocalState
from kedge.scheduler.report.recheck import cluster_state_of
from kedge.scheduler.state.assumptions import Assumption
from kedge.scheduler.state.cluster_state import ClusterState
from kedge.scheduler.state.nominations import nominated_claim
from kedge.sim.kernel import NO_FAULTS, Simulation, run

NODES, PODS = ("node-a", "node-b", "node-c"), tuple(f"web-{n}" for n in range(5))
POLICY = KINDS.of_key_kind("SchedulingPolicy.kedge.dev")
REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")


def assumption_of(cluster_state: ClusterState, uid: str) -> Assumption:
    found = cluster_state.assumed.get(uid)
    assert found is not None
    return found


def local_state_of(cluster_state: ClusterState) -> LocalState:
    found = cluster_state.local_state(cluster_state.local_inputs(0))
    assert found is not None
    return found


class Changes:
    """Changes every input of the cluster state, one after another."""

    def __init__(self, sim: Simulation, harness: SchedulerHarness) -> None:
        self._sim = sim
        self._desk = harness
        self._authority = harness.cluster.authority
        self._steps = (
            self._pod, self._pod, self._bound, self._bound, self._remove, self._terminate, self._end, self._label,
            self._node, self._cordon, self._quota, self._reserve, self._policy, self._replica_set, self._replaced,
            self._hold, self._urgent, self._ruled, self._ruled,
        )  # fmt: skip

    async def step(self) -> None:
        step = self._sim.choose("step", self._steps)
        try:
            await step()
        except OperatingError:
            return
        self._sim.sometimes(step.__name__)

    def _name(self) -> str:
        return self._sim.choose("pod", PODS)

    async def _pod(self, **spec: Any) -> None:
        asked = {
            "cpu": self._sim.choose("cpu", ("100m", "300m")),
            "schedulerName": self._sim.choose("whose", ("nobody", "default-scheduler")),
        }
        body = pod(self._name(), **{**asked, **spec})
        if self._sim.choose("owned", (False, True)):
            owner = self._desk.cluster.find(Key("ReplicaSet.apps", "default", "set"))
            uid = owner.uid if owner is not None else "none"
            body["metadata"]["ownerReferences"] = [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": uid, "controller": True}
            ]
        await self._authority.create(POD, body)

    async def _bound(self) -> None:
        await self._pod(nodeName=self._sim.choose("node", NODES))

    async def _urgent(self) -> None:
        """A pod that needs a whole node: the pods there are evicted, and terminate slowly."""
        await self._pod(cpu="4", priorityClassName="urgent", schedulerName="default-scheduler")

    async def _ruled(self) -> None:
        """A pod with a rule about other pods: their labels and their workload decide."""
        about = {
            "labelSelector": {"matchLabels": {"app": self._sim.choose("app", ("web", "db"))}},
            "topologyKey": self._sim.choose("topology", ("topology.kubernetes.io/zone", "kubernetes.io/hostname")),
        }
        rule = self._sim.choose("rule", ("podAntiAffinity", "podAffinity", "DoNotSchedule", "ScheduleAnyway"))
        if rule.startswith("pod"):
            spec: Any = {"affinity": {rule: {"requiredDuringSchedulingIgnoredDuringExecution": [about]}}}
        else:
            spec = {"topologySpreadConstraints": [about | {"maxSkew": 1, "whenUnsatisfiable": rule}]}
        await self._pod(schedulerName="default-scheduler", **spec)

    async def _hold(self) -> None:
        """Binds wait before they are sent: assumed pods change meanwhile."""
        self._desk.wire.binds_held = self._sim.choose("binds are held", (True, True, False))

    async def _remove(self) -> None:
        await self._desk.remove(self._name(), confirm=self._sim.choose("confirmed", (True, False)))

    async def _replaced(self) -> None:
        name = self._name()
        await self._desk.remove(name, confirm=False)
        await self._authority.create(POD, pod(name, schedulerName="nobody", nodeName=self._sim.choose("node", NODES)))

    async def _terminate(self) -> None:
        await self._authority.delete(Key("Pod", "default", self._name()), DeleteOptions())

    async def _end(self) -> None:
        key = Key("Pod", "default", self._name())
        await self._authority.patch(key, {"status": {"phase": "Succeeded"}}, subresource="status")

    async def _label(self) -> None:
        key = Key("Pod", "default", self._name())
        await self._authority.patch(key, {"metadata": {"labels": {"app": self._sim.choose("app", ("web", "db"))}}})

    async def _node(self) -> None:
        name = self._sim.choose("node", NODES)
        if self._desk.cluster.find(Key("Node", "", name)) is not None:
            await self._authority.delete(Key("Node", "", name))
            if self._sim.choose("gone", (False, True)):
                return
        await self._authority.create(NODE, node(name, zone=self._sim.choose("zone", ("zone-a", "zone-b"))))

    async def _cordon(self) -> None:
        key = Key("Node", "", self._sim.choose("node", NODES))
        await self._authority.patch(key, {"spec": {"unschedulable": self._sim.choose("cordon", (True, False))}})

    async def _quota(self) -> None:
        key = Key("ZoneQuota.kedge.dev", "default", "zones")
        if self._desk.cluster.find(key) is None:
            await self._authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}))
        else:
            await self._authority.delete(key)

    async def _reserve(self) -> None:
        found = self._desk.find(self._name())
        if found is None:
            return
        key = Key("Reservation.kedge.dev", "default", found.uid)
        if self._desk.cluster.find(key) is None:
            await self._authority.create(RESERVATION, reservation(found, self._sim.choose("node", NODES)))
        else:
            await self._authority.delete(key)

    async def _policy(self) -> None:
        key = Key("SchedulingPolicy.kedge.dev", "", "spread")
        if self._desk.cluster.find(key) is None:
            await self._authority.create(
                POLICY, {"metadata": {"name": "spread"}, "spec": {"version": "1", "active": True, "maxZoneSkew": 2}}
            )
        else:
            await self._authority.delete(key)

    async def _replica_set(self) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "deployment", "controller": True}
        labels = {"app": "web"}
        await self._authority.create(
            REPLICA_SET,
            {
                "metadata": {"name": "set", "namespace": "default", "ownerReferences": [owner]},
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod()["spec"]},
                },
            },
        )


def shown(cluster_state: ClusterState) -> dict[str, Any]:
    """Everything in the cluster state that a decision reads."""
    snapshot = cluster_state.snapshot
    rows = {name: snapshot.find(name) for name in snapshot.names}
    claims = {}
    for name in (*NODES, *snapshot.names):
        for uid in snapshot.claims_on(name):
            claim = snapshot.claim(uid)
            assert claim is not None
            requirements = claim.request.requirements
            request = (
                dict(requirements.requests),
                requirements.ports,
                dict(claim.request.labels),
                claim.request.workload,
            )
            claims[uid] = (claim.node, claim.request.namespace, request, claim.request.terminating)
    return {
        "nodes": {
            name: (row.uid, row.revision, dict(row.labels), dict(row.offered or {}), bool(snapshot.cordoned[row.row]))
            for name, row in rows.items()
            if row is not None
        },
        "claims": claims,
        "room": {zone: dict(left) for zone, left in (cluster_state.quotas.room_of("default") or {}).items()},
        "policies": sorted(cluster_state.policies.objects),
    }


def check(harness: SchedulerHarness) -> None:
    cluster_state = harness.scheduler.cluster_state
    held = {name: {each.key: each for each in cache.list().value} for name, cache in cluster_state.caches.items()}
    rebuilt = cluster_state_of(held, harness.env, scheduler="default-scheduler", local=local_state_of(cluster_state))
    kept, built = shown(cluster_state), shown(rebuilt)
    for part in kept:
        assert kept[part] == built[part], f"{part}: kept {kept[part]}, built {built[part]}"
    assumed = {
        each.uid: (each.node, each.revision, each.request.workload, each.zone)
        for each in cluster_state.assumed.values()
    }
    assert local_state_of(cluster_state).assumed == assumed
    for name in NODES:
        there = [each for each in held["Pod"].values() if each.view.spec.node_name == name and not each.view.finished]
        assert list(cluster_state.pods_on(name)) == there, name


def check_ledgers(harness: SchedulerHarness) -> None:
    """Once caches are current, a node counts its ledger, its bound pods and its nominations, and nothing else."""
    snapshot, nominated = harness.scheduler.cluster_state.snapshot, harness.scheduler.cluster_state.nominated
    bound = {each.uid for each in harness.cluster.all("Pod") if each.view.spec.node_name and not each.view.finished}
    nodes = {each.key.name: each.uid for each in harness.cluster.all("Node")}
    for ledger in harness.cluster.all("NodeAllocation.kedge.dev"):
        if nodes.get(ledger.key.name) != ledger.view.spec.node_uid:
            continue
        held = set(ledger.view.status.entries)
        made = {nominated_claim(uid) for uid, _ in nominated.on(ledger.key.name)}
        counted = set(snapshot.claims_on(ledger.key.name)) - made
        assert held <= counted, f"{ledger.key.name}: held {held}, counted {counted}"
        assert counted <= held | bound, f"{ledger.key.name}: held {held}, counted {counted}"


def test_a_followed_state_equals_one_built_at_once() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, servers=1)
        await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
        harness = SchedulerHarness(sim, cluster, LIMITS)
        await harness.open_for(*(node(name, zone="zone-a") for name in NODES))
        await harness.priority("urgent", 10)
        harness.wire.pod_watch_delay_s = sim.choose("pods are seen late", (0.0, 0.3))
        changes = Changes(sim, harness)
        for _ in range(50):
            await changes.step()
            if sim.choose("look now", (True, False)):
                await asyncio.sleep(sim.choose("pause", (0.0, 0.001, 0.5)))
                check(harness)  # at any moment: the caches may show a part of a change
                sim.sometimes("something is assumed", harness.scheduler.cluster_state.assumed)
                sim.sometimes("a place is being made", harness.scheduler.cluster_state.nominated.places)
        harness.wire.binds_held = False
        await asyncio.sleep(12)
        check(harness)
        check_ledgers(harness)
        sim.sometimes("attempts come to the same again", harness.recheck_all())
        assert not harness.reported, harness.reported

    reached: set[str] = set()
    for seed in range(30):
        outcome = run(program, seed, faults=NO_FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.violation.detail}"
        reached |= set(outcome.marks)
    assert len(reached) == 19, f"some change was never made: {reached}"


@with_scheduler()
async def test_an_assumed_pod_bound_elsewhere_by_another_client_is_counted_only_there(
    harness: SchedulerHarness,
) -> None:
    """It was assumed on one node and is seen on another, with the same request."""
    cluster_state = (await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))).cluster_state
    harness.wire.binds_held = True
    web = await harness.pod("web", cpu="800m")
    await until(lambda: cluster_state.assumed)
    assumed = assumption_of(cluster_state, web.uid).node
    (elsewhere,) = {"node-a", "node-b"} - {assumed}
    await harness.cluster.authority.bind(Binding(pod=web.key, pod_uid=web.uid, node=elsewhere))
    await until(lambda: not cluster_state.assumed)
    assert (cluster_state.snapshot.claims_on(assumed), cluster_state.snapshot.claims_on(elsewhere)) == ((), (web.uid,))
    check(harness)
    harness.wire.binds_held = False
    await harness.pod("second", cpu="800m")
    await until(lambda: harness.place("second"))
    assert (harness.place("web"), harness.place("second")) == (elsewhere, assumed)
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_pod_that_a_read_finds_elsewhere_is_counted_there_until_the_cache_shows_it(
    harness: SchedulerHarness,
) -> None:
    """As when a bind was lost with its reply, and the next leader bound the pod elsewhere."""
    cluster_state = (await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))).cluster_state
    harness.wire.binds_held = True
    web = await harness.pod("web", cpu="800m")
    await until(lambda: cluster_state.assumed)
    assumption = assumption_of(cluster_state, web.uid)
    assumed = assumption.node
    (elsewhere,) = {"node-a", "node-b"} - {assumed}
    harness.wire.pod_watch_held = True
    written = await harness.cluster.authority.bind(Binding(pod=web.key, pod_uid=web.uid, node=elsewhere))
    cluster_state.settle(assumption, written.object)
    assert (cluster_state.snapshot.claims_on(assumed), cluster_state.snapshot.claims_on(elsewhere)) == ((), (web.uid,))
    assert local_state_of(cluster_state).assumed[web.uid][:2] == (elsewhere, written.object.revision)
    harness.wire.binds_held = harness.wire.pod_watch_held = False
    await until(harness.nothing_is_left)
    assert cluster_state.snapshot.claims_on(elsewhere) == (web.uid,)
    check(harness)


@with_scheduler()
async def test_a_pod_deleted_while_its_bind_is_in_flight_counts_as_terminating(
    harness: SchedulerHarness,
) -> None:
    cluster_state = (await harness.open_for()).cluster_state
    harness.wire.binds_held = True
    body = pod("web")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    web = (await harness.cluster.authority.create(POD, body)).object
    await until(lambda: cluster_state.assumed)
    await harness.cluster.authority.delete(web.key)
    await until(lambda: assumption_of(cluster_state, web.uid).request.terminating)
    check(harness)
    harness.wire.binds_held = False
    await until(lambda: cluster_state.snapshot.claim(web.uid) is None)
    assert harness.place("web") == ""
    check(harness)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_pod_that_was_bound_and_changed_before_the_cache_saw_it_counts_its_latest_version(leaves: bool) -> None:
    """A list delivers at once what a watch would have delivered one by one."""

    @with_scheduler(replace(LIMITS, watch_probe_s=3600.0, watch_silence_s=3600.0))
    async def scene(harness: SchedulerHarness) -> None:
        cluster_state = (await harness.open_for()).cluster_state
        harness.wire.binds_held = True
        web = await harness.pod("web")
        await until(lambda: cluster_state.assumed)
        harness.wire.pod_watch_held, harness.wire.binds_held = True, False
        await until(lambda: harness.place("web"))
        if leaves:
            await harness.cluster.authority.delete(web.key)
        else:
            await harness.cluster.authority.patch(web.key, {"metadata": {"labels": {"app": "db"}}})
        assert cluster_state.assumed
        cluster_state.caches["Pod"].request_relist()
        await until(lambda: not cluster_state.assumed)
        claim = cluster_state.snapshot.claim(web.uid)
        assert claim is not None
        assert (claim.request.terminating, dict(claim.request.labels)) == (leaves, {"app": "web" if leaves else "db"})
        check(harness)

    scene()

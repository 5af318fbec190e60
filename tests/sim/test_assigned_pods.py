"""Pods created with a node's name, run by real agents: admitted, rejected with a kubelet's reasons, or waiting."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.kit.agent import claims, is_ready, live, new_cluster, until, without_faults
from tests.objects import pod, pod_key

from kedge.api.kinds import KINDS
from kedge.api.requests import Binding
from kedge.api.views import PodView
from kedge.api.wellknown import POD_KIND
from kedge.errors import NotFound, OperatingError
from kedge.keys import Key
from kedge.server.http.tables import definitions, row_of
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.kernel.lasting_faults import crash_for_a_while
from kedge.sim.standard import JudgedCluster, Size
from kedge.sim.zoo.worlds.base import QUIET


def assigned(name: str = "web-0", **spec: Any) -> dict[str, Any]:
    return pod(name, nodeName="node-a", **spec)


def status_of(cluster: Cluster, name: str = "web-0") -> Any:
    found = cluster.find(pod_key(name))
    assert found is not None
    return found.as_view(PodView).status


def shown_status(cluster: Cluster, name: str = "web-0") -> Any:
    """The STATUS column of `kubectl get pods`."""
    found = cluster.find(pod_key(name))
    assert found is not None
    kind = KINDS.of_key_kind(POD_KIND)
    names = [each["name"] for each in definitions(kind)]
    return row_of(kind, found, datetime(2030, 1, 1, tzinfo=UTC), "None")["cells"][names.index("Status")]


def test_a_pod_that_fits_is_admitted_and_runs() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await cluster.create(assigned())
        await until(lambda: is_ready(cluster))
        (entry,) = cluster.all("NodeAllocation.kedge.dev")[0].view.status.entries.values()
        assert entry.state == "Bound"

    without_faults(program)


PORT = {"containers": [{"name": "main", "image": "web:1", "ports": [{"containerPort": 80, "hostPort": 80}]}]}


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"cpu": "900"}, "OutOfcpu", "Node didn't have enough resource: cpu, requested: 900000, used: 100, capacity: "),
        (
            {"memory": "9Ti"},
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 9895604649984, used: ",
        ),
        (
            {"nodeSelector": {"disk": "ssd"}},
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (PORT, "NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
    ],
)
def test_a_pod_that_does_not_fit_fails_with_the_reason_of_a_kubelet(
    spec: dict[str, Any], reason: str, message: str
) -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        first = pod("first")
        first["spec"]["containers"][0]["ports"] = PORT["containers"][0]["ports"]
        made = await cluster.create(first)
        await cluster.authority.bind(Binding(pod=made.key, node="node-a"))
        await cluster.create(assigned(**spec))
        await until(lambda: status_of(cluster).phase == "Failed")
        status = status_of(cluster)
        assert status.reason == reason
        assert status.message.startswith(f"Pod was rejected: {message}")
        assert shown_status(cluster) == reason
        assert claims(cluster) == ["first"]
        assert live(cluster) == ["first"]

    without_faults(program)


def test_of_two_pods_with_room_for_one_exactly_one_runs() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        half = str(int(cluster.all("Node")[0].view.status.allocatable["cpu"].nano * 0.6 / 1e9 * 1000)) + "m"
        for name in ("a", "b"):
            await cluster.create(assigned(name, cpu=half))
        await until(lambda: sorted(status_of(cluster, name).phase for name in "ab") == ["Failed", "Running"])
        assert len(live(cluster)) == 1

    without_faults(program)


def test_a_pod_of_a_node_that_registers_later_runs_then() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim)
        await cluster.create(assigned())
        await asyncio.sleep(60)
        assert status_of(cluster).phase == "Pending"
        cluster.add_node("node-a")
        await until(lambda: is_ready(cluster))

    without_faults(program)


@simulate(seeds=40, faults=ClusterSwarm(), marks=("admitted", "rejected"))
async def test_assigned_pods_keep_the_invariants_while_agents_crash_and_nodes_are_replaced(sim: Simulation) -> None:
    """Ledgers equal the pods in every commit, no commit overfills a node, and every pod comes to run or to fail."""
    size = Size(nodes=2, zones=1, servers=2, schedulers=0, managers=0, limits=replace(QUIET, agent_audit_s=12.0))
    world = JudgedCluster(sim, size)
    await world.open()
    cluster, user = world.cluster, world.user
    for _ in range(sim.choose_int("steps", 4, 8)):
        key = Key(POD_KIND, "default", sim.choose("pod", ("a", "b", "c")))
        node = world.pick_node()
        match sim.choose("step", ("assign", "assign", "agent dies", "node is removed", "bind", "assign")):
            case "agent dies":
                crash_for_a_while(sim.world, node.host)
            case "node is removed":
                with suppress(NotFound):
                    await cluster.authority.delete(node.key)
            case step if (found := cluster.find(key)) is None:
                body = pod(key.name, cpu=sim.choose("cpu", ("1", "3", "500")))
                if step == "assign":
                    body["spec"]["nodeName"] = node.name
                made = await user.apply(body, namespace="default")
                if step == "bind":
                    with suppress(OperatingError):
                        await cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node=node.name))
            case _:
                await user.delete(found.key, force=sim.choose("force", (True, False)))
        await asyncio.sleep(sim.choose("pause", (4, 0.2, 12)))
    await world.heal()
    for found in cluster.all(POD_KIND):
        if not found.view.spec.node_name:
            await user.delete(found.key)  # nothing places it any more
    await world.close(within_s=300, silence_s=0, stays_s=4)
    for found in cluster.all(POD_KIND):
        status = found.as_view(PodView).status
        sim.sometimes("rejected", status.reason.startswith("OutOf"))
        sim.sometimes("admitted", status.phase == "Running")
        assert status.phase in ("Running", "Failed", "Succeeded"), f"{found.key} is {status.phase}"

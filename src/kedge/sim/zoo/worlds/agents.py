"""Worlds of agents and nodes: agents that crash, machines that reboot or are cut off, nodes that are deleted."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import POD_KIND, REPLICA_SET_KIND, ZONE_LABEL
from kedge.errors import NotFound, OperatingError
from kedge.keys import Key
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.kernel.lasting_faults import crash_for_a_while
from kedge.sim.standard import JudgedCluster, Size, workload
from kedge.sim.zoo.strategies import DrawnRates
from kedge.sim.zoo.worlds.base import NEVER_S, QUIET, plain_pod
from kedge.sim.zoo.worlds.hollow_nodes import HollowNodes, manage, place
from kedge.sim.zoo.worlds.invariants import OnlyUnwantedProcessesAreStopped, bound_pods_have_claims, expect

QUIET_AGENTS = replace(QUIET, agent_audit_s=NEVER_S)
NODE_LIMITS = replace(
    QUIET,
    node_renew_s=4.0,
    node_suspect_s=9.0,
    node_unknown_s=14.0,
    node_lost_s=45.0,
    node_blind_s=20.0,
    agent_contact_s=12.0,
    agent_audit_s=20.0,
    node_loss_every_s=3.0,
    watch_progress_s=5.0,
    watch_probe_s=10.0,
)
LEDGER = Key(REPLICA_SET_KIND, "default", "ledger")


@simulate(faults=ClusterSwarm())
async def agents(sim: Simulation) -> None:
    size = Size(nodes=2, zones=1, servers=2, schedulers=0, managers=0, limits=replace(QUIET, agent_audit_s=12.0))
    world = JudgedCluster(sim, size)
    await world.open()
    expect(world, bound_pods_have_claims)
    cluster, user = world.cluster, world.user
    await asyncio.sleep(2)
    OnlyUnwantedProcessesAreStopped(world)
    for _ in range(sim.choose_int("steps", 4, 7)):
        key = Key(POD_KIND, "default", sim.choose("pod", ("a", "b")))
        node = world.pick_node()
        match sim.choose("step", ("pod", "pod", "agent dies", "node is removed", "reboot", "pod")):
            case "agent dies":
                crash_for_a_while(sim.world, node.host)
            case "node is removed":
                with suppress(NotFound):
                    await cluster.authority.delete(node.key)
            case "reboot":
                node.power_off(for_s=3.0)
            case _ if (pod := cluster.find(key)) is None:
                made = await user.apply(plain_pod(key.name), namespace="default")
                with suppress(OperatingError):  # the node may be unavailable
                    await place(cluster.authority, made, node.name)
            case _:
                await user.delete(pod.key, force=sim.choose("force", (True, False)))
        await asyncio.sleep(sim.choose("pause", (4, 0.2, 12)))
    await world.heal()
    for pod in cluster.all(POD_KIND):
        if not pod.view.spec.node_name:
            await user.delete(pod.key)  # nothing places it any more
    await world.close(within_s=300, silence_s=0, stays_s=4)


@simulate(faults=DrawnRates())
async def restarts(sim: Simulation) -> None:
    """Running pods are deleted by force while their agent is down. There is no audit, so the agent must adopt them."""
    world = JudgedCluster(sim, Size(nodes=1, zones=1, servers=1, schedulers=0, managers=0, limits=QUIET_AGENTS))
    await world.open(cluster_faults=False)
    cluster, user = world.cluster, world.user
    node = world.pick_node()
    while cluster.find(node.key) is None:  # noqa: ASYNC110  in virtual time it costs nothing
        await asyncio.sleep(1)
    for name in ("a", "b", "c")[: sim.choose_int("pods", 1, 3)]:
        await place(cluster.authority, await user.apply(plain_pod(name), namespace="default"), node.name)
    await asyncio.sleep(sim.choose("first", (5, 2)))
    for _ in range(sim.choose_int("steps", 1, 3)):
        if sim.choose("agent", ("dies", "stays")) == "dies":
            crash_for_a_while(sim.world, node.host)
            await asyncio.sleep(sim.choose("until", (0.1, 1)))
        running = {process.identity.pod_uid for process in node.driver.live()}
        pods = [pod for pod in cluster.all(POD_KIND) if pod.uid in running]
        if pods:
            await cluster.authority.delete(sim.choose("pod", pods).key, DeleteOptions(grace_s=0))
        await asyncio.sleep(sim.choose("pause", (3, 0.3, 9)))
    await world.close(within_s=120, silence_s=0, stays_s=2)


def _node_of_same_name(name: str) -> dict[str, Any]:
    """A node for another machine with the name of a deleted one, still cordoned."""
    ready = {"type": "Ready", "status": "True", "reason": "Hollow"}
    room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    metadata, spec = {"name": name, "labels": {ZONE_LABEL: "zone-a"}}, {"unschedulable": True}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}


@simulate(faults=ClusterSwarm())
async def nodes(sim: Simulation) -> None:
    world = JudgedCluster(sim, Size(nodes=4, zones=1, servers=2, schedulers=0, managers=0, limits=NODE_LIMITS))
    await world.open()
    HollowNodes(world, runs=False)
    manage(world, "replicaset", "node-lifecycle")
    cluster, user = world.cluster, world.user
    await user.apply(workload("ReplicaSet", "ledger", 2, at_most_one=True))
    await asyncio.sleep(8)
    victims = list(cluster.nodes.values())[: sim.choose("cut off", (1, 2, 4))]
    cuts = [sim.network.partition([node.host], cluster.servers) for node in victims]
    match sim.choose("person", ("waits", "force deletes pods", "deletes nodes")):
        case "force deletes pods":
            await asyncio.sleep(3)
            for pod in cluster.all(POD_KIND):
                await user.delete(pod.key, force=True)
        case "deletes nodes":  # long after at-most-one pods have stopped
            await asyncio.sleep(60)
            for node in victims:
                await user.delete(node.key)
                if sim.choose("another takes its name", (True, False)):
                    await user.apply(_node_of_same_name(node.name))
            await asyncio.sleep(sim.choose("then", (10, 3)))
            for pod in cluster.all(POD_KIND):
                await user.delete(pod.key, force=sim.choose("force", (True, False)))
    await asyncio.sleep(sim.choose("for", (75, 20, 110)))
    for cut in cuts:
        cut.heal()
    for node in victims:
        with suppress(NotFound):  # a node that registers again is not cordoned
            await user.cordon(node.name, cordoned=False)
    await asyncio.sleep(5)
    for node in victims:  # uncordon the replacements
        with suppress(NotFound):
            await user.cordon(node.name, cordoned=False)
    await world.close(within_s=300, silence_s=0, stays_s=2)

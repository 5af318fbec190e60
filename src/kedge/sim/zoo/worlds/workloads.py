"""Worlds of workload controllers: Deployments, rollouts and a Service, on hollow nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from kedge.api.wellknown import DEPLOYMENT_KIND, POD_KIND
from kedge.keys import Key
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size, service, workload
from kedge.sim.zoo.worlds.base import QUIET, plain_pod
from kedge.sim.zoo.worlds.hollow_nodes import HOLLOW_NODES, STARTS_S, STUCK, HollowNodes, manage
from kedge.sim.zoo.worlds.invariants import RecreateNeverOverlaps, StoppingCopiesCount

WEB = Key(DEPLOYMENT_KIND, "default", "web")
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}},
    {"type": "Recreate"},
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}},
)


async def _with_workloads(sim: Simulation) -> JudgedCluster:
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    RecreateNeverOverlaps(world.judge)
    StoppingCopiesCount(world.judge)
    await HollowNodes(world).add_nodes(HOLLOW_NODES)
    manage(world, "deployment", "replicaset", "endpoints")
    await world.user.apply(service("web", "web"))
    return world


@simulate(faults=ClusterSwarm())
async def workloads(sim: Simulation) -> None:
    """A Deployment is created, rolled out, scaled, rolled back, and loses pods."""
    world = await _with_workloads(sim)
    user = world.user
    strategy = sim.choose("strategy", STRATEGIES)
    await user.apply(workload("Deployment", "web", sim.choose("replicas", (2, 1, 3)), strategy=strategy))
    await asyncio.sleep(sim.choose("first", (12, 3)))
    for n in range(sim.choose_int("steps", 1, 3)):
        match sim.choose("step", ("roll out", "scale", "roll back", "delete pod", "roll out")):
            case "roll out":
                await user.roll_out(WEB, f"web:{n + 2}")
            case "scale":
                await user.scale(WEB, sim.choose("size", (1, 4, 0)))
            case "roll back":
                await user.roll_back(WEB)
            case _:
                if pods := user.cluster.all(POD_KIND):
                    await user.delete(sim.choose("pod", pods).key, force=sim.choose("force", (False, True)))
        await asyncio.sleep(sim.choose("pause", (8, 1, 20)))
    await world.close(within_s=300, silence_s=20, stays_s=40)


@simulate(faults=ClusterSwarm())
async def rollouts(sim: Simulation) -> None:
    """A Deployment that has been healthy for a while is rolled out, and perhaps soon rolled back or out again."""
    world = await _with_workloads(sim)
    user = world.user
    strategy = sim.choose("strategy", STRATEGIES)
    await user.apply(workload("Deployment", "web", sim.choose("replicas", (1, 2, 3)), strategy=strategy))
    await asyncio.sleep(85)
    await user.roll_out(WEB, "web:2")
    if sim.choose("again", (False, True)):
        await asyncio.sleep(sim.choose("pause", (3, 0.3, 9, 75)))
        await (user.roll_back(WEB) if sim.choose("back", (True, False)) else user.roll_out(WEB, "web:3"))
    await asyncio.sleep(10)
    await world.close(within_s=300, silence_s=0, stays_s=5)


@simulate(faults=ClusterSwarm())
async def serving(sim: Simulation) -> None:
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    await HollowNodes(world).add_nodes(HOLLOW_NODES)
    manage(world, "endpoints")
    user = world.user
    await user.apply(service("web", "web"))
    for _ in range(sim.choose_int("steps", 3, 6)):
        key = Key(POD_KIND, "default", sim.choose("pod", ("a", "b")))
        if world.cluster.find(key) is None:
            image = sim.choose("image", ("web:1", STUCK))
            await user.apply(plain_pod(key.name, app="web", image=image), namespace="default")
        else:
            await user.delete(key, force=sim.choose("force", (True, False)))
        await asyncio.sleep(sim.choose("pause", (6, 1, 12)))
    await asyncio.sleep(STARTS_S[-1] + 1)  # every pod that can become ready is ready
    await world.close(within_s=120, silence_s=8, stays_s=5)

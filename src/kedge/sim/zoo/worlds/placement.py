"""Worlds of the scheduler: plain pods that are created and deleted, anti-affinity and gangs, on hollow nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.wellknown import (
    GANG_LABEL,
    GANG_SIZE,
    HOSTNAME_LABEL,
    POD_KIND,
    PRIORITY_CLASS_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.keys import Key
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size, zone_quota
from kedge.sim.zoo.worlds.base import QUIET, plain_pod
from kedge.sim.zoo.worlds.hollow_nodes import HOLLOW_NODES, HollowNodes
from kedge.sim.zoo.worlds.invariants import (
    AntiAffinityHolds,
    DeletedPodsStayDeleted,
    GangsAreComplete,
    NoEvictionIsInVain,
    expect,
    pods_that_fit_are_bound,
    urgent_pods_are_bound,
)

SCHEDULERS = ("default-scheduler", "other-scheduler")


@simulate(faults=ClusterSwarm())
async def placement(sim: Simulation) -> None:
    tight = sim.choose("what is scarce", ("capacity", "quota"))
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=1, names=SCHEDULERS, managers=0, limits=QUIET))
    await world.open()
    expect(world, pods_that_fit_are_bound)
    DeletedPodsStayDeleted(world.judge)
    cpu = "1" if tight == "capacity" else "4"
    await HollowNodes(world, places=False).add_nodes({**HOLLOW_NODES, "hollow-2": "zone-a"}, cpu=cpu)
    users = [world.user, User(world.cluster, "bob", server=1)]
    if tight == "quota":
        await world.cluster.create(zone_quota("zones", {zone: {"cpu": "1"} for zone in ("zone-a", "zone-b")}))
    await asyncio.sleep(2)

    async def churn(user: User, names: tuple[str, ...]) -> None:
        scheduler = SCHEDULERS[users.index(user)]
        for n in range(sim.choose_int("steps", 4, 7)):
            name = names[n] if n < 2 else sim.choose("pod", names)
            key = Key(POD_KIND, "default", name)
            if world.cluster.find(key) is None:
                cpu = sim.choose("cpu", ("700m", "900m"))
                await user.apply(plain_pod(name, cpu=cpu, schedulerName=scheduler), namespace="default")
            else:
                await user.delete(key, force=sim.choose("force", (False, True)))
            await asyncio.sleep(sim.choose("pause", (0.2, 2, 6, 0.03)))

    async with asyncio.TaskGroup() as group:
        group.create_task(churn(users[0], ("a-0", "a-1", "a-2")))
        group.create_task(churn(users[1], ("b-0", "b-1", "b-2")))
    await asyncio.sleep(3)
    if tight == "quota":
        await world.user.delete(Key(ZONE_QUOTA_KIND, "default", "zones"))
    await world.close(within_s=300, silence_s=0, stays_s=2)


@simulate(faults=ClusterSwarm())
async def apart(sim: Simulation) -> None:
    """Pods that must not share a node. No bind checks that, so the scheduler must know its own binds."""
    limits = replace(QUIET, client_attempts_max=2, client_deadline_s=4.0, lease_s=60.0, lease_renew_s=45.0)
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=1, managers=0, limits=limits))
    await world.open()
    AntiAffinityHolds(world.judge)
    await HollowNodes(world, places=False).add_nodes(HOLLOW_NODES)
    await asyncio.sleep(2)
    term = {"labelSelector": {"matchLabels": {"app": "plain"}}, "topologyKey": HOSTNAME_LABEL}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name in ("a", "b", "c"):
        await world.user.apply(plain_pod(name, affinity=apart), namespace="default")
    for _ in range(sim.choose_int("steps", 1, 4)):
        await asyncio.sleep(sim.choose("pause", (6, 0.2, 20)))
        key = Key(POD_KIND, "default", sim.choose("pod", ("a", "b", "c")))
        if world.cluster.find(key) is None:
            await world.user.apply(plain_pod(key.name, affinity=apart), namespace="default")
        else:
            await world.user.delete(key, force=sim.choose("force", (False, True)))
    await asyncio.sleep(12)
    await world.close(within_s=120, silence_s=0, stays_s=2)


@simulate(faults=ClusterSwarm())
async def gangs(sim: Simulation) -> None:
    """The members of a gang reserve one after another, and some are deleted meanwhile."""
    world = JudgedCluster(
        sim, Size(nodes=0, servers=2, schedulers=2, managers=0, limits=replace(QUIET, gang_chunk_max=1))
    )
    await world.open()
    GangsAreComplete(world.judge)
    await HollowNodes(world, places=False).add_nodes(HOLLOW_NODES)
    await asyncio.sleep(2)
    names = ("a", "b", "c")
    for name in names:
        await world.user.apply(_member(name), namespace="default")
    for _ in range(sim.choose_int("steps", 1, 3)):
        await asyncio.sleep(sim.choose("pause", (0.3, 0.03, 2, 8)))
        key = Key(POD_KIND, "default", sim.choose("pod", names))
        if world.cluster.find(key) is None:
            await world.user.apply(_member(key.name), namespace="default")
        else:
            await world.user.delete(key, force=True)
    await asyncio.sleep(10)


@simulate(faults=ClusterSwarm())
async def crowded(sim: Simulation) -> None:
    """A pod or a gang of high priority needs the room of others. Some gangs are too large for the nodes."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=2, managers=0, limits=QUIET))
    await world.open()
    size = sim.choose("size", (2, 3, 1))
    GangsAreComplete(world.judge)
    NoEvictionIsInVain(world.judge, useful=size <= len(HOLLOW_NODES))
    await HollowNodes(world, places=False).add_nodes(HOLLOW_NODES, cpu="1")
    urgent = {"apiVersion": KINDS.of_key_kind(PRIORITY_CLASS_KIND).api_version, "kind": "PriorityClass"}
    await world.cluster.create({**urgent, "metadata": {"name": "urgent"}, "value": 100})
    for name in ("low-0", "low-1"):
        await world.user.apply(plain_pod(name, cpu="700m"), namespace="default")
    await asyncio.sleep(sim.choose("before", (20, 5)))
    names = [f"gang-{n}" for n in range(size)]
    for name in names:
        body = _member(name, size) if size > 1 else plain_pod(name, cpu="700m")
        body["spec"]["priorityClassName"] = "urgent"
        await world.user.apply(body, namespace="default")
    await asyncio.sleep(sim.choose("pause", (2, 20)))
    if sim.choose("remove", (False, True)):
        await world.user.delete(Key(POD_KIND, "default", names[0]), force=True)
    elif size <= len(HOLLOW_NODES):
        expect(world, urgent_pods_are_bound)
    await asyncio.sleep(20)
    await world.close(within_s=300, silence_s=0, stays_s=2)


def _member(name: str, size: int = 3) -> dict[str, Any]:
    body = plain_pod(name, cpu="700m")
    body["metadata"]["labels"][GANG_LABEL] = "trio"
    body["metadata"]["annotations"] = {GANG_SIZE: str(size)}
    return body

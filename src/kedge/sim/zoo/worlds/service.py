"""Worlds of the API service: quota, owners, finalizers and namespaces, with no nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import CONFIG_MAP_KIND, NAMESPACE_KIND, POD_KIND, SECRET_KIND
from kedge.errors import NotFound, OperatingError
from kedge.keys import Key
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size, quota
from kedge.sim.zoo.worlds.base import QUIET, plain_pod
from kedge.sim.zoo.worlds.hollow_nodes import manage
from kedge.sim.zoo.worlds.invariants import (
    every_owner_exists,
    expect,
    no_deletion_is_pending,
    nothing_outlives_its_namespace,
    quota_status_equals_usage,
)

CONFIG_MAP, POD = KINDS.of_key_kind(CONFIG_MAP_KIND), KINDS.of_key_kind(POD_KIND)
OWNER = Key(SECRET_KIND, "default", "owner-a")


@simulate(faults=ClusterSwarm())
async def quotas(sim: Simulation) -> None:
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open(cluster_faults=False)
    expect(world, quota_status_equals_usage)
    await world.cluster.create(quota("few", pods="3", requests__cpu="2"))

    async def churn(user: User, n: int) -> None:
        client = user.cluster.client(user.host, server=n % 2, limits=world.size.limits)
        for step in range(sim.choose_int("steps", 2, 4)):
            name = f"p-{n}-{step}"
            with suppress(OperatingError):
                await user.host.run(client.create(POD, plain_pod(name), namespace="default"))
            if sim.choose("delete", (False, True)):
                with suppress(NotFound, OperatingError):
                    await user.host.run(client.delete(Key(POD_KIND, "default", name), DeleteOptions(grace_s=0)))

    people = [User(world.cluster, f"user-{n}", server=n % 2) for n in range(3)]
    async with asyncio.TaskGroup() as group:
        for n, user in enumerate(people):
            group.create_task(churn(user, n))
    await world.close(within_s=60, silence_s=0)


@simulate(faults=ClusterSwarm())
async def garbage(sim: Simulation) -> None:
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open("shop")
    manage(world, "garbage", "namespace")
    expect(world, nothing_outlives_its_namespace, no_deletion_is_pending, every_owner_exists)
    user = world.user
    parents = {}
    for name in ("owner-a", "owner-b"):
        parents[name] = await user.apply(_secret(name))
    for n in range(sim.choose_int("children", 1, 3)):
        names = sim.choose("owners", (("owner-a",), ("owner-a", "owner-b")))
        await user.apply(_child(f"child-{n}", *(parents[name] for name in names)))
    await user.apply(_map("stuff", "shop"))
    await asyncio.sleep(sim.choose("pause", (5, 0, 20)))
    held = {**_map("held", "default")}
    held["metadata"]["finalizers"] = ["zoo.example/keep"]
    await user.apply(held)
    propagation = sim.choose("propagation", ("Background", "Foreground"))
    # Another object of that name is created: its children are not children of the deleted one.
    await user.delete(OWNER, propagation=propagation)
    if sim.choose("again", (True, False)):
        made = await _again(user, OWNER)
        await user.apply(_child("child-9", made))
        await user.apply(_child("child-0", made))
    await user.delete(Key(CONFIG_MAP_KIND, "default", "held"))

    async def late() -> None:
        client = world.cluster.client(user.host, server=1)
        for n in range(12):
            with suppress(OperatingError):
                await user.host.run(client.create(CONFIG_MAP, _map(f"late-{n}", "shop")))
            await asyncio.sleep(0.4)

    async with asyncio.TaskGroup() as group:
        group.create_task(late())
        group.create_task(user.delete(Key(NAMESPACE_KIND, "", "shop")))
    await asyncio.sleep(20)
    with suppress(NotFound):  # a request whose reply was lost may have removed it
        await user.patch(Key(CONFIG_MAP_KIND, "default", "held"), {"metadata": {"finalizers": []}})
    await world.close(within_s=300, silence_s=20)


def _map(name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


def _child(name: str, *owners: Any) -> dict[str, Any]:
    body = _map(name, "default")
    body["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Secret", "name": each.key.name, "uid": each.uid, "blockOwnerDeletion": True}
        for each in owners
    ]
    return body


def _secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"}}


async def _again(user: User, key: Key) -> Any:
    """Create an object as soon as the former one of its name is gone."""
    for _ in range(60):
        if user.cluster.find(key) is None:
            break
        await asyncio.sleep(0.3)
    return await user.apply(_secret(key.name))

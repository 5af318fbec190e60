"""A fleet of schedulers that users and faults disturb, until it has settled."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.scheduler_fleet import SchedulerFleet, run_agents, settle
from tests.kit.scheduler_invariants import NODES, OTHER, PODS, ZONES, Accounts
from tests.kit.scheduler_users import User
from tests.objects import NODE, POD, node

from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation, Swarm

ROUNDS = 5
FAULTS = Swarm()
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 10,
}


async def cluster_of(sim: Simulation, make: Any = Scheduler, cpu: str = "1200m") -> SchedulerFleet:
    """Three nodes, with the accounts invariant."""
    cluster = Cluster(sim, servers=2, hostile=True)
    await cluster.set_up()
    await cluster.create(URGENT)
    fleet = SchedulerFleet(sim, cluster, make=make)
    sim.check_always(Accounts(sim))
    for name in NODES:
        await cluster.authority.create(NODE, node(name, zone=ZONES[name], cpu=cpu))
    return fleet


async def disturbed_fleet(sim: Simulation, make: Any = Scheduler) -> SchedulerFleet:
    """Schedulers and users under faults, until the cluster has settled."""
    fleet = await cluster_of(sim, make)
    for host_name, name in (("one", "default-scheduler"), ("two", "default-scheduler"), ("three", OTHER)):
        fleet.boot(host_name, name)
    fleet.boot_quotas()
    agents = sim.driver.spawn(run_agents(fleet), name="agents")
    users = []
    for n in range(3):
        host = sim.host(f"user-{n}")
        users.append((host, User(fleet, fleet.client(host, n))))
    for name in PODS[: sim.choose_int("pods at first", 0, len(PODS))]:
        await fleet.cluster.authority.create(POD, users[0][1].body(name))
    for _ in range(ROUNDS):
        steps = [host.spawn(user.step(), name="step") for host, user in users]
        await asyncio.wait(steps, timeout=3)
        await asyncio.sleep(sim.choose("pause", (0.05, 0.3, 1.0, 4.0)))
    while any(life.host.paused for life in fleet.living()):  # noqa: ASYNC110  healing would wake them too soon
        await asyncio.sleep(0.5)
    await settle(fleet)
    agents.cancel()
    return fleet

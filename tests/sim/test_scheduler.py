"""Schedulers under fire: accounts balance at every commit, what fits is bound when the faults stop, then silence.

Every kept attempt of every process is run again, and comes to the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.objects import NODE, POD, node
from tests.sim.scheduling import NODES, OTHER, PODS, ZONES, Accounts, Town, User, run_agents, settle

from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import FaultPlan, Outcome, Simulation, Swarm, run

ROUNDS = 5
FAULTS = Swarm()
URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 10,
}


async def town_of(sim: Simulation, make: Any = Scheduler) -> Town:
    """Two schedulers of one name and one of another, three nodes, and accounts that are watched."""
    cluster = Cluster(sim, servers=2, hostile=True)
    await cluster.set_up()
    await cluster.create(URGENT)
    town = Town(sim, cluster, make=make)
    sim.check_always(Accounts(sim))
    for name in NODES:
        await cluster.authority.create(NODE, node(name, zone=ZONES[name], cpu="1500m"))
    return town


async def under_fire(sim: Simulation, make: Any = Scheduler) -> int:
    town = await town_of(sim, make)
    for host_name, name in (("one", "default-scheduler"), ("two", "default-scheduler"), ("three", OTHER)):
        town.boot(host_name, name)
    agents = sim.driver.spawn(run_agents(town), name="agents")
    users = []
    for n in range(3):
        host = sim.host(f"user-{n}")
        users.append((host, User(town, town.cluster.client(host, server=n % 2))))
    for name in PODS[: sim.choose_int("pods at first", 0, len(PODS))]:
        await town.cluster.authority.create(POD, users[0][1].body(name))
    for _ in range(ROUNDS):
        steps = [host.spawn(user.step(), name="step") for host, user in users]
        await asyncio.wait(steps, timeout=8)
        town.look()
        await asyncio.sleep(sim.choose("pause", (0.05, 0.3, 1.0, 4.0)))
        town.look()
    await settle(town)
    agents.cancel()
    return town.recheck()


def hunt(seeds: range, faults: FaultPlan = FAULTS) -> tuple[dict[str, int], int]:
    """Every seed keeps every promise. What was reached, and how many attempts were run again."""
    reached: dict[str, int] = {}
    rechecked = 0
    for seed in seeds:
        outcome = run(under_fire, seed, faults=faults)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        rechecked += outcome.result or 0
        for mark, times in outcome.marks.items():
            reached[mark] = reached.get(mark, 0) + times
    return reached, rechecked


def first_violation(program: Any, seeds: range) -> Outcome | None:
    return next((found for seed in seeds if (found := run(program, seed, faults=FAULTS)).violation is not None), None)


def test_every_promise_holds_under_fire_and_every_attempt_can_be_run_again() -> None:
    reached, rechecked = hunt(range(200))
    assert rechecked > 200 * 5
    for needed in (
        "a bind was refused",
        "a bind's outcome was unknown",
        "a bind was fenced off",
        "a standby took over with binds in flight",
        "a namesake took a pod's place",
        "a node was replaced under its name",
        "a gang was committed",
        "quota",
        "resize",
        "refused: Resource",
        "refused: ZoneQuota",
        "refused: PodReplaced",
        "refused: NodeReplaced",
    ):
        assert reached.get(needed), f"no seed ever reached {needed!r}: {reached}"


@pytest.mark.slow
def test_every_promise_holds_over_many_more_seeds() -> None:
    hunt(range(1_000, 2_500))

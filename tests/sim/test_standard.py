"""The standard simulation runs every component, does enough work, and is deterministic."""

from __future__ import annotations

import asyncio

from tests.kit.cluster import assert_holds, run_without_faults

from kedge.api.wellknown import SYSTEM_NAMESPACE
from kedge.controllers import CONTROLLERS
from kedge.runtime import Controller
from kedge.sim.kernel import Simulation, find_target
from kedge.sim.standard import STANDARD, WORK_COMMITS, JudgedCluster, run_standard

SEED = 5
"""A seed in which faults strike and every step of the program is taken."""


def test_the_standard_simulation_runs_every_controller_under_one_lease_a_process() -> None:
    async def program(sim: Simulation) -> tuple[list[list[str]], int, int]:
        world = JudgedCluster(sim, STANDARD)
        await world.open()
        await asyncio.sleep(5)
        managers = [each for each in world.cluster.processes if each.host.name.startswith("manager")]
        names = [[each.name for each in process.components if isinstance(each, Controller)] for process in managers]
        schedulers = [each for each in world.cluster.processes if each.host.name.startswith("default-scheduler")]
        return names, len(schedulers), len(world.cluster.all("Lease.coordination.k8s.io", namespace=SYSTEM_NAMESPACE))

    outcome = run_without_faults(program, seed=0)
    managers, schedulers, leases = outcome.result
    assert managers == [list(CONTROLLERS)] * 2
    assert schedulers == 2
    assert leases == 2  # one for the managers, one for the schedulers
    assert (STANDARD.nodes, STANDARD.zones, STANDARD.servers) == (12, 3, 3)


def test_a_seed_runs_five_minutes_of_work_and_is_deterministic() -> None:
    target = find_target("kedge.sim.standard:standard")
    one, other = target.run(SEED), target.run(SEED)
    assert_holds(one)
    assert one.hash == other.hash
    work, all_commits = one.result
    assert WORK_COMMITS <= work < all_commits
    assert one.virtual_s >= 240
    assert one.faults


def test_without_faults_every_step_is_taken_and_a_machine_is_lost() -> None:
    async def program(sim: Simulation) -> tuple[set[str], int]:
        world = await run_standard(sim)
        verbs = {each.text.split()[1] for each in sim.world.trace.events if each.kind == "user"}
        return verbs, world.commits

    outcome = run_without_faults(program, seed=0)
    verbs, work = outcome.result
    assert verbs == {"applies", "rolls", "changes", "deletes"}
    assert work >= WORK_COMMITS
    assert any(each.kind == "machine" for each in outcome.trace.events)

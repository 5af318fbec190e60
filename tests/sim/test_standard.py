"""The standard simulation is what it says: everything there is, enough of it, and the same twice."""

from __future__ import annotations

import asyncio

from kedge.api.wellknown import SYSTEM_NAMESPACE
from kedge.controllers import CONTROLLERS
from kedge.runtime import Controller
from kedge.sim.kernel import NO_FAULTS, Simulation, find_target, run
from kedge.sim.standard import STANDARD, WORK_COMMITS, JudgedCluster, run_standard

SEED = 5
"""One in which faults strike, and whatever else the story needs happens too."""


def test_the_standard_world_runs_every_controller_under_one_lease_a_process() -> None:
    async def program(sim: Simulation) -> tuple[list[list[str]], int, int]:
        world = JudgedCluster(sim, STANDARD)
        await world.open()
        await asyncio.sleep(5)
        managers = [each for each in world.cluster.processes if each.host.name.startswith("manager")]
        names = [[each.name for each in process.components if isinstance(each, Controller)] for process in managers]
        schedulers = [each for each in world.cluster.processes if each.host.name.startswith("default-scheduler")]
        return names, len(schedulers), len(world.cluster.all("Lease.coordination.k8s.io", namespace=SYSTEM_NAMESPACE))

    outcome = run(program, 0, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation
    managers, schedulers, leases = outcome.result
    assert managers == [list(CONTROLLERS)] * 2
    assert schedulers == 2
    assert leases == 2  # the managers' and the schedulers'
    assert (STANDARD.nodes, STANDARD.zones, STANDARD.servers) == (12, 3, 3)


def test_five_minutes_of_it_are_work_and_the_same_twice() -> None:
    target = find_target("kedge.sim.standard:standard")
    one, other = target.run(SEED), target.run(SEED)
    assert one.violation is None, one.violation
    assert one.hash == other.hash
    work, everything = one.result
    assert WORK_COMMITS <= work < everything
    assert one.virtual_s >= 240
    assert one.faults


def test_with_nothing_in_its_way_every_step_of_the_story_is_taken_and_a_machine_is_lost() -> None:
    async def program(sim: Simulation) -> tuple[set[str], int]:
        world = await run_standard(sim)
        told = {each.text.split()[1] for each in sim.world.trace.events if each.kind == "user"}
        return told, world.commits

    outcome = run(program, 0, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation
    told, work = outcome.result
    assert told == {"applies", "rolls", "changes", "deletes"}
    assert work >= WORK_COMMITS
    assert any(each.kind == "machine" for each in outcome.trace.events)

"""Each part of the story of a world happens in its first seeds."""

from __future__ import annotations

import asyncio

import pytest

from kedge.api.wellknown import LEASE_KIND, SYSTEM_NAMESPACE
from kedge.keys import Key
from kedge.sim.cluster.graceful_stops import stop_gracefully
from kedge.sim.cluster.sqlite_machine import SqliteMachine
from kedge.sim.kernel import NO_FAULTS, RunOutcome, Simulation, find_target, run
from kedge.sim.standard import JudgedCluster, Size
from kedge.sim.zoo.worlds import WORLDS
from kedge.sim.zoo.worlds.base import QUIET
from kedge.sim.zoo.worlds.disks import CUT, SURVIVES

WITH_MARKS = ("maintenance", "priorities", "edits", "policies", "clocks", "disks")
SEEDS = 24


@pytest.mark.parametrize("world", WITH_MARKS)
def test_every_part_of_the_story_of_a_world_happens_in_some_seed(world: str) -> None:
    target = find_target(WORLDS[world].reference)
    missed = set(target.marks)
    assert missed
    for seed in range(SEEDS):
        strategy = WORLDS[world].strategies[seed % len(WORLDS[world].strategies)]
        missed -= strategy.applied(target).run(seed).marks.keys()
        if not missed:
            return
    assert not missed


def power_cuts(seed: int) -> RunOutcome:
    return WORLDS["disks"].strategies[2].applied(find_target(WORLDS["disks"].reference)).run(seed)


@pytest.mark.parametrize("seed", [2, 7])
def test_power_cuts_on_real_files_are_equal_in_every_run(seed: int) -> None:
    first = power_cuts(seed)
    assert first.violation is None
    assert CUT in first.marks
    assert power_cuts(seed).hash == first.hash


def test_a_disk_that_loses_what_was_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: SqliteMachine, before: bytes, after: bytes) -> bytes:
        del self, after
        return before[: len(before) // 2]

    monkeypatch.setattr(SqliteMachine, "_torn", lose)
    found = [each.violation.invariant for seed in range(20) if (each := power_cuts(seed)).violation is not None]
    assert SURVIVES in found


@pytest.mark.parametrize("crashes", [False, True])
def test_only_a_graceful_stop_releases_the_lease_at_once(crashes: bool) -> None:
    lease = Key(LEASE_KIND, SYSTEM_NAMESPACE, "default-scheduler")

    async def program(sim: Simulation) -> bool:
        world = JudgedCluster(sim, Size(nodes=0, servers=1, schedulers=1, managers=0, limits=QUIET))
        await world.open(cluster_faults=False)
        await asyncio.sleep(10)
        host = sim.world.hosts["default-scheduler"]
        before = world.cluster.find(lease)
        assert before is not None
        assert before.view.spec.holder_identity
        if crashes:
            host.crash()
        else:
            assert await stop_gracefully(world.cluster, host)
        await asyncio.sleep(1)
        found = world.cluster.find(lease)
        return found is not None and not found.view.spec.holder_identity

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None
    assert outcome.result is not crashes


def test_a_host_that_is_down_cannot_be_stopped_gracefully() -> None:
    async def program(sim: Simulation) -> bool:
        world = JudgedCluster(sim, Size(nodes=1, servers=1, schedulers=0, managers=0, limits=QUIET))
        await world.open(cluster_faults=False)
        node = world.cluster.nodes["node-0"]
        node.host.crash()
        return await stop_gracefully(world.cluster, node.host)

    assert run(program, 1, faults=NO_FAULTS).result is False

"""The table of faults in the docs is the registry, and runs ask only for faults that are declared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.errors import InvariantBroken
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.fault_table import fault_table, with_table
from kedge.sim.kernel import FAULTS, Fault, Placement, Simulation, Swarm, run
from kedge.sim.kernel.fault_registry import LASTING_RATES, RATES, FaultRegistry
from kedge.sim.standard import JudgedCluster, Size, workload

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def test_the_table_in_the_docs_is_made_from_the_registry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fault_table() in page
    assert with_table(page) == page, "run python -m kedge.sim.fault_table docs/simulation.md"


def test_a_cluster_draws_only_declared_faults() -> None:
    asked: list[tuple[str, str]] = []

    async def program(sim: Simulation) -> None:
        cluster = JudgedCluster(sim, Size(nodes=2, zones=1, servers=1, schedulers=1, managers=1))
        await cluster.open()
        await cluster.user.apply(workload("Deployment", "web", 2))
        await asyncio.sleep(30)
        asked.extend((point, kind) for point, _, kinds in sim.faults._points for kind in kinds)

    outcome = run(program, 1, faults=ClusterSwarm())
    assert outcome.violation is None, outcome.violation
    assert len(asked) > 20
    assert not [each for each in asked if FAULTS.find(*each) is None]


def test_a_placeholder_in_a_point_stands_for_any_name() -> None:
    assert FAULTS.rates("request of api.create", "partition") == LASTING_RATES
    assert FAULTS.rates("request of api.create", "lose") == RATES
    assert FAULTS.find("requests of api", "lose") is None
    assert FAULTS.rates("disk write", "torn") == RATES  # a program's own fault


def test_a_swarm_leaves_out_the_faults_that_it_may_not_place() -> None:
    assert Swarm().without == ("duplicate", "hide")
    assert ClusterSwarm().swarm.without == ("duplicate", "hide", "watch of api: stall")
    assert all(Placement.NAMED in fault.plans for fault in FAULTS if fault.rates)


def test_a_fault_is_declared_once_a_point() -> None:
    registry = FaultRegistry()
    registry.declare(Fault("torn", "disk write", "half of a block is written"))
    registry.declare(Fault("torn", "log append", "half of a record is written"))
    with pytest.raises(InvariantBroken, match="declared twice"):
        registry.declare(Fault("torn", "disk write", "again"))
    with pytest.raises(InvariantBroken, match="no fault is declared"):
        registry.kinds_at("network write")

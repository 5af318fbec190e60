"""Policies that mutate, and change in mid-run on one server before the others, in a hostile world with every judge."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.objects import deployment
from tests.sim.seeds import seeds
from tests.sim.test_cluster import CALM, CONTROLLERS, WEB, scheduler

from kedge.server.service import mutations_of
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.admission import PolicyChurn, PolicyPlan, chain_of, merging
from kedge.sim.cluster.fault_points import ADMISSION
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.judges.endings import check_silence, expect_settled
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import Faults, Simulation, run


class Restless(ClusterSwarm):
    """The swarm, in a world whose policies change all the time."""

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        return 0.2 if point == ADMISSION else super().rate(point, kind, faults)


async def seasons(sim: Simulation) -> dict[str, Any]:
    """A rollout, a scaling and a rollback while what admission writes into everything changes."""
    cluster = Cluster(sim, servers=3, hostile=True, limits=CALM)
    judge = Judge(cluster)
    await cluster.set_up()
    for n in range(4):
        cluster.add_node(f"node-{n}", zone=f"zone-{'ab'[n % 2]}")
    cluster.boot("manager", CONTROLLERS, copies=2)
    cluster.boot("scheduler", [scheduler], copies=2)
    churn = PolicyChurn(cluster)
    changing = asyncio.ensure_future(churn.run())
    user = User(cluster)
    await user.apply(deployment("web", replicas=4))
    await asyncio.sleep(60)
    await user.roll_out(WEB, "web:2")
    await asyncio.sleep(30)
    await user.scale(WEB, 6)
    await asyncio.sleep(30)
    await user.roll_back(WEB)
    await asyncio.sleep(20)
    sim.heal()
    await changing
    expect_settled(judge)
    await sim.converge(within_s=900, every_s=2.0, stays_s=5.0)
    if sim.world.violation is None:
        await check_silence(cluster)
    touched = [each for kind in ("Pod", "ReplicaSet.apps") for each in cluster.all(kind)]
    said = [one.revision for each in touched for one in mutations_of(each.metadata.annotations)]
    return {"changes": churn.changes, "written": said}


@seeds(4, 60)
def test_whatever_admission_writes_and_whenever_it_changes_every_promise_is_kept(seeds: range) -> None:
    changes, written = 0, list[int]()
    for seed in seeds:
        outcome = run(seasons, seed, faults=Restless())
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        changes += outcome.result["changes"]
        written += outcome.result["written"]
    assert changes > 0, f"no seed changed the {ADMISSION}"
    assert written, "nothing was made under a policy"


def test_what_is_merged_already_is_left_alone() -> None:
    there = {"metadata": {"labels": {"a/b": "1"}}, "spec": {"n": 1}}
    assert list(merging(there, {"metadata": {"labels": {"a/b": "1"}}})) == []
    assert list(merging(there, {"metadata": {"labels": {"a/b": "2", "c": "3"}, "annotations": {"d": "4"}}})) == [
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "add", "path": "/metadata/labels/c", "value": "3"},
        {"op": "add", "path": "/metadata/annotations", "value": {"d": "4"}},
    ]


def test_policies_are_told_apart_by_what_they_do() -> None:
    chain = chain_of([PolicyPlan("one", ("Pod",), {"a": "b"}), PolicyPlan("two", ("Pod",), refuse="no")])
    assert chain.mutates
    assert not chain_of([PolicyPlan("two", ("Pod",), refuse="no")]).mutates

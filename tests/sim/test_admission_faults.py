"""Mutating policies that change in mid-run, on one server before the others, under faults and every invariant."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.cluster import WEB, assert_holds, check_settled, faulty_cluster, seeds
from tests.objects import deployment

from kedge.server.service import mutations_of
from kedge.sim.cluster.admission import PolicyChurn, PolicyPlan, chain_of, merging
from kedge.sim.cluster.fault_points import ADMISSION
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.kernel import Faults, Simulation, run


class PolicySwarm(ClusterSwarm):
    """The swarm, with admission policies that change often."""

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        return 0.2 if point == ADMISSION else super().rate(point, kind, faults)


async def rollout_under_policy_churn(sim: Simulation) -> dict[str, Any]:
    """A rollout, a scaling and a rollback while the mutating policies change."""
    cluster, judge = await faulty_cluster(sim, nodes=4, zones=2)
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
    await check_settled(judge, every_s=2.0)
    touched = [each for kind in ("Pod", "ReplicaSet.apps") for each in cluster.all(kind)]
    written = [one.revision for each in touched for one in mutations_of(each.metadata.annotations)]
    return {"changes": churn.changes, "written": written}


@seeds(4, 60)
def test_changing_mutating_policies_break_no_invariant(seeds: range) -> None:
    changes, written = 0, list[int]()
    for seed in seeds:
        outcome = assert_holds(run(rollout_under_policy_churn, seed, faults=PolicySwarm()))
        changes += outcome.result["changes"]
        written += outcome.result["written"]
    assert changes > 0, f"no seed changed the {ADMISSION}"
    assert written, "no object was created under a policy"


def test_merging_a_value_that_is_there_gives_no_patch() -> None:
    there = {"metadata": {"labels": {"a/b": "1"}}, "spec": {"n": 1}}
    assert list(merging(there, {"metadata": {"labels": {"a/b": "1"}}})) == []
    assert list(merging(there, {"metadata": {"labels": {"a/b": "2", "c": "3"}, "annotations": {"d": "4"}}})) == [
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "add", "path": "/metadata/labels/c", "value": "3"},
        {"op": "add", "path": "/metadata/annotations", "value": {"d": "4"}},
    ]


def test_a_policy_with_a_merge_mutates_and_one_with_a_refusal_does_not() -> None:
    chain = chain_of([PolicyPlan("one", ("Pod",), {"a": "b"}), PolicyPlan("two", ("Pod",), refuse="no")])
    assert chain.mutates
    assert not chain_of([PolicyPlan("two", ("Pod",), refuse="no")]).mutates

"""Controllers in a hostile world: crashes, lost replies, late watches, two who believe that they lead."""

from __future__ import annotations

import asyncio

from tests.sim.controllers import REPLICA_SET, NeverMore, Plant, is_complete, replica_set, settle, stage

from kedge.keys import Key
from kedge.sim.kernel import Simulation, run

WEB = Key("ReplicaSet.apps", "default", "web")


async def replicas(sim: Simulation) -> int:
    cluster = await stage(sim)
    sim.check_always(NeverMore(4))
    plant = Plant(sim, cluster)
    for n in range(2):
        sim.host(f"controller-{n}").boot(plant.start)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 3))
    await asyncio.sleep(20)
    await cluster.authority.patch(WEB, {"spec": {"replicas": 4}})
    await asyncio.sleep(20)
    await cluster.authority.patch(WEB, {"spec": {"replicas": 2}})
    await asyncio.sleep(20)
    await settle(sim, cluster, lambda: is_complete(cluster, "web", 2))
    return await plant.recheck()


def test_replicas_are_kept_whatever_happens_and_every_decision_can_be_run_again() -> None:
    rechecked = 0
    for seed in range(200):
        outcome = run(replicas, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result is not None
        rechecked += outcome.result
    assert rechecked > 200 * 5

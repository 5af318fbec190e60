"""The whole control plane under faults: servers, schedulers, controllers, agents and users; judged throughout."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.kit.cluster import WEB, assert_holds, check_settled, faulty_cluster, run_without_faults
from tests.objects import config_map, deployment

from kedge.sim.cluster import Cluster
from kedge.sim.cluster.faults import ClusterFaults, ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.kernel import Simulation, run


async def standard(sim: Simulation, *, nodes: int = 6) -> dict[str, Any]:
    """A rollout, a node loss, a rollback and a scaling, under cluster faults."""
    cluster, judge = await faulty_cluster(sim, nodes=nodes, zones=3)
    faults = asyncio.ensure_future(ClusterFaults(cluster).run())
    user = User(cluster)
    await user.apply(deployment("web", replicas=nodes))
    await asyncio.sleep(60)
    await user.roll_out(WEB, "web:2")
    await asyncio.sleep(40)
    cluster.nodes["node-0"].power_off()
    await asyncio.sleep(30)
    sim.sometimes("rolled back", await user.roll_back(WEB) is not None)
    await user.scale(WEB, nodes - 2)
    await asyncio.sleep(30)
    sim.sometimes("pods were bound while faults struck", any(p.view.spec.node_name for p in cluster.all("Pod")))
    sim.heal()
    await faults
    await check_settled(judge)
    return {"commits": judge.steps}


def test_a_rollout_a_node_loss_and_a_rollback_break_no_invariant() -> None:
    marks: Counter[str] = Counter()
    for seed in range(6):
        marks.update(assert_holds(run(standard, seed, faults=ClusterSwarm())).marks)
    # An idle cluster breaks no invariant: the runs must have done work.
    assert marks["rolled back"] >= 3
    assert marks["pods were bound while faults struck"] >= 3


def test_a_timer_that_a_conflicting_write_starts_at_the_store_survives_a_crash_of_the_server() -> None:
    """The store sends progress marks by a timer. Started on a host that crashes, it would never fire."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, servers=1, hostile=True)
        await cluster.set_up()
        made = await cluster.create(config_map())
        await asyncio.sleep(5)
        quiet = await cluster.store.watch("Node", after=await cluster.store.revision())
        sim.faults.script("change of api", "conflict")
        user = sim.host("user")
        await user.run(cluster.client(user).patch(made.key, {"data": {"a": "b"}}))
        cluster.servers[0].crash()
        newest = await cluster.store.revision()
        async with asyncio.timeout(10 * cluster.limits.watch_progress_s):
            while quiet.revision < newest:
                await anext(quiet)

    run_without_faults(program)

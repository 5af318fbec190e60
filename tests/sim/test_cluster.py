"""The whole control plane in a hostile world: servers, schedulers, controllers, agents, users; judged throughout."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.objects import config_map, deployment

from kedge.controllers.deployment.controller import deployment_controller
from kedge.controllers.node.controller import lifecycle_controller
from kedge.controllers.replicaset.controller import replica_set_controller
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import Controller
from kedge.scheduler import Scheduler
from kedge.sim.cluster import Cluster, ProcessContext
from kedge.sim.cluster.faults import ClusterFaults, ClusterSwarm
from kedge.sim.cluster.users import User
from kedge.sim.judges.endings import check_silence, expect_settled
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run

WEB = Key("Deployment.apps", "default", "web")
CALM = Limits(watch_probe_s=60.0, watch_silence_s=200.0, lease_retry_s=3.0)


def led(make: Callable[..., Controller], name: str) -> Callable[[ProcessContext], Controller]:
    """A controller that works while it holds the lease of its name."""
    lease = Key("Lease.coordination.k8s.io", "kube-system", name)

    def made(context: ProcessContext) -> Controller:
        return make(context.runtime(lease))

    return made


def scheduler(context: ProcessContext) -> Scheduler:
    return Scheduler(context.client, context.env, caches=context.caches, recorder=context.recorder)


CONTROLLERS = [
    led(deployment_controller, "deployment"),
    led(replica_set_controller, "replicaset"),
    led(lifecycle_controller, "node-lifecycle"),
]


async def standard(sim: Simulation, *, nodes: int = 6) -> dict[str, Any]:
    """A rollout, a node loss, a rollback and a scaling, under cluster faults."""
    cluster = Cluster(sim, servers=3, hostile=True, limits=CALM)
    judge = Judge(cluster)
    await cluster.set_up()
    for n in range(nodes):
        cluster.add_node(f"node-{n}", zone=f"zone-{'abc'[n % 3]}")
    cluster.boot("manager", CONTROLLERS, copies=2)
    cluster.boot("scheduler", [scheduler], copies=2)
    faults = asyncio.ensure_future(ClusterFaults(cluster).run())
    user = User(cluster)
    await user.apply(deployment("web", replicas=nodes))
    await asyncio.sleep(60)
    await user.roll_out(WEB, "web:2")
    await asyncio.sleep(40)
    cluster.nodes["node-0"].die()
    await asyncio.sleep(30)
    sim.sometimes("rolled back", await user.roll_back(WEB) is not None)
    await user.scale(WEB, nodes - 2)
    await asyncio.sleep(30)
    sim.sometimes("pods were bound while faults struck", any(p.view.spec.node_name for p in cluster.all("Pod")))
    sim.heal()
    await faults
    expect_settled(judge)
    await sim.converge(within_s=900, stays_s=5)
    await check_silence(cluster)
    return {"commits": judge.steps}


def test_a_rollout_a_node_loss_and_a_rollback_keep_every_promise() -> None:
    marks: Counter[str] = Counter()
    for seed in range(6):
        outcome = run(standard, seed, faults=ClusterSwarm())
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        marks.update(outcome.marks)
    # A world in which nothing happens keeps every promise.
    assert marks["rolled back"] >= 3
    assert marks["pods were bound while faults struck"] >= 3


def test_what_a_bystander_starts_at_the_store_outlives_the_server_that_it_was_in_the_way_of() -> None:
    """Progress marks hang on a timer of the store. Begun by a host that dies, it would never ring for anybody."""

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

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation

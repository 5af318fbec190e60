"""The name of a pod that may still run is not given to another at-most-one replica."""

from __future__ import annotations

import asyncio

from tests.objects import node

from kedge.api.requests import Binding
from kedge.api.wellknown import REPLACES
from kedge.controllers.replicaset.controller import replica, replica_set_controller
from kedge.controllers.shared.replicas import lost_status
from kedge.keys import Key
from kedge.sim.cluster import Cluster, Component, ProcessContext
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.sim.standard import workload


def controller(context: ProcessContext) -> Component:
    return replica_set_controller(context.runtime())


def test_a_name_swept_in_this_reconcile_is_taken_while_its_claim_stays() -> None:
    """1. Two replicas were lost with their node, and one has been replaced. 2. The next reconcile sweeps that one and
    replaces the other. 3. The cache shows the delete of the swept one before the reply arrives."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        await cluster.create(node("node-a"))
        owner = await cluster.create(workload("ReplicaSet", "ledger", 2, at_most_one=True))
        template = owner.edit()["spec"]["template"]
        for slot in (0, 1):
            made = await cluster.create(replica(owner, template, slot))
            await cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node="node-a"))
            found = cluster.find(made.key)
            assert found is not None
            await cluster.authority.patch(
                made.key, lost_status(found, cluster.store_host.env().now()), subresource="status"
            )
        swept = cluster.find(Key("Pod", "default", "ledger-1"))
        assert swept is not None
        await cluster.create(replica(owner, template, 2, swept.uid))
        sim.faults.script("reply of api.delete", "delay", nth=1)
        cluster.boot("manager", [controller])
        await asyncio.sleep(30)
        pods = {each.key.name: each for each in cluster.all("Pod")}
        claims = cluster.find(Key("NodeAllocation.kedge.dev", "", "node-a"))
        assert claims is not None
        assert swept.uid in claims.view.status.entries
        assert "ledger-1" not in pods, "another has the name of one whose claim stays"
        assert "ledger-3" in pods
        assert pods["ledger-3"].metadata.annotations[REPLACES]

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}\n{outcome.timeline()[-1500:]}"

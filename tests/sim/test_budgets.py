"""A client evicts every pod that it can, under faults: budgets hold, and Services list the ready pods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from tests.kit.cluster import seeds
from tests.kit.controllers import REPLICA_SET, replica_set
from tests.kit.nodes import ControllerFleet, SimpleAgent, SimpleBinder, new_cluster, node_body, objects, settle
from tests.objects import BUDGET, NODE

from kedge.api.conditions import is_true
from kedge.api.kinds import KINDS
from kedge.api.requests import DeleteOptions, Evict
from kedge.controllers.budget.controller import BudgetReconciler, budget_controller
from kedge.controllers.endpoints.controller import EndpointsReconciler, endpoints_controller
from kedge.controllers.replicaset.controller import replica_set_controller
from kedge.controllers.shared.endpoint_slices import listed_uids
from kedge.errors import OperatingError
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Host, Simulation, run

SERVICE = KINDS.of_key_kind("Service")


def healthy(store: object) -> set[str]:
    pods = [each for each in objects(store, "Pod") if not each.view.terminating and not each.view.finished]
    return {each.uid for each in pods if is_true(each.view.status.conditions, "Ready")}


class BudgetHolds:
    """Once all pods were ready, evictions never leave fewer than the budget requires."""

    def __init__(self, least: int, all_of_them: int) -> None:
        self.least, self.all, self.begun = least, all_of_them, False

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == "Pod" for key in commit.keys):
            count = len(healthy(commit.store))
            self.begun = self.begun or count == self.all
            if self.begun and count < self.least:
                yield "budget broken", f"{count} healthy at revision {commit.revision}"


def listed(cluster: Cluster) -> frozenset[str]:
    return listed_uids(each.view for each in objects(cluster.store, "EndpointSlice.discovery.k8s.io"))


async def evictions(sim: Simulation) -> tuple[int, int]:
    cluster = await new_cluster(sim)
    sim.check_always(BudgetHolds(3, 4))
    for n in range(2):
        await cluster.authority.create(NODE, node_body(f"node-{n}"))
        sim.host(f"agent-{n}").boot(SimpleAgent(cluster, f"node-{n}", server=n).start)
    sim.host("binder").boot(SimpleBinder(cluster).start)
    fleet = ControllerFleet(cluster)
    fleet.boot(sim, budget_controller, copies=2)
    fleet.boot(sim, endpoints_controller, copies=2)
    fleet.boot(sim, replica_set_controller)
    labels = {"app": "web"}
    spec = {"minAvailable": 3, "selector": {"matchLabels": labels}}
    await cluster.authority.create(BUDGET, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
    ports = [{"port": 80, "targetPort": 8080}]
    service = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": labels, "ports": ports}}
    await cluster.authority.create(SERVICE, service)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 4))
    evicted = 0

    async def evict(host: Host) -> None:
        nonlocal evicted
        transport = cluster.transport(host, server=1)  # no client retries, so that it does not back off
        while True:
            for pod in objects(cluster.store, "Pod"):
                with suppress(OperatingError):
                    if not pod.view.terminating and pod.view.spec.node_name:
                        await transport.send(Evict(pod.key, DeleteOptions(uid=pod.uid)))
                        evicted += 1
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.3)

    evictor = sim.host("evictor")
    work = evictor.spawn(evict(evictor), name="evict")
    await asyncio.sleep(90)
    sim.heal()  # with some seeds nothing was ready until now
    await asyncio.sleep(60)
    work.cancel()

    def whole() -> bool:
        there = healthy(cluster.store)
        (status,) = (each.view.status for each in objects(cluster.store, "PodDisruptionBudget.policy"))
        counted = (status.current_healthy, status.disruptions_allowed, len(status.disrupted_pods)) == (4, 1, 0)
        return len(there) == 4 and listed(cluster) == there and counted

    await settle(sim, cluster, whole)
    return evicted, await fleet.recheck({"disruption": BudgetReconciler, "endpoints": EndpointsReconciler})


@seeds(3, 24)
def test_evictions_never_break_a_budget_and_services_list_the_ready_pods(seeds: range) -> None:
    total = 0
    for seed in seeds:
        outcome = run(evictions, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result is not None
        total += outcome.result[0]
        assert outcome.result[1] > 10
    assert total > len(seeds)  # some evictions succeeded

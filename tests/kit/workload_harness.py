"""One workload and its controllers in a simulation without faults, for one test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from typing import Any

from tests.kit.controllers import written
from tests.kit.workload_manifests import WEB
from tests.kit.workloads import FakeNodes, StoreReader, WorkloadManager, is_serving, new_cluster

from kedge.api.conditions import find_condition
from kedge.api.objects import Object
from kedge.api.views import Condition
from kedge.keys import Key
from kedge.server.service import Service
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation, run


@dataclass
class WorkloadHarness:
    """A cluster without faults, with one process of workload controllers."""

    sim: Simulation
    cluster: Cluster
    nodes: FakeNodes
    reader: StoreReader

    @property
    def service(self) -> Service:
        return self.cluster.authority

    async def until(self, goal: Callable[[], Any], *, within_s: float = 120.0) -> None:
        async with asyncio.timeout(within_s):
            while not goal():  # noqa: ASYNC110  what it waits for is in a store, which has no event for it
                await asyncio.sleep(0.25)

    async def silence(self) -> None:
        """All writes have stopped."""
        await asyncio.sleep(20)
        before = written(self.cluster)
        await asyncio.sleep(60)
        assert written(self.cluster) == before, written(self.cluster) - before

    def web(self) -> Any:
        found = self.reader.get(WEB)
        assert found is not None
        return found.view

    def condition(self, type_: str, key: Key = WEB) -> Condition | None:
        found = self.reader.get(key)
        return None if found is None else find_condition(found.view.status.conditions, type_)

    def sets(self) -> list[Object]:
        return self.reader.objects("ReplicaSet.apps")

    def serving(self, name: str = "") -> list[Object]:
        pods = [each for each in self.reader.pods() if is_serving(each)]
        return [each for each in pods if not name or each.view.spec.containers[0].image == name]

    def is_done(self) -> bool:
        status = self.web().status
        want = self.web().spec.replicas
        return bool(
            status.observed_generation == self.web().generation
            and status.updated_replicas == status.available_replicas == status.replicas == want
            and len(self.reader.pods()) == want
        )


WorkloadTest = Callable[[WorkloadHarness], Coroutine[Any, Any, None]]


def without_faults(body: WorkloadTest) -> Callable[[], None]:
    """Run a test once, without faults; an exception fails it."""

    async def program(sim: Simulation) -> None:
        sim.heal()
        cluster = await new_cluster(sim)
        nodes = FakeNodes(cluster)
        sim.host("manager").boot(WorkloadManager(sim, cluster).start)
        working = asyncio.create_task(nodes.run())
        await body(WorkloadHarness(sim, cluster, nodes, StoreReader(cluster.store)))
        working.cancel()

    @wraps(body)
    def test() -> None:
        outcome = run(program, 1)
        assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"

    del test.__wrapped__  # or pytest would take its argument for a fixture
    return test

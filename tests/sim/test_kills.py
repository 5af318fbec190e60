"""A process is killed at the commit of its status write: its successor finds the status and does not write it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.agent import CALM, until, without_faults
from tests.kit.policy_status import CANARY, applied_generations, named
from tests.kit.rollouts import POLICY, SPREAD, policy
from tests.objects import deployment

from kedge.api.conditions import find_condition
from kedge.api.holds import Hold
from kedge.controllers import CONTROLLERS
from kedge.keys import Key
from kedge.sim.cluster import Cluster, Commit, ProcessContext
from kedge.sim.kernel import Host, Simulation

WEB = Key("Deployment.apps", "default", "web")
DOWN_S = 4.0


class Killer:
    """Kills a host at every commit that changes the value of `observed`, before its process gets the reply."""

    def __init__(self, sim: Simulation, host: Host, observed: Callable[[], Any], *, times: int) -> None:
        self._sim, self._host, self._observed = sim, host, observed
        self._left = times
        self.values = [observed()]
        """The observed values, in order."""
        self.kills = 0

    def __call__(self, _: Commit) -> Iterator[tuple[str, str]]:
        value = self._observed()
        if value != self.values[-1]:
            self.values.append(value)
            if self._left:
                self._left -= 1
                self.kills += 1
                world = self._sim.world
                world.loop.call_soon(self._host.crash, context=world.context)
                world.loop.call_later(DOWN_S, self._host.restart, context=world.context)
        return iter(())


def test_a_scheduler_killed_while_it_reports_its_policy_reports_it_once() -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()
        (host,) = cluster.boot("scheduler", [named("default-scheduler")])
        await cluster.authority.create(POLICY, policy())
        killer = Killer(sim, host, lambda: applied_generations(cluster), times=3)
        sim.check_always(killer)
        await until(lambda: applied_generations(cluster) == {"default-scheduler": 1})
        await asyncio.sleep(30)
        await cluster.authority.patch(SPREAD, {"spec": {"canary": CANARY}})
        await until(lambda: applied_generations(cluster) == {"default-scheduler": 2})
        await asyncio.sleep(30)
        assert killer.kills == 2
        assert killer.values == [{}, {"default-scheduler": 1}, {"default-scheduler": 2}]
        before = cluster.versions(but=("Lease.coordination.k8s.io",))
        await asyncio.sleep(120)
        assert cluster.versions(but=("Lease.coordination.k8s.io",)) == before

    without_faults(program)


@pytest.mark.parametrize("named", ["deployment", "autoscaler"])
def test_a_controller_killed_while_it_shows_a_hold_shows_it_once_and_continues(named: str) -> None:
    """A hold on the controller itself stops it; a hold on another is only shown."""

    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim, limits=CALM)
        await cluster.set_up()

        def made(context: ProcessContext) -> Any:
            return CONTROLLERS["deployment"](context.runtime())

        def held() -> str:
            found = cluster.find(WEB)
            observed = None if found is None else find_condition(found.view.status.conditions, "Held")
            return "" if observed is None else observed.status

        (host,) = cluster.boot("manager", [made])
        killer = Killer(sim, host, held, times=5)
        sim.check_always(killer)
        ends = cluster.store_host.env().now() + timedelta(seconds=60)
        notes = dict([Hold(named, "ada", "looking into it", ends).annotation()])
        body = deployment("web", replicas=1)
        await cluster.create({**body, "metadata": {**body["metadata"], "annotations": notes}})
        await until(lambda: held() == "True")
        await asyncio.sleep(20)
        assert bool(cluster.all("ReplicaSet.apps")) == (named != "deployment")
        await until(lambda: held() == "False")
        await until(lambda: bool(cluster.all("ReplicaSet.apps")))
        await asyncio.sleep(30)
        assert (killer.kills, killer.values) == (2, ["", "True", "False"])
        before = cluster.versions(but=("Lease.coordination.k8s.io",))
        await asyncio.sleep(120)
        assert cluster.versions(but=("Lease.coordination.k8s.io",)) == before

    without_faults(program)

"""A rollback by a user restores the previous template once, even if the reply is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.cluster import WEB, run_without_faults, until
from tests.objects import DEPLOYMENT, deployment

from kedge.controllers import CONTROLLERS
from kedge.limits import Limits
from kedge.sim.cluster import Cluster, Commit, ProcessContext
from kedge.sim.cluster.users import User
from kedge.sim.kernel import Simulation

LIMITS = Limits(watch_probe_s=30.0, agent_audit_s=20.0)


def template(cluster: Cluster) -> Any:
    found = cluster.find(WEB)
    assert found is not None
    return found.edit()["spec"]["template"]


async def twice_rolled_out(sim: Simulation) -> tuple[Cluster, User, Any, Any]:
    """A Deployment with two revisions. Returns both templates."""
    cluster = Cluster(sim, limits=LIMITS)
    await cluster.set_up()

    def made(context: ProcessContext) -> Any:
        return CONTROLLERS["deployment"](context.runtime())

    cluster.boot("manager", [made])
    user = User(cluster)
    await user.apply({"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.kind, **deployment("web", replicas=1)})
    first = template(cluster)
    await until(lambda: len(cluster.all("ReplicaSet.apps")) == 1)
    more = {"metadata": {"annotations": {"team": "risk"}}, "spec": {"nodeSelector": {"disk": "fast"}}}
    await user.patch(WEB, {"spec": {"template": more}})
    await until(lambda: len(cluster.all("ReplicaSet.apps")) == 2)
    await asyncio.sleep(5)
    return cluster, user, first, template(cluster)


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "unanswered"])
def test_a_rollback_restores_the_whole_template_and_a_retry_does_not_undo_it(lost: bool) -> None:
    async def program(sim: Simulation) -> None:
        cluster, user, first, second = await twice_rolled_out(sim)
        assert second != first
        seen: list[bool] = []

        def cut(commit: Commit) -> Iterator[tuple[str, str]]:
            if WEB in commit.keys:
                back = template(cluster) == first
                if back and True not in seen and lost:
                    down = sim.network.partition([user.host], cluster.servers)
                    sim.world.loop.call_later(90, down.heal, context=sim.world.context)
                seen.append(back)
            yield from ()

        sim.check_always(cut)
        asked_s = sim.now_s
        await user.roll_back(WEB)
        assert (sim.now_s - asked_s > 60) == lost
        await asyncio.sleep(30)
        assert template(cluster) == first
        assert all(seen)
        assert len(cluster.all("ReplicaSet.apps")) == 2

    run_without_faults(program)

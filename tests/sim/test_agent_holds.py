"""A hold on the agent: running processes keep running, others are not started, and the pod shows it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.kit.agent import bind, claims, is_ready, live, new_cluster, until, without_faults
from tests.objects import pod, pod_key

from kedge.api.conditions import find_condition
from kedge.api.holds import Hold
from kedge.api.requests import DeleteOptions
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation

HOLD_S = 60.0


def hold(cluster: Cluster, name: str = "agent", *, for_s: float = HOLD_S) -> dict[str, Any]:
    until = cluster.store_host.env().now() + timedelta(seconds=for_s)
    return {"annotations": dict([Hold(name, "ada", "looking into it", until).annotation()])}


def held_pod(cluster: Cluster) -> dict[str, Any]:
    body = pod("web-0")
    body["metadata"] |= hold(cluster)
    return body


def shown(cluster: Cluster) -> str:
    found = cluster.find(pod_key())
    reported = None if found is None else find_condition(found.view.status.conditions, "Held")
    return "" if reported is None else f"{reported.status} {reported.message}"


def test_a_held_pod_is_not_started_before_the_hold_has_ended() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        ends_s = sim.now_s + HOLD_S
        await bind(cluster, held_pod(cluster))
        await until(lambda: shown(cluster).startswith("True ada holds agent until"))
        while sim.now_s < ends_s - 1:
            assert live(cluster) == []
            await asyncio.sleep(1)
        await until(lambda: is_ready(cluster), within_s=20)
        await until(lambda: shown(cluster).startswith("False"), within_s=20)

    without_faults(program)


def test_a_held_pod_is_neither_stopped_nor_restarted_and_keeps_its_grace() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        uid = await bind(cluster, pod("web-0"))
        await until(lambda: is_ready(cluster))
        await cluster.authority.patch(pod_key(), {"metadata": hold(cluster, for_s=90)})
        await until(lambda: shown(cluster).startswith("True"))
        await cluster.authority.delete(pod_key(), DeleteOptions(grace_s=5))
        await asyncio.sleep(60)
        assert live(cluster) == ["web-0"]
        assert is_ready(cluster)
        cluster.nodes["node-a"].driver.crash_process(uid)
        await asyncio.sleep(20)
        assert live(cluster) == []  # it was not started again
        await until(lambda: cluster.find(pod_key()) is None, within_s=60)
        await until(lambda: claims(cluster) == [])

    without_faults(program)


def test_a_hold_on_another_component_is_shown_and_does_not_affect_the_agent() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        body = pod("web-0")
        body["metadata"] |= hold(cluster, "replicaset")
        await bind(cluster, body)
        await until(lambda: is_ready(cluster), within_s=20)
        await until(lambda: shown(cluster).startswith("True ada holds replicaset until"))
        await until(lambda: shown(cluster).startswith("False"), within_s=HOLD_S + 20)

    without_faults(program)


def test_no_hold_keeps_a_finished_pod_or_one_of_another_incarnation() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        await bind(cluster, pod("web-0"))
        await until(lambda: is_ready(cluster))
        await cluster.authority.patch(pod_key(), {"metadata": hold(cluster, for_s=3600)})
        await until(lambda: shown(cluster).startswith("True"))
        await cluster.authority.delete(Key("Node", "", "node-a"))  # a new incarnation follows
        await until(lambda: live(cluster) == [], within_s=120)
        await bind_again(cluster)

    async def bind_again(cluster: Cluster) -> None:
        await cluster.authority.delete(pod_key(), DeleteOptions(grace_s=0))
        await until(lambda: cluster.find(Key("Node", "", "node-a")) is not None)
        await bind(cluster, pod("web-1"))
        await until(lambda: is_ready(cluster, "web-1"))
        await cluster.authority.patch(pod_key("web-1"), {"metadata": hold(cluster, for_s=3600)})
        await asyncio.sleep(5)
        await cluster.authority.delete(pod_key("web-1"), DeleteOptions(grace_s=0))  # by force
        await until(lambda: live(cluster) == [], within_s=120)

    without_faults(program)

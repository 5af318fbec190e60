"""Agents report pod usage with their heartbeats, and the autoscaler uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from tests.kit.agent import CALM, bind, is_ready, new_cluster, until, without_faults
from tests.kit.autoscaling import autoscaler
from tests.kit.cluster import CONTROLLERS, led, scheduler
from tests.objects import deployment, pod

from kedge.agent.core import Consumption, Identity
from kedge.api.usage import UsageReport, parse_usage
from kedge.api.views import PodView
from kedge.api.wellknown import NODE_LEASE_NAMESPACE, USAGE
from kedge.controllers.autoscaler.controller import autoscaler_controller
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation

LEASE = Key("Lease.coordination.k8s.io", NODE_LEASE_NAMESPACE, "node-a")
WEB = Key("Deployment.apps", "default", "web")


def report(cluster: Cluster) -> UsageReport | None:
    lease = cluster.find(LEASE)
    text = "" if lease is None else lease.metadata.annotations.get(USAGE, "")
    return parse_usage(text) if text else None


def cpu(cluster: Cluster, uid: str) -> str:
    """The reported usage of a pod; empty if there is none."""
    reported = report(cluster)
    containers = None if reported is None else reported.pods.get(uid)
    return str(containers["main"]["cpu"]) if containers else ""


def test_a_node_reports_the_usage_of_its_pods_with_its_heartbeat() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        uid = await bind(cluster, pod("web-0"))
        await until(lambda: is_ready(cluster))
        await asyncio.sleep(30)
        assert report(cluster) is None  # nothing was measured, so there is no report
        driver = cluster.nodes["node-a"].driver
        driver.set_load(lambda _: 0.75)
        await until(lambda: cpu(cluster, uid) == "750m", within_s=40)
        driver.set_load(lambda _: 0.0)
        await until(lambda: cpu(cluster, uid) == "0", within_s=40)
        window_s = report(cluster).window_seconds  # type: ignore[union-attr]
        assert window_s >= CALM.agent_usage_s
        driver.crash_process(uid)
        driver.set_load(None)
        await until(lambda: report(cluster) is None, within_s=40)

    without_faults(program)


def test_a_driver_that_does_not_answer_delays_no_heartbeat_and_leaves_no_old_report() -> None:
    async def program(sim: Simulation) -> None:
        cluster = await new_cluster(sim, "node-a")
        uid = await bind(cluster, pod("web-0"))
        driver = cluster.nodes["node-a"].driver
        driver.set_load(lambda _: 0.75)
        await until(lambda: cpu(cluster, uid) == "750m", within_s=60)

        async def hang() -> Mapping[Identity, Consumption]:
            await asyncio.sleep(1e6)
            return {}

        driver.consumption = hang  # type: ignore[method-assign]
        await until(lambda: report(cluster) is None, within_s=40)
        beats = []
        for _ in range(5):
            before = cluster.find(LEASE).revision  # type: ignore[union-attr]
            await asyncio.sleep(CALM.node_renew_s + CALM.agent_measure_s + 1)
            beats.append(cluster.find(LEASE).revision > before)  # type: ignore[union-attr]
        assert all(beats)

    without_faults(program)


def test_the_autoscaler_scales_by_reported_usage() -> None:
    limits = replace(CALM, autoscaler_start_s=10.0)

    async def program(sim: Simulation) -> int:
        cluster = Cluster(sim, servers=2, limits=limits)
        await cluster.set_up()
        cluster.boot("manager", [*CONTROLLERS, led(autoscaler_controller, "autoscaler")])
        cluster.boot("scheduler", [scheduler])
        load = 1.0

        def share(uid: str) -> float:
            pods = [each.as_view(PodView) for each in cluster.all("Pod")]
            ready = [each.uid for each in pods if is_ready(cluster, each.name)]
            return load / len(ready) if uid in ready else 0.0

        for name in ("node-a", "node-b", "node-c"):
            node = cluster.add_node(name, cpu="8")
            node.driver.set_load(share)
        body = deployment("web", replicas=1)
        body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m"}}
        await cluster.create(body)
        await cluster.create(autoscaler(1, 10))
        # A core of work, and each replica is to use half of the half core that it requests.
        await until(lambda: cluster.find(WEB).view.status.ready_replicas == 4, within_s=600)  # type: ignore[union-attr]
        load = 0.3
        await until(lambda: cluster.find(WEB).view.spec.replicas == 2, within_s=600)  # type: ignore[union-attr]
        return 0

    without_faults(program)

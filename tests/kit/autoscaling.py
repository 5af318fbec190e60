"""Nodes that report usage, an autoscaler as JSON, and runs of programs with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kit.workloads import FakeNodes, is_serving

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.quantity import Quantity
from kedge.api.timestamps import format_micro_time
from kedge.api.usage import format_usage
from kedge.api.wellknown import USAGE
from kedge.controllers.shared.kinds import LEASE
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime import ReceivedEvidence, recheck
from kedge.sim.cluster import Cluster, ProcessContext
from kedge.sim.kernel import RunOutcome, Simulation, run

NAMESPACE = KINDS.of_key_kind("Namespace")


@dataclass
class MeteredNodes(FakeNodes):
    """FakeNodes whose nodes renew their leases and report the usage of each pod there: its share of a load."""

    load_milli: int = 0
    binding: bool = True
    """Whether pods are bound at all."""
    measured: bool = True

    async def _handle(self, pod: Object) -> None:
        if self.binding or pod.view.spec.node_name or pod.view.terminating:
            await super()._handle(pod)

    async def work(self) -> None:
        await super().work()
        serving = [pod for pod in self.reader.pods() if is_serving(pod)]
        now = self.cluster.store_host.env().now()
        for n in range(self.nodes):
            name = f"node-{n}"
            share = Quantity(self.load_milli * 1_000_000 // max(1, len(serving)))
            pods = {pod.uid: {"main": {"cpu": share}} for pod in serving if pod.view.spec.node_name == name}
            notes = {USAGE: format_usage(now, 1, pods)} if self.measured else {}
            body = {
                "metadata": {"name": name, "namespace": "kube-node-lease", "annotations": notes},
                "spec": {"holderIdentity": name, "renewTime": format_micro_time(now)},
            }
            key = Key(LEASE.key_kind, "kube-node-lease", name)
            if self.reader.get(key) is None:
                await self.cluster.authority.create(LEASE, body)
            else:
                await self.cluster.authority.patch(key, body)


def maker(make: Callable[..., Any]) -> Callable[[ProcessContext], Any]:
    lease = Key(LEASE.key_kind, "default", make.__name__.replace("_", "-"))
    return lambda context: make(context.runtime(lease))


async def recheck_all(cluster: Cluster, reconcilers: dict[str, Callable[[Env], Any]]) -> int:
    """Recheck every decision of every process. Returns their number."""
    count = 0
    for process in cluster.processes:
        evidence = ReceivedEvidence.of(process.context.caches)
        for decision in reversed(list(process.context.recorder.decisions())):
            await recheck(
                decision, reconcilers[decision.controller](process.context.env), evidence, process.context.env
            )
            count += 1
    return count


def autoscaler(least: int = 1, most: int = 40) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": 50}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": least,
            "maxReplicas": most,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
        },
    }


def failing(program: Callable[[Simulation], Any], seeds: range) -> RunOutcome | None:
    return next((each for each in (run(program, seed) for seed in seeds) if each.violation is not None), None)


def without_faults(cluster_program: Callable[[Simulation], Any]) -> None:
    async def program(sim: Simulation) -> None:
        sim.heal()
        await cluster_program(sim)

    outcome = run(program, 1)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"

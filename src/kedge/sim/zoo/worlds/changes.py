"""Worlds of staged rollouts and of the autoscaler: a rollout that must not proceed, replicas that find no node.

On hollow nodes: these worlds test the conclusions of controllers from reported health and load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kedge.api.wellknown import DEPLOYMENT_KIND, KEDGE_API_VERSION, POD_KIND
from kedge.keys import Key
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.links import Commit
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.standard import LIMITS, JudgedCluster, Size, autoscaler, template, workload
from kedge.sim.zoo.worlds.base import NO_PERIODIC_WORK
from kedge.sim.zoo.worlds.hollow_nodes import HOLLOW_NODES, STUCK, UNKNOWN, HollowNodes, manage

WEB = Key(DEPLOYMENT_KIND, "default", "web")
TROUBLES = ("none", "never ready", "unknown health", "nodes stop reporting")
UNPLACED = ("admitted", "queued", "scheduled")
QUICK = replace(
    LIMITS,
    **NO_PERIODIC_WORK,  # type: ignore[arg-type]
    autoscaler_look_s=4.0,
    autoscaler_cooldown_s=4.0,
    autoscaler_unserved_max=3,
    autoscaler_start_s=1.0,
)


class FirstStageOnly:
    """While no sample of a change is healthy, no more pods have it than the first stage allows."""

    __name__ = "no stage is left without healthy samples"

    def __init__(self, judge: Judge, image: str, most: int) -> None:
        self._facts, self._image, self._most = judge.facts, image, most
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == POD_KIND for key in commit.keys):
            new = [pod for pod in self._facts.pods.values() if pod.view.spec.containers[0].image == self._image]
            if len(new) > self._most:
                yield "went on", f"{len(new)} pods have {self._image}, and the first stage is {self._most}"


class LagIsNotAmplified:
    """The autoscaler adds no replicas while the Deployment version that it changes has replicas without a node."""

    __name__ = "lag is not amplified"

    def __init__(self, judge: Judge) -> None:
        self._facts = judge.facts
        self._before: Any = None
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if WEB not in commit.keys:
            return
        old, new = self._before, self._facts.objects.get(WEB)
        self._before = new
        if old is None or new is None or not commit.origin.decision.startswith("autoscaler:"):
            return
        was, now = old.view.spec.replicas, new.view.spec.replicas
        if now > was and any(each.stage in UNPLACED for each in old.view.status.progress.pending):
            yield "added", f"from {was} to {now} while some wait for a node"


async def _open(sim: Simulation, *names: str) -> tuple[JudgedCluster, HollowNodes]:
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUICK))
    await world.open()
    hollow = HollowNodes(world)
    hollow.load_milli = 0
    await hollow.add_nodes(HOLLOW_NODES)
    manage(world, "deployment", "replicaset", *names)
    return world, hollow


@simulate(faults=ClusterSwarm())
async def canary(sim: Simulation) -> None:
    """A Deployment of four is rolled out, a quarter first. The new pods may be unhealthy, or of unknown health."""
    world, hollow = await _open(sim, "rollout")
    user = world.user
    await user.apply(workload("Deployment", "web", 4))
    await asyncio.sleep(25)
    trouble = sim.choose("trouble", TROUBLES)
    image = {"never ready": STUCK, "unknown health": UNKNOWN}.get(trouble, "web:2")
    if trouble != "none":
        FirstStageOnly(world.judge, image, 1)
    if trouble == "nodes stop reporting":
        hollow.load_milli = None
        await asyncio.sleep(1)
    await user.apply(_rollout(template("web", image=image)))
    await asyncio.sleep(sim.choose("for", (45, 25)))
    if trouble == "none":
        await world.close(within_s=300, silence_s=0, stays_s=2)
    else:
        await world.heal()
        await asyncio.sleep(20)


def _rollout(made: dict[str, Any]) -> dict[str, Any]:
    stages = [
        {"name": name, "scope": {"percent": share}, "holdSeconds": 3} for name, share in (("some", 25), ("all", 100))
    ]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    spec = {"target": target, "template": made, "stages": stages, "gates": {"sampleAgeSecondsMax": 12}}
    return {
        "apiVersion": KEDGE_API_VERSION,
        "kind": "Rollout",
        "metadata": {"name": "next", "namespace": "default"},
        "spec": spec,
    }


@simulate(faults=ClusterSwarm())
async def autoscaled(sim: Simulation) -> None:
    """There is more load than the replicas can serve, and for a while no pod is placed."""
    world, hollow = await _open(sim, "autoscaler")
    LagIsNotAmplified(world.judge)
    user = world.user
    await user.apply(workload("Deployment", "web", 2))
    await user.apply(autoscaler("web", WEB, 1, 12))
    await asyncio.sleep(20)
    hollow.places = False
    hollow.load_milli = sim.choose("load", (3_000, 1_500))
    await asyncio.sleep(sim.choose("for", (30, 60)))
    hollow.places = True
    await asyncio.sleep(sim.choose("then", (10, 30)))
    hollow.load_milli = 1_500
    await world.heal()
    await asyncio.sleep(20)

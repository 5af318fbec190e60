"""A template is rolled out by zone and region, with real scheduler, agents and controllers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.kit.agent import CALM, until, without_faults
from tests.kit.cluster import CONTROLLERS, led, scheduler
from tests.kit.rollouts import NEXT, rollout
from tests.objects import deployment

from kedge.api.views import PodView
from kedge.api.wellknown import GIVE_UP_IN, PODS_IN, REGION_LABEL, UPDATED_IN, UPDATED_MAX
from kedge.controllers.rollout.controller import rollout_controller
from kedge.keys import Key
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Simulation

WEB = Key("Deployment.apps", "default", "web")
ZONES = {"node-0": "zone-a", "node-1": "zone-a", "node-2": "zone-b", "node-3": "zone-b", "node-4": "zone-c"}
REGIONS = {"zone-a": "north", "zone-b": "north", "zone-c": "south"}
REPLICAS = 5


@dataclass
class ZonedCluster:
    cluster: Cluster
    seen: list[tuple[int, str]] = field(default_factory=list)
    """The stage and the zone of each bind of a pod with the new template."""
    serving_least: int = 99
    armed: bool = False

    def pods(self, image: str = "") -> list[PodView]:
        every = [each.as_view(PodView) for each in self.cluster.all("Pod")]
        return [pod for pod in every if not pod.finished and image in ("", pod.spec.containers[0].image)]

    def zones(self, image: str) -> Counter[str]:
        return Counter(ZONES[pod.spec.node_name] for pod in self.pods(image) if is_well(pod))

    @property
    def rollout(self) -> Any:
        found = self.cluster.find(NEXT)
        assert found is not None
        return found.view.status

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if not self.armed or not any(key.kind == "Pod" for key in commit.keys):
            return
        self.serving_least = min(self.serving_least, sum(is_well(pod) for pod in self.pods()))
        if self.serving_least < REPLICAS - 1:
            yield "availability", f"{self.serving_least} of {REPLICAS} serve"


def is_well(pod: PodView) -> bool:
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
    return ready and not pod.terminating and "kedge.dev/draining" not in pod.metadata.annotations


async def open_zoned_cluster(sim: Simulation) -> ZonedCluster:
    cluster = Cluster(sim, servers=2, limits=CALM)
    zoned = ZonedCluster(cluster)
    sim.check_always(zoned)
    await cluster.set_up()
    for name, zone in ZONES.items():
        cluster.add_node(name, zone=zone, labels={REGION_LABEL: REGIONS[zone]})
    cluster.boot("manager", [*CONTROLLERS, led(rollout_controller, "rollout")])
    cluster.boot("scheduler", [scheduler])
    body = deployment("web", replicas=REPLICAS)
    body["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    body["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
    await until(lambda: len(cluster.all("Node")) == len(ZONES))
    await cluster.create(body)
    await until(lambda: sum(is_well(pod) for pod in zoned.pods("web:1")) == REPLICAS)
    zoned.armed = True
    return zoned


NORTH_A = {"name": "a", "scope": {"zones": ["zone-a"]}, "holdSeconds": 20}
NORTH = {"name": "north", "scope": {"regions": ["north"]}, "holdSeconds": 20}
ALL = {"name": "all", "scope": {}, "holdSeconds": 5}


def test_a_template_is_rolled_out_by_zone_and_region_and_old_pods_there_are_deleted_first() -> None:
    async def program(sim: Simulation) -> None:
        zoned = await open_zoned_cluster(sim)
        before = zoned.zones("web:1")
        assert set(before) == {"zone-a", "zone-b", "zone-c"}
        await zoned.cluster.create(rollout(NORTH_A, NORTH, ALL))
        await until(lambda: zoned.rollout.stage == 1, within_s=400)
        new, old = zoned.zones("web:2"), zoned.zones("web:1")
        assert set(new) == {"zone-a"}
        assert new["zone-a"] == before["zone-a"]
        assert old == before - Counter({"zone-a": before["zone-a"]})
        await until(lambda: zoned.rollout.stage == 2, within_s=400)
        assert set(zoned.zones("web:2")) == {"zone-a", "zone-b"}
        assert set(zoned.zones("web:1")) == {"zone-c"}
        await until(lambda: zoned.rollout.phase == "Complete", within_s=400)
        await until(lambda: sum(zoned.zones("web:2").values()) == REPLICAS and not zoned.pods("web:1"))
        web = zoned.cluster.find(WEB)
        assert web is not None
        assert not {UPDATED_MAX, UPDATED_IN} & set(web.metadata.annotations)
        await until(lambda: not marked(zoned.cluster))

    without_faults(program)


def marked(cluster: Cluster) -> list[str]:
    """ReplicaSets with pods that still have the annotation of a stage by zones."""
    sets = [each for each in cluster.all("ReplicaSet.apps") if each.view.spec.replicas]
    return [each.key.name for each in sets if {PODS_IN, GIVE_UP_IN} & set(each.metadata.annotations)]


def test_a_share_of_a_zone_is_a_share_of_the_replicas_there() -> None:
    async def program(sim: Simulation) -> None:
        zoned = await open_zoned_cluster(sim)
        there = zoned.zones("web:1")["zone-a"]
        assert there == 2
        half = {"name": "half", "scope": {"zones": ["zone-a"], "percent": 50}, "holdSeconds": 600}
        await zoned.cluster.create(rollout(half, ALL))
        await until(lambda: zoned.rollout.healthy_since is not None, within_s=400)
        assert zoned.zones("web:2") == Counter({"zone-a": 1})
        assert sum(zoned.zones("web:1").values()) == REPLICAS - 1

    without_faults(program)


def test_a_zone_without_room_is_a_regression_and_is_rolled_back() -> None:
    async def program(sim: Simulation) -> None:
        zoned = await open_zoned_cluster(sim)
        for name, zone in ZONES.items():
            if zone == "zone-a":
                await zoned.cluster.authority.patch(Key("Node", "", name), {"spec": {"unschedulable": True}})
        await zoned.cluster.create(rollout(NORTH_A, ALL))
        await until(lambda: zoned.rollout.phase == "RolledBack", within_s=900)
        await until(lambda: sum(zoned.zones("web:1").values()) == REPLICAS and not zoned.pods("web:2"))
        web = zoned.cluster.find(WEB)
        assert web is not None
        assert not {UPDATED_MAX, UPDATED_IN} & set(web.metadata.annotations)
        await until(lambda: not marked(zoned.cluster))

    without_faults(program)


def test_the_rollout_in_the_docs_completes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()
    body = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    body["metadata"]["name"] = NEXT.name

    async def program(sim: Simulation) -> None:
        zoned = await open_zoned_cluster(sim)
        await zoned.cluster.create(body)
        stages = [0]
        while zoned.rollout.phase != "Complete" and sim.now_s < 2000:
            await asyncio.sleep(1)
            if zoned.rollout.stage != stages[-1]:
                stages.append(zoned.rollout.stage)
        assert stages == [0, 1, 2, 3, 4]
        await until(lambda: sum(zoned.zones("web:2").values()) == REPLICAS)

    without_faults(program)

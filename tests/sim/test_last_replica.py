"""When the only ready replica of a workload may be taken, and when that is a loss nobody asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.objects import node, pod, pod_key

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.wellknown import DRAIN_NODE
from kedge.keys import Key, Origin
from kedge.sim.cluster import Cluster
from kedge.sim.judges.facts import LAG_S
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store import DeleteKey, Put

ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
ALL_AT_ONCE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
RECREATE = {"type": "Recreate"}


def by(kind: str, name: str, uid: str) -> dict[str, Any]:
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}
    return {"namespace": "default", "ownerReferences": [reference]}


class Shop:
    """A Deployment with one ready replica, which has been alone for long enough that anybody can know it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def put(self, body: dict[str, Any], uid: str) -> None:
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        metadata = {"uid": uid, **body["metadata"]}
        key = Key(kind.key_kind, metadata.get("namespace", ""), metadata["name"])
        await self.cluster.store.commit([], [Put(key, encode_object({**body, "metadata": metadata}))])

    async def say(self, strategy: dict[str, Any], *, image: str = "web:1", replicas: int = 1) -> None:
        body = self._workload("Deployment", image, replicas)
        body["spec"]["strategy"] = strategy
        await self.put(body, "d-1")

    async def open(self, strategy: dict[str, Any]) -> None:
        await self.cluster.create(node("node-a"))
        await self.say(strategy)
        owned = self._workload("ReplicaSet", "web:1", 1)
        owned["metadata"] = {"name": "web-1", **by("Deployment", "web", "d-1")}
        owned["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] = "x"
        await self.put(owned, "rs-1")
        replica = pod(nodeName="node-a")
        replica["metadata"] |= by("ReplicaSet", "web-1", "rs-1")
        replica["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        await self.put(replica, "u-1")
        await asyncio.sleep(2 * LAG_S)

    def _workload(self, kind: str, image: str, replicas: int) -> dict[str, Any]:
        template = {"metadata": {"labels": {"app": "web"}}, "spec": pod()["spec"]}
        template["spec"]["containers"][0]["image"] = image
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        metadata = {"name": "web", "namespace": "default"}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


Story = Callable[[Shop], Awaitable[None]]


async def nothing_else(_: Shop) -> None:
    """Its bounds would allow a rollout to do without. There is none."""


async def a_rollout(shop: Shop) -> None:
    await shop.say(RECREATE, image="web:2")


async def a_rollout_all_at_once(shop: Shop) -> None:
    await shop.say(ALL_AT_ONCE, image="web:2")


async def a_rollout_within_bounds(shop: Shop) -> None:
    await shop.say(ROLLING, image="web:2")


async def a_rollout_that_was_taken_back(shop: Shop) -> None:
    await shop.say(RECREATE, image="web:2")
    await asyncio.sleep(5)
    await shop.say(RECREATE)


async def a_rollout_that_was_taken_back_long_ago(shop: Shop) -> None:
    await a_rollout_that_was_taken_back(shop)
    await asyncio.sleep(2 * LAG_S)


async def a_moment_without_any_wish(shop: Shop) -> None:
    await shop.say(ROLLING, replicas=0)
    await shop.say(ROLLING, replicas=1)


async def a_drain(shop: Shop) -> None:
    await shop.cluster.authority.patch(Key("Node", "", "node-a"), {"metadata": {"annotations": {DRAIN_NODE: "disk"}}})


async def somebody_of_higher_rank(shop: Shop) -> None:
    waiting = pod("vip", priority=100, schedulerName="deployment")
    waiting["metadata"]["namespace"] = "default"
    await shop.put(waiting, "u-2")


async def a_namespace_that_goes(shop: Shop) -> None:
    await shop.cluster.authority.delete(Key("Namespace", "", "default"))


STORIES: list[tuple[dict[str, Any], Story, bool]] = [
    (RECREATE, nothing_else, False),
    (ALL_AT_ONCE, nothing_else, False),
    (RECREATE, a_rollout, True),
    (ALL_AT_ONCE, a_rollout_all_at_once, True),
    (ROLLING, a_rollout_within_bounds, False),
    (RECREATE, a_rollout_that_was_taken_back, True),
    (RECREATE, a_rollout_that_was_taken_back_long_ago, False),
    (ROLLING, a_moment_without_any_wish, True),
    (ROLLING, a_drain, True),
    (ROLLING, somebody_of_higher_rank, True),
    (ROLLING, a_namespace_that_goes, True),
]


@pytest.mark.parametrize(
    ("strategy", "story", "allowed"), STORIES, ids=[f"{s['type']}-{each.__name__}" for s, each, _ in STORIES]
)
def test_the_last_replica_is_taken_for_a_reason_or_not_at_all(
    strategy: dict[str, Any], story: Story, allowed: bool
) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster, without=("the_ledger_equals_the_bindings",))
        shop = Shop(cluster)
        await shop.open(strategy)
        await story(shop)
        await cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "deployment:p1:1"))
        assert judge.steps > 3

    violation = run(program, 1, faults=NO_FAULTS).violation
    if allowed:
        assert violation is None, violation
    else:
        assert violation is not None
        assert violation.invariant == "the last healthy replica is not taken", violation

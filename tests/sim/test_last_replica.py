"""When the only ready replica of a workload may be removed, and when that violates an invariant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.objects import node, pod, pod_key

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.wellknown import AT_MOST_ONE, AVAILABILITY_FLOOR, DRAIN_NODE
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


class SingleReplica:
    """A Deployment that has had only one ready replica for long enough that every cache has it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def put(self, body: dict[str, Any], uid: str) -> None:
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        metadata = {"uid": uid, **body["metadata"]}
        key = Key(kind.key_kind, metadata.get("namespace", ""), metadata["name"])
        await self.cluster.store.commit([], [Put(key, encode_object({**body, "metadata": metadata}))])

    async def update(
        self,
        strategy: dict[str, Any],
        *,
        image: str = "web:1",
        replicas: int = 1,
        annotations: dict[str, str] | None = None,
        at_most_one: bool = False,
    ) -> None:
        body = self._workload("Deployment", image, replicas, at_most_one=at_most_one)
        body["metadata"]["annotations"] = annotations or {}
        body["spec"]["strategy"] = strategy
        await self.put(body, "d-1")

    async def open(self, strategy: dict[str, Any]) -> None:
        await self.cluster.create(node("node-a"))
        await self.update(strategy)
        await self.add_set("web-1", "web:1")
        replica = pod(nodeName="node-a")
        replica["metadata"] |= by("ReplicaSet", "web-1", "rs-1")
        replica["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        await self.put(replica, "u-1")
        await asyncio.sleep(2 * LAG_S)

    async def add_set(self, name: str, image: str, replicas: int = 1, *, at_most_one: bool = False) -> None:
        owned = self._workload("ReplicaSet", image, replicas, at_most_one=at_most_one)
        owned["metadata"] = {"name": name, **by("Deployment", "web", "d-1")}
        owned["spec"]["template"]["metadata"]["labels"]["pod-template-hash"] = "x"
        await self.put(owned, f"rs-{name.rpartition('-')[2]}")

    def _workload(self, kind: str, image: str, replicas: int, *, at_most_one: bool) -> dict[str, Any]:
        annotations = {AT_MOST_ONE: "true"} if at_most_one else {}
        template = {"metadata": {"labels": {"app": "web"}, "annotations": annotations}, "spec": pod()["spec"]}
        template["spec"]["containers"][0]["image"] = image
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
        metadata = {"name": "web", "namespace": "default"}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


Steps = Callable[[SingleReplica], Awaitable[None]]


async def no_change(_: SingleReplica) -> None:
    """Its bounds would allow a rollout to remove the replica, but there is no rollout."""


async def a_rollout(workload: SingleReplica) -> None:
    await workload.update(RECREATE, image="web:2")


async def a_rollout_all_at_once(workload: SingleReplica) -> None:
    await workload.update(ALL_AT_ONCE, image="web:2")


async def a_rollout_within_bounds(workload: SingleReplica) -> None:
    await workload.update(ROLLING, image="web:2")


async def a_reverted_rollout(workload: SingleReplica) -> None:
    """The rollout had scaled the ReplicaSet down before it was reverted."""
    await workload.update(RECREATE, image="web:2")
    await workload.add_set("web-1", "web:1", 0)
    await asyncio.sleep(5)
    await workload.update(RECREATE)
    await workload.add_set("web-1", "web:1")


async def a_reverted_rollout_that_had_not_begun(workload: SingleReplica) -> None:
    """No ReplicaSet was scaled down: nothing but the removal itself follows from the rollout."""
    await workload.update(RECREATE, image="web:2")
    await asyncio.sleep(5)
    await workload.update(RECREATE)


async def a_rollback_of_two_at_most_one(workload: SingleReplica) -> None:
    """One can stay while the other is replaced: no copy too many is needed."""
    await workload.add_set("web-0", "web:0", at_most_one=True)
    await workload.update(RECREATE, image="web:0", replicas=2, at_most_one=True)


async def a_rollback_of_one_at_most_one(workload: SingleReplica) -> None:
    """At most one copy, and at least one throughout a change, exclude each other."""
    await workload.add_set("web-0", "web:0", at_most_one=True)
    await workload.update(RECREATE, image="web:0", at_most_one=True)


async def a_rollback(workload: SingleReplica) -> None:
    """The pod is of another template than the ReplicaSet that the Deployment returns to."""
    await workload.add_set("web-0", "web:0")
    await workload.update(RECREATE, image="web:0")


async def a_rollback_without_floor(workload: SingleReplica) -> None:
    await workload.add_set("web-0", "web:0")
    await workload.update(RECREATE, image="web:0", annotations={AVAILABILITY_FLOOR: "off"})


async def a_rollout_reverted_long_ago(workload: SingleReplica) -> None:
    await a_reverted_rollout(workload)
    await asyncio.sleep(2 * LAG_S)


async def a_moment_at_zero_replicas(workload: SingleReplica) -> None:
    await workload.update(ROLLING, replicas=0)
    await workload.update(ROLLING, replicas=1)


async def a_drain(workload: SingleReplica) -> None:
    await workload.cluster.authority.patch(
        Key("Node", "", "node-a"), {"metadata": {"annotations": {DRAIN_NODE: "disk"}}}
    )


async def a_pod_of_higher_priority(workload: SingleReplica) -> None:
    waiting = pod("vip", priority=100, schedulerName="deployment")
    waiting["metadata"]["namespace"] = "default"
    await workload.put(waiting, "u-2")


async def a_deleted_namespace(workload: SingleReplica) -> None:
    await workload.cluster.authority.delete(Key("Namespace", "", "default"))


CASES: list[tuple[dict[str, Any], Steps, bool]] = [
    (RECREATE, no_change, False),
    (ALL_AT_ONCE, no_change, False),
    (RECREATE, a_rollout, True),
    (ALL_AT_ONCE, a_rollout_all_at_once, True),
    (ROLLING, a_rollout_within_bounds, False),
    (RECREATE, a_reverted_rollout, True),
    (RECREATE, a_rollout_reverted_long_ago, False),
    (RECREATE, a_reverted_rollout_that_had_not_begun, False),
    (RECREATE, a_rollback, False),
    (RECREATE, a_rollback_of_two_at_most_one, False),
    (RECREATE, a_rollback_of_one_at_most_one, True),
    (RECREATE, a_rollback_without_floor, True),
    (ROLLING, a_moment_at_zero_replicas, True),
    (ROLLING, a_drain, True),
    (ROLLING, a_pod_of_higher_priority, True),
    (ROLLING, a_deleted_namespace, True),
]


@pytest.mark.parametrize(
    ("strategy", "steps", "allowed"), CASES, ids=[f"{s['type']}-{each.__name__}" for s, each, _ in CASES]
)
def test_the_last_replica_is_removed_only_for_a_reason(strategy: dict[str, Any], steps: Steps, allowed: bool) -> None:
    async def program(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        judge = Judge(cluster, without=("the_ledger_equals_the_bindings",))
        workload = SingleReplica(cluster)
        await workload.open(strategy)
        await steps(workload)
        await cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "deployment:p1:1"))
        assert judge.steps > 3

    violation = run(program, 1, faults=NO_FAULTS).violation
    if allowed:
        assert violation is None, violation
    else:
        assert violation is not None
        assert violation.invariant == "the last healthy replica is not removed", violation

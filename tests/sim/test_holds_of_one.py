"""A hold on one object does not stop its owner, which continues with all others, and with it when the hold ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.kit.agent import until, without_faults
from tests.kit.controllers import replica_set
from tests.kit.holds import LIMITS, Notes, bound_pod, noted
from tests.kit.rollouts import rollout
from tests.kit.workload_manifests import batch
from tests.objects import deployment, pod

from kedge.api.holds import Hold
from kedge.api.owners import controller_of
from kedge.api.requests import DeleteOptions
from kedge.controllers import CONTROLLERS
from kedge.keys import Key
from kedge.sim.cluster import Cluster, ComponentFactory, ProcessContext
from kedge.sim.kernel import Simulation
from kedge.sim.standard import service

HOLD_S = 60.0
WEB = Key("ReplicaSet.apps", "default", "web")
STRAY = Key("Pod", "default", "stray")
BATCH = Key("Job.batch", "default", "batch")


def maker(name: str) -> ComponentFactory:
    def made(context: ProcessContext) -> Any:
        return CONTROLLERS[name](context.runtime())

    return made


async def stage(sim: Simulation, *controllers: str) -> tuple[Cluster, Notes]:
    """A cluster with these controllers, and the annotation of a hold on all components."""
    cluster = Cluster(sim, limits=LIMITS)
    await cluster.set_up()
    cluster.boot("manager", [maker(name) for name in controllers])
    ends = cluster.store_host.env().now() + timedelta(seconds=HOLD_S)
    return cluster, dict([Hold("all", "ada", "looking into it", ends).annotation()])


def failures(cluster: Cluster) -> list[str]:
    return [
        each.error
        for process in cluster.processes
        for each in process.context.recorder.decisions()
        if each.result == "failed" and "Held" in each.error
    ]


def owned(cluster: Cluster, key: Key = WEB) -> list[str]:
    found = cluster.find(key)
    assert found is not None
    pods = [each for each in cluster.all("Pod") if (owner := controller_of(each.metadata)) and owner.uid == found.uid]
    return [each.key.name for each in pods]


async def make_set(cluster: Cluster, replicas: int) -> None:
    await cluster.create({"apiVersion": "apps/v1", "kind": "ReplicaSet", **replica_set("web", replicas)})


def test_a_held_orphan_is_not_adopted_and_its_replica_set_creates_a_pod() -> None:
    async def program(sim: Simulation) -> None:
        cluster, notes = await stage(sim, "replicaset")
        await cluster.create({"apiVersion": "v1", "kind": "Pod", **noted(pod("stray"), notes)})
        await make_set(cluster, 2)
        await until(lambda: len(owned(cluster)) == 2, within_s=20)
        assert "stray" not in owned(cluster)
        assert failures(cluster) == []
        await until(lambda: cluster.find(STRAY) is None or "stray" in owned(cluster), within_s=HOLD_S + 5)

    without_faults(program)


def test_a_held_pod_that_is_no_longer_selected_does_not_block_its_replacement() -> None:
    """As a person does to debug a pod: hold it, and take it out of service by its labels."""

    async def program(sim: Simulation) -> None:
        cluster, notes = await stage(sim, "replicaset")
        await make_set(cluster, 1)
        await until(lambda: len(owned(cluster)) == 1)
        (name,) = owned(cluster)
        key = Key("Pod", "default", name)
        await cluster.authority.patch(key, {"metadata": {"annotations": notes, "labels": {"app": "under-study"}}})
        await asyncio.sleep(5)
        await cluster.authority.patch(WEB, {"spec": {"replicas": 3}})
        await until(lambda: len(owned(cluster)) == 3, within_s=20)
        assert name in owned(cluster)
        assert failures(cluster) == []
        await until(lambda: name not in owned(cluster) and len(owned(cluster)) == 3, within_s=HOLD_S + 20)

    without_faults(program)


def test_a_held_pod_of_a_former_job_does_not_block_the_new_job() -> None:
    async def program(sim: Simulation) -> None:
        cluster, notes = await stage(sim, "job")
        body = {"apiVersion": "batch/v1", "kind": "Job", **batch(completions=1)}
        await cluster.create(body)
        await until(lambda: len(owned(cluster, BATCH)) == 1)
        (left,) = owned(cluster, BATCH)
        key = Key("Pod", "default", left)
        await cluster.authority.patch(key, {"metadata": {"annotations": notes}})
        await cluster.authority.delete(BATCH, DeleteOptions(propagation="Background"))
        await until(lambda: cluster.find(BATCH) is None)
        await cluster.create(body)
        await until(lambda: len(owned(cluster, BATCH)) == 1, within_s=20)
        found = cluster.find(key)
        assert found is not None
        assert found.metadata.finalizers
        assert failures(cluster) == []
        await until(lambda: (found := cluster.find(key)) is None or not found.metadata.finalizers, within_s=HOLD_S + 5)

    without_faults(program)


def test_a_held_pod_that_has_ended_is_recorded_and_keeps_its_finalizer_while_held() -> None:
    async def program(sim: Simulation) -> None:
        cluster, notes = await stage(sim, "job")
        await cluster.create({"apiVersion": "batch/v1", "kind": "Job", **batch(completions=2, parallelism=2)})
        await until(lambda: len(owned(cluster, BATCH)) == 2)
        held, other = (Key("Pod", "default", name) for name in owned(cluster, BATCH))
        await cluster.authority.patch(held, {"metadata": {"annotations": notes}})
        for key in (held, other):
            await cluster.authority.patch(key, {"status": {"phase": "Succeeded"}}, subresource="status")

        def marks(key: Key) -> tuple[str, ...]:
            return cluster.find(key).metadata.finalizers  # type: ignore[union-attr]

        await until(lambda: not marks(other), within_s=20)
        assert marks(held)
        assert failures(cluster) == []
        await until(lambda: cluster.find(BATCH).view.status.succeeded == 2, within_s=HOLD_S + 20)  # type: ignore[union-attr]
        assert not marks(held)

    without_faults(program)


def test_a_rollout_whose_target_is_held_shows_it_and_continues_when_the_hold_has_ended() -> None:
    async def program(sim: Simulation) -> None:
        cluster, notes = await stage(sim, "rollout")
        web = (await cluster.create(noted(deployment("web", replicas=1), notes))).key
        made = (await cluster.create(rollout({"name": "all", "scope": {}}))).key

        def reason() -> str:
            return str(cluster.find(made).view.status.reason)  # type: ignore[union-attr]

        await until(lambda: reason() == "TargetHeld", within_s=30)
        assert cluster.find(web).metadata.generation == 1  # type: ignore[union-attr]
        assert failures(cluster) == []
        await until(lambda: cluster.find(web).metadata.generation > 1, within_s=HOLD_S + 20)  # type: ignore[union-attr]
        await until(lambda: reason() != "TargetHeld", within_s=20)

    without_faults(program)


def test_a_held_slice_of_a_service_does_not_change_until_its_hold_has_ended() -> None:
    async def program(sim: Simulation) -> None:
        cluster, notes = await stage(sim, "endpoints")
        ready = await bound_pod(cluster, ready=True)
        await cluster.create(service("web", "web"))
        await until(lambda: bool(cluster.all("EndpointSlice.discovery.k8s.io")))
        (made,) = cluster.all("EndpointSlice.discovery.k8s.io")
        await cluster.authority.patch(made.key, {"metadata": {"annotations": notes}})
        unready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Ill"}]}}
        await cluster.authority.patch(ready.key, unready, subresource="status")

        def serves() -> bool:
            return bool(cluster.find(made.key).view.endpoints[0].conditions.ready)  # type: ignore[union-attr]

        await asyncio.sleep(20)
        assert serves()
        assert failures(cluster) == []
        await until(lambda: not serves(), within_s=HOLD_S)

    without_faults(program)

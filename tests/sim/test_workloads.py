"""Workloads under faults: controllers crash, replies are lost, caches are late, and two processes believe to lead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.kit.cluster import seeds
from tests.kit.controllers import settle
from tests.kit.workload_manifests import BATCH, JOB, WEB, batch, image, web
from tests.kit.workloads import FakeNodes, RolloutBounds, StoreReader, WorkloadManager, is_serving, new_cluster
from tests.objects import DEPLOYMENT

from kedge.api.conditions import is_true
from kedge.controllers.job.plan import outcome_of
from kedge.sim.cluster import Commit
from kedge.sim.kernel import Simulation, run


def is_rolled_out(reader: StoreReader, name: str, replicas: int) -> bool:
    """Every pod serves and has this image, no other is left, and the status of the newest generation shows it."""
    pods = reader.pods()
    if len(pods) != replicas or not all(is_serving(pod) for pod in pods):
        return False
    if any(pod.view.spec.containers[0].image != name for pod in pods):
        return False
    found = reader.get(WEB)
    if found is None:
        return False
    status = found.view.status
    return bool(
        status.observed_generation == found.view.generation
        and status.updated_replicas == status.available_replicas == status.replicas == replicas
        and status.progress.stages.serving == replicas
        and is_true(status.conditions, "Available")
        and is_true(status.conditions, "Progressing")
    )


async def rollout(sim: Simulation) -> int:
    cluster = await new_cluster(sim)
    manager, hands = WorkloadManager(sim, cluster), FakeNodes(cluster)
    reader = StoreReader(cluster.store)
    bounds = RolloutBounds(reader, copies_max=4, serving_min=3)
    sim.check_always(bounds)
    for n in range(2):
        sim.host(f"manager-{n}").boot(manager.start)
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await asyncio.sleep(20)
    await cluster.authority.patch(WEB, image("web:2"))
    await asyncio.sleep(20)
    await cluster.authority.patch(WEB, image("web:1"))  # as `kubectl rollout undo` does
    await asyncio.sleep(10)
    bounds.copies_max = 5
    await cluster.authority.patch(WEB, {"spec": {"replicas": 4}})
    await asyncio.sleep(10)
    await cluster.authority.patch(WEB, image("web:3"))
    await asyncio.sleep(20)
    await settle(sim, cluster, lambda: is_rolled_out(reader, "web:3", 4))
    working.cancel()
    return await manager.recheck()


@seeds(8, 120)
def test_a_rollout_stays_within_its_bounds_under_faults_and_its_decisions_recheck(seeds: range) -> None:
    rechecked = 0
    for seed in seeds:
        outcome = run(rollout, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        rechecked += outcome.result
    assert rechecked > len(seeds) * 20


# -- jobs ------------------------------------------------------------------------------------------


class ParallelismHolds:
    """No more pods of a Job run at once than its parallelism."""

    def __init__(self, reader: StoreReader, most: int) -> None:
        self._reader = reader
        self._most = most

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == "Pod" for key in commit.keys):
            running = [pod.key.name for pod in self._reader.pods() if outcome_of(pod.view) is None]
            if len(running) > self._most:
                yield "too many at once", f"{running} at revision {commit.revision}"


async def job(sim: Simulation) -> int:
    """Every third pod fails, and sometimes an ended pod is deleted."""
    cluster = await new_cluster(sim)
    manager = WorkloadManager(sim, cluster)
    hands = FakeNodes(cluster, phase_of=lambda pod: "Failed" if int(pod.uid[:4], 16) % 3 == 0 else "Succeeded")
    reader = StoreReader(cluster.store)
    sim.check_always(ParallelismHolds(reader, 2))
    for n in range(2):
        sim.host(f"manager-{n}").boot(manager.start)
    working = asyncio.create_task(hands.run())
    await cluster.authority.create(JOB, batch(completions=6, parallelism=2, backoffLimit=100))
    for _ in range(12):
        await asyncio.sleep(5)
        for pod in reader.pods():
            if pod.view.finished and int(pod.uid[4:8], 16) % 2:
                await cluster.authority.delete(pod.key)
    await settle(sim, cluster, lambda: is_finished(reader), within_s=3600)
    working.cancel()
    found = reader.get(BATCH)
    assert found is not None
    status, ended = found.view.status, list(hands.ended.values())
    assert status.succeeded == ended.count("Succeeded") == 6, f"{status} but {ended}"
    assert status.failed == ended.count("Failed"), f"{status} but {ended}"
    assert not any(pod.metadata.finalizers for pod in reader.pods())
    return await manager.recheck()


def is_finished(reader: StoreReader) -> bool:
    found = reader.get(BATCH)
    return found is not None and is_true(found.view.status.conditions, "Complete")


@seeds(10, 120)
def test_a_job_counts_each_ended_pod_once_under_faults_and_its_decisions_recheck(seeds: range) -> None:
    """Six completions two at a time are three rounds, of at least one decision each, and one decision for the end. If
    both managers were down or partitioned for most of the minute there are hardly more."""
    rechecked = 0
    for seed in seeds:
        outcome = run(job, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result >= 4
        rechecked += outcome.result
    assert rechecked > len(seeds) * 15

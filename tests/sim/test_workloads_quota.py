"""A workload that a quota refused continues as soon as there is room, without waiting for its backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kit.controllers import QUICK, replica_set
from tests.kit.workload_manifests import BATCH, JOB, WEB, batch, web
from tests.kit.workloads import FakeNodes, StoreReader, WorkloadManager, new_cluster
from tests.objects import DEPLOYMENT, POD, RESOURCE_QUOTA, pod, resource_quota

from kedge.api.conditions import is_true
from kedge.api.kinds import KINDS, Kind
from kedge.keys import Key
from kedge.sim.kernel import NO_FAULTS, Simulation, run

REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")
SET = Key("ReplicaSet.apps", "default", "blocked")
QUOTA = Key("ResourceQuota", "default", "limits")
PATIENT = replace(QUICK, queue_backoff_s=900.0, queue_backoff_s_max=900.0)
"""The backoff after a failure outlasts the test: only a wake-up ends it."""


async def blocked(sim: Simulation, kind: Kind, key: Key, body: dict[str, Any], hard: str, free: str) -> None:
    """A create is refused; room is made in one of several ways; the refusal is over within seconds."""
    cluster = await new_cluster(sim)
    reader = StoreReader(cluster.store)
    service = cluster.authority
    await service.create(RESOURCE_QUOTA, resource_quota(**{hard: "1"}))
    other = pod("other") if hard == "pods" else replica_set("other", 0)
    await service.create(POD if hard == "pods" else REPLICA_SET, other)
    sim.host("manager").boot(WorkloadManager(sim, cluster, limits=PATIENT).start)
    working = asyncio.create_task(FakeNodes(cluster, phase_of=lambda _: "Succeeded").run())
    await service.create(kind, body)

    def refused() -> bool:
        found = reader.get(key)
        return found is not None and is_true(found.view.status.conditions, "ReplicaFailure")

    await asyncio.sleep(30)
    assert refused()
    match free:
        case "it limits more":
            await service.patch(QUOTA, {"spec": {"hard": {hard: "9"}}})
        case "it is gone":
            await service.delete(QUOTA)
        case "less is used":
            gone = Key("Pod" if hard == "pods" else "ReplicaSet.apps", "default", "other")
            await service.delete(gone)
    await asyncio.sleep(10)
    assert not refused()
    working.cancel()


CASES: dict[str, tuple[Kind, Key, Callable[[], dict[str, Any]], str]] = {
    "a ReplicaSet": (REPLICA_SET, SET, lambda: replica_set("blocked", 1), "pods"),
    "a Job": (JOB, BATCH, lambda: batch(completions=1), "pods"),
    "a Deployment": (DEPLOYMENT, WEB, lambda: web(1, surge=1, unavailable=0), "count/replicasets.apps"),
}


@pytest.mark.parametrize("free", ["it limits more", "less is used", "it is gone"])
@pytest.mark.parametrize("workload", CASES)
def test_room_in_a_quota_wakes_blocked_workloads(workload: str, free: str) -> None:
    kind, key, body, hard = CASES[workload]
    outcome = run(partial(blocked, kind=kind, key=key, body=body(), hard=hard, free=free), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"

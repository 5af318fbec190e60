"""Judges allow what a person may do to the objects of controllers, and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.kit.raw_cluster import OWNER, RawCluster, ready, replica_set, slotted
from tests.objects import config_map, deployment, pod_key

from kedge.api.requests import DeleteOptions
from kedge.api.wellknown import SLOT
from kedge.keys import Key, Origin
from kedge.sim.cluster import Cluster
from kedge.sim.judges.facts import LAG_S
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store import DeleteKey

RS = Key("ReplicaSet.apps", "default", "web")
CONTROLLER = Origin("", "replicaset:p1:1")
ABOVE = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d-1", "controller": True}
Program = Callable[[RawCluster], Awaitable[None]]


def judged(program: Program) -> str:
    """The invariant that a program breaks; empty if it breaks none."""

    async def inner(sim: Simulation) -> None:
        cluster = Cluster(sim)
        await cluster.set_up()
        await program(RawCluster(cluster, Judge(cluster)))

    found = run(inner, 1, faults=NO_FAULTS).violation
    return "" if found is None else found.invariant


async def add_deployment(raw: RawCluster, replicas: int) -> None:
    body = deployment("web", replicas=replicas)
    body["metadata"] |= {"namespace": "default", "generation": 1}
    await raw.add(body, "d-1")
    owned = replica_set(replicas)
    owned["metadata"]["ownerReferences"] = [ABOVE]
    await raw.add(owned, "rs-1", origin=Origin("", "deployment:p1:1"))


def copy_number(n: int) -> dict[str, Any]:
    body = slotted(f"web-{n}")
    body["metadata"]["annotations"][SLOT] = str(n)
    return body


def resize(found: dict[str, Any]) -> None:
    found["spec"]["replicas"] = 5


@pytest.mark.parametrize(
    ("by", "found"), [(Origin("", ""), ""), (CONTROLLER, "live copies are at most desired plus surge")]
)
def test_a_replica_set_of_a_deployment_may_be_resized_by_a_person_only(by: Origin, found: str) -> None:
    async def program(raw: RawCluster) -> None:
        await add_deployment(raw, 1)
        await asyncio.sleep(2 * LAG_S)
        await raw.put(RS, resize, origin=by)
        for n in range(5):
            await raw.add(copy_number(n), f"u-{n}", origin=CONTROLLER)

    assert judged(program) == found


def test_a_replica_set_that_a_person_resized_still_has_its_own_bound() -> None:
    async def program(raw: RawCluster) -> None:
        await add_deployment(raw, 1)
        await asyncio.sleep(2 * LAG_S)
        await raw.put(RS, resize)
        for n in range(6):
            await raw.add(copy_number(n), f"u-{n}", origin=CONTROLLER)

    assert judged(program) == "live copies are at most desired plus surge"


@pytest.mark.parametrize(
    ("by", "found"),
    [(Origin("", ""), ""), (Origin("", "deployment:p1:2"), "the last healthy replica is not removed")],
)
def test_the_pods_of_a_replica_set_that_a_person_deleted_may_all_be_removed(by: Origin, found: str) -> None:
    def mark(found: dict[str, Any]) -> None:
        found["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}

    async def program(raw: RawCluster) -> None:
        await add_deployment(raw, 1)
        await raw.add(ready("web-0"), "u-0", origin=CONTROLLER)
        await asyncio.sleep(2 * LAG_S)
        await raw.put(RS, mark, origin=by)
        await raw.cluster.store.commit([], [DeleteKey(pod_key())], origin=Origin("", "garbage:p1:1"))

    assert judged(program) == found


@pytest.mark.parametrize("again", ["Background", "Foreground"])
def test_a_second_deletion_with_another_propagation_does_not_wait_for_children(again: str) -> None:
    async def program(raw: RawCluster) -> None:
        owner = await raw.cluster.create(config_map("owner"))
        reference = {**OWNER, "kind": "ConfigMap", "apiVersion": "v1", "name": "owner", "uid": owner.uid}
        child = config_map("child")
        child["metadata"] |= {"ownerReferences": [{**reference, "blockOwnerDeletion": True}]}
        await raw.cluster.create(child)
        for propagation in ("Foreground", again):
            await raw.cluster.authority.delete(owner.key, DeleteOptions(propagation=propagation))
        assert (raw.cluster.find(owner.key) is None) == (again == "Background")

    assert judged(program) == ""

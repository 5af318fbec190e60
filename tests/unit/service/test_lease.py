"""Leases and their fences: the writes of a deposed leader fail."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import LEASE, NAMESPACE, World, asynchronous, config_map, make_world

from kedge.api.requests import WriteOptions
from kedge.errors import Conflict, Fenced
from kedge.keys import Fence, Key, fence_key

KEY = Key("Lease.coordination.k8s.io", "default", "scheduler")


def lease(holder: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "scheduler", "namespace": "default"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }


async def write_as(world: World, fence: Fence, name: str) -> None:
    kind = world.service.kinds.of_key_kind("ConfigMap")
    await world.service.create(kind, config_map(name), options=WriteOptions(fence=fence))


@asynchronous
async def test_the_revision_of_acquisition_is_the_holders_token() -> None:
    world = await make_world()
    taken = (await world.service.create(LEASE, lease("a"))).object
    await write_as(world, Fence(fence_key(KEY), taken.revision), "by-a")


@asynchronous
async def test_a_renewal_does_not_move_the_fence() -> None:
    world = await make_world()
    taken = (await world.service.create(LEASE, lease("a"))).object
    for n in range(3):
        renewal = {"spec": {"renewTime": f"2030-01-01T00:00:0{n}.000000Z"}}
        await world.service.patch(KEY, renewal)
    await write_as(world, Fence(fence_key(KEY), taken.revision), "still-by-a")


@asynchronous
async def test_a_new_holder_fences_the_old_one() -> None:
    world = await make_world()
    first = (await world.service.create(LEASE, lease("a"))).object
    second = (await world.service.patch(KEY, {"spec": {"holderIdentity": "b"}})).object
    with pytest.raises(Fenced) as caught:
        await write_as(world, Fence(fence_key(KEY), first.revision), "late")
    assert caught.value.revision == second.revision
    await write_as(world, Fence(fence_key(KEY), second.revision), "by-b")


@asynchronous
async def test_acquiring_its_own_lease_again_begins_a_new_term() -> None:
    """The reply to the first acquisition was lost, and its token with it: that token must not stay valid."""
    world = await make_world()
    first = (await world.service.create(LEASE, lease("a"))).object
    again = (await world.service.patch(KEY, {"spec": {"acquireTime": "2030-01-01T00:01:00.000000Z"}})).object
    with pytest.raises(Fenced):
        await write_as(world, Fence(fence_key(KEY), first.revision), "late")
    await write_as(world, Fence(fence_key(KEY), again.revision), "by-a")


@asynchronous
async def test_a_released_or_deleted_lease_fences_its_holder() -> None:
    world = await make_world()
    first = (await world.service.create(LEASE, lease("a"))).object
    await world.service.patch(KEY, {"spec": {"holderIdentity": ""}})
    with pytest.raises(Fenced):
        await write_as(world, Fence(fence_key(KEY), first.revision), "late")
    again = (await world.service.patch(KEY, {"spec": {"holderIdentity": "a"}})).object
    await world.service.delete(KEY)
    with pytest.raises(Fenced):
        await write_as(world, Fence(fence_key(KEY), again.revision), "later")
    third = (await world.service.create(LEASE, lease("a"))).object
    assert third.revision > again.revision


@asynchronous
async def test_two_candidates_cannot_both_acquire_a_lease() -> None:
    world = await make_world()
    free = (await world.service.create(LEASE, lease(""))).object
    bids = []
    for name in ("a", "b"):
        body = lease(name)
        body["metadata"]["resourceVersion"] = str(free.revision)
        bids.append(body)
    await world.service.update(KEY, bids[0])
    with pytest.raises(Conflict):
        await world.service.update(KEY, bids[1])


@asynchronous
async def test_a_nodes_lease_has_no_fence() -> None:
    """A moved fence notifies every watch at once: a thousand nodes that register would notify each of them."""
    world = await make_world()
    await world.service.create(NAMESPACE, {"metadata": {"name": "kube-node-lease"}})
    metadata = {"name": "node-1", "namespace": "kube-node-lease"}
    taken = (await world.service.create(LEASE, {**lease("node-1"), "metadata": metadata})).object
    (fence,) = (await world.store.get([fence_key(taken.key)])).entries
    assert fence is None
    with pytest.raises(Fenced):
        await write_as(world, Fence(fence_key(taken.key), taken.revision), "by-node-1")


@asynchronous
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_new_holder_fences_a_write_that_changes_nothing(dry_run: bool) -> None:
    world = await make_world()
    first = (await world.service.create(LEASE, lease("a"))).object
    await world.create(config_map("same"))
    fence = Fence(fence_key(KEY), first.revision)
    same = WriteOptions(fence=fence, dry_run=dry_run)
    await world.service.patch(Key("ConfigMap", "default", "same"), {}, options=same)
    await world.service.patch(KEY, {"spec": {"holderIdentity": "b"}})
    with pytest.raises(Fenced):
        await world.service.patch(Key("ConfigMap", "default", "same"), {}, options=same)

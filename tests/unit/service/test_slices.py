"""Lists and counts of many objects: in slices between which other tasks run, each at one revision, each once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.objects import (
    CONFIG_MAP,
    POD,
    World,
    asynchronous,
    config_map,
    make_world,
    node,
    pod,
    pod_key,
    resource_quota,
    zone_quota,
)

from kedge.api.requests import Binding, ListOptions
from kedge.limits import Limits

SLICE = 10
LIMITS = Limits(list_slice_max=SLICE, list_page_max=40)


class Turns:
    """How many objects the service scanned in each turn of the event loop."""

    def __init__(self, world: World) -> None:
        self._scanned = world.env.metrics.counter("kedge_service_list_scanned_total", "")
        self.scanned: list[int] = []

    async def watch(self) -> None:
        before = self._scanned.value
        while True:
            await asyncio.sleep(0)
            now = self._scanned.value
            self.scanned.append(int(now - before))
            before = now


@contextlib.asynccontextmanager
async def turns_of(world: World) -> AsyncIterator[Turns]:
    turns = Turns(world)
    task = asyncio.create_task(turns.watch())
    await asyncio.sleep(0)
    yield turns
    await asyncio.sleep(0)
    task.cancel()


def labelled_pod(name: str, odd: int) -> dict[str, Any]:
    found = pod(name)
    found["metadata"]["labels"] = {"odd": str(odd)}
    return found


async def filled_world() -> World:
    world = await make_world(limits=LIMITS)
    for n in range(95):
        await world.create(labelled_pod(f"web-{n:03}", n % 2))
    return world


@asynchronous
async def test_a_selected_list_lets_other_tasks_run_between_slices() -> None:
    world = await filled_world()
    async with turns_of(world) as turns:
        found = await world.service.list(POD, ListOptions(namespace="default", label_selector="odd=1"))
    assert len(found.objects) == 47
    assert sum(turns.scanned) == 95
    assert max(turns.scanned) == SLICE


@asynchronous
async def test_a_list_shows_one_revision_though_objects_change_between_its_slices() -> None:
    world = await filled_world()

    async def delete_all() -> None:
        for n in range(95):
            await world.service.delete(pod_key(f"web-{n:03}"))
            await world.create(labelled_pod(f"xeb-{n:03}", 1))
            await asyncio.sleep(0)

    deleting = asyncio.create_task(delete_all())
    found = await world.service.list(POD, ListOptions(namespace="default", label_selector="odd=1"))
    assert not deleting.done()
    await deleting
    exact = ListOptions(namespace="default", resource_version=str(found.revision), resource_version_match="Exact")
    then = (await world.service.list(POD, exact)).objects
    odd = [each.key.name for each in then if each.metadata.labels["odd"] == "1"]
    assert [each.key.name for each in found.objects] == odd


@pytest.mark.parametrize("limit", [1, 9, 10, 11, 46, 47, 48])
@asynchronous
async def test_pages_of_a_selected_list_join_into_the_whole(limit: int) -> None:
    world = await filled_world()
    names: list[str] = []
    token = ""
    while True:
        page = await world.service.list(
            POD, ListOptions(namespace="default", label_selector="odd=1", limit=limit, continue_token=token)
        )
        assert len(page.objects) <= limit
        names += [each.key.name for each in page.objects]
        token = page.continue_token
        if not token:
            break
    assert names == [f"web-{n:03}" for n in range(95) if n % 2]


@asynchronous
async def test_a_quota_is_counted_in_slices_and_once_for_all_writes_that_wait() -> None:
    world = await filled_world()
    quota = await world.create(resource_quota(**{"count/pods": "200"}))
    async with turns_of(world) as turns:
        await asyncio.gather(*(world.create(pod(f"new-{n}")) for n in range(8)))
    assert max(turns.scanned) == SLICE
    assert 95 <= sum(turns.scanned) < 2 * 95
    assert str((await world.get(quota.key)).view.status.used["count/pods"]) == "103"


@asynchronous
async def test_a_zone_is_counted_in_slices_and_once_for_all_claims_that_wait() -> None:
    world = await make_world(limits=LIMITS)
    for n in range(35):
        await world.create(node(f"node-{n}"))
        await world.create(pod(f"web-{n}"))
        await world.service.bind(Binding(pod=pod_key(f"web-{n}"), node=f"node-{n}"))
    quota = await world.create(zone_quota(zone_a={"pods": "90"}))
    for n in range(6):
        await world.create(pod(f"new-{n}"))
    async with turns_of(world) as turns:
        await asyncio.gather(
            *(world.service.bind(Binding(pod=pod_key(f"new-{n}"), node=f"node-{n}")) for n in range(6))
        )
    assert max(turns.scanned) == SLICE
    assert 35 <= sum(turns.scanned) < 2 * 35
    assert str((await world.get(quota.key)).view.status.zones["zone-a"].used["pods"]) == "41"


@asynchronous
async def test_objects_that_go_while_a_quota_is_counted_are_not_counted() -> None:
    world = await make_world(limits=LIMITS)
    for n in range(45):
        await world.create(config_map(f"settings-{n}"))
    quota = await world.create(resource_quota(**{"count/configmaps": "90"}))
    keys = [each.key for each in (await world.service.list(CONFIG_MAP, ListOptions(namespace="default"))).objects]
    await asyncio.gather(
        *(world.service.delete(key) for key in keys[:20]), *(world.create(config_map(f"new-{n}")) for n in range(5))
    )
    assert str((await world.get(quota.key)).view.status.used["count/configmaps"]) == "30"

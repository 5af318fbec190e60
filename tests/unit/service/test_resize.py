"""Resizes in place: charged to quotas and the ledger in their own commit, granted by the commit that allocates them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import World, asynchronous, make_world, node, pod, pod_key, resource_quota, zone_quota

from kedge.api.objects import Object
from kedge.api.requests import Binding, PatchType
from kedge.api.views import PodView
from kedge.errors import Conflict, Forbidden, Invalid, Refused
from kedge.keys import Key

QUOTA = Key("ResourceQuota", "default", "limits")


async def bound(world: World, name: str = "a", **parts: Any) -> Object:
    made = await world.create(pod(name, **parts))
    await world.service.bind(Binding(pod=made.key, node="node-a"))
    return made


async def resize(world: World, name: str = "a", **requests: str) -> Object:
    body = {"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}}
    patched = world.service.patch(pod_key(name), body, patch_type=PatchType.STRATEGIC, subresource="resize")
    return (await patched).object


async def report(
    world: World, name: str = "a", *, allocated: str, applied: str, condition: tuple[str, str, int] | None = None
) -> Object:
    """Write a report of the pod's CPU, as the agent of its node does."""
    status = {
        "name": "main",
        "image": "web:1",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "allocatedResources": {"cpu": allocated, "memory": "64Mi"},
        "resources": {"requests": {"cpu": applied, "memory": "64Mi"}},
    }
    conditions = []
    if condition is not None:
        type_, reason, generation = condition
        conditions = [{"type": type_, "status": "True", "reason": reason, "observedGeneration": generation}]
    body = {"status": {"containerStatuses": [status], "conditions": conditions}}
    return (await world.service.patch(pod_key(name), body, subresource="status")).object


async def claimed(world: World, name: str = "a") -> tuple[str, str]:
    """The CPU of the pod's claim, and the part of it that is granted."""
    entries = (await world.ledger("node-a")).entries.values()
    entry = next(each for each in entries if each.name == name)
    assert entry.granted is None or entry.granted != entry.requests, "a claim that is granted whole has no grant"
    return str(entry.requests["cpu"]), str((entry.granted or entry.requests)["cpu"])


@asynchronous
async def test_a_resize_changes_the_spec_and_the_generation_and_nothing_else() -> None:
    world = await make_world()
    made = await world.create(pod("a"))
    body = made.edit()
    body["metadata"]["labels"] = {"app": "other"}
    body["spec"]["containers"][0] |= {"image": "web:2", "resources": {"requests": {"cpu": "200m", "memory": "64Mi"}}}
    body["spec"]["priority"] = 7
    found = (await world.service.update(made.key, body, subresource="resize")).object
    assert found.metadata.generation == made.metadata.generation + 1
    assert found.metadata.labels == {"app": "web"}
    container = found.as_view(PodView).spec.containers[0]
    assert container.image == "web:1"
    assert str(container.resources.requests["cpu"]) == "200m"
    again = (await world.service.update(made.key, found.edit(), subresource="resize")).object
    assert again.metadata.generation == found.metadata.generation


@asynchronous
async def test_a_plain_update_does_not_change_resources() -> None:
    world = await make_world()
    made = await world.create(pod("a"))
    body = made.edit()
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "200m", "memory": "64Mi"}}
    with pytest.raises(Invalid, match="pod updates may not change fields"):
        await world.service.update(made.key, body)


@asynchronous
async def test_a_resize_is_charged_in_its_commit_and_granted_by_the_report_of_its_allocation() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    await world.create(resource_quota(requests__cpu="2"))
    await bound(world, cpu="300m")
    assert await claimed(world) == ("300m", "300m")
    resized = await resize(world, cpu="700m")
    assert await claimed(world) == ("700m", "300m"), "it counts at once, and nothing is proved yet"
    assert str((await world.get(QUOTA)).view.status.used["requests.cpu"]) == "700m"
    waiting = await world.create(pod("b", cpu="300m"))
    await world.service.bind(Binding(pod=waiting.key, node="node-a"))
    with pytest.raises(Refused):  # the room is kept for the resize
        await bound(world, "c", cpu="1m")
    begun = ("PodResizeInProgress", "", resized.metadata.generation)
    await report(world, allocated="700m", applied="300m", condition=begun)
    assert await claimed(world) == ("700m", "700m")
    await report(world, allocated="700m", applied="700m")
    assert await claimed(world) == ("700m", "700m")


@asynchronous
async def test_an_allocation_without_room_is_refused_and_one_by_another_writer_is_not_granted() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    await bound(world, cpu="300m")
    await bound(world, "b", cpu="500m")
    resized = await resize(world, cpu="700m")
    assert str((await world.ledger("node-a")).allocated["cpu"]) == "1200m"
    begun = ("PodResizeInProgress", "", resized.metadata.generation)
    with pytest.raises(Conflict, match="has no room for its resize: cpu"):
        await report(world, allocated="700m", applied="300m", condition=begun)
    await report(world, allocated="700m", applied="300m")
    assert await claimed(world) == ("700m", "300m")
    await world.record_end(pod_key("b"))
    await report(world, allocated="700m", applied="300m", condition=begun)
    assert await claimed(world) == ("700m", "700m")


@asynchronous
async def test_a_resize_down_frees_its_room_when_it_is_applied_not_before() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    await world.create(resource_quota(requests__cpu="1"))
    await bound(world, cpu="800m")
    await report(world, allocated="800m", applied="800m")
    resized = await resize(world, cpu="200m")
    assert await claimed(world) == ("800m", "800m")
    begun = ("PodResizeInProgress", "", resized.metadata.generation)
    await report(world, allocated="200m", applied="800m", condition=begun)
    assert await claimed(world) == ("800m", "800m")
    await report(world, allocated="200m", applied="200m")
    assert await claimed(world) == ("200m", "200m")
    assert str((await world.get(QUOTA)).view.status.used["requests.cpu"]) == "200m"
    await bound(world, "b", cpu="800m")


@asynchronous
async def test_an_infeasible_resize_counts_with_the_status_alone() -> None:
    world = await make_world()
    await world.create(node(cpu="4"))
    await world.create(resource_quota(requests__cpu="2"))
    await bound(world, cpu="500m")
    await report(world, allocated="500m", applied="500m")
    resized = await resize(world, cpu="2")
    generation = resized.metadata.generation
    await report(world, allocated="500m", applied="500m", condition=("PodResizePending", "Infeasible", generation))
    assert await claimed(world) == ("500m", "500m")
    assert str((await world.get(QUOTA)).view.status.used["requests.cpu"]) == "500m"
    await world.create(pod("b", cpu="1"))
    await report(world, allocated="500m", applied="500m", condition=("PodResizePending", "Deferred", generation))
    assert await claimed(world) == ("2", "500m")
    used = str((await world.get(QUOTA)).view.status.used["requests.cpu"])
    assert used == "3", "a report of a node is charged even past the quota"


@asynchronous
async def test_quotas_refuse_a_resize_and_keep_everything_as_it_was() -> None:
    world = await make_world()
    await world.create(node(cpu="4"))
    await world.create(resource_quota(requests__cpu="1"))
    await world.create(zone_quota(zone_a={"cpu": "800m"}))
    await bound(world, cpu="500m")
    with pytest.raises(Forbidden, match=r"exceeded quota: limits, requested: requests\.cpu=700m"):
        await resize(world, cpu="1200m")
    with pytest.raises(Forbidden, match="zone quota zones has no room in zone-a for the resize: cpu"):
        await resize(world, cpu="900m")
    assert await claimed(world) == ("500m", "500m")
    await resize(world, cpu="800m")
    assert await claimed(world) == ("800m", "500m")
    zones = (await world.get(Key("ZoneQuota.kedge.dev", "default", "zones"))).view.status.zones
    assert str(zones["zone-a"].used["cpu"]) == "800m"
    assert str((await world.get(QUOTA)).view.status.used["requests.cpu"]) == "800m"


@asynchronous
async def test_a_resize_past_the_nodes_allocatable_is_forbidden() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    await bound(world, cpu="500m")
    with pytest.raises(Forbidden) as caught:
        await resize(world, cpu="1500m")
    assert caught.value.message == (
        'pods "a" is forbidden: node didn\'t have enough allocatable resources: cpu, requested: 1500, allocatable: 1000'
    )


@asynchronous
async def test_a_limit_range_holds_for_a_resize() -> None:
    world = await make_world()
    item = {"type": "Container", "max": {"cpu": "500m"}}
    limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r", "namespace": "default"}}
    made = pod("a")
    made["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "100m"}
    await world.create(made)
    await world.create(limit_range | {"spec": {"limits": [item]}})
    body = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "700m"}}}]}}
    with pytest.raises(Forbidden, match="maximum cpu usage per Container is 500m, but limit is 700m"):
        await world.service.patch(pod_key("a"), body, patch_type=PatchType.STRATEGIC, subresource="resize")


@asynchronous
async def test_a_pod_that_waits_for_a_node_is_bound_with_its_new_size() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    made = await world.create(pod("a", cpu="500m"))
    await resize(world, cpu="800m")
    await world.service.bind(Binding(pod=made.key, node="node-a"))
    assert await claimed(world) == ("800m", "800m")


@asynchronous
async def test_a_pod_resized_before_its_first_report_is_granted_by_the_report_of_its_allocation() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    await bound(world, cpu="300m")
    resized = await resize(world, cpu="700m")
    await report(world, allocated="700m", applied="700m")
    assert await claimed(world) == ("700m", "300m"), "a first report proves nothing"
    begun = ("PodResizeInProgress", "", resized.metadata.generation)
    await report(world, allocated="700m", applied="700m", condition=begun)
    assert await claimed(world) == ("700m", "700m")


@asynchronous
async def test_containers_that_exchange_their_room_need_no_more_of_it() -> None:
    """The sum of what is allocated has to fit, not the sum of each container's maximum."""
    world = await make_world()
    await world.create(node(cpu="1"))
    made = pod("a", cpu="600m")
    second = {"name": "side", "image": "web:1", "resources": {"requests": {"cpu": "400m"}}}
    made["spec"]["containers"].append(second)
    created = await world.create(made)
    await world.service.bind(Binding(pod=created.key, node="node-a"))

    async def report_both(allocated: tuple[str, str], applied: tuple[str, str], **more: Any) -> None:
        statuses = [
            {
                "name": name,
                "image": "web:1",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "allocatedResources": {"cpu": one},
                "resources": {"requests": {"cpu": other}},
            }
            for name, one, other in zip(("main", "side"), allocated, applied, strict=True)
        ]
        body = {"status": {"containerStatuses": statuses, **more}}
        await world.service.patch(pod_key("a"), body, subresource="status")

    await report_both(("600m", "400m"), ("600m", "400m"))
    asked = [
        {"name": name, "resources": {"requests": {"cpu": cpu}}} for name, cpu in (("main", "300m"), ("side", "700m"))
    ]
    body = {"spec": {"containers": asked}}
    written = await world.service.patch(pod_key("a"), body, patch_type=PatchType.STRATEGIC, subresource="resize")
    assert await claimed(world) == ("1300m", "1")
    generation = written.object.metadata.generation
    begun = {"type": "PodResizeInProgress", "status": "True", "observedGeneration": generation}
    await report_both(("300m", "700m"), ("600m", "400m"), conditions=[begun])
    assert await claimed(world) == ("1300m", "1")
    await report_both(("300m", "700m"), ("300m", "700m"), conditions=[])
    assert await claimed(world) == ("1", "1")

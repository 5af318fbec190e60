"""Lists and watches, with Kubernetes' meaning of versions, pages and selectors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator

import msgspec
import pytest
from tests.objects import CONFIG_MAP, LEASE, POD, World, asynchronous, config_map, make_world, node, pod, pod_key

from kedge.api.requests import Binding, EventType, ListOptions, OpenWatch, WatchEvent, WatchOptions
from kedge.errors import BadRequest, Compacted, Invalid, NotFound, Unavailable
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service.reads import compile_selectors
from kedge.server.service.watches import _deleted, _event
from kedge.store import Change, Entry


async def make_maps(world: World, count: int) -> None:
    for n in range(count):
        body = config_map(f"m{n:03}")
        body["metadata"]["labels"] = {"parity": "odd" if n % 2 else "even"}
        await world.create(body)


async def take(stream: AsyncGenerator[WatchEvent, None], count: int) -> list[tuple[str, str]]:
    seen = []
    async with asyncio.timeout(5):
        for _ in range(count):
            event = await anext(stream)
            seen.append((event.type.value, event.object.key.name if event.object else ""))
    return seen


# -- get and list ----------------------------------------------------------------------------------


@asynchronous
async def test_pages_of_a_list_are_all_at_the_revision_of_the_first() -> None:
    world = await make_world()
    await make_maps(world, 10)
    first = await world.service.list(CONFIG_MAP, ListOptions(limit=4))
    assert first.remaining == 6
    await world.service.delete(Key("ConfigMap", "default", "m005"))
    await world.service.patch(Key("ConfigMap", "default", "m006"), {"data": {"new": "er"}})
    await world.create(config_map("m0055"))
    names = [o.key.name for o in first.objects]
    token = first.continue_token
    while token:
        page = await world.service.list(CONFIG_MAP, ListOptions(limit=4, continue_token=token))
        assert page.revision == first.revision
        assert all("data" not in o.edit() or "new" not in o.edit()["data"] for o in page.objects)
        names += [o.key.name for o in page.objects]
        token = page.continue_token
    assert names == [f"m{n:03}" for n in range(10)]


@asynchronous
async def test_a_selected_list_fills_its_pages() -> None:
    world = await make_world(limits=Limits(list_page_max=3))
    await make_maps(world, 20)
    names, token = [], ""
    while True:
        options = ListOptions(limit=4, label_selector="parity=odd", continue_token=token)
        page = await world.service.list(CONFIG_MAP, options)
        assert page.remaining is None
        names += [o.key.name for o in page.objects]
        token = page.continue_token
        if not token:
            break
        assert len(page.objects) == 4
    assert names == [f"m{n:03}" for n in range(1, 20, 2)]


@asynchronous
async def test_the_spliced_json_of_a_list_equals_the_encoded_list() -> None:
    world = await make_world()
    await make_maps(world, 3)
    listing = await world.service.list(CONFIG_MAP, ListOptions(limit=2))
    body = json.loads(listing.json())
    assert (body["kind"], body["apiVersion"]) == ("ConfigMapList", "v1")
    assert body["metadata"] == {
        "resourceVersion": str(listing.revision),
        "continue": listing.continue_token,
        "remainingItemCount": 1,
    }
    for item, found in zip(body["items"], listing.objects, strict=True):
        expected = msgspec.json.decode(found.value)
        expected["metadata"]["resourceVersion"] = str(found.revision)
        assert item == expected


@asynchronous
async def test_a_list_is_as_fresh_as_requested() -> None:
    world = await make_world(limits=Limits(watch_future_wait_s=0.05))
    await make_maps(world, 1)
    then = await world.store.revision()
    await make_more_maps(world)
    exact = ListOptions(resource_version=str(then), resource_version_match="Exact")
    assert len((await world.service.list(CONFIG_MAP, exact)).objects) == 1
    legacy = ListOptions(resource_version=str(then), limit=500)
    assert len((await world.service.list(CONFIG_MAP, legacy)).objects) == 1
    newer = ListOptions(resource_version=str(then), resource_version_match="NotOlderThan")
    assert len((await world.service.list(CONFIG_MAP, newer)).objects) == 2
    assert len((await world.service.list(CONFIG_MAP, ListOptions(resource_version="0"))).objects) == 2
    for match in ("Exact", "NotOlderThan"):
        future = ListOptions(resource_version=str(then + 1_000), resource_version_match=match)
        with pytest.raises(Unavailable):
            await world.service.list(CONFIG_MAP, future)
    await world.store.compact(await world.store.revision())
    with pytest.raises(Compacted):
        await world.service.list(CONFIG_MAP, exact)


async def make_more_maps(world: World) -> None:
    await world.create(config_map("later"))


@pytest.mark.parametrize(
    "options",
    [
        ListOptions(resource_version="abc"),
        ListOptions(resource_version_match="Exact"),
        ListOptions(resource_version="0", resource_version_match="Exact"),
        ListOptions(resource_version="1", resource_version_match="Roughly"),
        ListOptions(continue_token="not a token"),
        ListOptions(limit=-1),
        ListOptions(label_selector="a in ("),
        ListOptions(field_selector="spec.colour=red"),
    ],
)
def test_invalid_list_options_are_refused(options: ListOptions) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        with pytest.raises((BadRequest, Invalid)):
            await world.service.list(CONFIG_MAP, options)

    run()


@asynchronous
async def test_field_selectors_support_the_fields_of_kubernetes() -> None:
    world = await make_world()
    await world.create(node())
    for name in ("web-0", "web-1"):
        await world.create(pod(name))
    await world.service.bind(Binding(pod=pod_key("web-1"), node="node-a"))
    for text, names in (
        ("spec.nodeName=node-a", ["web-1"]),
        ("spec.nodeName=", ["web-0"]),
        ("metadata.name!=web-0", ["web-1"]),
        ("status.phase=Pending,metadata.namespace=default", ["web-0", "web-1"]),
    ):
        listing = await world.service.list(POD, ListOptions(field_selector=text))
        assert [o.key.name for o in listing.objects] == names, text


@asynchronous
async def test_a_get_can_demand_a_version() -> None:
    world = await make_world(limits=Limits(watch_future_wait_s=0.05))
    made = await world.create(config_map())
    assert (await world.service.get(made.key, resource_version=str(made.revision))).revision == made.revision
    with pytest.raises(Unavailable):
        await world.service.get(made.key, resource_version=str(made.revision + 100))
    with pytest.raises(NotFound):
        await world.service.get(Key("ConfigMap", "default", "absent"))
    with pytest.raises(NotFound):
        await world.service.get(Key("Unheard", "default", "of"))


# -- watch -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_watch_delivers_each_change_once_and_in_order() -> None:
    world = await make_world()
    stream = await world.service.watch(CONFIG_MAP, WatchOptions(resource_version=str(await world.store.revision())))
    made = await world.create(config_map())
    await world.service.patch(made.key, {"data": {"a": "b"}})
    await world.service.delete(made.key)
    assert await take(stream, 3) == [("ADDED", "settings"), ("MODIFIED", "settings"), ("DELETED", "settings")]
    await stream.aclose()


@asynchronous
async def test_a_watch_follows_its_selector() -> None:
    """An object that begins to match was added; one that stops matching was deleted; others do not appear."""
    world = await make_world()
    options = WatchOptions(resource_version=str(await world.store.revision()), label_selector="app=x")
    stream = await world.service.watch(CONFIG_MAP, options)
    made = await world.create(config_map())
    for labels in ({"app": "x"}, {"app": "x", "b": "c"}, {"app": "y"}, {"app": "x"}):
        await world.service.patch(made.key, {"metadata": {"labels": labels}})
    await world.service.delete(made.key)
    kinds = [kind for kind, _ in await take(stream, 5)]
    assert kinds == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    await stream.aclose()


@asynchronous
async def test_a_selective_watch_of_leases_misses_no_deletion() -> None:
    world = await make_world()
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "default", "labels": {"app": "x"}},
        "spec": {"holderIdentity": "me"},
    }
    made = await world.create(lease)
    seen = await world.store.revision()
    # Two versions before the next read: the one in between is not kept.
    await world.service.patch(made.key, {"metadata": {"labels": {"app": "y"}}})
    await world.service.patch(made.key, {"spec": {"holderIdentity": "you"}})
    options = WatchOptions(resource_version=str(seen), label_selector="app=x")
    stream = await world.service.watch(LEASE, options)
    assert ("DELETED", "l") in await take(stream, 1)
    await stream.aclose()


@pytest.mark.parametrize("options", [WatchOptions(), WatchOptions(resource_version="0")])
def test_a_watch_without_a_version_begins_with_existing_objects(options: WatchOptions) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        await make_maps(world, 3)
        stream = await world.service.watch(CONFIG_MAP, options)
        await world.create(config_map("later"))
        names = [name for _, name in await take(stream, 4)]
        assert names == ["m000", "m001", "m002", "later"]
        await stream.aclose()

    run()


@asynchronous
async def test_initial_events_end_with_a_bookmark() -> None:
    world = await make_world()
    await make_maps(world, 2)
    options = WatchOptions(send_initial_events=True, resource_version_match="NotOlderThan", allow_bookmarks=True)
    stream = await world.service.watch(CONFIG_MAP, options)
    events = [await anext(stream) for _ in range(3)]
    assert [event.type for event in events] == [EventType.ADDED, EventType.ADDED, EventType.BOOKMARK]
    assert events[2].initial_end
    assert events[2].revision == await world.store.revision()
    await stream.aclose()
    with pytest.raises(Invalid, match="NotOlderThan"):
        await world.service.watch(CONFIG_MAP, WatchOptions(send_initial_events=True))


@asynchronous
async def test_bookmarks_advance_an_idle_watch() -> None:
    world = await make_world(limits=Limits(watch_progress_s=0.01))
    revision = await world.store.revision()
    stream = await world.service.watch(POD, WatchOptions(resource_version=str(revision), allow_bookmarks=True))
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    made = await world.create(config_map())
    event = await asyncio.wait_for(following, 5)
    assert (event.type, event.revision) == (EventType.BOOKMARK, made.revision)
    await stream.aclose()


@asynchronous
async def test_a_watch_ends_when_its_time_is_up() -> None:
    world = await make_world()
    stream = await world.service.watch(POD, WatchOptions(timeout_s=0.01))
    assert [event async for event in stream] == []
    assert world.store.statistics().watchers == 0


@asynchronous
async def test_a_watch_from_a_compacted_version_fails() -> None:
    world = await make_world()
    await make_maps(world, 3)
    await world.store.compact(await world.store.revision())
    with pytest.raises(Compacted):
        await world.service.watch(CONFIG_MAP, WatchOptions(resource_version="1"))


@asynchronous
async def test_a_watch_that_is_never_read_is_closed_too() -> None:
    world = await make_world()
    stream = await world.service.watch(POD, WatchOptions())
    assert world.store.statistics().watchers == 1
    await stream.aclose()
    assert world.store.statistics().watchers == 0


@asynchronous
async def test_a_watch_can_be_taken_without_waiting_unless_it_has_a_deadline() -> None:
    """With the selector applied and the existing objects first, as for a reader that awaits it."""
    world = await make_world()
    await world.create(config_map("a"))
    options = WatchOptions(label_selector="!app", allow_bookmarks=True)
    stream = await world.service.open_event_stream(OpenWatch(CONFIG_MAP, options))
    seen: list[tuple[str, str]] = []

    def take() -> None:
        while (events := stream.take_nowait()) is not None:
            seen.extend((each.type.value, each.object.key.name if each.object else "") for each in events)

    assert stream.pushes
    stream.on_ready = take
    take()
    await world.create(config_map("b"))
    await world.create({**config_map("c"), "metadata": {"name": "c", "namespace": "default", "labels": {"app": "x"}}})
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    stream.on_ready = None
    stream.close()
    assert world.store.statistics().watchers == 0
    brief = await world.service.open_event_stream(OpenWatch(CONFIG_MAP, WatchOptions(timeout_s=1.0)))
    assert not brief.pushes
    brief.close()


@asynchronous
async def test_a_selective_watch_of_a_busy_kind_keeps_its_progress() -> None:
    """Its version must advance with the history of the kind, or it is compacted at the next resume."""
    world = await make_world(limits=Limits(watch_progress_s=3600.0))
    options = WatchOptions(
        resource_version=str(await world.store.revision()), label_selector="app=x", allow_bookmarks=True
    )
    stream = await world.service.watch(CONFIG_MAP, options)
    following = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await world.create(config_map("early"))  # too soon after the start for a bookmark
    for _ in range(5):
        await asyncio.sleep(0)
    assert not following.done()
    world.clock.advance(3601)
    made = await world.create(config_map("late"))
    event = await asyncio.wait_for(following, 5)
    assert (event.type, event.revision) == (EventType.BOOKMARK, made.revision)
    await stream.aclose()


@asynchronous
async def test_a_watch_reports_the_deletion_of_a_lease_whose_change_it_missed() -> None:
    """The version that stopped matching may be skipped, so the deletion must always be delivered."""
    world = await make_world()
    lease = {"metadata": {"name": "l", "namespace": "default", "labels": {"app": "y"}}, "spec": {"holderIdentity": "a"}}
    made = (await world.service.create(LEASE, lease)).object
    last = Entry(made.key, made.value, made.created, made.revision)
    core = world.service._core
    event = _event(core, LEASE, Change(9, made.key, None, last), compile_selectors(LEASE, "app=x", ""))
    assert event is not None
    assert (event.type, event.revision) == (EventType.DELETED, 9)


def test_a_deletion_of_a_forgotten_object_still_has_its_name() -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        key = Key("ConfigMap", "default", "gone")
        event = _deleted(world.service._core, Change(7, key, None, None))
        assert event.object is not None
        assert (event.type, event.revision, event.object.metadata.name) == (EventType.DELETED, 7, "gone")

    run()


@pytest.mark.parametrize("version", ["9" * 5000, str(2**63)])
def test_a_version_out_of_range_is_a_bad_request(version: str) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        with pytest.raises(BadRequest):
            await world.service.list(CONFIG_MAP, ListOptions(resource_version=version))
        token = base64.urlsafe_b64encode(f'{{"rv":{2**63},"ns":"","name":"a"}}'.encode()).decode()
        with pytest.raises(BadRequest):
            await world.service.list(CONFIG_MAP, ListOptions(continue_token=token))

    run()

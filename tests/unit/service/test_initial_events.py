"""Initial events of watches: pages at one revision, read as they are taken, within bytes over all watches."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from tests.objects import CONFIG_MAP, World, asynchronous, config_map, make_world

from kedge.api.codec import encode_object
from kedge.api.requests import OpenWatch, WatchEvent, WatchOptions
from kedge.errors import Compacted, TooManyRequests
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service.watches import EventStream
from kedge.store.contract import Put
from kedge.store.memory import MemoryStore

PAGE = 16 * 1024
SMALL = Limits(watch_initial_page_bytes=PAGE, watch_initial_bytes_max=4 * PAGE)
INITIAL = WatchOptions(send_initial_events=True, resource_version_match="NotOlderThan", allow_bookmarks=True)


async def world_of(count: int, limits: Limits) -> World:
    world = await make_world(limits=limits)
    store = world.store
    assert isinstance(store, MemoryStore)
    for first in range(0, count, 100):
        names = [f"m{number:05}" for number in range(first, min(first + 100, count))]
        bodies = [{**config_map(name), "metadata": {"name": name, "namespace": "default"}} for name in names]
        keys = [Key("ConfigMap", "default", name) for name in names]
        store.commit_nowait([], [Put(key, encode_object(body)) for key, body in zip(keys, bodies, strict=True)])
    return world


async def opened(world: World, options: WatchOptions = INITIAL) -> EventStream:
    return await world.service.open_event_stream(OpenWatch(CONFIG_MAP, options))


def names(events: list[WatchEvent]) -> list[str]:
    return [each.object.key.name if each.object is not None else "end" for each in events]


async def taken_to_the_end(stream: EventStream) -> None:
    for _ in range(10):
        stream.take_nowait()
        await asyncio.sleep(0)


def held(world: World) -> int:
    return world.service._core.initial_bytes.held


@asynchronous
async def test_watches_that_are_not_read_hold_a_page_each() -> None:
    count, watches = 4_000, 20
    world = await world_of(count, Limits(watch_initial_page_bytes=PAGE))
    warm = await opened(world)
    warm.close()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        streams = [await opened(world) for _ in range(watches)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held(world) == watches * PAGE
    assert after - before < watches * PAGE, "the bytes reserved are fewer than the bytes in memory"
    for stream in streams:
        stream.close()
    assert held(world) == 0


@asynchronous
async def test_every_page_is_at_the_revision_of_the_first_and_changes_follow() -> None:
    world = await world_of(300, SMALL)
    stream = await opened(world)
    events = list(await anext(stream))
    assert 1 <= len(events) < 100
    await world.service.delete(Key("ConfigMap", "default", "m00200"))
    await world.create(config_map("m00000-later"))
    while len(events) < 303:
        events += await asyncio.wait_for(anext(stream), 5)
    assert names(events)[:301] == [*(f"m{number:05}" for number in range(300)), "end"]
    assert [(each.type.value, *names([each])) for each in events[301:303]] == [
        ("DELETED", "m00200"),
        ("ADDED", "m00000-later"),
    ]
    assert held(world) == 0
    stream.close()


@pytest.mark.parametrize("selector", ["", "!app"])
def test_a_reader_that_takes_without_waiting_is_woken_for_each_page(selector: str) -> None:
    @asynchronous
    async def run() -> None:
        world = await world_of(300, SMALL)
        stream = await opened(world, WatchOptions(label_selector=selector))
        events: list[WatchEvent] = []
        woken = asyncio.Event()
        stream.on_ready = woken.set
        async with asyncio.timeout(5):
            while len(events) < 300:
                while (batch := stream.take_nowait()) is not None:
                    events += batch
                if len(events) < 300:
                    await woken.wait()
                    woken.clear()
        assert names(events) == [f"m{number:05}" for number in range(300)]
        assert stream.take_nowait() is None
        assert held(world) == 0
        stream.close()

    run()


@asynchronous
async def test_a_watch_beyond_the_bytes_of_all_is_refused_until_others_have_read() -> None:
    world = await world_of(300, SMALL)
    streams = [await opened(world) for _ in range(4)]
    with pytest.raises(TooManyRequests, match="initial events") as refused:
        await opened(world)
    assert refused.value.retry_after_s > 1
    plain = await opened(world, WatchOptions(resource_version=str(await world.store.revision())))
    for _ in range(50):
        streams[0].take_nowait()
        await asyncio.sleep(0)
    assert held(world) == 3 * PAGE
    streams.append(await opened(world))
    for stream in (*streams, plain):
        stream.close()
        stream.close()
    assert held(world) == 0


@asynchronous
async def test_a_page_that_was_compacted_ends_the_watch() -> None:
    for wait in (True, False):
        world = await world_of(300, SMALL)
        stream = await opened(world)
        assert stream.take_nowait()
        await world.create(config_map("later"))
        await world.store.compact(await world.store.revision())
        with pytest.raises(Compacted):
            await (anext(stream) if wait else taken_to_the_end(stream))
        stream.close()
        assert held(world) == 0


@asynchronous
async def test_a_stream_that_is_closed_while_a_page_is_read_holds_nothing() -> None:
    world = await world_of(300, SMALL)
    stream = await opened(world)
    assert stream.take_nowait()
    assert stream.take_nowait() is None  # a task reads the next page
    stream.close()
    await asyncio.sleep(0.01)
    assert held(world) == 0
    assert stream._initial is None


@asynchronous
async def test_an_object_larger_than_a_page_is_a_page_of_its_own() -> None:
    world = await make_world(limits=SMALL)
    for name in ("a", "b"):
        await world.create({**config_map(name), "data": {"filler": "x" * 2 * PAGE}})
    stream = await opened(world)
    assert names(list(await anext(stream))) == ["a"]
    assert names(list(await anext(stream))) == ["b", "end"]
    stream.close()
    assert held(world) == 0


@asynchronous
async def test_other_tasks_run_between_two_batches_that_are_both_there() -> None:
    world = await world_of(1_000, Limits(watch_batch_max=100))
    stream = await opened(world, WatchOptions(resource_version=str(0)))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.ensure_future(turn())
    seen = 0
    async for batch in stream:
        seen += len(batch)
        if seen >= 1_000:
            break
    turning.cancel()
    await stream.aclose()
    assert turns >= 5

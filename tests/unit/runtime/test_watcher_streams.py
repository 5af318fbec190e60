"""Streams of a watcher that are dead without an error, lose events, are suspected, or deliver too much."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any, NoReturn

from tests.kit.runtime import (
    QUICK,
    SLOW_GUARD,
    CacheHarness,
    is_current,
    make_cache_harness,
    map_key,
    start_watcher,
    stop_watcher,
    until,
)
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP, NAMESPACE, Clock, World, asynchronous, config_map, make_env

from kedge.api.objects import Object
from kedge.api.requests import EventType, ListOptions, ObjectList, WatchEvent
from kedge.errors import Unavailable
from kedge.runtime.cache import Cache, Index
from kedge.runtime.watch_states import StoppedState, WatchReason
from kedge.runtime.watcher import Watcher
from kedge.store.memory import MemoryStore


def no_answer(_: ObjectList) -> NoReturn:
    raise Unavailable("no answer")


async def notices_a_dead_stream(*, probes: bool) -> str:
    harness, cache, watcher = await start_watcher()
    if not probes:
        harness.transport.alter_list = no_answer
    harness.transport.mute = True
    await harness.world.create(config_map("unheard"))

    def lost() -> str:
        transitions = watcher.statistics().transitions
        return next((reason for reason in ("behind", "silent") if transitions.get(f"pausing: {reason}")), "")

    try:
        await until(lost, within_s=1.0)
        reason = lost()
    except TimeoutError:
        reason = ""
    harness.transport.mute = False
    harness.transport.alter_list = lambda listing: listing
    if reason:
        await harness.quiet(CONFIG_MAP)
        assert is_current(harness, cache)
    await stop_watcher(harness)
    return reason


@asynchronous
async def test_a_list_follows_after_streams_that_are_late_one_after_another() -> None:
    """Each is given up as behind before it delivers anything. Resuming alone would never make progress."""
    harness, cache, watcher = await start_watcher()
    harness.transport.mute = True
    await harness.world.create(config_map("unheard"))
    await until(lambda: is_current(harness, cache))
    assert watcher.statistics().transitions["pausing: behind"] >= 2
    await stop_watcher(harness)


@asynchronous
async def test_streams_that_are_reopened_do_not_delay_the_periodic_list() -> None:
    harness, _, watcher = await start_watcher(dataclasses.replace(QUICK, relist_every_s=0.2))
    async with asyncio.timeout(10):
        while not watcher.statistics().transitions.get("listing: resync"):
            harness.transport.cut()
            await asyncio.sleep(0.02)
    await stop_watcher(harness)


@asynchronous
async def test_a_dead_stream_is_noticed_although_nothing_arrives() -> None:
    assert await notices_a_dead_stream(probes=True) == "behind"
    assert await notices_a_dead_stream(probes=False) == "silent"

    async def trusting(self: Watcher, _: Any) -> WatchReason:  # noqa: ARG001
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it never ends")

    with replaced(Watcher, "_guard", trusting):  # the operator lives on as a zombie
        assert await notices_a_dead_stream(probes=True) == ""


@asynchronous
async def test_an_unexpected_error_is_reported_and_does_not_end_the_watch() -> None:
    harness, cache, watcher = await start_watcher()
    broken = [True]

    def break_once(event: WatchEvent) -> tuple[WatchEvent, ...]:
        if event.type is not EventType.BOOKMARK and broken:
            broken.clear()
            raise ZeroDivisionError("a bug of ours")
        return (event,)

    harness.transport.alter = break_once
    await harness.world.create(config_map("x"))
    await until(lambda: harness.reported)
    assert isinstance(harness.reported[0], ZeroDivisionError)
    assert not watcher.healthy
    await until(lambda: cache.synced)
    await harness.quiet(CONFIG_MAP)
    assert is_current(harness, cache)
    await until(lambda: watcher.healthy)
    assert watcher.statistics().transitions["pausing: failed"] == 1
    await stop_watcher(harness, reported=1)
    assert not watcher.healthy


@asynchronous
async def test_an_event_that_one_stream_lost_and_the_next_repeats_is_applied() -> None:
    harness, cache, _ = await start_watcher(SLOW_GUARD)
    first, second = (cache.get(map_key(name)).value for name in ("m0", "m1"))
    assert first is not None
    assert second is not None
    revision = cache.revision

    def version(of: Object, ahead: int) -> WatchEvent:
        newer = Object(of.kind, of.key, of.value, revision=revision + ahead)
        return WatchEvent(EventType.MODIFIED, newer, newer.revision)

    cache.apply(version(first, 3))  # what came at 2 was hidden
    cache.apply(version(second, 2))  # resumed, the next stream repeats it
    cache.apply(version(first, 3))
    assert cache.get(second.key).value.revision == revision + 2  # type: ignore[union-attr]
    cache.progress(revision + 2)
    assert (cache.revision, cache.revision_seen) == (revision + 2, revision + 3)
    cache.apply(version(second, 4))
    assert cache.revision == revision + 3
    await stop_watcher(harness)


@asynchronous
async def test_an_event_that_a_stream_lost_is_found_by_the_periodic_list() -> None:
    harness, cache, watcher = await start_watcher(dataclasses.replace(QUICK, relist_every_s=0.05))
    harness.transport.alter = lambda event: (event,) if event.type is EventType.BOOKMARK else ()
    await harness.world.service.delete(map_key("m0"))
    await until(lambda: cache.get(map_key("m0")).value is None)
    assert watcher.statistics().transitions["listing: resync"] >= 1
    await stop_watcher(harness)


@asynchronous
async def test_a_request_that_never_returns_is_given_up() -> None:
    harness = await make_cache_harness(dataclasses.replace(QUICK, watch_request_s=0.02))

    async def hang(_: ListOptions) -> None:
        harness.transport.before_list = None
        await asyncio.get_running_loop().create_future()

    harness.transport.before_list = hang
    cache = harness.caches.cache(CONFIG_MAP)
    await until(lambda: cache.synced)
    assert harness.caches.watcher(cache).statistics().transitions["pausing: unavailable"] == 1
    await stop_watcher(harness)


@asynchronous
async def test_many_requests_for_a_relist_get_one() -> None:
    harness, cache, watcher = await start_watcher()
    lists = cache.statistics().relists
    for _ in range(50):
        cache.request_relist()
    await until(lambda: cache.statistics().relists > lists and cache.synced)
    assert cache.statistics().relists == lists + 1
    assert watcher.statistics().transitions["listing: asked"] == 1
    await stop_watcher(harness)


@asynchronous
async def test_the_stream_is_read_until_a_requested_relist_begins() -> None:
    """Relists may be requested often: the backoff between them must not stop the stream."""
    harness, cache, watcher = await start_watcher(
        dataclasses.replace(QUICK, watch_backoff_s=60.0, watch_backoff_s_max=60.0)
    )
    await until(lambda: harness.transport.streams == 1)
    lists = cache.statistics().relists
    cache.request_relist()
    await asyncio.sleep(0.01)
    await harness.world.create(config_map("late"))
    await until(lambda: map_key("late") in {each.key for each in cache.list().value})
    assert cache.statistics().relists == lists
    assert watcher.healthy
    await stop_watcher(harness)


@asynchronous
async def test_an_empty_store_is_listed_until_it_has_a_revision() -> None:
    clock = Clock()
    env = dataclasses.replace(make_env(limits=QUICK), monotonic=lambda: asyncio.get_running_loop().time())
    harness = CacheHarness(World(MemoryStore(env), env, clock), env)
    cache = harness.caches.cache(NAMESPACE)
    await harness.caches.wait_synced()
    assert cache.list().value == ()
    assert harness.transport.watches == []  # a watch without a revision would send all objects as new
    await harness.world.service.create(NAMESPACE, {"metadata": {"name": "default"}})
    await harness.quiet(NAMESPACE)
    await until(lambda: cache.synced)
    assert [each.key.name for each in cache.list().value] == ["default"]
    await stop_watcher(harness)


@asynchronous
async def test_a_long_backlog_lets_other_tasks_run() -> None:
    async def turns_of_others(slice_max: int) -> int:
        harness, cache, watcher = await start_watcher(dataclasses.replace(SLOW_GUARD, watch_slice_max=slice_max))
        found = cache.get(map_key("m0")).value
        assert found is not None
        first, done = cache.revision + 1, asyncio.Event()

        async def backlog() -> AsyncGenerator[WatchEvent, None]:
            for revision in range(first, first + 100):
                newer = Object(CONFIG_MAP, found.key, found.value, revision=revision)
                yield WatchEvent(EventType.MODIFIED, newer, revision)
            done.set()

        turns = 0
        reading = asyncio.ensure_future(watcher._read(backlog()))
        while not done.is_set():
            await asyncio.sleep(0)
            turns += 1
        await reading
        await stop_watcher(harness)
        return turns

    assert await turns_of_others(10) >= 10
    assert await turns_of_others(1_000) < 3


@asynchronous
async def test_a_list_is_decoded_page_by_page_and_not_in_the_step_that_applies_it() -> None:
    harness = await make_cache_harness()
    for n in range(6):
        await harness.world.create(config_map(f"m{n}"))
    applying: list[bool] = [False]
    decoded: list[bool] = []

    def values(each: Object) -> tuple[str, ...]:
        if each.key.name not in seen:
            seen.add(each.key.name)
            decoded.append(applying[0])
        return ()

    seen: set[str] = set()
    replace = Cache.replace

    def apply(self: Cache, objects: Any, revision: int, **given: Any) -> None:
        applying[0] = True
        replace(self, objects, revision, **given)

    with replaced(Cache, "replace", apply):
        cache = harness.caches.cache(CONFIG_MAP)
        cache.add_index(Index("seen", values))
        await until(lambda: cache.synced)
    assert decoded == [False] * 6
    await stop_watcher(harness)


def test_a_watcher_whose_loop_is_closed_ends() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> Watcher:
        harness = await make_cache_harness()
        return harness.caches.watcher(harness.caches.cache(CONFIG_MAP))

    watcher = loop.run_until_complete(begin())
    task = watcher._task
    assert task is not None
    loop.run_until_complete(asyncio.sleep(0.01))
    pending = asyncio.all_tasks(loop)
    loop.close()
    for each in pending:
        each._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = each.get_coro()
        assert coroutine is not None
        for _ in range(8):
            try:
                coroutine.close()
            except RuntimeError:
                continue
            break
    assert isinstance(watcher.state, StoppedState)

"""Read your writes: a key waits for its writes, and never runs on older data."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from tests.kit.runtime import QUICK, CacheHarness, make_cache_harness, until
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP, POD, asynchronous, config_map, pod

from kedge.api.requests import EventType, WatchEvent
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime.cache import Behind, Cache, Floor, WriteFloors
from kedge.runtime.cache.revision_waiters import RevisionWaiters

ME = Key("Deployment.apps", "default", "web")


async def with_floors(limits: Limits = QUICK) -> tuple[CacheHarness, Cache, WriteFloors]:
    harness = await make_cache_harness(limits)
    await harness.world.create(config_map("first"))
    cache = harness.caches.cache(CONFIG_MAP)
    await until(lambda: cache.synced)
    return harness, cache, WriteFloors(harness.caches, harness.env)


def relists(harness: CacheHarness, why: str) -> float:
    labels = {"cache": "ConfigMap", "why": why}
    return harness.env.metrics.registry.get_sample_value("kedge_cache_floor_relists_total", labels) or 0.0


@asynchronous
async def test_a_key_waits_until_the_cache_has_its_write() -> None:
    harness, cache, floors = await with_floors()
    await floors.met(ME)  # wrote nothing
    made = await harness.world.create(config_map("x"))
    floors.note(ME, CONFIG_MAP, made.revision, wrote=made.key)
    floors.note(ME, POD, made.revision)  # no cache of pods exists
    assert floors.pending(ME) == (Floor("ConfigMap", made.revision, made.key),)
    assert cache.get(made.key).value is None
    await floors.met(ME)
    found = cache.get(made.key).value
    assert found is not None
    assert found.revision == made.revision
    assert floors.pending(ME) == ()
    await harness.caches.stop()


@asynchronous
async def test_a_floor_that_is_not_met_fails_the_key_and_stays() -> None:
    """A wait that times out and continues creates three objects instead of one."""
    harness, cache, floors = await with_floors(dataclasses.replace(QUICK, floor_relist_s=0.005))
    harness.transport.down = harness.transport.mute = True
    made = await harness.world.create(config_map("x"))
    floors.note(ME, CONFIG_MAP, made.revision, wrote=made.key)
    with pytest.raises(Behind):
        await floors.met(ME, within_s=0.03)
    assert floors.pending(ME)
    with replaced(Cache, "wait_floor", lambda *_, **__: asyncio.sleep(0)):
        await floors.met(ME)  # the safeguard gone: the key runs, and does not see its own write
    assert cache.get(made.key).value is None
    await harness.caches.stop()


@asynchronous
async def test_a_write_that_the_stream_lost_is_noticed_and_relisted() -> None:
    harness, cache, floors = await with_floors()
    harness.transport.alter = lambda event: (
        () if event.object is not None and event.object.key.name == "x" else (event,)
    )
    made = await harness.world.create(config_map("x"))
    floors.note(ME, CONFIG_MAP, made.revision, wrote=made.key)
    await cache.at_least(made.revision)  # the marks have gone past it
    assert cache.get(made.key).value is None
    await floors.met(ME)
    assert cache.get(made.key).value is not None
    assert relists(harness, "lost") == 1
    await harness.caches.stop()


@asynchronous
async def test_a_write_that_is_late_is_relisted() -> None:
    # The stream would be found dead sooner than the floor is late: let it live.
    harness, cache, floors = await with_floors(dataclasses.replace(QUICK, watch_probe_s=60.0))
    harness.transport.mute = True
    made = await harness.world.create(config_map("x"))
    floors.note(ME, CONFIG_MAP, made.revision, wrote=made.key)
    await floors.met(ME)
    assert cache.get(made.key).value is not None
    assert relists(harness, "late") == 1
    await harness.caches.stop()


@asynchronous
async def test_an_unknown_outcome_waits_for_the_confirming_read() -> None:
    """A write timed out and was committed. Its key must not run before the cache has it."""
    harness, cache, floors = await with_floors()
    harness.transport.alter = lambda _: ()
    made = await harness.world.create(config_map("x"))
    read = await cache.fresh_read(made.key)
    floors.note(ME, CONFIG_MAP, read.revision, wrote=made.key)
    waiting = asyncio.ensure_future(floors.met(ME))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert cache.get(made.key).value is None
    await waiting
    assert cache.get(made.key).value is not None
    absent = await cache.fresh_read(Key("ConfigMap", "default", "never"))
    floors.note(ME, CONFIG_MAP, absent.revision)
    await floors.met(ME)
    assert cache.revision >= absent.revision
    await harness.caches.stop()


@asynchronous
async def test_the_floors_of_one_key_are_bounded() -> None:
    harness, cache, floors = await with_floors(dataclasses.replace(QUICK, floor_objects_max=3))
    for n in range(8):
        made = await harness.world.create(config_map(f"x{n}"))
        floors.note(ME, CONFIG_MAP, made.revision, wrote=made.key)
    assert len(floors.pending(ME)) == 4
    assert Floor("ConfigMap", made.revision, None) in floors.pending(ME)
    await floors.met(ME)
    assert len(cache.list().value) == 9
    floors.note(ME, CONFIG_MAP, made.revision + 1)
    floors.forget(ME)
    assert floors.pending(ME) == ()
    await harness.caches.stop()


@asynchronous
async def test_a_floor_noted_while_another_is_awaited_is_kept() -> None:
    harness, cache, floors = await with_floors()
    made = await harness.world.create(config_map("x"))
    floors.note(ME, CONFIG_MAP, made.revision, wrote=made.key)
    waiting = asyncio.ensure_future(floors.met(ME))
    await asyncio.sleep(0)
    floors.note(ME, CONFIG_MAP, made.revision + 7, wrote=made.key)
    await waiting
    assert floors.pending(ME) == (Floor("ConfigMap", made.revision + 7, made.key),)
    await harness.caches.stop()


@asynchronous
async def test_one_object_of_a_commit_does_not_prove_the_others() -> None:
    """One commit writes two objects, and the stream has delivered one object."""
    harness, cache, _ = await with_floors()
    found = cache.get(Key("ConfigMap", "default", "first")).value
    assert found is not None
    revision = cache.revision + 1
    half = type(found)(found.kind, found.key, found.value, revision=revision)
    cache.apply(WatchEvent(EventType.MODIFIED, half, revision))
    other = Key("ConfigMap", "default", "second")
    assert cache.reached(revision, found.key)
    assert not cache.reached(revision, other)
    assert not cache.reached(revision)
    assert not cache.lost(revision, other)
    cache.progress(revision)
    assert cache.reached(revision)
    assert cache.lost(revision, other)
    await harness.caches.stop()


@asynchronous
async def test_floors_of_keys_that_never_run_again_are_swept_once_they_are_met() -> None:
    harness = await make_cache_harness()
    harness.caches.cache(POD)
    floors = WriteFloors(harness.caches, harness.env)
    made = await harness.world.create(pod("a"))
    gone, waiting = Key("ReplicaSet.apps", "default", "gone"), Key("ReplicaSet.apps", "default", "waiting")
    floors.note(gone, POD, made.revision, wrote=made.key)
    floors.note(waiting, POD, made.revision + 1_000)
    await harness.quiet(POD)
    floors.sweep()
    assert not floors.pending(gone)
    assert floors.pending(waiting)


@asynchronous
async def test_waiters_that_time_out_repeatedly_leave_nothing_behind_in_a_cache_that_does_not_move() -> None:
    waits = RevisionWaiters()
    wrote = Key("ConfigMap", "default", "x")

    async def come_again(revision: int) -> None:
        for n in range(20):
            assert not await waits.until(lambda: False, revision=revision + n, key=wrote, within_s=0.0001)

    await asyncio.gather(come_again(10), come_again(5), come_again(1000))
    assert (waits.by_revision, waits.by_key, waits.waiting) == ([], {}, 0)


@asynchronous
async def test_a_waiter_that_times_out_behind_others_neither_wakes_nor_blocks_them() -> None:
    waits, reached = RevisionWaiters(), [0]

    def reach(revision: int) -> None:
        reached[0] = revision
        waits.reached(revision)

    def wait(revision: int, within_s: float) -> asyncio.Task[bool]:
        return asyncio.ensure_future(
            waits.until(lambda: reached[0] >= revision, revision=revision, key=None, within_s=within_s)
        )

    first, last, given_up = wait(5, 30), wait(9, 30), wait(7, 0.0001)
    assert not await given_up
    reach(4)
    await asyncio.sleep(0)
    assert not first.done()
    reach(6)
    assert await first
    assert [revision for revision, _, _ in waits.by_revision] == [9], "it was removed when it reached the top"
    reach(9)
    assert await last
    assert waits.by_revision == []

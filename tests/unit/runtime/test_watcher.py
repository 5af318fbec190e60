"""The watcher resumes and lists where it must, never goes back in time, never storms, and survives errors."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
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
from tests.objects import CONFIG_MAP, asynchronous, config_map

from kedge.api.requests import ListOptions, ObjectList, WatchEvent
from kedge.errors import (
    Compacted,
    Forbidden,
    FutureRevision,
    Lagged,
    OperatingError,
    TooManyRequests,
    Unavailable,
)
from kedge.keys import Key
from kedge.runtime.cache import Cache, CacheChange, ChangeType
from kedge.runtime.watch_states import ConnectingState, ListingState, PausingState, Transition, WatchReason
from kedge.runtime.watcher import Watcher
from kedge.store import Put

# -- resume and relist -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "ended"),
        (Lagged("too slow"), "lagged"),
        (Unavailable("gone"), "unavailable"),
        (TooManyRequests("busy", retry_after_s=0.0), "unavailable"),
    ],
)
def test_a_stream_that_ends_is_resumed_after_the_last_revision(error: Exception | None, reason: str) -> None:
    @asynchronous
    async def run() -> None:
        harness, cache, watcher = await start_watcher()
        lists = len(harness.transport.whole_lists)
        harness.transport.cut(error)
        await until(lambda: watcher.statistics().transitions.get(f"pausing: {reason}"))
        await harness.world.create(config_map("meanwhile"))
        await harness.quiet(CONFIG_MAP)
        assert is_current(harness, cache)
        assert len(harness.transport.whole_lists) == lists
        assert watcher.statistics().transitions[f"pausing: {reason}"] == 1
        assert all(options.allow_bookmarks for options in harness.transport.watches)
        await stop_watcher(harness)

    run()


async def miss_everything(harness: CacheHarness, cache: Cache) -> None:
    """While the transport is cut: one object is deleted, one changed, one created, and history is compacted."""
    harness.transport.down = True
    harness.transport.cut()
    await until(lambda: not cache.synced)
    await harness.world.service.delete(map_key("m0"))
    await harness.world.service.patch(map_key("m1"), {"data": {"a": "1"}})
    await harness.world.create(config_map("new"))
    await harness.compact()
    harness.transport.down = False


@asynchronous
async def test_after_a_compaction_it_lists_and_notifies_of_missed_changes_at_once() -> None:
    harness, cache, watcher = await start_watcher()
    notified: list[tuple[ChangeType, str, bool]] = []
    seen: list[set[str]] = []

    def remember(change: CacheChange) -> None:
        notified.append((change.type, change.key.name, change.missed))
        seen.append({each.key.name for each in cache.list().value})

    cache.subscribe(remember, name="test")
    notified.clear()
    seen.clear()
    await miss_everything(harness, cache)
    await harness.quiet(CONFIG_MAP)
    assert notified == [
        (ChangeType.DELETED, "m0", True),
        (ChangeType.CHANGED, "m1", True),
        (ChangeType.ADDED, "new", True),
    ]
    assert seen == [{"m1", "m2", "m3", "new"}] * 3  # old or new, never half
    buried = cache.tombstone(map_key("m0"))
    assert buried is not None
    assert buried.missed
    assert watcher.statistics().transitions["pausing: compacted"] >= 1
    await stop_watcher(harness)


@asynchronous
async def test_resuming_past_a_compaction_would_keep_a_deleted_object() -> None:
    def skip(self: Watcher, error: OperatingError) -> Transition:
        if isinstance(error, Compacted):
            return self._pause(ConnectingState(error.oldest), WatchReason.COMPACTED, error)
        return self._resume(WatchReason.UNAVAILABLE, error)

    with replaced(Watcher, "_after_failure", skip):
        harness, cache, _ = await start_watcher()
        await miss_everything(harness, cache)
        await until(lambda: cache.synced)
        await harness.world.create(config_map("after"))
        await harness.quiet(CONFIG_MAP)  # the cache has reached the revision
        assert cache.get(map_key("m0")).value is not None
        assert not is_current(harness, cache)
        await stop_watcher(harness)


@asynchronous
async def test_a_stream_cut_inside_a_commit_loses_no_event_of_it() -> None:
    async def both_arrive() -> bool:
        harness, cache, watcher = await start_watcher(SLOW_GUARD)
        held: list[WatchEvent] = []

        def cut_between(event: WatchEvent) -> tuple[WatchEvent, ...]:
            if held or event.object is None:
                return () if held else (event,)
            held.append(event)
            asyncio.get_running_loop().call_soon(harness.transport.cut, Unavailable("cut"))
            return (event,)

        harness.transport.alter = cut_between
        values = [cache.get(map_key(name)).value for name in ("m0", "m1")]
        changed = [each.value.replace(b'"name"', b'"name" ') for each in values if each is not None]
        writes = [Put(map_key(name), value) for name, value in zip(("m0", "m1"), changed, strict=True)]
        revision = await harness.store.commit([], writes)
        await until(lambda: watcher.statistics().transitions.get("pausing: unavailable"))
        harness.transport.alter = lambda event: (event,)
        await harness.world.create(config_map("after"))
        await harness.quiet(CONFIG_MAP)
        whole = is_current(harness, cache)
        assert cache.get(map_key("m0")).value.revision == revision  # type: ignore[union-attr]
        await stop_watcher(harness)
        return whole

    assert await both_arrive()

    def resume_past_it(self: Watcher, reason: WatchReason, error: BaseException | None = None) -> Transition:
        return self._pause(ConnectingState(self._sink.revision_seen), reason, error)

    with replaced(Watcher, "_resume", resume_past_it):
        assert not await both_arrive()


# -- lists -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_list_never_goes_back_in_time() -> None:
    """An API server that restarts behind the others must not bring deleted objects back."""

    def believe(self: Cache, objects: Any, revision: int, **_: Any) -> None:  # noqa: ARG001
        self._objects, self._ordered = objects, None

    async def older_answer_is_refused(*, safe: bool) -> bool:
        harness, cache, watcher = await start_watcher()
        old = await harness.world.service.list(CONFIG_MAP, ListOptions())
        await harness.world.service.delete(map_key("m0"))
        await harness.quiet(CONFIG_MAP)
        assert cache.get(map_key("m0")).value is None
        before = len(harness.transport.whole_lists)
        harness.transport.alter_list = lambda _: old
        with ExitStack() as unsafe:
            if not safe:
                unsafe.enter_context(replaced(Cache, "revision_seen", property(lambda _: 0)))
                unsafe.enter_context(replaced(Cache, "replace", believe))
            cache.request_relist()
            tried = watcher.statistics
            await until(lambda: tried().transitions.get("pausing: older", 0) > 2 or not is_current(harness, cache))
            refused = is_current(harness, cache)
        demanded = harness.transport.whole_lists[before:]
        if safe:
            assert all(each.resource_version_match == "NotOlderThan" for each in demanded)
            assert all(int(each.resource_version) >= cache.revision for each in demanded)
        harness.transport.alter_list = lambda listing: listing
        await harness.caches.stop()
        return refused

    assert await older_answer_is_refused(safe=True)
    assert not await older_answer_is_refused(safe=False)


@asynchronous
async def test_pages_lost_to_compaction_are_listed_again_and_finally_without_pages() -> None:
    harness = await make_cache_harness()
    for n in range(8):
        await harness.world.create(config_map(f"m{n}"))

    async def compact(options: ListOptions) -> None:
        if options.continue_token:
            await harness.world.service.patch(map_key("m7"), {"data": {"n": options.continue_token[:8]}})
            await harness.world.service.patch(map_key("m7"), {"data": {"n": "x"}})
            await harness.compact()

    harness.transport.before_list = compact
    cache = harness.caches.cache(CONFIG_MAP)
    await until(lambda: cache.synced)
    await harness.quiet(CONFIG_MAP)
    assert is_current(harness, cache)
    assert harness.caches.watcher(cache).statistics().transitions["pausing: compacted"] == 2
    assert harness.transport.whole_lists[-1].limit == 0
    await stop_watcher(harness)


@asynchronous
async def test_pages_of_two_revisions_are_never_mixed() -> None:
    harness = await make_cache_harness()
    for n in range(5):
        await harness.world.create(config_map(f"m{n}"))

    def tear(listing: ObjectList) -> ObjectList:
        torn = not listing.continue_token and len(listing.objects) < 5
        return msgspec.structs.replace(listing, revision=listing.revision + 1) if torn else listing

    harness.transport.alter_list = tear
    cache = harness.caches.cache(CONFIG_MAP)
    await until(lambda: cache.revision)
    assert harness.caches.watcher(cache).statistics().transitions["pausing: torn"] == 1
    harness.transport.alter_list = lambda listing: listing
    await harness.quiet(CONFIG_MAP)
    assert is_current(harness, cache)
    await stop_watcher(harness)


@asynchronous
async def test_objects_created_and_deleted_during_the_first_list_do_not_block_it() -> None:
    async def seeds() -> bool:
        harness = await make_cache_harness()
        for n in range(5):
            await harness.world.create(config_map(f"m{n}"))

        async def churn(options: ListOptions) -> None:
            if options.continue_token:
                await harness.world.create(config_map("brief"))
                await harness.world.service.delete(map_key("brief"))
                await harness.world.service.delete(map_key("m0"))
                harness.transport.before_list = None

        harness.transport.before_list = churn
        cache = harness.caches.cache(CONFIG_MAP)
        await harness.caches.wait_synced()
        try:
            await until(lambda: cache.synced, within_s=0.5)
        except TimeoutError:
            return False
        finally:
            await harness.quiet(CONFIG_MAP)
            assert is_current(harness, cache)
            await stop_watcher(harness)
        return True

    assert await seeds()
    listed: dict[Key, None] = {}

    def by_names(self: Cache) -> bool:
        """The known bug: synced only once every listed object has arrived."""
        listed.update(dict.fromkeys(self._objects))
        return bool(listed) and set(listed) == set(self._objects) and Cache.revision.fget(self) > 8  # type: ignore

    with replaced(Cache, "synced", property(by_names)):
        assert not await seeds()


# -- backoff ---------------------------------------------------------------------------------------


async def pauses_of_an_outage(*, seed: int = 1) -> list[float]:
    limits = dataclasses.replace(QUICK, watch_backoff_s=0.001, watch_backoff_s_max=0.064, watch_healthy_s=60.0)
    harness, cache, watcher = await start_watcher(limits)
    harness.env.random.seed(seed)
    pauses: list[float] = []
    moved = cache.watcher_moved

    def record(state: Any, reason: WatchReason) -> None:
        if isinstance(state, PausingState):
            pauses.append(state.delay_s)
        moved(state, reason)

    cache.watcher_moved = record  # type: ignore[method-assign]
    harness.transport.down = True
    harness.transport.cut()
    await until(lambda: len(pauses) >= 8)
    assert not watcher.healthy
    assert watcher.statistics().failures >= 8
    harness.transport.down = False
    await harness.quiet(CONFIG_MAP)
    await stop_watcher(harness)
    return pauses[:8]


@asynchronous
async def test_backoff_doubles_up_to_a_bound_and_differs_between_watchers() -> None:
    one, other = await pauses_of_an_outage(seed=1), await pauses_of_an_outage(seed=2)
    ceilings = [min(0.001 * 2**n, 0.064) for n in range(8)]
    for pauses in (one, other):
        assert all(0.5 * c <= p <= 1.5 * c for p, c in zip(pauses, ceilings, strict=True))
    assert len(set(one) | set(other)) == 16

    def every_second(self: Watcher, then: Any, reason: WatchReason, error: Any = None) -> Transition:
        self._failures += 1
        return Transition(PausingState(0.001, then), reason, error)

    with replaced(Watcher, "_pause", every_second):  # as it was elsewhere: a blip becomes a storm, in step
        assert len(set(await pauses_of_an_outage(seed=1)) | set(await pauses_of_an_outage(seed=2))) == 1


@asynchronous
async def test_failures_are_reset_after_a_time_of_health() -> None:
    harness, cache, watcher = await start_watcher()
    for n in range(4):
        harness.transport.cut()
        await until(lambda: watcher.statistics().transitions.get("pausing: ended", 0) > n)  # noqa: B023
        await until(lambda: cache.synced)
    await until(lambda: watcher.statistics().failures == 0)
    assert watcher.healthy
    await stop_watcher(harness)


@asynchronous
async def test_the_retry_after_of_a_server_is_respected() -> None:
    harness, cache, watcher = await start_watcher()
    found = watcher._pause(ListingState(), WatchReason.UNAVAILABLE, TooManyRequests("busy", retry_after_s=7.0))
    assert isinstance(found.to, PausingState)
    assert found.to.delay_s == 7.0
    await stop_watcher(harness)


@asynchronous
async def test_a_rejected_watch_is_retried_by_listing_and_shown() -> None:
    harness, cache, watcher = await start_watcher()
    harness.transport.watch_errors = [Forbidden("not you")]
    lists = len(harness.transport.whole_lists)
    harness.transport.cut()
    await until(lambda: watcher.statistics().transitions.get("pausing: refused"))
    await until(lambda: cache.synced)
    assert len(harness.transport.whole_lists) > lists
    assert "not you" in watcher.statistics().last_error
    metric = harness.env.metrics.registry.get_sample_value(
        "kedge_watch_transitions_total", {"cache": "ConfigMap", "to": "pausing", "reason": "refused"}
    )
    assert metric == watcher.statistics().transitions["pausing: refused"] == 1
    await stop_watcher(harness)


# -- a server that went back -----------------------------------------------------------------------


@asynchronous
async def test_a_server_that_lacks_a_received_revision_raises_an_alarm() -> None:
    harness, _, watcher = await start_watcher()
    harness.transport.cut(FutureRevision("the store is at 3, not yet at 7"))
    await until(lambda: watcher.statistics().transitions.get("pausing: unavailable"))
    await harness.quiet(CONFIG_MAP)
    labels = {"cache": watcher.name}
    counted = watcher._env.metrics.registry.get_sample_value("kedge_watch_server_behind_total", labels)
    assert counted == 1
    await stop_watcher(harness)

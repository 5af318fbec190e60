"""Reads of a cache: frozen objects at a known revision and age, found by index, and never older data."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import pickle
from typing import Any

import pytest
from msgspec.structs import force_setattr
from tests.kit.runtime import QUICK, CacheHarness, make_cache_harness, until
from tests.objects import CONFIG_MAP, NODE, POD, asynchronous, config_map, node, pod

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, EventType, WatchEvent
from kedge.errors import Compacted, InvariantBroken
from kedge.keys import Key
from kedge.runtime.cache import (
    BY_CONTROLLER,
    BY_NAMESPACE,
    BY_NODE,
    BY_OWNER,
    BY_POLICY_VERSION,
    BY_PRIORITY,
    BY_ZONE,
    Behind,
    Cache,
    CacheChange,
    ChangeType,
    CurrentMarks,
    Index,
    NotSynced,
    Stale,
    by_label,
    marks_of,
)
from kedge.runtime.cache.received import ReceivedLog, Source


async def with_maps(count: int, limits: Any = QUICK) -> tuple[CacheHarness, Cache]:
    harness = await make_cache_harness(limits)
    for n in range(count):
        await harness.world.create(config_map(f"m{n}"))
    cache = harness.caches.cache(CONFIG_MAP)
    await until(lambda: cache.synced)
    return harness, cache


def map_key(name: str) -> Key:
    return Key("ConfigMap", "default", name)


# -- reads -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_cache_that_never_listed_is_not_read() -> None:
    harness = await make_cache_harness()
    harness.transport.down = True
    cache = harness.caches.cache(CONFIG_MAP)
    for read in (lambda: cache.get(map_key("settings")), cache.list, lambda: cache.check_fresh(max_age_s=1e9)):
        with pytest.raises(NotSynced):
            read()
    with pytest.raises(Behind):
        await cache.wait_synced(within_s=0.02)
    await harness.caches.stop()


@asynchronous
async def test_marks_of_one_moment_follow_the_cache_that_moved() -> None:
    """Decisions of one moment share the marks of the caches that did not move."""
    harness, maps = await with_maps(1)
    pods = harness.caches.cache(POD)
    await until(lambda: pods.synced)
    caches = {"ConfigMap": maps, "Pod": pods}
    marks, now_s = CurrentMarks(caches), harness.env.monotonic()
    before = marks.at(now_s)
    assert before == marks_of(caches.values(), now_s)
    assert marks.at(now_s) is before
    made = await harness.world.create(pod("web"))
    await pods.at_least(made.revision)
    after = marks.at(now_s)
    assert after[0] is before[0]
    assert after[1] == marks_of([pods], now_s)[0]
    assert after[1].place > before[1].place
    await harness.caches.stop()


@asynchronous
async def test_every_read_has_its_revision_age_and_place() -> None:
    harness, cache = await with_maps(4)
    made = await harness.world.create(config_map("later"))
    assert await cache.at_least(made.revision) >= made.revision
    read = cache.get(made.key)
    assert read.value is not None
    assert read.value.revision == made.revision
    assert read.revision == cache.revision
    assert 0 <= read.age_s < math.inf
    assert read.place == cache.place == cache.list().place
    assert [each.key.name for each in cache.list().value] == ["later", "m0", "m1", "m2", "m3"]
    assert cache.list(namespace="elsewhere").value == ()
    assert cache.get(map_key("nothing")).value is None
    await harness.caches.stop()


def frozen_places(found: Object) -> list[Any]:
    return [
        lambda: setattr(found, "revision", 1),
        lambda: setattr(found, "value", b"{}"),
        lambda: setattr(found, "known_view", None),
        lambda: delattr(found, "key"),
        lambda: setattr(found.view, "metadata", None),
        lambda: found.view.metadata.labels.update(app="poison"),
        lambda: found.metadata.labels.pop("app"),
        lambda: setattr(found.view.spec, "node_name", "x"),
    ]


@asynchronous
async def test_nothing_that_is_handed_out_can_be_changed() -> None:
    harness = await make_cache_harness()
    made = await harness.world.create(pod())
    cache = harness.caches.cache(POD)
    cache.add_index(by_label("app"))
    await cache.at_least(made.revision)
    found = cache.get(made.key).value
    assert found is not None
    for change in frozen_places(found):
        with pytest.raises((TypeError, AttributeError)):
            change()
    assert found.edit() is not found.edit()
    found.edit()["metadata"]["labels"]["app"] = "poison"
    assert isinstance(cache.list().value, tuple)
    assert isinstance(cache.by_index(by_label("app"), "web").value, tuple)
    again = cache.get(made.key).value
    assert again is found
    assert again.metadata.labels == {"app": "web"}
    force_setattr(found, "value", b"{}")  # around the refusal: one reader poisons all
    assert cache.get(made.key).value.value == b"{}"  # type: ignore[union-attr]
    await harness.caches.stop()


@asynchronous
async def test_an_older_version_never_replaces_a_newer_one() -> None:
    harness, cache = await with_maps(1)
    first = cache.get(map_key("m0")).value
    changed = (await harness.world.service.patch(map_key("m0"), {"data": {"a": "1"}})).object
    await cache.at_least(changed.revision)
    assert first is not None
    cache.apply(WatchEvent(EventType.MODIFIED, first, first.revision))  # delivered twice, and late
    cache.apply(WatchEvent(EventType.DELETED, first, first.revision))
    cache.progress(first.revision)
    found = cache.get(map_key("m0"))
    assert found.value is not None
    assert (found.value.revision, found.revision) == (changed.revision, cache.revision)
    assert cache.statistics().stale_events == 3
    with pytest.raises(InvariantBroken, match="back in time"):
        cache.begin_relist().apply(first.revision - 1, asked_s=0.0)
    await harness.caches.stop()


@asynchronous
async def test_a_kind_and_scope_has_one_cache_and_a_part_of_a_kind_its_own() -> None:
    harness = await make_cache_harness()
    caches = harness.caches
    whole, web = caches.cache(POD), caches.cache(POD, label_selector="app=web")
    assert caches.cache(POD) is whole
    assert caches.cache(POD, label_selector="app=web") is web
    assert caches.of_kind("Pod") == (whole, web)
    made = await harness.world.create(pod())
    await caches.at_least(made.revision)
    assert web.get(made.key).value is not None
    left = await harness.world.service.patch(made.key, {"metadata": {"labels": {"app": "db"}}})
    await caches.at_least(left.object.revision)
    assert web.get(made.key).value is None
    assert web.tombstone(made.key) is not None
    assert whole.get(made.key).value is not None
    await caches.stop()


@asynchronous
async def test_a_fresh_read_goes_to_the_api_server_and_returns_a_safe_floor() -> None:
    harness, cache = await with_maps(1)
    harness.transport.mute = True
    made = await harness.world.create(config_map("unseen"))
    assert cache.get(made.key).value is None
    fresh = await cache.fresh_read(made.key)
    assert fresh.value is not None
    assert fresh.revision == made.revision
    absent = await cache.fresh_read(map_key("nothing"))
    assert absent.value is None
    assert absent.revision == await harness.store.revision()
    await harness.caches.stop()


@asynchronous
async def test_an_object_that_crossed_to_another_process_is_the_same_and_as_frozen() -> None:
    harness = await make_cache_harness()
    made = await harness.world.create(pod())
    again = pickle.loads(pickle.dumps(made))
    assert (again.key, again.value, again.revision, again.created, again.origin) == (
        made.key,
        made.value,
        made.revision,
        made.created,
        made.origin,
    )
    with pytest.raises(AttributeError):
        again.revision = 1


# -- how good it is --------------------------------------------------------------------------------


@asynchronous
async def test_a_reader_waits_for_a_revision_or_gets_an_error_with_the_one_reached() -> None:
    harness, cache = await with_maps(1)
    waiting = asyncio.ensure_future(cache.at_least(cache.revision + 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    made = await harness.world.create(config_map("later"))
    assert await waiting >= made.revision
    with pytest.raises(Behind) as raised:
        await cache.at_least(made.revision + 5, within_s=0.02)
    assert raised.value.wanted == made.revision + 5
    assert raised.value.freshness.revision == cache.revision
    assert cache.statistics().waiting == 0
    await harness.caches.stop()


@asynchronous
async def test_a_commit_is_known_to_be_complete_at_once_and_not_at_the_next_bookmark() -> None:
    harness, cache = await with_maps(1, dataclasses.replace(QUICK, watch_progress_s=60.0, watch_probe_s=60.0))
    made = await harness.world.create(config_map("x"))
    assert await cache.at_least(made.revision, within_s=5) == made.revision
    await harness.caches.stop()


@asynchronous
async def test_an_idle_kind_reaches_the_revision_of_a_fence_by_bookmarks() -> None:
    harness, cache = await with_maps(1)
    harness.caches.cache(POD)
    fence = await harness.world.create(node())
    await harness.caches.at_least(fence.revision)
    assert all(each.revision >= fence.revision for each in harness.caches.freshness())
    harness.transport.mute = True
    harness.transport.down = True
    fence = await harness.world.create(node("node-b"))
    with pytest.raises(Behind):
        await harness.caches.at_least(fence.revision, within_s=0.03)
    await harness.caches.stop()


@asynchronous
async def test_a_staleness_bound_holds_and_an_idle_store_still_proves_its_caches_current() -> None:
    harness, cache = await with_maps(1)
    proved_s = cache._proved_s
    # Nothing is written: only asking the authority can show that nothing was missed.
    await until(lambda: cache._proved_s > proved_s + 0.03)
    assert cache.check_fresh(max_age_s=60).cache == "ConfigMap"
    harness.transport.down = True
    harness.transport.cut()
    await until(lambda: cache.age_s > 0.05)
    with pytest.raises(Stale) as raised:
        cache.check_fresh(max_age_s=0.05)
    assert raised.value.age_s > raised.value.budget_s == 0.05
    assert not raised.value.freshness.synced
    await harness.caches.stop()


@asynchronous
async def test_events_of_a_backlog_prove_nothing_until_the_stream_has_caught_up() -> None:
    harness, cache = await with_maps(2)
    cache.proof(cache.revision + 10, asked_s=harness.env.monotonic())
    proved = cache._proved_s
    found = cache.get(map_key("m0")).value
    assert found is not None
    ahead = Object(found.kind, found.key, found.value, revision=cache.revision + 1)
    cache.apply(WatchEvent(EventType.MODIFIED, ahead, ahead.revision))
    assert cache._proved_s == proved
    cache.progress(cache.revision_seen + 9)
    assert cache._proved_s > proved
    await harness.caches.stop()


@asynchronous
async def test_synced_does_not_latch() -> None:
    harness, cache = await with_maps(1)
    assert cache.freshness().synced
    harness.transport.down = True
    harness.transport.cut()
    await until(lambda: not cache.freshness().synced)
    harness.transport.down = False
    await until(lambda: cache.synced)
    gate = asyncio.Event()

    async def hold(_: Any) -> None:
        await gate.wait()

    harness.transport.before_list = hold
    cache.request_relist()
    await until(lambda: cache.freshness().phase == "listing")
    assert not cache.freshness().synced
    assert cache.get(map_key("m0")).value is not None  # the old state can still be read
    gate.set()
    await until(lambda: cache.synced)
    await harness.caches.stop()
    assert not cache.synced


# -- indexes ---------------------------------------------------------------------------------------


PRIORITY_CLASS = KINDS.of_key_kind("PriorityClass.scheduling.k8s.io")


@asynchronous
async def test_indexes_follow_every_change_and_may_be_added_late() -> None:
    harness = await make_cache_harness()
    cache = harness.caches.cache(POD)
    cache.add_index(by_label("app"))
    first = await harness.world.create(pod("a"))
    await harness.world.create(node())
    await harness.world.service.create(PRIORITY_CLASS, {"metadata": {"name": "seven"}, "value": 7})
    await harness.world.create(pod("b", nodeName="node-a", priorityClassName="seven"))
    await harness.quiet(POD)
    for late in (BY_NODE, BY_PRIORITY, BY_NAMESPACE, BY_OWNER, BY_CONTROLLER):
        cache.add_index(late)
        cache.add_index(late)

    def names(index: Index, value: str) -> list[str]:
        return [each.key.name for each in cache.by_index(index, value).value]

    assert names(by_label("app"), "web") == ["a", "b"]
    assert (names(BY_NODE, "node-a"), names(BY_NODE, "")) == (["b"], [])
    assert names(BY_NAMESPACE, "default") == ["a", "b"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u1", "controller": True}
    await harness.world.service.patch(first.key, {"metadata": {"labels": {"app": "db"}, "ownerReferences": [owner]}})
    await harness.quiet(POD)
    assert (names(by_label("app"), "web"), names(by_label("app"), "db")) == (["b"], ["a"])
    assert names(BY_OWNER, "u1") == names(BY_CONTROLLER, "u1") == ["a"]
    await harness.world.service.delete(first.key, DeleteOptions(grace_s=0))
    await harness.quiet(POD)
    assert cache.index_values(by_label("app")).value == ("web",)
    with pytest.raises(InvariantBroken, match="another index"):
        cache.add_index(Index("node", lambda _: ()))
    with pytest.raises(InvariantBroken, match="add it first"):
        cache.by_index(Index("unknown", lambda _: ()), "x")
    await harness.caches.stop()


@asynchronous
async def test_nodes_are_found_by_zone_and_policies_by_version() -> None:
    harness = await make_cache_harness()
    nodes = harness.caches.cache(NODE)
    nodes.add_index(BY_ZONE)
    policies = harness.caches.cache(harness.world.service.kinds.of_key_kind("SchedulingPolicy.kedge.dev"))
    policies.add_index(BY_POLICY_VERSION)
    await harness.world.create(node("node-a", zone="zone-b"))
    spec = {"version": "v4", "canary": {"version": "v5"}}
    body = {"apiVersion": "kedge.dev/v1", "kind": "SchedulingPolicy", "metadata": {"name": "p"}, "spec": spec}
    made = await harness.world.create(body)
    await harness.caches.at_least(made.revision)
    assert len(nodes.by_index(BY_ZONE, "zone-b").value) == 1
    assert policies.index_values(BY_POLICY_VERSION).value == ("v4", "v5")
    await harness.caches.stop()


@asynchronous
async def test_an_index_that_cannot_read_an_object_raises_instead_of_leaving_it_out() -> None:
    harness, cache = await with_maps(1)

    def fragile(each: Object) -> tuple[str, ...]:
        return (each.edit()["data"]["colour"],)

    index = Index("colour", fragile)
    cache.add_index(index)
    with pytest.raises(InvariantBroken, match="m0"):
        cache.by_index(index, "red")
    await harness.world.service.patch(map_key("m0"), {"data": {"colour": "red"}})
    await harness.quiet(CONFIG_MAP)
    assert [each.key.name for each in cache.by_index(index, "red").value] == ["m0"]
    await harness.world.create(config_map("plain"))
    await harness.quiet(CONFIG_MAP)
    with pytest.raises(InvariantBroken, match="plain"):
        cache.by_index(index, "red")
    await until(lambda: harness.reported)
    assert isinstance(harness.reported[0], KeyError)
    assert cache.synced
    await harness.caches.stop()


# -- tombstones, subscribers -----------------------------------------------------------------------


@asynchronous
async def test_deletions_are_remembered_up_to_a_number_and_a_time() -> None:
    harness, cache = await with_maps(4, dataclasses.replace(QUICK, tombstones_max=2))
    for n in range(3):
        await harness.world.service.delete(map_key(f"m{n}"))
    await harness.quiet(CONFIG_MAP)
    assert cache.tombstone(map_key("m0")) is None
    buried = cache.tombstone(map_key("m2"))
    assert buried is not None
    assert (buried.object.key, buried.missed) == (map_key("m2"), False)
    await harness.world.create(config_map("m2"))
    await harness.quiet(CONFIG_MAP)
    assert cache.tombstone(map_key("m2")) is None
    assert cache.tombstone(map_key("m1")) is not None
    await harness.caches.stop()
    harness, cache = await with_maps(1, dataclasses.replace(QUICK, tombstone_s=0.0))
    await harness.world.service.delete(map_key("m0"))
    await harness.quiet(CONFIG_MAP)
    await asyncio.sleep(0.001)
    assert cache.tombstone(map_key("m0")) is None
    await harness.caches.stop()


@asynchronous
async def test_subscribers_are_notified_in_order_and_one_that_raises_stops_no_other() -> None:
    harness, cache = await with_maps(1)
    notified: list[tuple[ChangeType, str]] = []

    def bad(_: CacheChange) -> None:
        raise ValueError("a handler's own mistake")

    async def waits(_: CacheChange) -> None: ...

    cache.subscribe(bad, name="bad")
    good = cache.subscribe(lambda change: notified.append((change.type, change.key.name)), name="good")
    with pytest.raises(InvariantBroken, match="must not be async"):
        cache.subscribe(waits, name="waits")  # type: ignore[arg-type]
    await harness.world.create(config_map("x"))
    await harness.world.service.patch(map_key("x"), {"data": {"a": "1"}})
    await harness.world.service.delete(map_key("x"))
    await harness.quiet(CONFIG_MAP)
    added, changed, deleted = ChangeType.ADDED, ChangeType.CHANGED, ChangeType.DELETED
    assert notified == [(added, "m0"), (added, "x"), (changed, "x"), (deleted, "x")]
    await until(lambda: len(harness.reported) == 4)
    assert all(isinstance(error, ValueError) for error in harness.reported)
    good.close()
    await harness.world.create(config_map("y"))
    await harness.quiet(CONFIG_MAP)
    assert len(notified) == 4
    assert cache.synced
    await harness.caches.stop()


# -- the received log ------------------------------------------------------------------------------


@asynchronous
async def test_the_cache_can_be_rebuilt_at_any_place() -> None:
    limits = dataclasses.replace(QUICK, received_log_max=6, received_pinned_max=12)
    harness, cache = await with_maps(3, limits)
    stood: dict[int, tuple[dict[Key, Object], int]] = {}

    def remember(_: CacheChange) -> None:
        stood[cache.place] = {each.key: each for each in cache.list().value}, cache.revision

    cache.subscribe(remember, name="memory")
    stood.clear()
    log = cache.received
    for n in range(4):
        await harness.world.create(config_map(f"x{n}"))
        await harness.world.service.delete(map_key(f"x{n}"))
        await harness.quiet(CONFIG_MAP)
    assert len(log) == 6
    kept = [place for place in stood if place >= log.oldest]
    assert kept
    for place in kept:
        assert log.state_at(place) == stood[place]
    with pytest.raises(Compacted):
        log.state_at(log.oldest - 1)
    pin = log.pin(cache.place)
    pinned = log.state_at(cache.place)
    await harness.world.create(config_map("y"))
    for n in range(4):
        await harness.world.service.patch(map_key("y"), {"data": {"n": str(n)}})
        await harness.quiet(CONFIG_MAP)
    assert len(log) > 6
    assert log.state_at(pin.place) == pinned
    for n in range(10, 20):
        await harness.world.service.patch(map_key("y"), {"data": {"n": str(n)}})
        await harness.quiet(CONFIG_MAP)
    assert pin.lost
    assert len(log) <= 12
    other = log.pin(log.oldest)
    other.release()
    assert len(log) == 6
    await harness.caches.stop()


def test_a_long_list_leaves_the_received_log_in_parts_and_no_read_sees_a_part() -> None:
    limits = dataclasses.replace(QUICK, received_log_max=3, received_pinned_max=12)
    log = ReceivedLog(limits)
    objects = [Object(CONFIG_MAP, map_key(f"m{n}"), b"{}", revision=1) for n in range(3_500)]
    changes = [CacheChange(ChangeType.ADDED, each.key, None, each, each.revision) for each in objects]
    log.append(Source.LIST, 1, changes, 0.0)
    longest = 0
    for revision in range(2, 20):
        gone = objects[revision]
        log.append(Source.EVENT, revision, [CacheChange(ChangeType.DELETED, gone.key, gone, None, revision)], 0.0)
        longest = max(longest, len(log))
        if revision in (5, 12):
            for place in range(log.oldest, log.place + 1):
                assert len(log.state_at(place)[0]) == (3_500 - (place - 1) if place else 0)
    assert 3 < longest <= 3 + 4
    assert len(log) == 3


@asynchronous
async def test_an_index_that_is_added_while_a_first_list_is_under_way_has_all_of_it() -> None:
    harness = await make_cache_harness()
    for n in range(3):
        await harness.world.create(config_map(f"m{n}"))
    cache = Cache(harness.client, harness.env, CONFIG_MAP)
    cache.add_index(BY_NAMESPACE)
    failing = Index("failing", lambda each: 1 / 0 if each.key.name == "m1" else ())  # type: ignore[arg-type,return-value]
    cache.add_index(failing)
    relist = cache.begin_relist()
    listed = await harness.client.list(CONFIG_MAP)
    relist.add(listed.objects[:2])
    by_name = Index("name", lambda each: (each.key.name,))
    cache.add_index(by_name)
    relist.add(listed.objects[2:])
    relist.apply(listed.revision, asked_s=0.0)
    assert len(cache.by_index(BY_NAMESPACE, "default").value) == 3
    assert [each.key.name for each in cache.by_index(by_name, "m0").value] == ["m0"]
    with pytest.raises(InvariantBroken, match="could not read"):
        cache.by_index(failing, "x")
    await until(lambda: harness.reported)
    assert [type(each) for each in harness.reported] == [ZeroDivisionError]
    await harness.caches.stop()

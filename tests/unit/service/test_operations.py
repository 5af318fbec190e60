"""Operation ids: a repeat returns the first outcome, even after other writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.objects import CONFIG_MAP, Clock, asynchronous, config_map, make_env, make_world, node, pod, pod_key

from kedge.api.requests import Binding, DeleteOptions, WriteOptions
from kedge.api.wellknown import OPERATION_KIND
from kedge.errors import BadRequest, Conflict, NotFound
from kedge.keys import NO_REVISION, Key, Origin, Revision
from kedge.limits import Limits
from kedge.server.service import Service, operations
from kedge.store import Reading
from kedge.store.memory import MemoryStore

SETTINGS = Key("ConfigMap", "default", "settings")


def once(operation: str) -> WriteOptions:
    return WriteOptions(origin=Origin(operation=operation))


@asynchronous
async def test_a_repeated_create_returns_the_object_as_it_was_made() -> None:
    world = await make_world()
    first = await world.service.create(CONFIG_MAP, config_map(a="1"), options=once("op-1"))
    await world.service.patch(SETTINGS, {"data": {"a": "2"}})
    before = await world.store.revision()
    again = await world.service.create(CONFIG_MAP, config_map(a="1"), options=once("op-1"))
    assert (again.object.uid, again.object.revision) == (first.object.uid, first.object.revision)
    assert again.object.edit()["data"] == {"a": "1"}
    assert await world.store.revision() == before


@asynchronous
async def test_a_repeated_create_does_not_recreate_a_deleted_object() -> None:
    world = await make_world()
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    await world.service.delete(SETTINGS)
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    with pytest.raises(NotFound):
        await world.get(SETTINGS)


@asynchronous
async def test_a_name_is_generated_once_an_operation() -> None:
    world = await make_world()
    body = config_map()
    body["metadata"] = {"generateName": "m-", "namespace": "default"}
    names = {(await world.service.create(CONFIG_MAP, body, options=once("op-1"))).object.key.name for _ in range(3)}
    assert len(names) == 1
    assert len((await world.service.list(CONFIG_MAP)).objects) == 1


@asynchronous
async def test_concurrent_repeats_take_effect_once() -> None:
    world = await make_world()
    patch = {"data": {"n": "1"}}
    await world.create(config_map())
    start = await world.store.revision()
    await asyncio.gather(*(world.service.patch(SETTINGS, patch, options=once("op-1")) for _ in range(10)))
    assert await world.store.revision() == start + 1


@asynchronous
async def test_a_repeated_delete_does_not_delete_the_successor() -> None:
    world = await make_world()
    await world.create(config_map())
    options = DeleteOptions(origin=Origin(operation="op-1"))
    first = await world.service.delete(SETTINGS, options)
    await world.create(config_map())
    again = await world.service.delete(SETTINGS, options)
    assert again.removed
    assert again.object.uid == first.object.uid
    await world.get(SETTINGS)


@asynchronous
async def test_an_operation_id_is_for_one_write() -> None:
    world = await make_world()
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    with pytest.raises(BadRequest, match="op-1"):
        await world.service.create(CONFIG_MAP, config_map("other"), options=once("op-1"))
    with pytest.raises(BadRequest, match="op-1"):
        await world.service.patch(SETTINGS, {"data": {"x": "y"}}, options=once("op-1"))


@asynchronous
async def test_a_failed_operation_may_be_retried() -> None:
    world = await make_world()
    with pytest.raises(NotFound):
        await world.service.patch(SETTINGS, {"data": {"x": "y"}}, options=once("op-1"))
    await world.create(config_map())
    await world.service.patch(SETTINGS, {"data": {"x": "y"}}, options=once("op-1"))


@asynchronous
async def test_operations_are_swept_after_their_window_and_beyond_their_number() -> None:
    world = await make_world(limits=Limits(operation_window_s=60, operations_max=5))
    core = world.service._core
    for n in range(8):
        await world.service.create(CONFIG_MAP, config_map(f"m{n}"), options=once(f"op-{n}"))
    assert await operations.sweep(core) == 3
    assert [e.key.name for e in (await world.store.list(OPERATION_KIND)).entries] == [f"op-{n}" for n in range(3, 8)]
    world.clock.advance(61)
    assert await operations.sweep(core) == 5
    assert await operations.sweep(core) == 0


@asynchronous
async def test_the_first_outcome_is_returned_after_compaction() -> None:
    world = await make_world()
    await world.service.create(CONFIG_MAP, config_map(a="1"), options=once("op-1"))
    await world.service.patch(SETTINGS, {"data": {"a": "2"}})
    await world.store.compact(await world.store.revision())
    assert (await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))).object.key == SETTINGS
    await world.service.delete(SETTINGS)
    await world.store.compact(await world.store.revision())
    again = await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    assert again.removed
    with pytest.raises(NotFound):
        await world.get(SETTINGS)


@asynchronous
async def test_a_server_with_a_fast_clock_sweeps_nothing_early() -> None:
    world = await make_world(limits=Limits(operation_window_s=60))
    ahead = Clock()
    ahead.advance(3600)
    other = Service(world.store, make_env(seed=9, clock=ahead, limits=world.env.limits))
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    assert await operations.sweep(other._core) == 0
    ahead.advance(59)
    assert await operations.sweep(other._core) == 0
    ahead.advance(2)
    assert await operations.sweep(other._core) == 1


@asynchronous
async def test_a_repeated_bind_returns_the_first_outcome_though_the_pod_was_replaced() -> None:
    world = await make_world()
    await world.create(node())
    await world.create(pod())
    request = Binding(pod=pod_key(), node="node-a")
    first = await world.service.bind(request, options=once("op-1"))
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    await world.create(pod())
    again = await world.service.bind(request, options=once("op-1"))
    assert again.object.uid == first.object.uid
    assert not (await world.get(pod_key())).view.spec.node_name


@asynchronous
async def test_a_repeated_confirmation_returns_the_first_outcome_though_the_node_was_replaced() -> None:
    world = await make_world()
    made = await world.create(node())
    bound = await world.create(pod())
    await world.service.bind(Binding(pod=bound.key, node="node-a"))
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    words = {"node": "node-a", "node_uid": made.uid, "pod_uid": bound.uid}
    first = await world.service.confirm_ended(**words, options=once("op-1"))
    await world.service.delete(made.key)
    await world.create(node())
    assert (await world.service.confirm_ended(**words, options=once("op-1"))).object.revision == first.object.revision


@asynchronous
async def test_a_given_name_must_match_even_with_a_generate_name() -> None:
    world = await make_world()
    body = config_map("mine")
    body["metadata"]["generateName"] = "m-"
    await world.service.create(CONFIG_MAP, body, options=once("op-1"))
    body["metadata"]["name"] = "another"
    with pytest.raises(BadRequest, match="op-1"):
        await world.service.create(CONFIG_MAP, body, options=once("op-1"))


@asynchronous
async def test_one_operation_deletes_a_whole_collection() -> None:
    world = await make_world()
    for name in "abc":
        await world.create(config_map(name))
    options = DeleteOptions(origin=Origin(operation="op-1"))
    assert len(await world.service.delete_collection(CONFIG_MAP, options=options)) == 3
    assert not (await world.service.list(CONFIG_MAP)).objects


class CountedStore(MemoryStore):
    """Counts reads: over a network each is a round trip."""

    reads = 0

    async def get(self, keys: Sequence[Key], *, at: Revision = NO_REVISION) -> Reading:
        self.reads += 1
        return await super().get(keys, at=at)


@asynchronous
async def test_the_record_of_an_operation_is_read_with_the_keys_of_the_write() -> None:
    store = CountedStore(make_env())
    world = await make_world(store=store)
    reads = []
    for write in (
        world.service.create(CONFIG_MAP, config_map(a="1"), options=once("op-1")),
        world.service.patch(SETTINGS, {"data": {"a": "2"}}, options=once("op-2")),
        world.service.delete(SETTINGS, DeleteOptions(origin=Origin(operation="op-3"))),
    ):
        store.reads = 0
        await write
        reads.append(store.reads)
    assert reads == [1, 1, 2], "a deletion looks for quotas of its namespace as well"


@asynchronous
async def test_an_update_of_a_known_version_needs_no_read_and_still_proves_it() -> None:
    """A renewal names the version that it changes, and the commit proves it."""
    store = CountedStore(make_env())
    world = await make_world(store=store)
    unrecorded = WriteOptions(recorded=False)
    first = await world.create(config_map(a="1"))

    def body(version: int, a: str) -> dict[str, Any]:
        made = first.edit()
        made["metadata"]["resourceVersion"] = str(version)
        return {**made, "data": {"a": a}}

    store.reads = 0
    second = (await world.service.update(SETTINGS, body(first.revision, "2"), options=unrecorded)).object
    assert store.reads == 0
    elsewhere = Service(store, make_env())
    third = (await elsewhere.patch(SETTINGS, {"data": {"a": "3"}})).object
    for value in ("4", "2"):  # a change, and none: neither names the newest version
        with pytest.raises(Conflict) as caught:
            await world.service.update(SETTINGS, body(second.revision, value), options=unrecorded)
        assert caught.value.revision == third.revision
    assert (await world.service.get(SETTINGS)).edit()["data"] == {"a": "3"}

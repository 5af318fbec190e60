"""Operation ids: a repeat returns the first outcome, whatever happened in between."""

from __future__ import annotations

import asyncio

import pytest
from tests.objects import CONFIG_MAP, asynchronous, config_map, make_world

from kedge.api.requests import DeleteOptions, WriteOptions
from kedge.errors import BadRequest, NotFound
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.server.service import operations

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
async def test_a_repeated_create_does_not_raise_the_dead() -> None:
    world = await make_world()
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    await world.service.delete(SETTINGS)
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    with pytest.raises(NotFound):
        await world.get(SETTINGS)


@asynchronous
async def test_a_generated_name_is_drawn_once_an_operation() -> None:
    world = await make_world()
    body = config_map()
    body["metadata"] = {"generateName": "m-", "namespace": "default"}
    names = {(await world.service.create(CONFIG_MAP, body, options=once("op-1"))).object.key.name for _ in range(3)}
    assert len(names) == 1
    assert len((await world.service.list(CONFIG_MAP)).objects) == 1


@asynchronous
async def test_repeats_at_once_happen_once() -> None:
    world = await make_world()
    patch = {"data": {"n": "1"}}
    await world.create(config_map())
    start = await world.store.revision()
    await asyncio.gather(*(world.service.patch(SETTINGS, patch, options=once("op-1")) for _ in range(10)))
    assert await world.store.revision() == start + 1


@asynchronous
async def test_a_repeated_delete_spares_the_successor() -> None:
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
async def test_an_operation_id_means_one_thing() -> None:
    world = await make_world()
    await world.service.create(CONFIG_MAP, config_map(), options=once("op-1"))
    with pytest.raises(BadRequest, match="op-1"):
        await world.service.create(CONFIG_MAP, config_map("other"), options=once("op-1"))
    with pytest.raises(BadRequest, match="op-1"):
        await world.service.patch(SETTINGS, {"data": {"x": "y"}}, options=once("op-1"))


@asynchronous
async def test_a_failed_operation_may_be_tried_again() -> None:
    world = await make_world()
    with pytest.raises(NotFound):
        await world.service.patch(SETTINGS, {"data": {"x": "y"}}, options=once("op-1"))
    await world.create(config_map())
    await world.service.patch(SETTINGS, {"data": {"x": "y"}}, options=once("op-1"))


@asynchronous
async def test_operations_are_forgotten_after_their_window_and_beyond_their_number() -> None:
    world = await make_world(limits=Limits(operation_window_s=60, operations_max=5))
    core = world.service._core
    for n in range(8):
        await world.service.create(CONFIG_MAP, config_map(f"m{n}"), options=once(f"op-{n}"))
    assert await operations.sweep(core) == 3
    assert [e.key.name for e in (await world.store.list(operations.OPERATION)).entries] == [
        f"op-{n}" for n in range(3, 8)
    ]
    world.clock.advance(61)
    assert await operations.sweep(core) == 5
    assert await operations.sweep(core) == 0


@asynchronous
async def test_the_first_outcome_is_told_even_when_history_is_gone() -> None:
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

"""Servers of one store have the same keys, or do not start."""

from __future__ import annotations

import pytest
from tests.kit.access import add_defaults
from tests.objects import World, asynchronous, make_world

from kedge.errors import Terminal
from kedge.server.service.credentials.key_record import RECORD, plan_key_record


async def ready_world() -> World:
    world = await make_world()
    await add_defaults(world.service)
    return world


async def recorded(world: World) -> object:
    return (await world.get(RECORD)).edit()["data"]


def test_a_key_that_is_replaced_is_accepted_first() -> None:
    assert plan_key_record({"tokens": "old"}, {"tokens": ("old", "new")}) == {}
    assert plan_key_record({"tokens": "old"}, {"tokens": ("new", "old")}) == {"tokens": "new"}
    with pytest.raises(Terminal, match="tokens is old"):
        plan_key_record({"tokens": "new"}, {"tokens": ("old",)})
    with pytest.raises(Terminal):
        plan_key_record({"tokens": "old"}, {"tokens": ("new",)})


@asynchronous
async def test_the_first_server_records_its_keys_and_others_must_have_them() -> None:
    world = await ready_world()
    await world.service.check_keys({"authority": ("a",), "tokens": ("t",)})
    await world.service.check_keys({"authority": ("a",), "tokens": ("t",)})
    revision = (await world.get(RECORD)).revision
    with pytest.raises(Terminal, match=r"authority is b, but a .*--pki.*--replace-keys"):
        await world.service.check_keys({"authority": ("b",), "tokens": ("t",)})
    assert (await world.get(RECORD)).revision == revision
    await world.service.check_keys({"authority": ("a",), "tokens": ("u", "t"), "encryption": ("e",)})
    assert await recorded(world) == {"authority": "a", "tokens": "u", "encryption": "e"}


@asynchronous
async def test_keys_that_are_lost_are_replaced_when_asked() -> None:
    world = await ready_world()
    await world.service.check_keys({"authority": ("a",)})
    await world.service.check_keys({"authority": ("b",)}, replace=True)
    assert await recorded(world) == {"authority": "b"}

"""A server that remembers the version a caller names takes it for read; what another server wrote is found out."""

from __future__ import annotations

import pytest
from tests.objects import CONFIG_MAP, World, asynchronous, config_map, make_world

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.errors import Conflict, NotFound
from kedge.server.service import Service


async def known_to_one() -> tuple[World, Service, Object]:
    """A world, another server on its store, and an object that the world's own server has seen."""
    world = await make_world()
    made = (await world.service.create(CONFIG_MAP, config_map(a="1"))).object
    return world, Service(world.store, world.env), made


def naming(found: Object, **data: str) -> dict[str, object]:
    return {**config_map(**data), "metadata": {**found.edit()["metadata"], "resourceVersion": str(found.revision)}}


@asynchronous
async def test_an_update_of_a_version_that_another_server_has_replaced_is_a_conflict() -> None:
    world, other, made = await known_to_one()
    await other.patch(made.key, {"data": {"a": "2"}})
    with pytest.raises(Conflict):
        await world.service.update(made.key, naming(made, a="3"))
    assert (await other.get(made.key)).edit()["data"] == {"a": "2"}


@asynchronous
async def test_a_dry_run_on_a_version_that_another_server_has_replaced_is_a_conflict() -> None:
    """Nothing is committed that could prove it, so it is read."""
    world, other, made = await known_to_one()
    await other.patch(made.key, {"data": {"a": "2"}})
    with pytest.raises(Conflict):
        await world.service.update(made.key, naming(made, a="3"), options=WriteOptions(dry_run=True))


@asynchronous
async def test_an_update_that_changes_nothing_of_a_version_that_was_replaced_is_a_conflict() -> None:
    world, other, made = await known_to_one()
    await other.patch(made.key, {"data": {"a": "2"}})
    with pytest.raises(Conflict):
        await world.service.update(made.key, naming(made, a="1"))


@asynchronous
async def test_an_update_of_what_another_server_has_deleted_finds_nothing() -> None:
    world, other, made = await known_to_one()
    await other.delete(made.key)
    with pytest.raises(NotFound):
        await world.service.update(made.key, naming(made, a="3"))

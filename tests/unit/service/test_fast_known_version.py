"""An update of a version that the server remembers is not read first; the commit finds other servers' writes."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import CONFIG_MAP, World, asynchronous, config_map, make_world

from kedge.api.objects import Object
from kedge.api.requests import WriteOptions
from kedge.errors import Conflict, NotFound, OperatingError
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
async def test_an_update_of_an_object_that_another_server_deleted_is_not_found() -> None:
    world, other, made = await known_to_one()
    await other.delete(made.key)
    with pytest.raises(NotFound):
        await world.service.update(made.key, naming(made, a="3"))


STEPS = st.lists(
    st.tuples(st.sampled_from(("update", "touch", "delete", "create")), st.booleans(), st.integers(0, 3)), max_size=8
)


async def outcomes(steps: list[tuple[str, bool, int]], *, remembers: bool) -> list[object]:
    """The result of each step, by one of two servers; a server that does not `remember` is new for each step."""
    world = await make_world()
    servers = [world.service, Service(world.store, world.env)]
    versions = [(await world.service.create(CONFIG_MAP, config_map(a="0"))).object]
    key, found = versions[0].key, list[object]()
    for verb, other, back in steps:
        server = servers[other] if remembers else Service(world.store, world.env)
        try:
            if verb == "update":
                named = versions[max(0, len(versions) - 1 - back)]
                written = await server.update(key, naming(named, a=str(back)))
            elif verb == "touch":
                written = await server.patch(key, {"data": {"b": str(len(versions))}})
            elif verb == "delete":
                written = await server.delete(key)
            else:
                written = await server.create(CONFIG_MAP, config_map(a="9"))
        except OperatingError as error:
            found.append(type(error))
            continue
        versions.append(written.object)
        found.append((written.object.revision, written.object.edit()["data"], written.removed))
    return found


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_a_remembered_version_changes_no_outcome(steps: list[tuple[str, bool, int]]) -> None:
    async def both() -> None:
        assert await outcomes(steps, remembers=True) == await outcomes(steps, remembers=False)

    asyncio.run(both())

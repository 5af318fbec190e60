"""Every namespace keeps its `default` ServiceAccount."""

from __future__ import annotations

import asyncio

from tests.objects import NAMESPACE, World, asynchronous, make_world

from kedge.keys import Key
from kedge.store import DeleteKey

TEAM = Key("ServiceAccount", "team-a", "default")


async def uid_of(world: World, key: Key, *, other_than: str = "") -> str:
    """The uid of an account, once there is one that is not `other_than`."""
    async with asyncio.timeout(5):
        while True:
            entry = (await world.store.get([key])).entries[0]
            found = None if entry is None else (await world.get(key)).uid
            if found is not None and found != other_than:
                return found
            await asyncio.sleep(0.01)


@asynchronous
async def test_a_default_account_that_is_deleted_is_made_again_as_another_one() -> None:
    world = await make_world()
    await world.service.create(NAMESPACE, {"metadata": {"name": "team-a"}})
    before = (await world.get(TEAM)).uid
    keeping = asyncio.ensure_future(world.service.run_credentials())
    await world.service.delete(TEAM)
    assert await uid_of(world, TEAM, other_than=before)
    keeping.cancel()


@asynchronous
async def test_an_account_that_was_missing_before_the_start_is_made() -> None:
    world = await make_world()
    await world.store.commit([], [DeleteKey(Key("ServiceAccount", "default", "default"))])
    keeping = asyncio.ensure_future(world.service.run_credentials())
    assert await uid_of(world, Key("ServiceAccount", "default", "default"))
    keeping.cancel()


@asynchronous
async def test_a_namespace_that_is_being_deleted_gets_no_account() -> None:
    world = await make_world()
    await world.service.create(NAMESPACE, {"metadata": {"name": "team-a"}})
    keeping = asyncio.ensure_future(world.service.run_credentials())
    await asyncio.sleep(0)
    await world.service.delete(Key("Namespace", "", "team-a"))
    await world.service.delete(TEAM)
    await asyncio.sleep(0.1)
    assert (await world.store.get([TEAM])).entries[0] is None
    assert not keeping.done()
    keeping.cancel()

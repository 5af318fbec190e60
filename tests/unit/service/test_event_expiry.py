"""Events end: one that has not occurred for its time to live is deleted, by the servers that share a store."""

from __future__ import annotations

import asyncio

from tests.objects import World, asynchronous, make_world

from kedge.api.kinds import KINDS
from kedge.api.wellknown import EVENT_KIND
from kedge.limits import Limits
from kedge.server.service.event_expiry import sweep_events

EVENT = KINDS.of_key_kind(EVENT_KIND)


async def make_event(world: World, name: str, **fields: object) -> None:
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
        "reason": "Tested",
        **fields,
    }
    await world.service.create(EVENT, body, namespace="default")


async def names(world: World) -> list[str]:
    return [each.key.name for each in (await world.store.list(EVENT_KIND)).entries]


def at(world: World) -> str:
    return f"{world.env.now():%Y-%m-%dT%H:%M:%SZ}"


@asynchronous
async def test_an_event_is_deleted_when_its_last_occurrence_is_old() -> None:
    world = await make_world(limits=Limits(event_ttl_s=600))
    core = world.service._core
    await make_event(world, "old", lastTimestamp=at(world))
    await make_event(world, "by-creation")
    world.clock.advance(400)
    await make_event(world, "repeated", firstTimestamp="2000-01-01T00:00:00Z", lastTimestamp=at(world))
    await make_event(
        world,
        "series",
        eventTime="2000-01-01T00:00:00.000000Z",
        series={"count": 2, "lastObservedTime": f"{world.env.now():%Y-%m-%dT%H:%M:%S.%fZ}"},
    )
    assert await sweep_events(core) == 0
    world.clock.advance(201)
    assert await sweep_events(core) == 2
    assert await names(world) == ["repeated", "series"]
    assert world.env.metrics.registry.get_sample_value("kedge_events_expired_total") == 2


@asynchronous
async def test_more_events_than_one_commit_holds_are_deleted_in_steps() -> None:
    world = await make_world(limits=Limits(event_ttl_s=600))
    for number in range(150):
        await make_event(world, f"event-{number:03}")
    world.clock.advance(601)
    assert await sweep_events(world.service._core) == 150
    assert await names(world) == []


@asynchronous
async def test_upkeep_sweeps_events() -> None:
    world = await make_world(limits=Limits(event_ttl_s=0.05))
    await make_event(world, "old")
    world.clock.advance(3600)
    upkeep = asyncio.ensure_future(world.service.run_upkeep())
    async with asyncio.timeout(30):
        while await names(world):
            world.clock.advance(1)
            await asyncio.sleep(0.01)
    upkeep.cancel()

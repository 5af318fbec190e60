"""From an object and a revision, or a condition, to the write behind it: bounded, and silent about nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import World, asynchronous, make_world, pod, pod_key

from kedge.api.requests import DeleteOptions, WriteOptions
from kedge.errors import Compacted, NotFound
from kedge.keys import Origin
from kedge.limits import Limits

KEY = pod_key()
BY_ADA = Origin("op-1", "", "ada", ("people",))
BY_SCHEDULER = Origin("op-2", "default-scheduler:p:7", "system:kedge-control-plane")
BY_AGENT = Origin("op-3", "agent-node-1:p:3")


async def report(world: World, origin: Origin, **conditions: str) -> int:
    """Write conditions, by their types, and return the revision."""
    listed = [{"type": name, "status": status} for name, status in conditions.items()]
    patch: dict[str, Any] = {"status": {"conditions": listed}}
    options = WriteOptions(origin=origin)
    return (await world.service.patch(KEY, patch, subresource="status", options=options)).object.revision


async def reported(limits: Limits | None = None) -> tuple[World, list[int]]:
    """A pod with three versions, and their revisions."""
    world = await make_world(limits=limits)
    made = await world.create(pod(), origin=BY_ADA)
    second = await report(world, BY_SCHEDULER, PodScheduled="False")
    return world, [made.revision, second, await report(world, BY_AGENT, PodScheduled="False", Ready="True")]


@asynchronous
async def test_each_revision_leads_to_the_write_of_the_version_that_was_there() -> None:
    world, (first, second, third) = await reported()
    lookup = world.service.version_origin
    assert [(await lookup(KEY, at)).origin for at in (first, second, third)] == [BY_ADA, BY_SCHEDULER, BY_AGENT]
    await world.create(pod("other"))
    newest = await world.store.revision()
    between = await lookup(KEY, newest)
    assert (between.revision, between.created, between.origin) == (third, first, BY_AGENT)
    assert await lookup(KEY) == between


@asynchronous
async def test_a_condition_leads_to_the_write_that_gave_it_its_content() -> None:
    world, (_, second, third) = await reported()
    found = await world.service.condition_origin(KEY, "PodScheduled")
    assert (found.revision, found.origin) == (second, BY_SCHEDULER)
    assert (await world.service.condition_origin(KEY, "Ready")).revision == third
    with pytest.raises(NotFound, match="it has no condition Ready at revision"):
        await world.service.condition_origin(KEY, "Ready", second)


@asynchronous
async def test_a_deletion_leads_to_its_caller_and_before_its_creation_there_is_nothing() -> None:
    world, (first, *_) = await reported()
    before = await world.store.revision()
    by_eve = Origin("op-9", "", "eve")
    await world.service.delete(KEY, DeleteOptions(grace_s=0, origin=by_eve))
    gone = await world.store.revision()
    assert gone == before + 1
    found = await world.service.version_origin(KEY, gone)
    assert (found.deleted, found.revision, found.origin) == (True, gone, by_eve)
    await world.create(pod("other"))
    for revision in (first - 1, await world.store.revision()):
        with pytest.raises(NotFound, match=f"not found at revision {revision}"):
            await world.service.version_origin(KEY, revision)
    with pytest.raises(NotFound):
        await world.service.version_origin(KEY)


@asynchronous
async def test_a_compacted_version_is_reported_as_gone() -> None:
    world, (first, _, third) = await reported()
    await world.store.compact(third)
    assert (await world.service.version_origin(KEY, third)).origin == BY_AGENT
    with pytest.raises(Compacted):
        await world.service.version_origin(KEY, first)
    with pytest.raises(Compacted):
        await world.service.condition_origin(KEY, "PodScheduled")


@asynchronous
async def test_a_lookup_of_a_condition_reads_a_bounded_number_of_versions() -> None:
    world, _ = await reported(limits=Limits(origin_versions_max=3))
    for name in ("a", "b", "c"):
        await world.service.patch(KEY, {"metadata": {"labels": {"turn": name}}})
    with pytest.raises(Compacted, match="more than 3 versions"):
        await world.service.condition_origin(KEY, "PodScheduled")

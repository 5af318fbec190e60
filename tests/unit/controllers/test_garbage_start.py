"""A collector that starts while one kind cannot be listed yet: no dependent of a deleted owner is left behind."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext

from tests.kit.config_maps import a_map, key_of
from tests.kit.runtime import QUICK, CacheHarness, make_cache_harness, until
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP, asynchronous, config_map

from kedge.api.kinds import KINDS
from kedge.api.requests import List, ListOptions, Reply, Request
from kedge.controllers.garbage.controller import collected_kinds, garbage_controller
from kedge.keys import Fence
from kedge.runtime import Controller, ControllerRuntime

LATE = collected_kinds(KINDS)[0]
"""The first kind in which dependents are searched: a search that stops at it finds no other kind."""


async def left_after(without: AbstractContextManager[None]) -> set[str]:
    """1. Owner and child are listed; another kind is not. 2. The owner is deleted. 3. The other kind is listed. Returns
    the objects that are left."""
    harness: CacheHarness = await make_cache_harness(QUICK)
    assert LATE is not CONFIG_MAP
    listed, ask = asyncio.Event(), harness.transport.send

    async def list_late(request: Request[Reply]) -> Reply:
        if isinstance(request, List) and request.kind is LATE:
            await listed.wait()
        return await ask(request)

    owner = await harness.world.create(config_map("owner"))
    await harness.world.service.create(CONFIG_MAP, a_map("child", owner))
    with replaced(harness.transport, "send", list_late), without:
        controller = garbage_controller(ControllerRuntime(harness.client, harness.env, caches=harness.caches))
        running = asyncio.create_task(controller.run())
        await until(lambda: harness.caches.of_kind("ConfigMap") and harness.caches.of_kind("ConfigMap")[0].synced)
        (maps,) = harness.caches.of_kind("ConfigMap")
        await until(lambda: controller.explain(key_of("child")) or controller.statistics().runs)
        await asyncio.sleep(
            0.05
        )  # a collector that does not wait for every kind reconciles the child now, and keeps it
        await harness.world.service.delete(key_of("owner"))
        await until(lambda: maps.get(key_of("owner")).value is None)
        listed.set()
        (late,) = harness.caches.of_kind(LATE.key_kind)
        await until(lambda: late.synced)
        await until(lambda: (queue := controller.queue.statistics()).ready + queue.waiting + queue.running == 0)
        found = {each.key.name for each in (await harness.world.service.list(CONFIG_MAP, ListOptions())).objects}
        await controller.stop()
        await running
        await harness.caches.stop()
    return found


@asynchronous
async def test_a_child_whose_owner_is_deleted_before_every_kind_is_listed_is_deleted_too() -> None:
    assert await left_after(nullcontext()) == set()


@asynchronous
async def test_without_waiting_for_every_kind_the_child_is_left() -> None:
    """The event of its owner's end stops at the kind that is not listed, so nothing wakes the child any more."""

    async def begin_at_once(self: Controller, fence: Fence | None) -> None:
        """Every kind must be listed before the first key is reconciled."""

    assert await left_after(replaced(Controller, "_wait_caches", begin_at_once)) == {"child"}

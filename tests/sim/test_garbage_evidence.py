"""The collector reads from the API server because its cache may be wrong: each read, and the damage without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kit.config_maps import a_map, key_of, maps
from tests.kit.nodes import QUICK, ControllerFleet, find, new_cluster
from tests.kit.safeguards import replaced
from tests.objects import CONFIG_MAP

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions
from kedge.controllers.garbage import controller as garbage
from kedge.controllers.garbage.controller import garbage_controller
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import Context
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import NO_FAULTS, Simulation, run

PATIENT = replace(QUICK, relist_every_s=100_000.0)
"""No cache relists by itself."""
CROWDED = replace(PATIENT, queue_keys_max=4)


class Harness:
    """A cluster without faults and with one collector, whose watches can hide objects."""

    def __init__(self, sim: Simulation, cluster: Cluster, limits: Limits) -> None:
        self.cluster, self.fleet = cluster, ControllerFleet(cluster, limits=limits)
        self.fleet.boot(sim, garbage_controller)

    async def make(self, name: str, *owners: Object) -> Object:
        return (await self.cluster.authority.create(CONFIG_MAP, a_map(name, *owners))).object

    async def drop(self, name: str, propagation: str = "Background") -> None:
        await self.cluster.authority.delete(key_of(name), DeleteOptions(propagation=propagation))

    def hide(self, name: str) -> None:
        self.fleet.hidden.add(key_of(name))

    def there(self) -> set[str]:
        return maps(self.cluster.store)


Steps = Callable[[Harness], Coroutine[Any, Any, None]]


async def run_program(sim: Simulation, program: Steps, limits: Limits) -> set[str]:
    harness = Harness(sim, await new_cluster(sim), limits)
    await asyncio.sleep(5)
    await program(harness)
    await asyncio.sleep(60)
    return harness.there()


def left_of(
    program: Steps, *, without: AbstractContextManager[None] | None = None, limits: Limits = PATIENT
) -> set[str]:
    """The names that are left at the end of a program, with or without a safeguard."""
    with without or nullcontext():
        outcome = run(partial(run_program, program=program, limits=limits), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    found: set[str] = outcome.result
    return found


async def from_cache(ctx: Context, key: Key) -> Object | None:
    return ctx.get(key)


async def list_from_cache(
    ctx: Context, kind: Kind, *, namespace: str = "", label_selector: str = ""
) -> Sequence[Object]:
    return ctx.list(kind, namespace=namespace, selector=label_selector or None)


async def hidden_owner(harness: Harness) -> None:
    """1. An owner is created, and the cache misses it. 2. Its child is created, and the cache has it."""
    harness.hide("owner")
    await harness.make("child", await harness.make("owner"))


async def hidden_replacement(harness: Harness) -> None:
    """1. The cache has an owner. 2. It is replaced by another of its name, and the cache misses that. 3. The new one
    gets a child."""
    await harness.make("owner")
    await asyncio.sleep(5)
    harness.hide("owner")
    await harness.drop("owner")
    await harness.make("child", await harness.make("owner"))


@pytest.mark.parametrize("program", [hidden_owner, hidden_replacement])
def test_an_owner_that_only_the_api_server_has_keeps_its_child(program: Steps) -> None:
    """kubernetes#88097, #114603 (bug 22): a cache that lacks an owner does not prove that there is none."""
    assert left_of(program) == {"owner", "child"}
    assert left_of(program, without=replaced(Context, "fresh", from_cache)) == {"owner"}


async def adopted_meanwhile(harness: Harness) -> None:
    """1. The last owner is proved gone. 2. Another owner adopts the child. 3. The delete is sent."""
    other = await harness.make("other")
    child = await harness.make("child", await harness.make("owner"))
    await asyncio.sleep(5)
    ask = Context.fresh
    references = a_map("child", other)["metadata"]["ownerReferences"]

    async def ask_slowly(ctx: Context, key: Key) -> Object | None:
        found = await ask(ctx, key)
        if key == key_of("owner") and found is None:
            await harness.cluster.authority.patch(child.key, {"metadata": {"ownerReferences": references}})
        return found

    with replaced(Context, "fresh", ask_slowly):
        await harness.drop("owner")
        await asyncio.sleep(20)


async def patch_any_version(ctx: Context, found: Object, **how: Any) -> Object:
    return await DELETE(ctx, found, **{**how, "any_version": True})


DELETE = Context.delete


def test_a_child_adopted_after_the_proof_is_not_deleted() -> None:
    assert left_of(adopted_meanwhile) == {"other", "child"}
    assert left_of(adopted_meanwhile, without=replaced(Context, "delete", patch_any_version)) == {"other"}


async def hidden_orphan(harness: Harness) -> None:
    """1. A child is created, and the cache misses it. 2. Its owner is deleted with orphan propagation."""
    owner = await harness.make("owner")
    await asyncio.sleep(5)
    harness.hide("child")
    await harness.make("child", owner)
    await harness.drop("owner", "Orphan")
    await asyncio.sleep(10)
    found = find(harness.cluster.store, key_of("child"))
    assert found is not None
    harness.fleet.hidden.clear()
    for _, caches, _, _ in harness.fleet.processes:
        for cache in caches.of_kind("ConfigMap"):
            cache.request_relist()


def test_a_child_that_no_cache_has_is_orphaned_too() -> None:
    assert left_of(hidden_orphan) == {"child"}
    assert left_of(hidden_orphan, without=replaced(Context, "fresh_list", list_from_cache)) == set()


async def many_at_once(harness: Harness) -> None:
    """More children lose their owner than the queue has room for: it drops some."""
    owner = await harness.make("owner")
    for n in range(12):
        await harness.make(f"child-{n}", owner)
    await asyncio.sleep(20)
    await harness.drop("owner")


def test_keys_that_the_queue_dropped_are_resynced() -> None:
    assert left_of(many_at_once, limits=CROWDED) == set()
    without = replaced(garbage, "may_be_garbage", lambda _: False)
    assert len(left_of(many_at_once, without=without, limits=CROWDED)) > 4

"""What the collector asks the authority because its cache may be wrong: each question, and what is lost without it."""

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
"""No cache is compared with the authority by itself."""
CROWDED = replace(PATIENT, queue_keys_max=4)


class Scene:
    """A quiet world with one collector, whose watches can be made to hide things."""

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


Story = Callable[[Scene], Coroutine[Any, Any, None]]


async def tell(sim: Simulation, story: Story, limits: Limits) -> set[str]:
    scene = Scene(sim, await new_cluster(sim), limits)
    await asyncio.sleep(5)
    await story(scene)
    await asyncio.sleep(60)
    return scene.there()


def left_of(story: Story, *, without: AbstractContextManager[None] | None = None, limits: Limits = PATIENT) -> set[str]:
    """The names that are left when a story is over, perhaps without a safeguard."""
    with without or nullcontext():
        outcome = run(partial(tell, story=story, limits=limits), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    found: set[str] = outcome.result
    return found


async def from_cache(ctx: Context, key: Key) -> Object | None:
    return ctx.get(key)


async def list_from_cache(
    ctx: Context, kind: Kind, *, namespace: str = "", label_selector: str = ""
) -> Sequence[Object]:
    return ctx.list(kind, namespace=namespace, selector=label_selector or None)


async def never_seen(scene: Scene) -> None:
    """1. An owner is made, and the cache is not told. 2. Its child is, and the cache is."""
    scene.hide("owner")
    await scene.make("child", await scene.make("owner"))


async def seen_as_another(scene: Scene) -> None:
    """1. An owner is known. 2. It goes, a namesake comes, and the cache is not told. 3. The namesake gets a child."""
    await scene.make("owner")
    await asyncio.sleep(5)
    scene.hide("owner")
    await scene.drop("owner")
    await scene.make("child", await scene.make("owner"))


@pytest.mark.parametrize("story", [never_seen, seen_as_another])
def test_an_owner_that_only_the_authority_knows_keeps_its_child(story: Story) -> None:
    """kubernetes#88097, #114603 (bug 22): a cache that lacks an owner does not prove that there is none."""
    assert left_of(story) == {"owner", "child"}
    assert left_of(story, without=replaced(Context, "fresh", from_cache)) == {"owner"}


async def taken_in_meanwhile(scene: Scene) -> None:
    """1. The last owner is proved gone. 2. Another takes the child in. 3. The delete is sent."""
    other = await scene.make("other")
    child = await scene.make("child", await scene.make("owner"))
    await asyncio.sleep(5)
    ask = Context.fresh
    references = a_map("child", other)["metadata"]["ownerReferences"]

    async def ask_slowly(ctx: Context, key: Key) -> Object | None:
        found = await ask(ctx, key)
        if key == key_of("owner") and found is None:
            await scene.cluster.authority.patch(child.key, {"metadata": {"ownerReferences": references}})
        return found

    with replaced(Context, "fresh", ask_slowly):
        await scene.drop("owner")
        await asyncio.sleep(20)


async def whatever_it_says_now(ctx: Context, found: Object, **how: Any) -> Object:
    return await DELETE(ctx, found, **{**how, "any_version": True})


DELETE = Context.delete


def test_a_child_that_was_taken_in_after_the_proof_is_not_deleted() -> None:
    assert left_of(taken_in_meanwhile) == {"other", "child"}
    assert left_of(taken_in_meanwhile, without=replaced(Context, "delete", whatever_it_says_now)) == {"other"}


async def orphaned_unseen(scene: Scene) -> None:
    """1. A child is made, and the cache is not told. 2. Its owner goes, and is to leave its children behind."""
    owner = await scene.make("owner")
    await asyncio.sleep(5)
    scene.hide("child")
    await scene.make("child", owner)
    await scene.drop("owner", "Orphan")
    await asyncio.sleep(10)
    found = find(scene.cluster.store, key_of("child"))
    assert found is not None
    scene.fleet.hidden.clear()
    for _, caches, _, _ in scene.fleet.processes:
        for cache in caches.of_kind("ConfigMap"):
            cache.request_relist()


def test_a_child_that_no_cache_shows_is_let_go_as_the_others_are() -> None:
    assert left_of(orphaned_unseen) == {"child"}
    assert left_of(orphaned_unseen, without=replaced(Context, "fresh_list", list_from_cache)) == set()


async def many_at_once(scene: Scene) -> None:
    """More children lose their owner than the queue has room for: it takes some, and forgets the others."""
    owner = await scene.make("owner")
    for n in range(12):
        await scene.make(f"child-{n}", owner)
    await asyncio.sleep(20)
    await scene.drop("owner")


def test_what_the_queue_had_no_room_for_is_looked_at_again() -> None:
    assert left_of(many_at_once, limits=CROWDED) == set()
    without = replaced(garbage, "may_be_garbage", lambda _: False)
    assert len(left_of(many_at_once, without=without, limits=CROWDED)) > 4

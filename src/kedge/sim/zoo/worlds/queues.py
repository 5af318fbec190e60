"""Worlds of those who get in each other's way: controllers that undo each other's work, tenants that share a worker.

Like `crews`, these have controllers as a user writes them, with nothing to rely on but the runtime's queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.wellknown import CONFIG_MAP_KIND
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec
from kedge.runtime.queue import Loop
from kedge.sim.cluster import Component, ProcessContext
from kedge.sim.cluster.links import Commit
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size
from kedge.sim.zoo.strategies import DrawnRates
from kedge.sim.zoo.worlds.base import QUIET

MAP = KINDS.of_key_kind(CONFIG_MAP_KIND)
FENCE = Key(MAP.key_kind, "default", "fence")


def _map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


# -- rivals: two controllers, each of which paints the same fence in its own colour ----------------------

WINDOW_S, PAINTED_MAX = 20.0, 60
"""A fight that nobody slows comes to hundreds in that time."""


class Painter:
    """Paints whatever has another colour."""

    def __init__(self, colour: str) -> None:
        self._colour = colour

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None and found.edit().get("data", {}).get("colour") not in ("", None, self._colour):
            await ctx.patch(found, {"data": {"colour": self._colour}})
        return Action.await_change()


class FightsAreSlowed:
    """Nothing is written over and over again at full speed, whoever is right."""

    __name__ = "fights are slowed"

    def __init__(self, world: JudgedCluster) -> None:
        self._sim = world.sim
        self._painted_s: deque[float] = deque()
        world.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if FENCE in commit.keys:
            self._painted_s.append(self._sim.now_s)
            while self._painted_s[0] < self._sim.now_s - WINDOW_S:
                self._painted_s.popleft()
            if len(self._painted_s) > PAINTED_MAX:
                yield "hot", f"{FENCE} was written {len(self._painted_s)} times within {WINDOW_S:.0f}s"


class Rival(Controller):
    """A controller whose fights are no surprise: to find one is no error of the run."""

    def _report_loop(self, loop: Loop[Key]) -> None:
        pass


def _painter(context: ProcessContext, *, colour: str) -> Component:
    return Rival(
        ControllerSpec(kind=MAP, name=colour),
        Painter(colour),
        ControllerRuntime(context.client, context.env, caches=context.caches),
    )


@simulate(faults=DrawnRates())
async def rivals(sim: Simulation) -> None:
    """Two controllers fight over an object, without an error; in the end a person settles it."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    FightsAreSlowed(world)
    for colour in ("red", "blue"):
        world.cluster.boot(colour, [partial(_painter, colour=colour)])
    await asyncio.sleep(sim.choose("first", (2, 0.2)))
    await world.user.apply(_map(FENCE.name, FENCE.namespace, colour=sim.choose("colour", ("red", "blue", "green"))))
    await asyncio.sleep(sim.choose("fight", (60, 30)))
    await world.user.patch(FENCE, {"data": {"colour": ""}})
    await world.close(within_s=120, silence_s=8)


# -- tenants: many keys of one, a single one of another, and one worker ----------------------------------

TURNS = "tenants take turns"
MANY, RUN_S, PATIENCE_S = 40, 0.5, 5.0
SMALL = Key(MAP.key_kind, "small", "only")


class Clerk:
    """Takes its time for each. Keeps which version of the small tenant's key it has served."""

    def __init__(self) -> None:
        self.served = 0

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        await asyncio.sleep(RUN_S)
        if key == SMALL and found is not None:
            self.served = found.revision
        return Action.await_change()


def _office(context: ProcessContext, *, clerk: Clerk) -> Component:
    return Controller(
        ControllerSpec(kind=MAP, name="clerk", workers=1),
        clerk,
        ControllerRuntime(context.client, context.env, caches=context.caches),
    )


@simulate(faults=DrawnRates())
async def tenants(sim: Simulation) -> None:
    """One tenant changes all that it has, and another the one thing that it has: both are served in turn."""
    world = JudgedCluster(sim, Size(nodes=0, servers=1, schedulers=0, managers=0, limits=QUIET))
    await world.open("big", "small", cluster_faults=False)
    clerk = Clerk()
    world.cluster.boot("office", [partial(_office, clerk=clerk)])
    for n in range(MANY):
        await world.cluster.create(_map(f"one-of-many-{n}", "big"))
    await world.cluster.create(_map(SMALL.name, SMALL.namespace))
    await asyncio.sleep(sim.choose("first", (1, MANY * RUN_S + 5)))
    for n in range(MANY):
        await world.cluster.authority.patch(Key(MAP.key_kind, "big", f"one-of-many-{n}"), {"data": {"turn": "2"}})
    await asyncio.sleep(sim.choose("then", (1, 0.1)))
    changed = await world.cluster.authority.patch(SMALL, {"data": {"turn": "2"}})
    await asyncio.sleep(PATIENCE_S)
    if clerk.served < changed.object.revision:
        sim.violate(TURNS, f"{SMALL} was not served within {PATIENCE_S:.0f}s")
    await world.close(within_s=60, silence_s=0)

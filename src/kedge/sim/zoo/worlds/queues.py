"""Worlds of the work queue: controllers that undo each other's writes, tenants that share a worker.

As in `runtime`, the controllers are like those of a user, and rely on the queue of the runtime alone.
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
SHARED = Key(MAP.key_kind, "default", "shared")


def _map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


# -- rivals: two controllers, each of which writes its own colour to the same object ---------------------

WINDOW_S, WRITES_MAX = 20.0, 60
"""A fight that is not slowed down makes hundreds of writes in that time."""


class ColourReconciler:
    """Writes its colour to every object that has another."""

    def __init__(self, colour: str) -> None:
        self._colour = colour

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is not None and found.edit().get("data", {}).get("colour") not in ("", None, self._colour):
            await ctx.patch(found, {"data": {"colour": self._colour}})
        return Action.await_change()


class FightsAreSlowed:
    """No object is rewritten again and again at full speed."""

    __name__ = "fights are slowed"

    def __init__(self, world: JudgedCluster) -> None:
        self._sim = world.sim
        self._written_s: deque[float] = deque()
        world.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if SHARED in commit.keys:
            self._written_s.append(self._sim.now_s)
            while self._written_s[0] < self._sim.now_s - WINDOW_S:
                self._written_s.popleft()
            if len(self._written_s) > WRITES_MAX:
                yield "hot", f"{SHARED} was written {len(self._written_s)} times within {WINDOW_S:.0f}s"


class RivalController(Controller):
    """A controller whose loops are expected: detecting one is no error of the run."""

    def _report_loop(self, loop: Loop[Key]) -> None:
        pass


def _colour_controller(context: ProcessContext, *, colour: str) -> Component:
    return RivalController(
        ControllerSpec(kind=MAP, name=colour),
        ColourReconciler(colour),
        ControllerRuntime(context.client, context.env, caches=context.caches),
    )


@simulate(faults=DrawnRates())
async def rivals(sim: Simulation) -> None:
    """Two controllers overwrite each other's value of an object, without an error, until a user removes it."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    FightsAreSlowed(world)
    for colour in ("red", "blue"):
        world.cluster.boot(colour, [partial(_colour_controller, colour=colour)])
    await asyncio.sleep(sim.choose("first", (2, 0.2)))
    await world.user.apply(_map(SHARED.name, SHARED.namespace, colour=sim.choose("colour", ("red", "blue", "green"))))
    await asyncio.sleep(sim.choose("fight", (60, 30)))
    await world.user.patch(SHARED, {"data": {"colour": ""}})
    await world.close(within_s=120, silence_s=8)


# -- tenants: one tenant with many keys, one with a single key, and one worker ---------------------------

TURNS = "tenants take turns"
MANY, RUN_S, PATIENCE_S = 40, 0.5, 5.0
SMALL = Key(MAP.key_kind, "small", "only")


class SlowReconciler:
    """Takes `RUN_S` for each key. Records the version of the small tenant's key that it has served."""

    def __init__(self) -> None:
        self.served = 0

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        await asyncio.sleep(RUN_S)
        if key == SMALL and found is not None:
            self.served = found.revision
        return Action.await_change()


def _slow_controller(context: ProcessContext, *, reconciler: SlowReconciler) -> Component:
    return Controller(
        ControllerSpec(kind=MAP, name="reconciler", workers=1),
        reconciler,
        ControllerRuntime(context.client, context.env, caches=context.caches),
    )


@simulate(faults=DrawnRates())
async def tenants(sim: Simulation) -> None:
    """One tenant changes all its objects, another its only one: both are served in turn."""
    world = JudgedCluster(sim, Size(nodes=0, servers=1, schedulers=0, managers=0, limits=QUIET))
    await world.open("big", "small", cluster_faults=False)
    reconciler = SlowReconciler()
    world.cluster.boot("slow", [partial(_slow_controller, reconciler=reconciler)])
    for n in range(MANY):
        await world.cluster.create(_map(f"one-of-many-{n}", "big"))
    await world.cluster.create(_map(SMALL.name, SMALL.namespace))
    await asyncio.sleep(sim.choose("first", (1, MANY * RUN_S + 5)))
    for n in range(MANY):
        await world.cluster.authority.patch(Key(MAP.key_kind, "big", f"one-of-many-{n}"), {"data": {"turn": "2"}})
    await asyncio.sleep(sim.choose("then", (1, 0.1)))
    changed = await world.cluster.authority.patch(SMALL, {"data": {"turn": "2"}})
    await asyncio.sleep(PATIENCE_S)
    if reconciler.served < changed.object.revision:
        sim.violate(TURNS, f"{SMALL} was not served within {PATIENCE_S:.0f}s")
    await world.close(within_s=60, silence_s=0)

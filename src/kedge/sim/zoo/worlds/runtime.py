"""A world for the runtime: a controller as a user writes one, with nothing to rely on but the runtime's promises.

It names its children at random, so no name collides, and it reads its cache alone. What a cache must know before a key
runs, who may write, and that no wake-up is lost are all that keep a crew at its size. kedge's own controllers have
second safeguards, which hide that a first one is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.owners import controller_of, owner_reference
from kedge.api.wellknown import CONFIG_MAP_KIND, JOB_KIND, LEASE_KIND, SYSTEM_NAMESPACE
from kedge.errors import Conflict
from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec
from kedge.sim.cluster import Component, ProcessContext
from kedge.sim.cluster.links import Commit
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.standard import LIMITS, JudgedCluster, Size, job
from kedge.sim.zoo.strategies import DrawnRates
from kedge.sim.zoo.worlds.base import NO_PERIODIC_WORK

CREW, HAND = KINDS.of_key_kind(JOB_KIND), KINDS.of_key_kind(CONFIG_MAP_KIND)
MINE, THEIRS = "zoo.example/crew", "zoo.example/somebody-else"
NAMES = ("red", "blue")

LIMITS_OF_CREWS = replace(
    LIMITS,
    **NO_PERIODIC_WORK,  # type: ignore[arg-type]
    lease_s=6.0,
    lease_renew_s=4.0,
    lease_retry_s=1.5,
    watch_probe_s=4.0,
    watch_silence_s=12.0,
    client_deadline_s=8.0,
    floor_relist_s=1.0,
)


class CrewReconciler:
    """As many hands as the crew asks for."""

    def __init__(self, *, drawn: bool = False) -> None:
        """`drawn`: the server names the hands, so that nobody can look for one by its name."""
        self._drawn = drawn

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        crew = ctx.get(key)
        if crew is None:
            return Action.await_change()
        if MINE not in crew.metadata.finalizers:
            # A list is replaced whole: on another version than the one that was read this would undo what others did.
            crew = await ctx.patch(crew, {"metadata": {"finalizers": [*crew.metadata.finalizers, MINE]}})
        want, hands = crew.view.spec.parallelism, ctx.owned(HAND, crew)
        for _ in range(want - len(hands)):
            name = (
                {"generateName": f"{key.name}-"}
                if self._drawn
                else {"name": f"{key.name}-{ctx.random.getrandbits(40):x}"}
            )
            await ctx.create(HAND, _hand(crew, name))
        for hand in hands[want:]:
            await ctx.delete(hand)
        full = {"type": "Complete", "status": str(len(hands) == want), "reason": "Counted"}
        await ctx.write_status(crew, {"active": len(hands), "conditions": [full]})
        return Action.await_change()


def _hand(crew: Object, name: dict[str, str]) -> dict[str, Any]:
    owners = [owner_reference(CREW, crew.metadata)]
    return {"metadata": {**name, "namespace": crew.key.namespace, "ownerReferences": owners}}


def crew_controller(context: ProcessContext, *, drawn: bool = False) -> Component:
    lease = Key(LEASE_KIND, SYSTEM_NAMESPACE, "crews")
    reconciler = CrewReconciler(drawn=drawn)
    return Controller(
        ControllerSpec(kind=CREW, name="crews", owns=(HAND,)),
        reconciler,
        ControllerRuntime(context.client, context.env, lease=lease, caches=context.caches),
    )


class Crews:
    """What is asked of each crew, and what must hold of them."""

    def __init__(self, world: JudgedCluster) -> None:
        self._world = world
        self._most: dict[str, int] = {}
        """By crew's uid: the most hands it was ever asked to have."""
        self._signed: dict[Key, None] = {}
        """Crews to which somebody else has added a finalizer."""
        world.sim.check_always(self.nobody_undoes_what_another_did)
        world.sim.check_always(self.no_crew_has_more_hands_than_it_was_asked_for)

    def asked(self, crew: Object) -> None:
        self._most[crew.uid] = max(self._most.get(crew.uid, 0), crew.view.spec.parallelism)

    def no_crew_has_more_hands_than_it_was_asked_for(self, commit: Commit) -> Iterator[tuple[str, str]]:
        cluster = self._world.cluster
        for key in commit.keys:
            if key.kind == CREW.key_kind and (crew := cluster.find(key)) is not None:
                self.asked(crew)
            hand = cluster.find(key) if key.kind == HAND.key_kind else None
            owner = controller_of(hand.metadata) if hand is not None else None
            if owner is not None and len(self.hands_of(owner.uid)) > self._most.get(owner.uid, 0):
                yield "too many", f"{owner.name} has {len(self.hands_of(owner.uid))}"

    def nobody_undoes_what_another_did(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            crew = self._world.cluster.find(key) if key.kind == CREW.key_kind else None
            if crew is not None and key in self._signed and THEIRS not in crew.metadata.finalizers:
                yield "overwritten", f"{key} lost the finalizer of somebody else"

    async def sign(self, key: Key) -> None:
        """Somebody else adds a finalizer, past every link and fault."""
        cluster = self._world.cluster
        while True:
            found = cluster.find(key)
            assert found is not None
            body = {"resourceVersion": str(found.revision), "finalizers": [*found.metadata.finalizers, THEIRS]}
            with suppress(Conflict):  # a controller wrote in between: say it of that version
                await cluster.authority.patch(key, {"metadata": body})
                break
        self._signed[key] = None

    def hands_of(self, uid: str) -> list[Key]:
        facts = self._world.judge.facts
        return [key for key in facts.children.get(uid, ()) if key.kind == HAND.key_kind]

    def crews_are_whole_and_say_so(self) -> bool:
        for crew in self._world.cluster.all(CREW.key_kind):
            want, status = crew.view.spec.parallelism, crew.view.status
            told = [(each.status, each.observed_generation) for each in status.conditions]
            full = told == [("True", crew.metadata.generation)]
            if len(self.hands_of(crew.uid)) != want or status.active != want or not full:
                return False
        return True


async def _open(sim: Simulation, limits: Limits = LIMITS_OF_CREWS, *, drawn: bool = False) -> JudgedCluster:
    size = Size(nodes=0, servers=2, schedulers=0, managers=0, limits=limits)
    world = JudgedCluster(sim, size)
    kept = Crews(world)
    await world.open()
    world.cluster.boot("manager", [partial(crew_controller, drawn=drawn)], copies=2)
    sim.check_eventually(kept.crews_are_whole_and_say_so)
    for name in NAMES:
        crew = await world.user.apply(job(name, 2))
        await asyncio.sleep(sim.choose("until it is signed", (0.1, 0.02, 0.5, 2)))
        await kept.sign(crew.key)
    return world


@simulate(faults=DrawnRates())
async def outage(sim: Simulation) -> None:
    """Every server is away for a while, and everybody waits for them to come back."""
    world = await _open(sim)
    await asyncio.sleep(sim.choose("first", (8, 2)))
    for server in world.cluster.servers:
        server.crash()
    await asyncio.sleep(sim.choose("away", (60, 30, 90)))
    for server in world.cluster.servers:
        server.restart()
    await world.close(within_s=200, silence_s=8, stays_s=10)


@simulate(faults=DrawnRates())
async def crews(sim: Simulation) -> None:
    """Crews are resized, and lose hands."""
    await _resize(sim, await _open(sim))


@simulate(faults=DrawnRates())
async def unanswered(sim: Simulation) -> None:
    """The same, where clients soon give up and the server names the hands: what became of a create is hard to tell."""
    limits = replace(
        LIMITS_OF_CREWS, client_attempts_max=sim.choose("attempts", (1, 3)), lease_s=60.0, lease_renew_s=45.0
    )
    await _resize(sim, await _open(sim, limits, drawn=True))


async def _resize(sim: Simulation, world: JudgedCluster) -> None:
    user, cluster = world.user, world.cluster
    await asyncio.sleep(sim.choose("first", (8, 2, 15)))
    for _ in range(sim.choose_int("steps", 2, 5)):
        key = Key(CREW.key_kind, "default", sim.choose("crew", NAMES))
        match sim.choose("step", ("lose a hand", "resize", "lose a hand")):
            case "resize":
                await user.patch(key, {"spec": {"parallelism": sim.choose("hands", (3, 1, 2))}})
            case _:
                hands = cluster.all(HAND.key_kind)
                if hands:
                    await user.delete(sim.choose("hand", hands).key)
        await asyncio.sleep(sim.choose("pause", (6, 0.2, 2, 12)))
    await world.close(within_s=120, silence_s=8, stays_s=10)

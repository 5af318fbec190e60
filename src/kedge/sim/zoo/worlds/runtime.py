"""Worlds of the runtime: a controller like that of a user, which relies on the guarantees of the runtime alone.

Its objects are groups (Jobs) that own members (ConfigMaps). It gives members random names, so no create conflicts, and
reads only its cache. Cache freshness, leadership and reliable wake-ups are all that keep a group at its size. The
controllers of kedge have second safeguards, which would hide the loss of the first one.
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

GROUP, MEMBER = KINDS.of_key_kind(JOB_KIND), KINDS.of_key_kind(CONFIG_MAP_KIND)
MINE, THEIRS = "zoo.example/group", "zoo.example/other"
NAMES = ("red", "blue")

GROUP_LIMITS = replace(
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


class GroupReconciler:
    """Creates and deletes members until the group has its size."""

    def __init__(self, *, generated: bool = False) -> None:
        """`generated`: the server names the members, so a member cannot be read back by its name."""
        self._generated = generated

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        group = ctx.get(key)
        if group is None:
            return Action.await_change()
        if MINE not in group.metadata.finalizers:
            # A patch replaces the whole list: on another version than the one read it would drop other finalizers.
            group = await ctx.patch(group, {"metadata": {"finalizers": [*group.metadata.finalizers, MINE]}})
        want, members = group.view.spec.parallelism, ctx.owned(MEMBER, group)
        for _ in range(want - len(members)):
            name = (
                {"generateName": f"{key.name}-"}
                if self._generated
                else {"name": f"{key.name}-{ctx.random.getrandbits(40):x}"}
            )
            await ctx.create(MEMBER, _member(group, name))
        for member in members[want:]:
            await ctx.delete(member)
        full = {"type": "Complete", "status": str(len(members) == want), "reason": "Counted"}
        await ctx.write_status(group, {"active": len(members), "conditions": [full]})
        return Action.await_change()


def _member(group: Object, name: dict[str, str]) -> dict[str, Any]:
    owners = [owner_reference(GROUP, group.metadata)]
    return {"metadata": {**name, "namespace": group.key.namespace, "ownerReferences": owners}}


def group_controller(context: ProcessContext, *, generated: bool = False) -> Component:
    lease = Key(LEASE_KIND, SYSTEM_NAMESPACE, "groups")
    reconciler = GroupReconciler(generated=generated)
    return Controller(
        ControllerSpec(kind=GROUP, name="groups", owns=(MEMBER,)),
        reconciler,
        ControllerRuntime(context.client, context.env, lease=lease, caches=context.caches),
    )


class GroupSizes:
    """The sizes of all groups, and their invariants."""

    def __init__(self, world: JudgedCluster) -> None:
        self._world = world
        self._most: dict[str, int] = {}
        """The greatest size that a group ever had, by its uid."""
        self._with_finalizer: dict[Key, None] = {}
        """Groups to which another client has added a finalizer."""
        world.sim.check_always(self.no_write_reverts_another)
        world.sim.check_always(self.no_group_has_more_members_than_its_size)

    def record_size(self, group: Object) -> None:
        self._most[group.uid] = max(self._most.get(group.uid, 0), group.view.spec.parallelism)

    def no_group_has_more_members_than_its_size(self, commit: Commit) -> Iterator[tuple[str, str]]:
        cluster = self._world.cluster
        for key in commit.keys:
            if key.kind == GROUP.key_kind and (group := cluster.find(key)) is not None:
                self.record_size(group)
            member = cluster.find(key) if key.kind == MEMBER.key_kind else None
            owner = controller_of(member.metadata) if member is not None else None
            if owner is not None and len(self.members_of(owner.uid)) > self._most.get(owner.uid, 0):
                yield "too many", f"{owner.name} has {len(self.members_of(owner.uid))}"

    def no_write_reverts_another(self, commit: Commit) -> Iterator[tuple[str, str]]:
        for key in commit.keys:
            group = self._world.cluster.find(key) if key.kind == GROUP.key_kind else None
            if group is not None and key in self._with_finalizer and THEIRS not in group.metadata.finalizers:
                yield "overwritten", f"{key} lost the finalizer of another client"

    async def add_finalizer(self, key: Key) -> None:
        """Add the finalizer of another client, without links and faults."""
        cluster = self._world.cluster
        while True:
            found = cluster.find(key)
            assert found is not None
            body = {"resourceVersion": str(found.revision), "finalizers": [*found.metadata.finalizers, THEIRS]}
            with suppress(Conflict):  # a controller wrote in between: retry on that version
                await cluster.authority.patch(key, {"metadata": body})
                break
        self._with_finalizer[key] = None

    def members_of(self, uid: str) -> list[Key]:
        facts = self._world.judge.facts
        return [key for key in facts.children.get(uid, ()) if key.kind == MEMBER.key_kind]

    def groups_are_complete_and_report_it(self) -> bool:
        for group in self._world.cluster.all(GROUP.key_kind):
            want, status = group.view.spec.parallelism, group.view.status
            reported = [(each.status, each.observed_generation) for each in status.conditions]
            full = reported == [("True", group.metadata.generation)]
            if len(self.members_of(group.uid)) != want or status.active != want or not full:
                return False
        return True


async def _open(sim: Simulation, limits: Limits = GROUP_LIMITS, *, generated: bool = False) -> JudgedCluster:
    size = Size(nodes=0, servers=2, schedulers=0, managers=0, limits=limits)
    world = JudgedCluster(sim, size)
    kept = GroupSizes(world)
    await world.open()
    world.cluster.boot("manager", [partial(group_controller, generated=generated)], copies=2)
    sim.check_eventually(kept.groups_are_complete_and_report_it)
    for name in NAMES:
        group = await world.user.apply(job(name, 2))
        await asyncio.sleep(sim.choose("until the other finalizer", (0.1, 0.02, 0.5, 2)))
        await kept.add_finalizer(group.key)
    return world


@simulate(faults=DrawnRates())
async def outage(sim: Simulation) -> None:
    """All servers are down for a while, then restart."""
    world = await _open(sim)
    await asyncio.sleep(sim.choose("first", (8, 2)))
    for server in world.cluster.servers:
        server.crash()
    await asyncio.sleep(sim.choose("away", (60, 30, 90)))
    for server in world.cluster.servers:
        server.restart()
    await world.close(within_s=200, silence_s=8, stays_s=10)


@simulate(faults=DrawnRates())
async def groups(sim: Simulation) -> None:
    """Groups are resized, and members are deleted."""
    await _resize(sim, await _open(sim))


@simulate(faults=DrawnRates())
async def unanswered(sim: Simulation) -> None:
    """As `groups`, but clients soon give up and the server names the members: outcomes of creates are hard to find."""
    limits = replace(GROUP_LIMITS, client_attempts_max=sim.choose("attempts", (1, 3)), lease_s=60.0, lease_renew_s=45.0)
    await _resize(sim, await _open(sim, limits, generated=True))


async def _resize(sim: Simulation, world: JudgedCluster) -> None:
    user, cluster = world.user, world.cluster
    await asyncio.sleep(sim.choose("first", (8, 2, 15)))
    for _ in range(sim.choose_int("steps", 2, 5)):
        key = Key(GROUP.key_kind, "default", sim.choose("group", NAMES))
        match sim.choose("step", ("delete a member", "resize", "delete a member")):
            case "resize":
                await user.patch(key, {"spec": {"parallelism": sim.choose("members", (3, 1, 2))}})
            case _:
                members = cluster.all(MEMBER.key_kind)
                if members:
                    await user.delete(sim.choose("member", members).key)
        await asyncio.sleep(sim.choose("pause", (6, 0.2, 2, 12)))
    await world.close(within_s=120, silence_s=8, stays_s=10)

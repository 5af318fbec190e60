"""Planted couplings on a simulated cluster: each is found, and no other is reported.

Every controller here has one key, reads annotations of ConfigMaps and writes others. A person's changes start each run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.kit.coupled_controllers import (
    LIMITS,
    Planted,
    between,
    change,
    config,
    coupling,
    create,
    flooded_world,
    set_value,
    value_of,
    world,
)

from kedge import Context
from kedge.api.kinds import KINDS
from kedge.errors import Forbidden
from kedge.observe.readers.coupling import Basis, Waking
from kedge.sim.cluster import Cluster

CONFIG_MAP, QUOTA = KINDS.of_key_kind("ConfigMap"), KINDS.of_key_kind("ResourceQuota")
LIMIT = "metadata.annotations.limit"


async def tune(ctx: Context) -> None:
    """Settings follow the load that a person declares."""
    await set_value(ctx, "settings", "limit", value_of(ctx, "load", "requests"))


async def size(ctx: Context) -> None:
    """The size of the target follows the settings."""
    await set_value(ctx, "target", "size", value_of(ctx, "settings", "limit"))


async def load_grows(cluster: Cluster) -> None:
    await create(cluster, "load", "settings", "target")
    for requests in (3, 5):
        await change(cluster, "load", requests=str(requests))
        await asyncio.sleep(60)


TUNER = Planted("tuner", tune, wakes=("load", "settings"))


def test_a_silent_edge_is_found() -> None:
    planted = [TUNER, Planted("sizer", size, wakes=("target",))]
    recording = world(planted, load_grows)
    found = coupling(recording, "sizer", planted)
    (edge,) = between(found).values()
    assert (edge.writer, edge.kind, edge.field) == ("tuner", "ConfigMap", LIMIT)
    assert (edge.waking, edge.basis, edge.transfers) == (Waking.SILENT, Basis.OBJECTS, 3)  # empty, 3, 5
    assert edge.objects == (str(config("settings")),)
    assert edge.verdict.decisive is True
    assert not found.paths or {path.first.writer for path in found.paths} == {"user"}
    assert (found.cycles, found.fights, found.limits) == ((), (), ())
    assert between(coupling(recording, "tuner", planted)) == {}


def test_a_watched_edge_is_not_called_silent() -> None:
    planted = [TUNER, Planted("sizer", size, wakes=("settings", "target"))]
    found = coupling(world(planted, load_grows), "sizer", planted)
    (edge,) = between(found).values()
    assert (edge.writer, edge.field, edge.waking) == ("tuner", LIMIT, Waking.WATCHED)


def test_a_field_that_is_read_and_decides_nothing_is_not_decisive() -> None:
    async def size_and_look(ctx: Context) -> None:
        assert value_of(ctx, "settings", "limit") != "never"
        await set_value(ctx, "target", "size", value_of(ctx, "target", "wanted"))

    planted = [TUNER, Planted("sizer", size_and_look, wakes=("settings", "target"))]
    found = coupling(world(planted, load_grows), "sizer", planted)
    (edge,) = between(found).values()
    assert (edge.writer, edge.field) == ("tuner", LIMIT)
    assert edge.verdict.decisive is False


def test_a_decision_alone_has_only_its_own_inputs() -> None:
    planted = [TUNER, Planted("sizer", size, wakes=("settings", "target"))]
    recording = world(planted, load_grows)
    first = next(each for each in recording.decisions if each.controller == "sizer")
    last = [each for each in recording.decisions if each.controller == "sizer"][-1]
    assert between(coupling(recording, "sizer", planted, decision=first)) == {}
    assert set(between(coupling(recording, "sizer", planted, decision=last))) == {("tuner", LIMIT)}


def test_controllers_at_one_kind_and_field_of_other_objects_are_not_coupled() -> None:
    async def tune_elsewhere(ctx: Context) -> None:
        await set_value(ctx, "elsewhere", "limit", value_of(ctx, "load", "requests"))

    async def steps(cluster: Cluster) -> None:
        await create(cluster, "elsewhere")
        await load_grows(cluster)
        await change(cluster, "settings", limit="4")
        await asyncio.sleep(30)

    planted = [
        Planted("tuner", tune_elsewhere, wakes=("load",)),
        Planted("sizer", size, wakes=("settings", "target")),
    ]
    recording = world(planted, steps)
    assert between(coupling(recording, "sizer", planted)) == {}
    assert between(coupling(recording, "tuner", planted)) == {}


def test_a_path_over_two_hops_is_found_and_is_no_direct_edge() -> None:
    async def place(ctx: Context) -> None:
        await set_value(ctx, "place", "node", f"node-{value_of(ctx, 'target', 'size')}")

    async def steps(cluster: Cluster) -> None:
        await create(cluster, "place")
        await load_grows(cluster)

    planted = [TUNER, Planted("sizer", size, wakes=("settings",)), Planted("placer", place, wakes=("target",))]
    found = coupling(world(planted, steps), "placer", planted)
    assert set(between(found)) == {("sizer", "metadata.annotations.size")}
    paths = {(path.first.writer, path.first.field, path.second.writer) for path in found.paths}
    assert {each for each in paths if each[0] != "user"} == {("tuner", LIMIT, "sizer")}
    assert found.cycles == ()


def counting(name: str, source: str, target: str, *, most: int = 12) -> Planted:
    """Writes to its target the number of its source, plus one."""

    async def count(ctx: Context) -> None:
        number = int(value_of(ctx, source, "number") or "0")
        if number < most:
            await set_value(ctx, target, "number", str(number + 1))

    return Planted(name, count, wakes=(source,))


def test_a_cycle_of_two_is_found_with_its_turn_rate() -> None:
    async def steps(cluster: Cluster) -> None:
        await create(cluster, "a", "b")
        await asyncio.sleep(60)

    planted = [counting("ping", "a", "b"), counting("pong", "b", "a")]
    found = coupling(world(planted, steps), "ping", planted)
    (cycle,) = found.cycles
    assert sorted(cycle.controllers) == ["ping", "pong"]
    assert cycle.turns >= 5
    assert cycle.per_minute > 1
    assert {each[0] for each in between(found)} == {"pong"}
    assert found.fights == ()


def test_a_cycle_of_three_is_one_cycle() -> None:
    async def steps(cluster: Cluster) -> None:
        await create(cluster, "a", "b", "c")
        await asyncio.sleep(60)

    planted = [counting("one", "a", "b"), counting("two", "b", "c"), counting("three", "c", "a")]
    found = coupling(world(planted, steps), "two", planted)
    (cycle,) = found.cycles
    assert sorted(cycle.controllers) == ["one", "three", "two"]
    assert cycle.turns >= 3
    assert {each[0] for each in between(found)} == {"one"}
    assert {(path.first.writer, path.second.writer) for path in found.paths if path.first.writer != "user"} == {
        ("three", "one")
    }


def setting(name: str, value: str) -> Planted:
    async def keep(ctx: Context) -> None:
        await set_value(ctx, "shared", "mode", value)

    return Planted(name, keep, wakes=("shared",))


def test_a_fight_over_one_field_is_found() -> None:
    async def steps(cluster: Cluster) -> None:
        await create(cluster, "shared")
        await asyncio.sleep(0.5)

    planted = [setting("left", "to the left"), setting("right", "to the right")]
    unthrottled = replace(LIMITS, queue_loop_runs_max=100_000)  # a loop is an error of its own otherwise
    found = coupling(world(planted, steps, limits=unthrottled), "left", planted)
    (fight,) = found.fights
    assert fight.controllers == ("left", "right")
    assert (fight.object, fight.field) == (str(config("shared")), "metadata.annotations.mode")
    assert fight.turns >= 3
    assert fight.values == ("to the left", "to the right")
    assert set(between(found)) == {("right", "metadata.annotations.mode")}


def test_two_writers_of_one_object_do_not_fight_over_different_fields() -> None:
    def stamping(name: str) -> Planted:
        async def stamp(ctx: Context) -> None:
            await set_value(ctx, "shared", name, value_of(ctx, "load", "requests"))

        return Planted(name, stamp, wakes=("load",))

    async def steps(cluster: Cluster) -> None:
        await create(cluster, "shared", "load")
        for requests in range(4):
            await change(cluster, "load", requests=str(requests))
            await asyncio.sleep(10)

    planted = [stamping("left"), stamping("right")]
    found = coupling(world(planted, steps), "left", planted)
    assert between(found) == {}
    assert (found.fights, found.cycles, found.limits) == ((), (), ())


def creating(name: str, count: int) -> Planted:
    async def make(ctx: Context) -> None:
        if value_of(ctx, "load", name) == "go":
            for number in range(count):
                try:
                    await ctx.ensure(CONFIG_MAP, {"metadata": {"name": f"{name}-{number}"}}, namespace="default")
                except Forbidden:
                    return

    return Planted(name, make, wakes=("load",))


def test_a_quota_that_two_controllers_share_couples_the_one_that_it_refuses() -> None:
    async def steps(cluster: Cluster) -> None:
        await create(cluster, "load")
        await cluster.authority.create(
            QUOTA, {"metadata": {"name": "maps", "namespace": "default"}, "spec": {"hard": {"configmaps": "4"}}}
        )
        await change(cluster, "load", greedy="go")
        await asyncio.sleep(20)
        await change(cluster, "load", modest="go")
        await asyncio.sleep(20)

    planted = [creating("greedy", 3), creating("modest", 1)]
    recording = world(planted, steps)
    found = coupling(recording, "modest", planted)
    assert [(each.limit, each.writer, each.name) for each in found.limits if each.writer != "user"] == [
        ("quota", "greedy", "ResourceQuota/default/maps")
    ]
    assert between(found) == {}
    assert [each for each in coupling(recording, "greedy", planted).limits if each.writer != "user"] == []


def test_a_controller_that_fills_the_queue_of_another_is_a_shared_limit() -> None:
    recording = flooded_world()
    found = coupling(recording, "slow", [])  # its runs take their time, also when they are repeated
    assert [(each.limit, each.writer) for each in found.limits] == [("queue", "flooder")]
    assert coupling(recording, "flooder", []).limits == ()

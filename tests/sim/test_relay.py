"""One stream of the store for all who watch a server: nothing is lost when it breaks, and nothing is skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.objects import CONFIG_MAP, NAMESPACE, config_map

from kedge.errors import Compacted
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.relay import Relay
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store import Batch


async def stage(sim: Simulation) -> tuple[Cluster, Relay, Callable[[str], Any]]:
    """A relay on a host of its own, and a way to write."""
    cluster = Cluster(sim)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    host = sim.host("listener")
    relay = Relay(host.remote(cluster.store_host, "store"), host.env())

    async def write(name: str) -> int:
        return (await cluster.authority.create(CONFIG_MAP, config_map(name))).object.revision

    return cluster, relay, write


async def gather(watch: Any, told: list[str]) -> None:
    async for batch in watch:
        told.extend(change.key.name for change in batch.changes)


def calm(program: Any, seed: int = 1) -> None:
    outcome = run(program, seed, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"


def test_many_who_watch_share_one_stream_and_each_is_told_everything_of_its_kind() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await stage(sim)
        first = await write("before")
        host, told = sim.world.hosts["listener"], [[] for _ in range(5)]  # type: ignore[var-annotated]

        async def listen(lines: list[str]) -> None:
            await gather(await relay.watch(CONFIG_MAP.key_kind, after=first - 1), lines)

        for lines in told:
            host.spawn(listen(lines), name="listen")
        await asyncio.sleep(1)
        for n in range(10):
            await write(f"m{n}")
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": "other"}})
        await asyncio.sleep(1)
        assert told == [["before", *(f"m{n}" for n in range(10))]] * 5
        streams = [each for each in sim.world.trace.events if each.text.startswith("store.watch listener")]
        assert len(streams) == 1

    calm(program)


def test_a_stream_that_is_over_before_those_who_waited_have_their_turn_keeps_them_waiting() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await stage(sim)
        host, told = sim.world.hosts["listener"], list[str]()

        async def listen() -> None:
            await gather(await relay.watch(CONFIG_MAP.key_kind, after=await cluster.store.revision()), told)

        host.spawn(listen(), name="listen")
        await asyncio.sleep(0.000_1)  # less than a link takes
        assert relay._begun._waiters
        relay._begun.set()  # 1. the stream begins; 2. history is gone; 3. who waited is woken by the first
        relay._begun.clear()
        await asyncio.sleep(1)
        await write("after")
        await asyncio.sleep(1)
        assert told == ["after"]

    calm(program)


def test_a_stream_that_breaks_is_begun_again_without_a_gap() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await stage(sim)
        host, told = sim.world.hosts["listener"], list[str]()
        after = await cluster.store.revision()

        async def listen() -> None:
            await gather(await relay.watch(CONFIG_MAP.key_kind, after=after), told)

        host.spawn(listen(), name="listen")
        await asyncio.sleep(1)
        await write("m0")
        await asyncio.sleep(1)
        with sim.network.partition([cluster.store_host], [host]):
            await write("m1")  # lost on its way, and the stream with it
            await asyncio.sleep(3)
        await write("m2")
        await asyncio.sleep(8)  # long before a dead connection would be noticed by itself
        assert told == ["m0", "m1", "m2"]

    calm(program)


def test_history_that_is_gone_by_then_ends_every_watch_instead_of_leaving_a_gap() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await stage(sim)
        host, told = sim.world.hosts["listener"], list[str]()
        after = await cluster.store.revision()

        async def listen() -> None:
            await gather(await relay.watch(CONFIG_MAP.key_kind, after=after), told)

        listening = asyncio.ensure_future(host.run(listen()))
        await asyncio.sleep(1)
        with sim.network.partition([cluster.store_host], [host]):
            await write("m0")
            await write("m1")
            await cluster.store.compact(await cluster.store.revision())
            await asyncio.sleep(3)
        await asyncio.sleep(8)
        assert told == []
        with pytest.raises(Compacted):
            await listening
        newest = await cluster.store.revision()
        watch = await host.run(relay.watch(CONFIG_MAP.key_kind, after=newest))
        await write("m2")
        batch: Batch = await host.run(anext(watch))
        assert [change.key for change in batch.changes] == [Key("ConfigMap", "default", "m2")]

    calm(program)


def test_a_server_that_forgets_its_history_tells_those_who_resume_in_it_to_list() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await stage(sim)
        host, old = sim.world.hosts["listener"], await write("m0")
        await host.run(relay.watch(CONFIG_MAP.key_kind, after=old))
        newest = await write("m1")
        await asyncio.sleep(1)
        relay.compact(newest)
        with pytest.raises(Compacted):
            await host.run(relay.watch(CONFIG_MAP.key_kind, after=old))

    calm(program)

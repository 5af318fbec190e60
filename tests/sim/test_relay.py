"""The relay: one store stream for all watches of a server, resumed without loss or gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.kit.cluster import run_without_faults
from tests.objects import CONFIG_MAP, NAMESPACE, config_map

from kedge.errors import Compacted
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.relay import Relay
from kedge.sim.kernel import Simulation
from kedge.store import Batch


async def open_relay(sim: Simulation) -> tuple[Cluster, Relay, Callable[[str], Any]]:
    """A relay on its own host, and a function that writes an object."""
    cluster = Cluster(sim)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    host = sim.host("listener")
    relay = Relay(host.remote(cluster.store_host, "store"), host.env())

    async def write(name: str) -> int:
        return (await cluster.authority.create(CONFIG_MAP, config_map(name))).object.revision

    return cluster, relay, write


async def collect(watch: Any, received: list[str]) -> None:
    async for batch in watch:
        received.extend(change.key.name for change in batch.changes)


def test_watches_share_one_stream_and_each_receives_every_change_of_its_kind() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await open_relay(sim)
        first = await write("before")
        host, received = sim.world.hosts["listener"], [[] for _ in range(5)]  # type: ignore[var-annotated]

        async def listen(lines: list[str]) -> None:
            await collect(await relay.watch(CONFIG_MAP.key_kind, after=first - 1), lines)

        for lines in received:
            host.spawn(listen(lines), name="listen")
        await asyncio.sleep(1)
        for n in range(10):
            await write(f"m{n}")
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": "other"}})
        await asyncio.sleep(1)
        assert received == [["before", *(f"m{n}" for n in range(10))]] * 5
        streams = [each for each in sim.world.trace.events if each.text.startswith("store.watch listener")]
        assert len(streams) == 1

    run_without_faults(program)


def test_a_stream_that_ends_before_its_waiters_run_keeps_them_waiting() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await open_relay(sim)
        host, received = sim.world.hosts["listener"], list[str]()

        async def listen() -> None:
            await collect(await relay.watch(CONFIG_MAP.key_kind, after=await cluster.store.revision()), received)

        host.spawn(listen(), name="listen")
        await asyncio.sleep(0.000_1)  # shorter than the latency of a link
        assert relay._begun._waiters
        relay._begun.set()  # 1. the stream begins; 2. history is compacted; 3. the waiters wake up from 1
        relay._begun.clear()
        await asyncio.sleep(1)
        await write("after")
        await asyncio.sleep(1)
        assert received == ["after"]

    run_without_faults(program)


def test_a_broken_stream_is_resumed_without_a_gap() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await open_relay(sim)
        host, received = sim.world.hosts["listener"], list[str]()
        after = await cluster.store.revision()

        async def listen() -> None:
            await collect(await relay.watch(CONFIG_MAP.key_kind, after=after), received)

        host.spawn(listen(), name="listen")
        await asyncio.sleep(1)
        await write("m0")
        await asyncio.sleep(1)
        with sim.network.partition([cluster.store_host], [host]):
            await write("m1")  # lost, and the stream breaks
            await asyncio.sleep(3)
        await write("m2")
        await asyncio.sleep(8)  # shorter than a dead connection takes to be noticed
        assert received == ["m0", "m1", "m2"]

    run_without_faults(program)


def test_compacted_history_ends_every_watch_instead_of_leaving_a_gap() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await open_relay(sim)
        host, received = sim.world.hosts["listener"], list[str]()
        after = await cluster.store.revision()

        async def listen() -> None:
            await collect(await relay.watch(CONFIG_MAP.key_kind, after=after), received)

        listening = asyncio.ensure_future(host.run(listen()))
        await asyncio.sleep(1)
        with sim.network.partition([cluster.store_host], [host]):
            await write("m0")
            await write("m1")
            await cluster.store.compact(await cluster.store.revision())
            await asyncio.sleep(3)
        await asyncio.sleep(8)
        assert received == []
        with pytest.raises(Compacted):
            await listening
        newest = await cluster.store.revision()
        watch = await host.run(relay.watch(CONFIG_MAP.key_kind, after=newest))
        await write("m2")
        batch: Batch = await host.run(anext(watch))
        assert [change.key for change in batch.changes] == [Key("ConfigMap", "default", "m2")]

    run_without_faults(program)


def test_a_watch_from_before_the_relays_compaction_must_list() -> None:
    async def program(sim: Simulation) -> None:
        cluster, relay, write = await open_relay(sim)
        host, old = sim.world.hosts["listener"], await write("m0")
        await host.run(relay.watch(CONFIG_MAP.key_kind, after=old))
        newest = await write("m1")
        await asyncio.sleep(1)
        relay.compact(newest)
        with pytest.raises(Compacted):
            await host.run(relay.watch(CONFIG_MAP.key_kind, after=old))

    run_without_faults(program)

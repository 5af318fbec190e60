"""Links: messages, partitions, latency and streams."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator

import pytest
from tests.kit.kernel_log import Log, passes

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import NO_FAULTS, Host, Latency, Simulation, run


def test_messages_may_be_lost_doubled_and_overtaken_and_an_ordered_link_keeps_their_order() -> None:
    async def program(sim: Simulation) -> tuple[list[int], list[int]]:
        a, b, c = sim.host("a"), sim.host("b"), sim.host("c")
        sim.network.set_link(a, b, latency=Latency.uniform(0, 1), loss=0.2, duplication=0.2)
        sim.network.set_link(a, c, latency=Latency.uniform(0, 1), ordered=True)
        wild: list[int] = []
        tame: list[int] = []
        b.on_message("number", wild.append)
        c.on_message("number", tame.append)
        for number in range(100):
            a.send(b, "number", number)
            a.send(c, "number", number)
            await asyncio.sleep(0.01)
        await asyncio.sleep(5)
        return wild, tame

    wild, tame = passes(run(program, 1, faults=NO_FAULTS)).result
    assert tame == list(range(100))
    assert wild != sorted(wild)
    assert 0 < len(set(range(100)) - set(wild)) < 50
    assert max(Counter(wild).values()) == 2


def test_message_handlers_run_on_their_host_and_end_with_it() -> None:
    async def program(sim: Simulation) -> list[str]:
        a, b = sim.host("a"), sim.host("b")
        places: list[str] = []

        def receive(_: object) -> None:
            here = sim.world.current_host()
            places.append(here.name if here is not None else "nowhere")

        b.on_message("ping", receive)
        a.send(b, "ping", None)
        await asyncio.sleep(1)
        a.send(b, "ping", None)
        b.crash()
        await asyncio.sleep(1)
        return places

    assert passes(run(program, 1, faults=NO_FAULTS)).result == ["b"]


def test_a_one_way_partition_carries_the_request_and_not_the_reply() -> None:
    async def program(sim: Simulation) -> None:
        log = Log()
        server, client = sim.host("server"), sim.host("client")
        server.serve("log", log)
        remote = client.remote(server, "log", timeout_s=1.0)
        with sim.network.partition([server], [client], both_ways=False), pytest.raises(OutcomeUnknown):
            await client.run(remote.add(1))
        assert log.lines == [1]
        with sim.network.partition([client], [server], both_ways=False), pytest.raises(OutcomeUnknown):
            await client.run(remote.add(2))
        assert log.lines == [1]
        assert await client.run(remote.add(3)) == 2

    passes(run(program, 1, faults=NO_FAULTS))


def test_a_partition_ends_with_its_block() -> None:
    async def program(sim: Simulation) -> None:
        a, b, c = sim.host("a"), sim.host("b"), sim.host("c")
        async with sim.faults.partition(a, [b, c]):
            assert sim.network.is_cut("a", "b")
            assert sim.network.is_cut("c", "a")
            assert not sim.network.is_cut("b", "c")
        assert not sim.network.is_cut("a", "b")

    passes(run(program, 1, faults=NO_FAULTS))


def test_overlapping_partitions_heal_one_by_one() -> None:
    async def program(sim: Simulation) -> None:
        a, b = sim.host("a"), sim.host("b")
        one, other = sim.network.partition([a], [b]), sim.network.partition([a], [b], both_ways=False)
        one.heal()
        assert sim.network.is_cut("a", "b")
        assert not sim.network.is_cut("b", "a")
        other.heal()
        assert not sim.network.is_cut("a", "b")

    passes(run(program, 1, faults=NO_FAULTS))


def test_a_long_tail_has_its_median_and_a_far_end() -> None:
    quantiles_s = Latency.long_tail(0.01, 1.0).quantiles_s
    assert list(quantiles_s) == sorted(quantiles_s)
    assert quantiles_s[7] < 0.01 < quantiles_s[8]
    assert quantiles_s[-1] > 0.3


def test_copying_messages_catches_hosts_that_share_mutable_state() -> None:
    import copy

    class Box:
        async def keep(self, items: list[int]) -> list[int]:
            items.append(99)
            return items

    async def program(sim: Simulation) -> None:
        sim.network.carry = copy.deepcopy
        server, client = sim.host("server"), sim.host("client")
        server.serve("box", Box())
        mine = [1]
        theirs = await client.run(client.remote(server, "box").keep(mine))
        assert mine == [1]
        assert theirs == [1, 99]

    passes(run(program, 1, faults=NO_FAULTS))


def test_a_slow_consumer_makes_the_sender_of_a_stream_wait() -> None:
    class Numbers:
        def __init__(self) -> None:
            self.made = 0

        async def all(self) -> object:
            return self._numbers()

        async def _numbers(self) -> Iterator[int]:  # type: ignore[misc]
            for number in range(1_000):
                self.made += 1
                yield number

    async def program(sim: Simulation) -> None:
        numbers = Numbers()
        server, client = sim.host("server"), sim.host("client")
        server.serve("numbers", numbers)

        async def read() -> list[int]:
            stream = await client.remote(server, "numbers").all()
            got = [await anext(stream)]
            await asyncio.sleep(10)
            assert numbers.made < 100  # the window is full, and the sender waits
            async for number in stream:
                got.append(number)
            return got

        assert await client.run(read()) == list(range(1_000))

    passes(run(program, 1, faults=NO_FAULTS))


def test_a_stream_breaks_without_a_gap_when_its_link_is_cut_or_its_sender_crashes() -> None:
    class Ticker:
        async def ticks(self) -> object:
            return self._ticks()

        async def _ticks(self) -> Iterator[int]:  # type: ignore[misc]
            for tick in range(1_000):
                await asyncio.sleep(0.1)
                yield tick

    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")

        async def boot(host: Host) -> None:
            host.serve("ticker", Ticker())

        server.boot(boot)
        await asyncio.sleep(1)

        async def read() -> list[int]:
            got: list[int] = []
            try:
                async for tick in await client.remote(server, "ticker").ticks():
                    got.append(tick)
            except Unavailable:
                pass
            return got

        sim.faults.at_time(4, server.restart)
        first = await client.run(read())
        assert first == list(range(len(first)))
        assert 20 < len(first) < 40
        await asyncio.sleep(1)
        sim.faults.at_time(sim.now_s + 2, lambda: sim.network.partition([server], [client], both_ways=False))
        second = await client.run(read())
        assert second == list(range(len(second)))
        assert 10 < len(second) < 30

    for seed in range(10):
        passes(run(program, seed, faults=NO_FAULTS))


class Pushing:
    """A push source of numbers: it needs no task."""

    pushes = True

    def __init__(self) -> None:
        self.on_ready: Callable[[], None] | None = None
        self.ready: deque[int | Exception] = deque()
        self.taken = 0
        self.closed = False

    def __aiter__(self) -> Pushing:
        return self

    def put(self, *items: int | Exception) -> None:
        self.ready.extend(items)
        if self.on_ready is not None:
            self.on_ready()

    def take_nowait(self) -> int | None:
        if not self.ready:
            return None
        item = self.ready.popleft()
        if isinstance(item, Exception):
            raise item
        self.taken += 1
        return item

    def close(self) -> None:
        self.closed = True


async def _pushing(sim: Simulation) -> tuple[Pushing, Host, Host]:
    source, server, client = Pushing(), sim.host("server"), sim.host("client")

    class Numbers:
        async def all(self) -> Pushing:
            return source

    async def boot(host: Host) -> None:
        host.serve("numbers", Numbers())

    server.boot(boot)
    await asyncio.sleep(0.1)
    return source, server, client


def test_a_push_source_is_read_whole_and_waits_for_a_slow_consumer() -> None:
    async def program(sim: Simulation) -> None:
        source, server, client = await _pushing(sim)
        source.put(*range(500))

        async def read() -> list[int]:
            stream = await client.remote(server, "numbers").all()
            got = [await anext(stream)]
            await asyncio.sleep(10)
            assert source.taken < 100  # the window is full, and the sender waits
            source.put(*range(500, 1_000), StopAsyncIteration())
            async for number in stream:
                got.append(number)
            return got

        assert await client.run(read()) == list(range(1_000))
        assert source.on_ready is None

    for seed in range(5):
        passes(run(program, seed, faults=NO_FAULTS))


def test_a_push_source_is_closed_once_its_reader_closes_crashes_or_is_cut_off() -> None:
    async def program(sim: Simulation) -> None:
        source, server, client = await _pushing(sim)
        end = sim.choose("end", ("hang up", "death", "cut"))

        async def read() -> None:
            stream = await client.remote(server, "numbers").all()
            assert await anext(stream) == 1
            if end == "hang up":
                stream.close()
            elif end == "cut":
                with pytest.raises(Unavailable):
                    await anext(stream)
            else:
                await asyncio.sleep(1_000)

        source.put(1)
        reading = client.spawn(read(), name="read")
        await asyncio.sleep(1)
        if end == "death":
            client.crash()
        elif end == "cut":
            sim.network.partition([server], [client])
            source.put(2)
        await asyncio.sleep(30)
        assert source.closed
        assert source.on_ready is None
        assert reading.done() or end == "death"

    for seed in range(12):
        passes(run(program, seed, faults=NO_FAULTS))

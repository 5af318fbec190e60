"""Faults by event and by script, links, invariants and phases."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator

import pytest

from kedge.errors import InvariantBroken, OutcomeUnknown, Unavailable
from kedge.sim.kernel import (
    NO_FAULTS,
    FixedRates,
    Host,
    Latency,
    Outcome,
    Program,
    Simulation,
    Swarm,
    liveness,
    run,
    safety,
)


def passes(outcome: Outcome) -> Outcome:
    assert outcome.violation is None, outcome.violation.detail or outcome.violation
    return outcome


class Log:
    """A service that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    async def add(self, line: int) -> int:
        self.lines.append(line)
        return len(self.lines)


def calls(count: int, log: Log) -> Program:
    async def program(sim: Simulation) -> Counter[str]:
        server, client = sim.host("server"), sim.host("client")
        server.serve("log", log)
        remote = client.remote(server, "log", timeout_s=1.0)
        seen: Counter[str] = Counter()

        async def work() -> None:
            for line in range(count):
                try:
                    await remote.add(line)
                    seen["done"] += 1
                except (OutcomeUnknown, Unavailable) as error:
                    seen[type(error).__name__] += 1

        await client.run(work())
        return seen

    return program


# -- plans -----------------------------------------------------------------------------------------


def test_fixed_rates_strike_about_as_often_as_they_say() -> None:
    log = Log()
    outcome = passes(run(calls(1_000, log), 1, faults=FixedRates({"reply of log.add: lose": 0.1})))
    assert 60 <= outcome.result["OutcomeUnknown"] <= 140
    assert len(log.lines) == 1_000  # every one was carried out


def test_a_swarm_draws_which_faults_exist_so_that_worlds_differ() -> None:
    worlds = []
    for seed in range(80):
        outcome = run(calls(100, Log()), seed)
        worlds.append(frozenset(event.text.split(":")[0] for event in outcome.faults))
    assert len(set(worlds)) > 20
    assert frozenset() in worlds
    kinds = frozenset().union(*worlds)
    assert {"lose", "delay", "partition", "pause caller", "pause callee", "slow cpu", "wrong clock"} <= kinds
    assert not {"duplicate", "hide"} & kinds  # a sound transport rules these out


def test_a_swarm_can_be_told_to_leave_kinds_out_and_to_put_duplicates_in() -> None:
    for seed in range(40):
        outcome = run(calls(50, Log()), seed, faults=Swarm(without=("lose", "partition")))
        assert not [e for e in outcome.faults if e.text.startswith(("lose", "partition"))]
    logs = [Log() for _ in range(60)]
    for seed, log in enumerate(logs):
        run(calls(100, log), seed, faults=Swarm(without=()))
    assert any(max(Counter(log.lines).values()) == 2 for log in logs)


def test_nothing_goes_wrong_after_faults_stop() -> None:
    async def program(sim: Simulation) -> int:
        sim.heal()
        server, client = sim.host("server"), sim.host("client")
        server.serve("log", Log())
        remote = client.remote(server, "log")
        for line in range(200):
            await client.run(remote.add(line))
        return len(sim.faults.struck)

    assert passes(run(program, 1, faults=FixedRates({"lose": 0.5}))).result == 0


def test_a_program_has_fault_points_of_its_own() -> None:
    async def program(sim: Simulation) -> list[str]:
        return [sim.faults.at("disk write", f"block-{index}", ("torn", "slow")) for index in range(200)]

    answers = Counter(passes(run(program, 1, faults=FixedRates({"torn": 0.2, "slow": 0.1}))).result)
    assert set(answers) == {"", "torn", "slow"}


# -- scripts ---------------------------------------------------------------------------------------


def test_a_scripted_fault_strikes_the_nth_passing_that_fits() -> None:
    async def program(sim: Simulation) -> tuple[list[int], Counter[str]]:
        log = Log()
        sim.faults.script("request of log.add", "lose", nth=3)
        sim.faults.script("reply of log.add", "lose", nth=2, where=lambda about: about == "client>server")
        seen = await calls(6, log)(sim)
        return log.lines, seen

    lines, seen = passes(run(program, 1, faults=NO_FAULTS)).result
    assert lines == [0, 1, 3, 4, 5]  # the third request never arrived
    assert seen == {"done": 4, "OutcomeUnknown": 2}


def test_scripts_act_by_time_by_event_and_by_predicate() -> None:
    async def program(sim: Simulation) -> list[str]:
        host = sim.host("a")
        done: list[str] = []
        sim.faults.at_time(2.5, lambda: done.append(f"time {sim.now_s}"))
        sim.faults.after("conflict", lambda: done.append(f"event {sim.now_s}"), nth=2, containing="p3")
        sim.faults.when(lambda: sim.now_s >= 4, lambda: done.append(f"predicate {sim.now_s}"))

        async def work() -> None:
            for second in range(6):
                sim.note("conflict", f"pod p{second % 2 + 2}")
                await asyncio.sleep(1)

        await host.run(work())
        return done

    assert passes(run(program, 1, faults=NO_FAULTS)).result == ["time 2.5", "event 3.0", "predicate 4.0"]


def test_scripts_are_silent_once_faults_stop() -> None:
    async def program(sim: Simulation) -> list[str]:
        done: list[str] = []
        sim.faults.at_time(5, lambda: done.append("late"))
        sim.faults.after("mark", lambda: done.append("event"))
        sim.heal()
        sim.note("mark", "now")
        await asyncio.sleep(10)
        return done

    assert passes(run(program, 1)).result == []


# -- links -----------------------------------------------------------------------------------------


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


def test_messages_run_on_the_host_they_are_for_and_die_with_it() -> None:
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


def test_hosts_that_share_mutable_state_are_caught_by_carrying_copies() -> None:
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


def test_a_stream_breaks_without_a_gap_when_the_way_is_cut_or_its_sender_dies() -> None:
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
    """Numbers that are there when they are asked for: a source that needs no task."""

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


def test_a_source_that_pushes_is_read_whole_and_waits_for_a_slow_consumer() -> None:
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


def test_a_source_that_pushes_is_left_alone_once_its_reader_hangs_up_dies_or_is_cut_off() -> None:
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


# -- invariants and phases -------------------------------------------------------------------------


@safety
def never_goes_down(step: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Numbers only rise."""
    before, after = step
    if after < before:
        yield "fell", f"from {before} to {after}"


def test_a_safety_invariant_is_held_at_the_commit_that_breaks_it() -> None:
    async def program(sim: Simulation) -> None:
        sim.check_always(never_goes_down)
        value = 0
        for number in (1, 2, 5, 3, 9):
            before, value = value, number
            sim.commit((before, value))
            await asyncio.sleep(1)

    outcome = run(program, 1)
    assert outcome.violation is not None
    assert outcome.violation.invariant == "never goes down"
    assert outcome.violation.message == "from 5 to 3"
    assert outcome.virtual_s == 3.0


def test_an_incremental_invariant_keeps_its_state_between_commits() -> None:
    class EachOnce:
        """Every name is committed once."""

        def __init__(self) -> None:
            self.seen: set[str] = set()

        def __call__(self, name: str) -> Iterator[tuple[str, str]]:
            if name in self.seen:
                yield "twice", name
            self.seen.add(name)

    async def program(sim: Simulation) -> None:
        sim.check_always(EachOnce())
        for name in ("a", "b", "a"):
            sim.commit(name)

    violation = run(program, 1).violation
    assert violation is not None
    assert (violation.invariant, violation.message) == ("EachOnce", "a")


def test_an_invariant_that_raises_breaks_the_run_and_not_the_program() -> None:
    def no_odd_numbers(step: int) -> None:
        assert step % 2 == 0

    async def program(sim: Simulation) -> None:
        sim.check_always(no_odd_numbers)
        try:
            sim.commit(3)
        except AssertionError:
            raise RuntimeError("the program saw it") from None
        await asyncio.sleep(1)

    violation = run(program, 1).violation
    assert violation is not None
    assert violation.invariant == "no odd numbers"
    assert "AssertionError" in violation.cause


def test_liveness_is_demanded_only_after_heal_and_within_its_time() -> None:
    async def slow_to_settle(sim: Simulation, settle_s: float) -> None:
        @liveness
        def it_settles() -> bool:
            return sim.now_s >= settle_s

        sim.check_eventually(it_settles)
        with pytest.raises(InvariantBroken, match="call heal first"):
            await sim.converge(within_s=1)
        sim.heal()
        await sim.converge(within_s=10)

    passes(run(lambda sim: slow_to_settle(sim, 8.0), 1))
    violation = run(lambda sim: slow_to_settle(sim, 80.0), 1).violation
    assert violation is not None
    assert violation.invariant == "it settles"
    assert "not within 10 virtual seconds" in violation.message


def test_what_converged_must_stay_when_asked_to() -> None:
    async def flapping(sim: Simulation) -> None:
        sim.check_eventually(lambda: 2 <= sim.now_s < 3)
        sim.heal()
        await sim.converge(within_s=20, stays_s=5)

    violation = run(flapping, 1).violation
    assert violation is not None
    assert "did not stay" in violation.message


@pytest.mark.parametrize(("unrest_s", "holds"), [(20.0, True), (5.0, False)])
def test_what_was_under_way_when_the_faults_stopped_may_still_arrive_but_not_for_ever(
    unrest_s: float, holds: bool
) -> None:
    async def program(sim: Simulation) -> float:
        sim.heal()
        sim.check_eventually(lambda: not 10 <= sim.now_s < 12)
        await sim.converge(within_s=100, stays_s=15, unrest_s=unrest_s)
        return sim.now_s

    outcome = run(program, 1)
    if holds:
        assert outcome.violation is None
        assert outcome.result is not None
        assert outcome.result >= 12 + 15, "it must hold for so long in one piece"
    else:
        assert outcome.violation is not None
        assert "did not stay" in outcome.violation.message


def test_heal_brings_hosts_back_and_makes_the_schedule_fair() -> None:
    async def program(sim: Simulation) -> None:
        boots: Counter[str] = Counter()

        async def boot(host: Host) -> None:
            boots[host.name] += 1

        a, b = sim.host("a"), sim.host("b")
        a.boot(boot)
        b.boot(boot)
        sim.network.set_link(a, b, loss=0.9)
        await asyncio.sleep(1)
        a.crash()
        b.pause()
        sim.network.partition([a], [b])
        sim.heal()
        await asyncio.sleep(1)
        assert boots == {"a": 2, "b": 1}
        assert not b.paused
        assert not sim.network.is_cut("a", "b")
        assert sim.network.link("a", "b").loss == 0
        assert sim.world.loop.chooser is None

    for seed in range(5):
        passes(run(program, seed, faults=NO_FAULTS))


def test_marks_count_what_was_reached() -> None:
    async def program(sim: Simulation) -> None:
        for number in range(5):
            sim.sometimes("even", number % 2 == 0)
            sim.sometimes("huge", number > 100)

    assert run(program, 1).marks == {"even": 3}

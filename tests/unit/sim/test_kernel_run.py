"""One run of a program: deterministic, replayable, checked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import NO_FAULTS, Fifo, FixedRates, Pct, Simulation, Uniform, run


class Counter:
    """A service with a race: it reads, waits, and writes."""

    def __init__(self) -> None:
        self.value = 0

    async def add(self, amount: int) -> int:
        read = self.value
        await asyncio.sleep(0)
        self.value = read + amount
        return self.value

    async def ticks(self, count: int) -> object:
        return _ticks(count)


async def _ticks(count: int) -> Iterator[int]:  # type: ignore[misc]
    for tick in range(count):
        await asyncio.sleep(0.1)
        yield tick


async def two_clients(sim: Simulation) -> int:
    counter = Counter()
    server = sim.host("server")
    server.serve("counter", counter)

    async def client(name: str) -> int:
        host = sim.host(name)
        remote = host.remote(server, "counter")

        async def work() -> int:
            done = 0
            for _ in range(5):
                try:
                    await remote.add(1)
                    done += 1
                except (OutcomeUnknown, Unavailable) as error:
                    sim.note("refused", str(error))
            return done

        return await host.spawn(work(), name=name)

    done = await asyncio.gather(client("a"), client("b"))
    assert counter.value >= sum(done), "an acknowledged add was lost"
    return counter.value


def test_the_same_seed_gives_the_same_hash() -> None:
    assert run(two_clients, 3).hash == run(two_clients, 3).hash


def test_different_seeds_give_different_runs() -> None:
    assert len({run(two_clients, seed).hash for seed in range(20)}) == 20


def test_a_tape_replays_every_policy_to_the_same_hash() -> None:
    for policy in (Fifo(), Uniform(), Pct(depth=3, horizon=200)):
        for seed in range(10):
            first = run(two_clients, seed, policy=policy)
            again = run(two_clients, first.tape)
            assert again.diverged is None
            assert again.hash == first.hash
            assert again.tape == first.tape


def test_a_lost_update_is_found_and_replayed() -> None:
    failures = [outcome for seed in range(300) if (outcome := run(two_clients, seed)).violation is not None]
    assert failures
    again = run(two_clients, failures[0].tape)
    assert again.violation == failures[0].violation
    assert again.hash == failures[0].hash


def test_a_tape_mismatch_names_the_choice() -> None:
    tape = run(two_clients, 3, faults=NO_FAULTS).tape
    label, bound, value = tape.streams["network"][4]
    tape.streams["network"][4] = ("latency a>elsewhere", bound, value)
    outcome = run(two_clients, tape, faults=NO_FAULTS)
    assert outcome.diverged is not None
    assert f"network choice 4: the tape has 'latency a>elsewhere' of {bound}, the run draws {label!r}" in str(
        outcome.diverged
    )


def test_editing_one_stream_does_not_reshuffle_the_others() -> None:
    async def with_workload(sim: Simulation) -> None:
        sim.choose_int("how many", 1, 10)
        await two_clients(sim)

    plain, more = run(two_clients, 5), run(with_workload, 5)
    assert plain.tape.streams["network"] == more.tape.streams["network"]
    assert plain.tape.streams["faults"] == more.tape.streams["faults"]


def test_a_lost_reply_is_an_unknown_outcome_after_the_call_was_carried_out() -> None:
    async def program(sim: Simulation) -> None:
        counter = Counter()
        server, client = sim.host("server"), sim.host("client")
        server.serve("counter", counter)
        try:
            await client.spawn(client.remote(server, "counter").add(1), name="call")
        except OutcomeUnknown:
            assert counter.value == 1
            assert sim.now_s >= 5.0
        else:
            raise AssertionError("the reply was not lost")

    async def caught(sim: Simulation) -> None:
        sim.faults.script("reply of counter.add", "lose")
        counter = Counter()
        server, client = sim.host("server"), sim.host("client")
        server.serve("counter", counter)
        try:
            await client.run(client.remote(server, "counter").add(1))
        except OutcomeUnknown:
            assert counter.value == 1
            return
        raise AssertionError("the reply was not lost")

    assert run(caught, 1, faults=NO_FAULTS).violation is None
    # a task of `spawn` that fails is a violation, even if another task awaits it
    outcome = run(program, 1, faults=FixedRates({"reply of counter.add: lose": 1.0}))
    assert outcome.violation is not None
    assert outcome.violation.cause.startswith("OutcomeUnknown")


def test_a_stream_crosses_the_link_in_order_and_ends() -> None:
    async def program(sim: Simulation) -> list[int]:
        server, client = sim.host("server"), sim.host("client")
        server.serve("counter", Counter())

        async def read() -> list[int]:
            return [tick async for tick in await client.remote(server, "counter").ticks(20)]

        return await client.run(read())

    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None
    assert outcome.result == list(range(20))


def test_a_deadlock_is_a_violation_that_names_the_waiting_tasks() -> None:
    async def program(sim: Simulation) -> None:
        one, other = asyncio.Lock(), asyncio.Lock()

        async def take(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await asyncio.sleep(1)
                async with second:
                    pass

        host = sim.host("host")
        left = host.spawn(take(one, other), name="left")
        await host.spawn(take(other, one), name="right")
        await left

    outcome = run(program, 0)
    assert outcome.violation is not None
    assert outcome.violation.invariant == "the program never deadlocks"
    assert "left waits at" in outcome.violation.detail

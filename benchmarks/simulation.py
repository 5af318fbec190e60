"""The simulated loop compared with stock asyncio, uvloop and SimPy: `python -m benchmarks.simulation [--quick]`.

All times are CPU time. A ratio is the median of many short pairs, kedge first in every other pair; its spread is the
10th to the 90th percentile. The simulated loop has tape and trace on and eight hosts ready. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import simpy
import uvloop

from benchmarks.report import print_json, print_table
from kedge.errors import Conflict, OutcomeUnknown, Unavailable
from kedge.keys import Key
from kedge.sim.kernel import (
    NO_FAULTS,
    Fifo,
    Host,
    RunBounds,
    SchedulePolicy,
    Simulation,
    SimulationTarget,
    Uniform,
    run,
)
from kedge.store.contract import Absent, AtRevision, Put
from kedge.store.memory import MemoryStore

HOSTS = 8
SLEEPERS = 1_000
COMMITS = 200
IDLE_S = 30_000.0
UNBOUNDED = RunBounds(steps_at_one_moment_max=1 << 40)

Measure = Callable[[int], float]
"""Does a number of operations and returns the CPU seconds they took."""

RATIOS = {
    "call_soon_fifo_vs_asyncio": ("call_soon chains", "kedge fifo", "asyncio"),
    "sleep0_fifo_vs_asyncio": ("sleep(0)", "kedge fifo", "asyncio"),
    "call_soon_uniform_vs_asyncio": ("call_soon chains", "kedge uniform", "asyncio"),
    "sleep0_uniform_vs_asyncio": ("sleep(0)", "kedge uniform", "asyncio"),
    "handoff_fifo_vs_asyncio": ("future hand-offs", "kedge fifo", "asyncio"),
    "timers_vs_simpy": ("timers", "kedge fifo", "simpy"),
    "timers_spread_vs_simpy": ("timers, no two alike", "kedge fifo", "simpy"),
}
"""Speed of kedge over that of a peer: the work, kedge's row and the peer's."""


# -- the work, the same for every loop -------------------------------------------------------------


def chain(count: int, done: asyncio.Future[None]) -> Callable[[], None]:
    """A callback that schedules itself again, `count` times over all chains."""
    loop = asyncio.get_running_loop()
    left = count

    def tick() -> None:
        nonlocal left
        left -= 1
        if left > 0:
            loop.call_soon(tick)
        elif not done.done():
            done.set_result(None)

    return tick


async def yielding(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def sleeping(count: int, period_s: float) -> None:
    for _ in range(count):
        await asyncio.sleep(period_s)


def same_s(_: int) -> float:
    """All sleepers wake at the same moment, each second, as lease renewals and resyncs do."""
    return 1.0


def spread_s(index: int) -> float:
    """No two sleepers wake at the same moment."""
    return 1.0 + index / SLEEPERS


async def handing(count: int) -> None:
    """Two tasks that wake each other through futures."""
    loop = asyncio.get_running_loop()
    ball: asyncio.Future[asyncio.Future[Any]] = loop.create_future()

    async def player(incoming: asyncio.Future[asyncio.Future[Any]], turns: int) -> None:
        for _ in range(turns):
            outgoing = await incoming
            incoming = loop.create_future()
            outgoing.set_result(incoming)

    first: asyncio.Future[Any] = loop.create_future()
    other = asyncio.ensure_future(player(ball, count // 2))
    ball.set_result(first)
    incoming = first
    for _ in range(count // 2 - 1):
        outgoing = await incoming
        incoming = loop.create_future()
        outgoing.set_result(incoming)
    await other


# -- our loop --------------------------------------------------------------------------------------


def simulated(work: Callable[[Simulation], Coroutine[Any, Any, None]], policy: SchedulePolicy) -> float:
    begin_s = time.process_time()
    outcome = run(work, 1, policy=policy, faults=NO_FAULTS, bounds=UNBOUNDED)
    spent_s = time.process_time() - begin_s
    if outcome.violation is not None:
        raise RuntimeError(f"the benchmark itself failed: {outcome.violation}")
    return spent_s


def our_call_soon(policy: SchedulePolicy) -> Measure:
    def measure(count: int) -> float:
        async def work(sim: Simulation) -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            tick = chain(count, done)
            for index in range(HOSTS):
                sim.world.loop.call_on(sim.host(f"h{index}").process, tick)
            await done

        return simulated(work, policy)

    return measure


def ours(policy: SchedulePolicy, part: Callable[[int], Coroutine[Any, Any, None]]) -> Measure:
    def measure(count: int) -> float:
        async def work(sim: Simulation) -> None:
            hosts = [sim.host(f"h{index}") for index in range(HOSTS)]
            await asyncio.gather(*[host.spawn(part(count // HOSTS), name="work") for host in hosts])

        return simulated(work, policy)

    return measure


def our_sleepers(policy: SchedulePolicy, period_s: Callable[[int], float]) -> Measure:
    def measure(count: int) -> float:
        async def work(sim: Simulation) -> None:
            hosts = [sim.host(f"h{index}") for index in range(HOSTS)]
            turns = count // SLEEPERS
            await asyncio.gather(
                *[
                    hosts[index % HOSTS].spawn(sleeping(turns, period_s(index)), name="sleeper")
                    for index in range(SLEEPERS)
                ]
            )

        return simulated(work, policy)

    return measure


# -- the peers -------------------------------------------------------------------------------------


def on_loop(new_loop: Callable[[], asyncio.AbstractEventLoop], part: Callable[[int], Any], tasks: int) -> Measure:
    def measure(count: int) -> float:
        async def work() -> None:
            await asyncio.gather(*[part(count // tasks) for _ in range(tasks)])

        return _timed(new_loop, work)

    return measure


def call_soon_on_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Measure:
    def measure(count: int) -> float:
        async def work() -> None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            tick = chain(count, done)
            for _ in range(HOSTS):
                asyncio.get_running_loop().call_soon(tick)
            await done

        return _timed(new_loop, work)

    return measure


def _timed(new_loop: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    loop = new_loop()
    try:
        begin_s = time.process_time()
        loop.run_until_complete(work())
        return time.process_time() - begin_s
    finally:
        loop.close()


def simpy_timeouts(tasks: int, period_s: Callable[[int], float]) -> Measure:
    def measure(count: int) -> float:
        world = simpy.Environment()

        def process(turns: int, delay_s: float) -> Generator[simpy.Event, None, None]:
            for _ in range(turns):
                yield world.timeout(delay_s)

        for index in range(tasks):
            world.process(process(count // tasks, period_s(index)))
        begin_s = time.process_time()
        world.run()
        return time.process_time() - begin_s

    return measure


def simpy_handoffs(count: int) -> float:
    world = simpy.Environment()

    def player(incoming: simpy.Event, turns: int) -> Generator[simpy.Event, Any, None]:
        for _ in range(turns):
            outgoing = yield incoming
            incoming = world.event()
            outgoing.succeed(incoming)

    for _ in range(HOSTS):
        first, second = world.event(), world.event()
        world.process(player(first, count // HOSTS // 2))
        world.process(player(second, count // HOSTS // 2 - 1))
        first.succeed(second)
    begin_s = time.process_time()
    world.run()
    return time.process_time() - begin_s


# -- whole programs --------------------------------------------------------------------------------


async def idle(sim: Simulation) -> None:
    """Three hosts that only renew: a lease each, every ten seconds."""

    async def renew() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(10)

    for index in range(3):
        sim.host(f"h{index}").spawn(renew(), name="renew")
    await asyncio.sleep(IDLE_S)


async def three_hosts(sim: Simulation) -> None:
    """A store and two clients that add to four shared counters, with faults, until `COMMITS` commits are in."""
    server = sim.host("store")
    store = MemoryStore(server.env())
    server.serve("store", store)
    keys = [Key("ConfigMap", "default", f"counter-{index}") for index in range(4)]

    revision = 0  # of the last commit of either client

    async def client(host: Host) -> None:
        nonlocal revision
        remote = host.remote(server, "store", timeout_s=1.0)
        while revision < COMMITS:
            key = sim.choose(f"counter of {host.name}", keys)
            try:
                (entry,) = (await remote.get([key])).entries
                check = Absent(key) if entry is None else AtRevision(key, entry.modified)
                value = b"1" if entry is None else b"%d" % (int(entry.value) + 1)
                revision = await remote.commit([check], [Put(key, value)])
            except (Conflict, OutcomeUnknown, Unavailable):
                await asyncio.sleep(0.01)

    await asyncio.gather(*[host.run(client(host)) for host in (sim.host("a"), sim.host("b"))])
    counted = sum(int(entry.value) for entry in (await store.get(keys)).entries if entry is not None)
    assert counted == store.statistics().commits >= COMMITS, "an acknowledged addition was lost"


def seeds_measured(count: int) -> tuple[float, float]:
    """CPU seconds per seed, and virtual seconds per CPU second."""
    target = SimulationTarget(program=three_hosts)
    virtual_s, spent_s = 0.0, []
    for seed in range(count):
        begin_s = time.process_time()
        outcome = target.run(seed)
        spent_s.append(time.process_time() - begin_s)
        if outcome.violation is not None:
            raise RuntimeError(f"the benchmark itself failed at seed {seed}: {outcome.violation}")
        virtual_s += outcome.virtual_s
    return statistics.mean(spent_s), virtual_s / sum(spent_s)


def works() -> dict[str, dict[str, Measure]]:
    """Every kind of work, by the loop that does it."""
    stock, uv = asyncio.new_event_loop, uvloop.new_event_loop
    return {
        "call_soon chains": {
            "kedge fifo": our_call_soon(Fifo()),
            "kedge uniform": our_call_soon(Uniform()),
            "asyncio": call_soon_on_loop(stock),
            "uvloop": call_soon_on_loop(uv),
            "simpy": simpy_timeouts(HOSTS, lambda _: 0.0),
        },
        "sleep(0)": {
            "kedge fifo": ours(Fifo(), yielding),
            "kedge uniform": ours(Uniform(), yielding),
            "asyncio": on_loop(stock, yielding, HOSTS),
            "uvloop": on_loop(uv, yielding, HOSTS),
            "simpy": simpy_timeouts(HOSTS, lambda _: 0.0),
        },
        "future hand-offs": {
            "kedge fifo": ours(Fifo(), handing),
            "kedge uniform": ours(Uniform(), handing),
            "asyncio": on_loop(stock, handing, HOSTS),
            "uvloop": on_loop(uv, handing, HOSTS),
            "simpy": simpy_handoffs,
        },
        "timers": {
            "kedge fifo": our_sleepers(Fifo(), same_s),
            "kedge uniform": our_sleepers(Uniform(), same_s),
            "simpy": simpy_timeouts(SLEEPERS, same_s),
        },
        "timers, no two alike": {
            "kedge fifo": our_sleepers(Fifo(), spread_s),
            "kedge uniform": our_sleepers(Uniform(), spread_s),
            "simpy": simpy_timeouts(SLEEPERS, spread_s),
        },
    }


def measured(measure: Measure, count: int) -> float:
    gc.collect()
    return measure(count)


def pair_ratios(kedge: Measure, peer: Measure, count: int, pairs: int) -> list[float]:
    """Speed of `kedge` over that of `peer` in each pair, sorted. Either goes first in half of the pairs."""
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            kedge_s, peer_s = measured(kedge, count), measured(peer, count)
        else:
            peer_s, kedge_s = measured(peer, count), measured(kedge, count)
        ratios.append(peer_s / kedge_s)
    return sorted(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer operations and pairs; for a first look")
    quick = parser.parse_args().quick
    count, rounds, pairs, seeds = (10_000, 2, 11, 20) if quick else (40_000, 5, 41, 150)
    table = works()
    gc.collect()
    gc.freeze()
    for peers in table.values():  # the interpreter specializes code that has run
        for measure in peers.values():
            measure(count)
    ratios = {
        name: pair_ratios(table[work][kedge], table[work][peer], count, pairs)
        for name, (work, kedge, peer) in RATIOS.items()
    }
    columns = ["kedge fifo", "kedge uniform", "asyncio", "uvloop", "simpy"]
    print_table(
        f"thousands per CPU second, {HOSTS} hosts ready, tape and trace on",
        ["", *columns],
        [[work, *[_best(peers.get(column), count, rounds) for column in columns]] for work, peers in table.items()],
    )
    print_table(
        f"speed of kedge over that of its peer, {pairs} pairs of {count} operations",
        ["", "median", "p10", "p90"],
        [[name, *_spread(found)] for name, found in ratios.items()],
    )
    idle_per_s = statistics.median(IDLE_S / simulated(idle, Uniform()) for _ in range(rounds))
    seed_s, busy_per_s = seeds_measured(seeds)
    print_table(
        "whole programs",
        ["", "figure"],
        [
            ["idle: virtual seconds per CPU second", idle_per_s],
            ["busy: virtual seconds per CPU second", busy_per_s],
            [f"three hosts, {COMMITS} commits, faults: CPU ms per seed", seed_s * 1e3],
            ["seeds per CPU second", 1 / seed_s],
        ],
    )
    print_json(
        {
            **{name: statistics.median(found) for name, found in ratios.items()},
            "spread": {name: [round(value, 3) for value in _spread(found)[1:]] for name, found in ratios.items()},
            "idle_virtual_s_per_cpu_s": idle_per_s,
            "busy_virtual_s_per_cpu_s": busy_per_s,
            "seed_cpu_ms": seed_s * 1e3,
            "seeds_per_cpu_s": 1 / seed_s,
        }
    )


def _best(measure: Measure | None, count: int, rounds: int) -> float | str:
    if measure is None:
        return "-"
    return count / min(measured(measure, count) for _ in range(rounds)) / 1e3


def _spread(found: list[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile of sorted ratios."""
    tenth = len(found) // 10
    return statistics.median(found), found[tenth], found[-1 - tenth]


if __name__ == "__main__":
    main()

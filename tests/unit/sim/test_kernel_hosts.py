"""Hosts: crash, restart, pause, slow CPU, skewed clocks; and where work runs."""

from __future__ import annotations

import asyncio
import gc

import pytest

from kedge.env import Env
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import NO_FAULTS, Fifo, Host, Program, RunOutcome, Simulation, Uniform, run


def passes(program: Program, seeds: int = 1) -> RunOutcome:
    for seed in range(seeds):
        outcome = run(program, seed, faults=NO_FAULTS)
        assert outcome.violation is None, outcome.violation.detail or outcome.violation
    return outcome


def here(sim: Simulation) -> str:
    host = sim.world.current_host()
    return host.name if host is not None else "world"


def test_child_tasks_callbacks_timers_and_futures_run_on_the_host_of_their_context() -> None:
    async def program(sim: Simulation) -> None:
        places: list[str] = []
        loop = asyncio.get_running_loop()
        shared: asyncio.Future[None] = loop.create_future()

        async def child() -> None:
            places.append(here(sim))
            await shared
            places.append(here(sim))

        async def parent() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                loop.call_soon(lambda: places.append(here(sim)))
                loop.call_later(1.0, lambda: places.append(here(sim)))
                shared.add_done_callback(lambda _: places.append(here(sim)))

        task = sim.host("a").spawn(parent(), name="parent")
        await asyncio.sleep(2)
        assert here(sim) == "driver"
        shared.set_result(None)  # from another host
        await task
        assert places == ["a"] * 5, places

    passes(program, seeds=10)


def test_a_crash_parks_work_and_no_finally_block_runs() -> None:
    async def program(sim: Simulation) -> list[str]:
        ends: list[str] = []
        host = sim.host("a")

        async def work() -> None:
            try:
                await asyncio.sleep(1000)
            except BaseException:
                ends.append("exception")
                raise
            finally:
                ends.append("finally")

        tasks = [host.spawn(work(), name=f"work-{i}") for i in range(3)]
        await asyncio.sleep(1)
        host.crash()
        await asyncio.sleep(5000)
        assert not any(task.done() for task in tasks)
        del tasks
        assert ends == []
        return ends

    outcome = passes(program)
    assert outcome.virtual_s == 5001


def test_timers_of_a_crashed_host_neither_fire_nor_move_time() -> None:
    async def program(sim: Simulation) -> None:
        host = sim.host("a")
        host.spawn(asyncio.sleep(1_000_000), name="long")
        await asyncio.sleep(1)
        host.crash()
        await asyncio.Event().wait()

    outcome = run(program, 0, faults=NO_FAULTS)
    assert outcome.violation is not None
    assert outcome.violation.invariant == "the program never deadlocks"
    assert outcome.virtual_s == 1


def test_a_restart_boots_with_empty_memory_and_the_old_process_stays_dead() -> None:
    async def program(sim: Simulation) -> None:
        lives: list[int] = []
        ticks: list[int] = []

        async def boot(_: Host) -> None:
            life = len(lives)
            lives.append(life)
            while True:
                await asyncio.sleep(1)
                ticks.append(life)

        host = sim.host("a")
        host.boot(boot)
        await asyncio.sleep(3.5)
        host.restart()
        await asyncio.sleep(3.5)
        assert lives == [0, 1]
        assert ticks == [0, 0, 0, 1, 1, 1]

    passes(program, seeds=5)


def test_a_pause_holds_everything_and_loses_nothing() -> None:
    async def program(sim: Simulation) -> None:
        host = sim.host("a")
        ticks: list[float] = []

        async def tick() -> None:
            for _ in range(4):
                await asyncio.sleep(1)
                ticks.append(sim.now_s)

        task = host.spawn(tick(), name="tick")
        await asyncio.sleep(1.5)
        host.pause()
        await asyncio.sleep(10)
        assert len(ticks) == 1
        host.resume()
        await task
        assert ticks == [1, 11.5, 12.5, 13.5]

    passes(program, seeds=5)


def test_a_slow_host_takes_time_for_each_step_and_others_do_not() -> None:
    async def program(sim: Simulation) -> None:
        slow, fast = sim.host("slow"), sim.host("fast")
        slow.slow(0.5)

        async def steps() -> float:
            for _ in range(10):
                await asyncio.sleep(0)
            return sim.now_s

        # Both begin at the same moment.
        late, soon = await asyncio.gather(slow.run(steps()), fast.run(steps()))
        assert late >= 5.0
        assert soon < 0.5
        slow.slow(0)
        begin = sim.now_s
        await asyncio.sleep(1)
        assert await slow.run(steps()) - begin == 1.0

    passes(program, seeds=5)


def test_a_slow_host_survives_pause_crash_and_restart() -> None:
    async def program(sim: Simulation) -> None:
        host = sim.host("a")
        ticks: list[float] = []

        async def boot(_: Host) -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(sim.now_s)

        host.boot(boot)
        host.slow(0.1)
        await asyncio.sleep(5)
        host.pause()
        before = len(ticks)
        await asyncio.sleep(5)
        assert len(ticks) == before
        host.resume()
        await asyncio.sleep(5)
        assert len(ticks) > before
        host.restart()
        before = len(ticks)
        await asyncio.sleep(5)
        assert before + 2 <= len(ticks) <= before + 5

    passes(program, seeds=5)


def test_a_host_may_slow_down_pause_and_crash_itself() -> None:
    async def program(sim: Simulation) -> None:
        host = sim.host("a")
        done: list[str] = []

        async def work() -> None:
            host.slow(0.1)
            await asyncio.sleep(0)
            host.slow(0)
            await asyncio.sleep(0)
            done.append("slow")
            host.pause()
            host.resume()
            await asyncio.sleep(0)
            done.append("paused")
            host.crash()
            done.append("last words")
            await asyncio.sleep(0)
            done.append("ghost")

        host.spawn(work(), name="work")
        await asyncio.sleep(10)
        assert done == ["slow", "paused", "last words"]

    passes(program, seeds=20)


def test_clocks_have_an_offset_and_a_rate() -> None:
    async def program(sim: Simulation) -> None:
        true, fast = sim.host("true"), sim.host("fast")
        fast.skew(offset_s=30.0, rate=2.0)
        env, plain = fast.env(), true.env()
        start = env.monotonic()

        async def nap(env: Env, delay_s: float) -> tuple[float, float]:
            begin = env.monotonic()
            await asyncio.sleep(delay_s)
            return env.monotonic() - begin, sim.now_s

        own, world = await fast.run(nap(env, 10.0))
        assert own == 10.0
        assert world == 5.0
        own, world = await true.run(nap(plain, 10.0))
        assert own == 10.0
        assert world == 15.0
        assert env.monotonic() - start == 30.0
        assert (env.now() - plain.now()).total_seconds() == 30.0 + 15.0
        fast.skew(rate=1.0)
        before = env.monotonic()
        await asyncio.sleep(1)
        assert env.monotonic() - before == 1.0

    passes(program)


def test_a_timeout_on_a_skewed_host_follows_its_own_clock() -> None:
    async def program(sim: Simulation) -> None:
        slow = sim.host("slow")
        slow.skew(rate=0.5)

        async def wait() -> float:
            try:
                async with asyncio.timeout(10):
                    await asyncio.sleep(1000)
            except TimeoutError:
                return sim.now_s
            return -1.0

        assert await slow.run(wait()) == 20.0

    passes(program)


def test_each_process_of_a_host_has_its_own_randomness_from_the_seed() -> None:
    async def program(sim: Simulation) -> list[str]:
        a, b = sim.host("a"), sim.host("b")
        uids = [a.env().new_uid(), b.env().new_uid()]
        a.restart()
        uids.append(a.env().new_uid())
        return uids

    uids = run(program, 1).result
    assert len(set(uids)) == 3
    assert run(program, 1).result == uids
    assert run(program, 2).result != uids


class Bank:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.paid = 0

    async def pay(self) -> int:
        self.paid += 1
        return self.paid


def test_a_call_to_a_host_that_is_down_fails_and_one_to_a_host_that_crashes_is_unknown() -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        bank = Bank(server)

        async def boot(host: Host) -> None:
            host.serve("bank", bank)

        server.boot(boot)
        await asyncio.sleep(1)
        remote = client.remote(server, "bank")
        sim.faults.script("reply of bank.pay", "crash callee")

        async def pay() -> str:
            try:
                return str(await remote.pay())
            except (OutcomeUnknown, Unavailable) as error:
                return type(error).__name__

        assert await client.run(pay()) == "OutcomeUnknown"
        assert bank.paid == 1
        await asyncio.sleep(60)
        server.crash()
        assert await client.run(pay()) == "Unavailable"
        assert bank.paid == 1
        server.restart()
        await asyncio.sleep(1)
        assert await client.run(pay()) == "2"

    passes(program, seeds=5)


def test_a_call_to_a_service_on_the_same_host_is_a_scheduling_point_too() -> None:
    async def program(sim: Simulation) -> None:
        host = sim.host("a")
        bank = Bank(host)
        host.serve("bank", bank)
        seen: list[int] = []

        async def pay() -> None:
            before = bank.paid
            await host.remote(host, "bank").pay()
            seen.append(bank.paid - before)

        one, other = host.spawn(pay(), name="one"), host.spawn(pay(), name="other")
        await asyncio.gather(one, other)
        assert max(seen) == 2  # each call saw the payment of the other

    passes(program, seeds=5)


def test_a_crashed_caller_gets_no_reply_and_neither_does_its_next_process() -> None:
    async def program(sim: Simulation) -> None:
        server, client = sim.host("server"), sim.host("client")
        server.serve("bank", Bank(server))
        got: list[str] = []

        async def boot(host: Host) -> None:
            if host.process.number == 1:
                got.append(f"reply {await host.remote(server, 'bank').pay()}")
            else:
                got.append("rebooted")

        sim.faults.script("reply of bank.pay", "crash caller")
        client.boot(boot)
        await asyncio.sleep(100)
        assert got == ["rebooted"]

    passes(program, seeds=5)


def test_fifo_is_fair_between_hosts_and_uniform_is_not_one_order() -> None:
    async def program(sim: Simulation) -> list[str]:
        order: list[str] = []

        async def work(name: str) -> None:
            for _ in range(3):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(*[sim.host(name).spawn(work(name), name=name) for name in "abc"])
        return order

    assert run(program, 1, policy=Fifo()).result == list("abcabcabc")
    orders = {tuple(run(program, seed, policy=Uniform()).result) for seed in range(50)}
    assert len(orders) > 20


def test_a_parked_task_that_only_waits_for_itself_is_not_finalized_by_a_collection() -> None:
    async def program(sim: Simulation) -> None:
        ends: list[str] = []
        host = sim.host("a")

        async def wait() -> None:
            try:
                await asyncio.Event().wait()  # nothing else references this event
            finally:
                ends.append("finally")

        async def serve() -> None:
            asyncio.get_running_loop().create_task(wait())
            await asyncio.sleep(1)

        host.spawn(serve(), name="serve")
        await asyncio.sleep(0.5)
        host.crash()
        gc.collect()
        await asyncio.sleep(10)
        gc.collect()
        assert ends == []

    passes(program)


def test_a_plain_method_runs_in_one_step_and_may_return_an_awaitable() -> None:
    class UpperCaseServer:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def now(self, name: str) -> str:
            host = sim_of[0].world.current_host()
            assert host is not None
            self.seen.append(f"{name} on {host.name}")
            return name.upper()

        def later(self, name: str) -> object:
            async def rest() -> str:
                await asyncio.sleep(1.0)
                return self.now(name)

            return rest()

        def fail(self) -> None:
            raise ValueError("no such thing")

    sim_of: list[Simulation] = []

    async def program(sim: Simulation) -> None:
        sim_of.append(sim)
        letters, server, client = UpperCaseServer(), sim.host("server"), sim.host("client")
        server.serve("letters", letters)
        remote = client.remote(server, "letters")
        assert await client.run(remote.now("a")) == "A"
        assert await client.run(remote.later("b")) == "B"
        with pytest.raises(ValueError, match="no such thing"):
            await client.run(remote.fail())
        assert letters.seen == ["a on server", "b on server"]
        # It is work of the host: a paused host does not run it, and a crash drops it.
        server.pause()
        waiting = client.spawn(remote.now("c"), name="c")
        await asyncio.sleep(1.0)
        assert letters.seen[2:] == []
        server.resume()
        assert await waiting == "C"
        server.pause()
        lost = asyncio.ensure_future(client.run(remote.now("d")))
        await asyncio.sleep(1.0)
        server.crash()
        with pytest.raises(OutcomeUnknown):
            await lost
        assert letters.seen[3:] == []

    outcome = run(program, 3, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation

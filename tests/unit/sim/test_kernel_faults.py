"""Faults: drawn by plans, and placed by scripts."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.kit.kernel_log import Log, calls, passes

from kedge.sim.kernel import NO_FAULTS, FixedRates, Simulation, Swarm, run

# -- plans -----------------------------------------------------------------------------------------


def test_fixed_rates_strike_at_about_their_rate() -> None:
    log = Log()
    outcome = passes(run(calls(1_000, log), 1, faults=FixedRates({"reply of log.add: lose": 0.1})))
    assert 60 <= outcome.result["OutcomeUnknown"] <= 140
    assert len(log.lines) == 1_000  # every call was carried out


def test_a_swarm_draws_which_faults_may_strike_in_each_seed() -> None:
    worlds = []
    for seed in range(80):
        outcome = run(calls(100, Log()), seed)
        worlds.append(frozenset(event.text.split(":")[0] for event in outcome.faults))
    assert len(set(worlds)) > 20
    assert frozenset() in worlds
    kinds = frozenset().union(*worlds)
    assert {"lose", "delay", "partition", "pause caller", "pause callee", "slow cpu", "wrong clock"} <= kinds
    assert not {"duplicate", "hide"} & kinds  # a sound transport rules these out


def test_a_swarm_can_exclude_kinds_and_include_duplicates() -> None:
    for seed in range(40):
        outcome = run(calls(50, Log()), seed, faults=Swarm(without=("lose", "partition")))
        assert not [e for e in outcome.faults if e.text.startswith(("lose", "partition"))]
    logs = [Log() for _ in range(60)]
    for seed, log in enumerate(logs):
        run(calls(100, log), seed, faults=Swarm(without=()))
    assert any(max(Counter(log.lines).values()) == 2 for log in logs)


def test_no_fault_strikes_after_faults_stop() -> None:
    async def program(sim: Simulation) -> int:
        sim.heal()
        server, client = sim.host("server"), sim.host("client")
        server.serve("log", Log())
        remote = client.remote(server, "log")
        for line in range(200):
            await client.run(remote.add(line))
        return len(sim.faults.struck)

    assert passes(run(program, 1, faults=FixedRates({"lose": 0.5}))).result == 0


def test_a_program_may_have_its_own_fault_points() -> None:
    async def program(sim: Simulation) -> list[str]:
        return [sim.faults.at("disk write", f"block-{index}", ("torn", "slow")) for index in range(200)]

    answers = Counter(passes(run(program, 1, faults=FixedRates({"torn": 0.2, "slow": 0.1}))).result)
    assert set(answers) == {"", "torn", "slow"}


# -- scripts ---------------------------------------------------------------------------------------


def test_a_scripted_fault_strikes_at_the_nth_match() -> None:
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


def test_scripts_do_nothing_once_faults_stop() -> None:
    async def program(sim: Simulation) -> list[str]:
        done: list[str] = []
        sim.faults.at_time(5, lambda: done.append("late"))
        sim.faults.after("mark", lambda: done.append("event"))
        sim.heal()
        sim.note("mark", "now")
        await asyncio.sleep(10)
        return done

    assert passes(run(program, 1)).result == []

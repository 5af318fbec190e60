"""Invariants and phases: safety at each commit, and liveness once faults have stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.kit.kernel_log import passes

from kedge.errors import InvariantBroken
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, liveness, run, safety
from kedge.sim.kernel.invariants import name_of


@safety
def never_goes_down(step: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Numbers only rise."""
    before, after = step
    if after < before:
        yield "fell", f"from {before} to {after}"


def test_a_safety_violation_is_found_at_its_commit() -> None:
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


def test_an_invariant_that_raises_fails_the_run_not_the_program() -> None:
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


def test_liveness_is_checked_only_after_heal_and_within_its_time() -> None:
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


def test_converged_state_must_stay_for_the_given_time() -> None:
    async def flapping(sim: Simulation) -> None:
        sim.check_eventually(lambda: 2 <= sim.now_s < 3)
        sim.heal()
        await sim.converge(within_s=20, stays_s=5)

    violation = run(flapping, 1).violation
    assert violation is not None
    assert "did not stay" in violation.message


def test_a_lambda_is_reported_by_its_place_and_source_line() -> None:
    async def program(sim: Simulation) -> None:
        sim.check_eventually(lambda: sim.now_s > 3600)
        sim.heal()
        await sim.converge(within_s=1)

    violation = run(program, 1).violation
    assert violation is not None
    assert violation.invariant.startswith("test_kernel_invariants.py:")
    assert violation.invariant.endswith(": sim.check_eventually(lambda: sim.now_s > 3600)")
    nameless = eval("lambda: False")
    assert name_of(nameless) == "lambda at <string>:1"


@pytest.mark.parametrize(("unrest_s", "holds"), [(20.0, True), (5.0, False)])
def test_effects_in_flight_when_the_faults_stopped_may_arrive_within_a_bound(unrest_s: float, holds: bool) -> None:
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


def test_heal_restarts_hosts_and_makes_the_schedule_fair() -> None:
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


def test_marks_count_the_states_that_were_reached() -> None:
    async def program(sim: Simulation) -> None:
        for number in range(5):
            sim.sometimes("even", number % 2 == 0)
            sim.sometimes("huge", number > 100)

    assert run(program, 1).marks == {"even": 3}

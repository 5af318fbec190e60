"""Tapes, policies and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kedge.sim.kernel import NO_FAULTS, Fifo, Mixed, Pct, Simulation, SimulationTarget, Tape, Uniform, run
from kedge.sim.kernel.choices import Mode, Stream, TapeMismatch, pack, unpack
from kedge.sim.kernel.policies import Chooser
from kedge.sim.kernel.strands import HostProcess
from kedge.sim.kernel.trace import Event, Trace
from kedge.sim.kernel.trace_diff import first_difference

choices = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(2, 9)), max_size=30)


def stream(
    mode: Mode, recorded: Sequence[tuple[str, int, int]] = (), seed: int = 1
) -> tuple[Stream, list[TapeMismatch]]:
    diverged: list[TapeMismatch] = []
    return Stream("network", seed, mode, recorded, diverged.append), diverged


@given(choices, st.integers())
def test_a_strict_stream_repeats_what_was_recorded(asked: list[tuple[str, int]], seed: int) -> None:
    first, _ = stream(Mode.RECORD, seed=seed)
    values = [first.choose(label, bound) for label, bound in asked]
    assert all(0 <= value < bound for value, (_, bound) in zip(values, asked, strict=True))
    again, diverged = stream(Mode.STRICT, first.taken, seed=seed + 1)
    assert [again.choose(label, bound) for label, bound in asked] == values
    assert not diverged


@given(choices, choices)
def test_a_lenient_stream_finds_each_choice_by_label_and_occurrence(
    asked: list[tuple[str, int]], added: list[tuple[str, int]]
) -> None:
    first, _ = stream(Mode.RECORD)
    values: dict[str, list[int]] = {}
    for label, bound in asked:
        values.setdefault(label, []).append(first.choose(label, bound))
    again, _ = stream(Mode.LENIENT, first.taken)
    for label, bound in added:
        again.choose(f"new {label}", bound)  # choices that are not on the tape take 0 and do not affect others
    for label in ("c", "b", "a"):  # in another order
        assert [again.choose(label, 100) for _ in values.get(label, ())] == values.get(label, [])
    assert again.missing == len(added)
    assert again.choose("a", 5) == 0


@given(st.integers(2, 65_535), st.data())
def test_a_packed_choice_unpacks_to_itself(bound: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(0, bound - 1))
    assert unpack(pack(bound, value)) == (bound, value)


def test_a_strict_stream_past_its_end_is_a_mismatch() -> None:
    again, diverged = stream(Mode.STRICT, [("a", 2, 1)])
    assert again.choose("a", 2) == 1
    assert again.choose("b", 3) == 0
    assert str(diverged[0]) == "out of step at network choice 1: the tape ends, the run draws 'b' of 3"


def test_a_schedule_mismatch_names_the_choice() -> None:
    async def program(sim: Simulation, hosts: int) -> None:
        await asyncio.gather(*[sim.host(f"h{i}").run(asyncio.sleep(0)) for i in range(hosts)])

    tape = run(lambda sim: program(sim, 3), 1, faults=NO_FAULTS).tape
    outcome = run(lambda sim: program(sim, 5), tape, faults=NO_FAULTS)
    assert outcome.diverged is not None
    assert "out of step at schedule choice" in str(outcome.diverged)


async def race(sim: Simulation) -> None:
    """Fails only if the step of b falls between two given steps of a: a bug of depth 2."""
    state = [0]

    async def walk() -> None:
        for step in range(30):
            state[0] = step
            await asyncio.sleep(0)

    async def look() -> None:
        await asyncio.sleep(0)
        if state[0] == 20:
            sim.violate("b never sees twenty", "it did")

    walking = sim.host("a").spawn(walk(), name="walk")
    await sim.host("b").spawn(look(), name="look")
    await walking


def test_pct_finds_a_deep_preemption_that_uniform_choice_all_but_never_makes() -> None:
    def found(policy: Uniform | Pct) -> int:
        target = SimulationTarget(program=race, policy=policy, faults=NO_FAULTS).calibrated()
        return sum(target.run(seed).violation is not None for seed in range(800))

    assert found(Uniform()) <= 1
    assert found(Pct(depth=2)) >= 4


def test_pct_does_not_starve_a_host_that_others_poll_for() -> None:
    async def program(sim: Simulation) -> None:
        flag = [False]

        async def poll() -> None:
            while not flag[0]:  # noqa: ASYNC110
                await asyncio.sleep(0)

        async def set_flag() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            flag[0] = True

        await asyncio.gather(sim.host("a").run(poll()), sim.host("b").run(set_flag()))

    for seed in range(20):
        assert run(program, seed, policy=Pct(depth=1), faults=NO_FAULTS).violation is None


@dataclass(frozen=True)
class Newest:
    """A custom policy: always the host that became ready last."""

    name: str = "newest"

    def chooser(self, seed: int) -> Chooser | None:  # noqa: ARG002
        def choose(ready: Sequence[HostProcess]) -> int:
            return len(ready) - 1

        return choose


def test_a_custom_policy_runs_and_replays() -> None:
    first = run(race, 1, policy=Newest(), faults=NO_FAULTS)
    assert first.tape.policy == "newest"
    assert run(race, first.tape, faults=NO_FAULTS).hash == first.hash


def test_a_mixed_policy_takes_each_of_its_parts() -> None:
    target = SimulationTarget(program=race, policy=Mixed((Fifo(), Uniform())), faults=NO_FAULTS)
    assert len(target.run(0).tape.schedule) == 0
    assert len(target.run(1).tape.schedule) > 0


# -- traces ----------------------------------------------------------------------------------------


def trace(steps: list[int], times: list[float], events: list[Event]) -> Trace:
    made = Trace()
    made.steps.extend(steps)
    made.times.extend(times)
    made.events.extend(events)
    return made


EVENT = Event(2, 1.0, "a", "note", "x")


def test_the_hash_covers_every_step_time_and_event_and_is_incremental() -> None:
    base = trace([1, 0, 2], [1.0], [EVENT]).hash()
    assert trace([1, 0, 2], [1.0], [EVENT]).hash() == base
    assert trace([1, 0, 3], [1.0], [EVENT]).hash() != base
    assert trace([1, 0, 2], [1.5], [EVENT]).hash() != base
    assert trace([1, 0, 2], [1.0], [EVENT._replace(text="y")]).hash() != base
    running = trace([1], [], [])
    running.hash()
    running.steps.extend([0, 2])
    running.times.append(1.0)
    running.hash()
    running.events.append(EVENT)
    assert running.hash() == base


def test_the_first_difference_is_the_earliest_of_step_time_and_event() -> None:
    one = trace([1, 0, 2, 3], [1.0], [EVENT])
    assert first_difference(one, trace([1, 0, 2, 3], [1.0], [EVENT])) is None
    step = first_difference(one, trace([1, 0, 4, 3], [1.0], [EVENT]), one_strands={2: "a: work"})
    assert step is not None
    assert (step.step, step.one, step.other) == (2, "a step of a: work", "a step of strand 4")
    time = first_difference(one, trace([1, 0, 2, 3], [2.0], [EVENT]))
    assert time is not None
    assert (time.step, time.one) == (1, "the clock jumps to 1.0s")
    event = first_difference(one, trace([1, 0, 2, 3], [1.0], [EVENT._replace(text="y")]))
    assert event is not None
    assert event.one.endswith("note x")
    assert event.after == "the beginning"
    shorter = first_difference(one, trace([1, 0], [1.0], []))
    assert shorter is not None
    assert shorter.other == "the end"


def test_a_tape_copy_shares_nothing() -> None:
    tape = Tape(1)
    other = tape.copy()
    other.streams["faults"].append(("x", 2, 1))
    other.schedule.append(1)
    assert tape == Tape(1)

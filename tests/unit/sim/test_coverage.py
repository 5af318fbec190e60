"""Coverage of a run, mutations of its tape, the corpus within its bounds, and the shares of the bandit."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.logs import DECISION
from kedge.sim.kernel import (
    FixedRates,
    Simulation,
    SimulationTarget,
    Tape,
    Uniform,
    find_target,
)
from kedge.sim.kernel.bandit import EVEN_SHARE, MEMORY, STEPS_GUESSED, STEPS_MIN, Bandit
from kedge.sim.kernel.choices import STREAMS, Mode, Stream
from kedge.sim.kernel.corpus import Corpus
from kedge.sim.kernel.run_coverage import FAULT_STEPS, MARK_PAIRS, Feature, run_covered
from kedge.sim.kernel.tape_edits import (
    change_choice,
    change_schedule,
    draw_tail,
    move_fault,
    mutate,
    repeat_fault,
    splice,
)

START = (0, 0, 0, 0)

# -- features --------------------------------------------------------------------------------------


class Echo:
    async def read(self) -> int:
        return 1

    async def write(self) -> int:
        return 2


async def talk(sim: Simulation) -> None:
    """A client reads and writes, on links that lose replies."""
    server = sim.host("server")
    server.serve("echo", Echo())

    async def work(number: int) -> None:
        remote = sim.world.hosts[f"client-{number}"].remote(server, "echo", timeout_s=1.0)
        for _ in range(sim.choose_int("rounds", 1, 6)):
            try:
                await remote.read()
                sim.sometimes("read")
                await remote.write()
                sim.sometimes("written")
            except (OutcomeUnknown, Unavailable):
                sim.sometimes("in doubt")

    await asyncio.gather(*[sim.host(f"client-{number}").run(work(number)) for number in range(2)])


TALK = SimulationTarget(program=talk, policy=Uniform(), faults=FixedRates({"reply of echo.write: lose": 0.3}))


def features(sort: str, seed: int) -> list[str]:
    return list(run_covered(TALK, seed)[1].features[sort])


@pytest.mark.parametrize("name", ["lost_update", "duplicate_create", "deadlock", "sound"])
def test_a_run_with_coverage_has_the_same_trace_and_tape(name: str) -> None:
    target = find_target(f"tests/kit/planted_bugs.py:{name}")
    for seed in range(20):
        plain, (covered, _) = target.run(seed), run_covered(target, seed)
        assert covered.hash == plain.hash
        assert covered.tape == plain.tape
        assert covered.violation == plain.violation


def test_marks_are_paired_in_the_order_in_which_they_were_reached() -> None:
    async def program(sim: Simulation) -> None:
        for name in ("a", "b", "a"):
            sim.sometimes(name)

    _, found = run_covered(SimulationTarget(program=program), 0)
    assert list(found.features[MARK_PAIRS]) == ["a", "b", "a > b", "a > a", "b > a"]


def test_a_fault_is_named_by_its_component_and_by_the_call_before() -> None:
    every = {text for seed in range(10) for text in features(FAULT_STEPS, seed)}
    assert every == {"lose at reply of echo.write of client, after echo.write"}


def test_a_fault_in_a_decision_is_named_by_its_controller() -> None:
    async def program(sim: Simulation) -> None:
        DECISION.set("replicaset:7:1")
        sim.faults.at("disk write", "host-3", ("torn",))

    target = SimulationTarget(program=program, faults=FixedRates({"torn": 1.0}))
    assert list(run_covered(target, 0)[1].features[FAULT_STEPS]) == ["torn at disk write of replicaset, after nothing"]


def test_a_feature_has_the_moment_at_which_it_was_reached() -> None:
    """The tape up to that position, and any tail, reach it again."""
    outcome, found = run_covered(TALK, 3)
    position = found.features[MARK_PAIRS]["in doubt"]
    for tail_seed in range(10):
        tape = outcome.tape.copy()
        tape.cut(position)
        tape.tail_seed = tail_seed
        again, reached = run_covered(TALK, tape, lenient=True)
        assert reached.features[MARK_PAIRS]["in doubt"] == position
        assert again.tape.streams["faults"][: position[2]] == outcome.tape.streams["faults"][: position[2]]


def test_features_of_one_run_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.sim.kernel.run_coverage.RUN_FEATURES_MAX", 10)

    async def program(sim: Simulation) -> None:
        for number in range(100):
            sim.sometimes(f"mark {number}")

    assert len(run_covered(SimulationTarget(program=program), 0)[1].hashed()) == 10


# -- tapes -----------------------------------------------------------------------------------------


def test_choices_that_an_edited_tape_lacks_are_drawn_by_their_probabilities_from_its_tail_seed() -> None:
    def drawn(tail_seed: int | None) -> list[int]:
        stream = Stream("faults", 0, Mode.LENIENT, [("a", 2, 1)], lambda _: None, tail_seed)
        return [stream.choose("a", 2, (0.9, 1.0)) for _ in range(400)]

    assert drawn(None) == [1, *[0] * 399]
    assert drawn(5) == drawn(5) != drawn(6)
    assert drawn(5)[0] == 1
    assert 20 < sum(drawn(5)) < 70


def test_a_mutated_tape_gives_a_run_that_replays_exactly() -> None:
    parents = [TALK.run(seed) for seed in range(4)]
    others = 0
    for number in range(60):
        source = Random(number)
        one, other = source.choice(parents), source.choice(parents)
        position = (len(one.tape.schedule) // 2, *(len(one.tape.streams[name]) // 2 for name in STREAMS))
        edited = mutate(one.tape, position, other.tape, source)  # type: ignore[arg-type]
        child = TALK.run(edited, lenient=True)
        assert child.tape.tail_seed is None
        again = TALK.run(child.tape)
        assert again.diverged is None
        assert again.hash == child.hash
        others += child.hash not in {parent.hash for parent in parents}
    assert others > 40


def test_equal_sources_give_equal_mutations_and_leave_the_tapes_alone() -> None:
    one, other = TALK.run(1).tape, TALK.run(2).tape
    before = one.copy(), other.copy()
    made = [[mutate(one, START, other, Random(n)) for n in range(30)] for _ in range(2)]
    assert made[0] == made[1]
    assert (one, other) == before
    assert len({repr(each) for each in made[0]}) > 20


def tape(*faults: tuple[str, int, int]) -> Tape:
    found = Tape(0, "uniform")
    found.streams["faults"] = list(faults)
    return found


def test_a_fault_is_moved_or_repeated_only_to_a_message_of_its_point() -> None:
    struck = [("write a>b", 3, 2), ("write c>b", 3, 0), ("read a>b", 3, 0), ("write a>b", 2, 0)]
    moved, repeated = tape(*struck), tape(*struck)
    move_fault(Random(0), moved, moved)
    repeat_fault(Random(0), repeated, repeated)
    assert [value for _, _, value in moved.streams["faults"]] == [0, 2, 0, 0]
    assert [value for _, _, value in repeated.streams["faults"]] == [2, 2, 0, 0]


@pytest.mark.parametrize(
    "edit",
    [change_choice, change_schedule, draw_tail, splice, move_fault, repeat_fault],
    ids=lambda each: each.__name__,
)
def test_an_empty_tape_can_be_edited(edit: object) -> None:
    for number in range(10):
        edit(Random(number), Tape(0), Tape(1))  # type: ignore[operator]


def test_a_changed_choice_stays_within_its_bound() -> None:
    for number in range(50):
        edited = tape(("a", 3, 0), ("b", 5, 4))
        change_choice(Random(number), edited, edited)
        assert all(0 <= value < bound for _, bound, value in edited.streams["faults"])


# -- corpus ----------------------------------------------------------------------------------------


def feature(number: int) -> Feature:
    return Feature(MARK_PAIRS, number, START)


def test_only_new_features_are_new_once() -> None:
    corpus = Corpus()
    assert corpus.count([feature(1), feature(2)]) == (feature(1), feature(2))
    assert corpus.count([feature(2), feature(3)]) == (feature(3),)
    assert corpus.reached[MARK_PAIRS] == 3


def test_a_corpus_stays_within_its_entries_and_bytes() -> None:
    some = [TALK.run(seed).tape for seed in range(12)]
    few = Corpus(entries_max=3)
    for number, each in enumerate(some):
        few.keep(0, each, few.count([feature(number)]))
    assert len(few.entries) == 3
    assert few.bytes == sum(len(each.packed) for each in few.entries)
    small = Corpus(bytes_max=few.bytes)
    for number, each in enumerate(some):
        small.keep(0, each, small.count([feature(number)]))
        assert small.bytes <= few.bytes
    assert small.entries
    none = Corpus(bytes_max=1)
    none.keep(0, some[0], none.count([feature(1)]))
    assert (none.entries, none.bytes) == ([], 0)


def test_features_of_a_world_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kedge.sim.kernel.corpus.FEATURES_MAX", 5)
    corpus = Corpus()
    assert len(corpus.count([feature(number) for number in range(9)])) == 5
    assert corpus.count([feature(8)]) == ()


def test_the_entry_whose_features_are_common_and_that_was_mutated_most_goes_first() -> None:
    corpus = Corpus(entries_max=2)
    for number in (1, 2):
        corpus.keep(number, TALK.run(number).tape, corpus.count([feature(number)]))
    for _ in range(20):
        corpus.count([feature(1)])
    corpus.keep(3, TALK.run(3).tape, corpus.count([feature(3)]))
    assert [each.arm for each in corpus.entries] == [2, 3]
    corpus.entries[0].draws = 30
    corpus.keep(4, TALK.run(4).tape, corpus.count([feature(4)]))
    assert [each.arm for each in corpus.entries] == [3, 4]


def test_a_rare_entry_is_drawn_more_often() -> None:
    corpus = Corpus()
    for number in (1, 2):
        corpus.keep(number, TALK.run(number).tape, corpus.count([feature(number)]))
    for _ in range(9):
        corpus.count([feature(1)])
    source = Random(0)
    drawn = [corpus.draw(source).arm for _ in range(200)]
    assert drawn.count(2) > 150
    assert 1 in drawn


# -- bandit ----------------------------------------------------------------------------------------


def spend(bandit: Bandit, runs: int, new: dict[int, int], steps: dict[int, int] | None = None) -> list[int]:
    """Choose that many runs; arms find as many features in each run as `new` has."""
    chosen = []
    for _ in range(runs):
        place = bandit.choose(range(len(bandit.arms)))
        bandit.add(place, (steps or {}).get(place, 100), new.get(place, 0), found=False)
        chosen.append(place)
    return chosen


def test_an_arm_that_still_finds_gets_most_and_the_others_go_on_with_little() -> None:
    bandit = Bandit(["a", "b", "c"])
    chosen = spend(bandit, 300, {1: 2})
    assert chosen.count(1) > 180
    assert min(chosen.count(0), chosen.count(2)) >= 300 * EVEN_SHARE / 3 - 2
    later = spend(bandit, 300, {2: 2})
    assert later.count(2) > 150


def test_arms_that_find_nothing_have_equal_shares_again() -> None:
    bandit = Bandit(["a", "b"])
    spend(bandit, 100, {0: 1})
    spend(bandit, 100, {})
    chosen = spend(bandit, 200, {})
    assert 90 <= chosen.count(0) <= 110


def test_shares_are_of_steps_and_not_of_runs() -> None:
    bandit = Bandit(["dear", "cheap"])
    chosen = spend(bandit, 220, {0: 10, 1: 1}, {0: 1_000, 1: 100})
    dear, cheap = bandit.arms
    assert chosen.count(1) > 5 * chosen.count(0)
    assert 0.7 < dear.steps / cheap.steps < 1.4


def test_runs_under_way_are_charged_so_that_one_arm_does_not_take_all_of_them() -> None:
    bandit = Bandit(["a", "b", "c", "d"])
    assert sorted(bandit.choose(range(4)) for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_arm_that_could_not_run_does_not_catch_up_all_at_once() -> None:
    bandit = Bandit(["seeds", "mutations"])
    for _ in range(100):
        bandit.add(bandit.choose([0]), STEPS_GUESSED, 0, found=False)
    chosen = spend(bandit, 40, {}, {0: STEPS_GUESSED, 1: STEPS_GUESSED})
    assert 15 <= chosen.count(1) <= 25


def test_an_arm_that_begins_late_is_charged_as_the_others_are() -> None:
    bandit = Bandit(["seeds", "mutations"])
    for _ in range(20):
        bandit.add(bandit.choose([0]), STEPS_MIN, 0, found=False)
    assert 6 <= sum(bandit.choose([0, 1]) for _ in range(16)) <= 10


def test_an_arm_whose_runs_cannot_be_made_is_not_free() -> None:
    bandit = Bandit(["broken", "sound"])
    chosen = spend(bandit, 300, {}, {0: 0, 1: 100})
    assert chosen.count(1) > 80


def test_the_past_of_an_arm_fades() -> None:
    bandit = Bandit(["a"])
    bandit.add(0, 100, 8, found=False)
    for _ in range(20):
        bandit.add(0, 100, 0, found=False)
    assert bandit.arms[0].recent_new == pytest.approx(8 * MEMORY**20)

"""Strategies of the zoo: which finds an entry soonest, and how targeted plans compare with plain random."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

import pytest
from click.testing import CliRunner

from kedge.cli import main
from kedge.sim.kernel import Simulation, simulate
from kedge.sim.zoo import Trial, all_entries, compare_entry, contenders, entry_named, hunt_zoo, table
from kedge.sim.zoo.comparison import (
    FINDS_ENOUGH,
    best_of,
    steps_per_find,
    strategy_summaries,
    targeted_summary,
    try_strategy,
)
from kedge.sim.zoo.coverage import COVERAGE
from kedge.sim.zoo.entry import KEPT
from kedge.sim.zoo.hunt import EntryResult, ZooReport, strategies_of
from kedge.sim.zoo.strategies import BASELINE, OLD_LISTS, PLAIN_RANDOM
from kedge.sim.zoo.worlds import WORLDS, ZooWorld

CRASH = "crash after write"


def trial(strategy: str, *, seeds: int = 10, finds: int, steps: int, entry: str = "one", cpu_s: float = 1.0) -> Trial:
    return Trial(entry, strategy, not strategy.startswith("swarm"), seeds, finds, steps, cpu_s)


def test_every_entry_is_compared_with_all_its_strategies_and_plain_random() -> None:
    for entry in all_entries():
        names = [each.name for each in contenders(entry)]
        assert len(set(names)) == len(names)
        assert {each.name for each in strategies_of(entry)} <= set(names)
        assert {each.name for each in BASELINE} <= set(names)


def test_all_strategies_but_the_swarms_are_targeted() -> None:
    ways = {each.name: each.targeted for entry in all_entries() for each in contenders(entry)}
    assert [name for name, targeted in ways.items() if not targeted] == ["swarm", "swarm, pct", "swarm, fifo"]


def test_the_best_strategy_has_the_least_cost_per_find() -> None:
    dear, cheap = trial("dear", finds=5, seeds=5, steps=5_000), trial("cheap", finds=2, steps=1_000)
    assert best_of([dear, cheap]) is cheap
    assert best_of([trial("never", finds=0, steps=1)]) is None


def test_among_equal_costs_the_best_has_more_finds_then_comes_first() -> None:
    twice, once = trial("twice", finds=2, steps=2_000), trial("once", finds=1, steps=1_000)
    assert best_of([once, twice]) is twice
    assert best_of([once, trial("again", finds=1, steps=1_000)]) is once


def test_cpu_time_does_not_affect_the_best_so_it_is_the_same_on_every_machine() -> None:
    ways = [trial("slow machine", finds=1, steps=100, cpu_s=9.0), trial("fast machine", finds=1, steps=101, cpu_s=0.1)]
    assert best_of(ways) is ways[0]


def test_strategies_in_turn_cost_their_sum_over_their_finds() -> None:
    sure, hopeless = trial("sure", seeds=5, finds=5, steps=500), trial("hopeless", seeds=10, finds=0, steps=3_000)
    assert steps_per_find([sure]) == 100
    assert steps_per_find([sure, hopeless]) == 400
    assert steps_per_find([hopeless]) == 3_000  # a lower bound


def test_a_summary_has_where_a_strategy_is_best_or_alone_and_its_speed_over_plain_random() -> None:
    compared = [
        [trial(PLAIN_RANDOM, finds=1, steps=1_000), trial("aimed", finds=5, steps=1_000)],
        [
            trial(PLAIN_RANDOM, finds=0, steps=1_000),
            trial("aimed", finds=1, steps=1_000),
            trial("other", finds=0, steps=9),
        ],
        [trial(PLAIN_RANDOM, finds=5, steps=1_000), trial("aimed", finds=1, steps=1_000)],
        [trial(PLAIN_RANDOM, finds=0, steps=1_000), trial("aimed", finds=0, steps=1)],
    ]
    ways = {each.strategy: each for each in strategy_summaries(compared)}
    assert list(ways) == ["aimed", PLAIN_RANDOM, "other"]
    aimed, random, other = ways.values()
    assert (aimed.entries, aimed.found, aimed.best, aimed.alone, aimed.sooner) == (4, 3, 2, 1, 1.0)
    assert (random.entries, random.found, random.best, random.alone, random.sooner) == (4, 2, 1, 0, 1.0)
    assert (other.entries, other.found, other.best, other.sooner) == (1, 0, 0, None)
    together = targeted_summary(compared)
    assert (together.entries, together.found, together.best, together.alone) == (4, 3, 2, 1)


def test_a_trial_runs_its_seeds_or_ends_after_enough_finds() -> None:
    known = try_strategy("quota-not-enforced", CRASH, range(40))
    assert (known.seeds, known.finds) == (FINDS_ENOUGH, FINDS_ENOUGH)
    never = try_strategy("assumption-ends-by-timer", PLAIN_RANDOM, range(2))
    assert (never.seeds, never.finds) == (2, 0)
    assert never.steps > 0
    assert never.cpu_s > 0


@simulate()
async def unsound(sim: Simulation) -> None:
    """A world that breaks unmodified."""
    sim.violate("it holds", "it does not")


def test_a_violation_of_the_unmodified_world_is_no_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean hunt checks a world under its own strategies only; under the swarm it may break unmodified."""
    monkeypatch.setitem(cast("dict[str, ZooWorld]", WORLDS), "unsound", ZooWorld(f"{__file__}:unsound", (OLD_LISTS,)))
    harmless = replace(entry_named("quota-not-enforced"), breaks=("it holds",), world="unsound")
    monkeypatch.setitem(KEPT, harmless.name, harmless)
    assert try_strategy(harmless.name, OLD_LISTS.name, range(3)).finds == 3
    assert try_strategy(harmless.name, PLAIN_RANDOM, range(3)).finds == 0


@simulate()
async def seldom(sim: Simulation) -> None:
    """A world that breaks from its fourth seed on."""
    if sim.seed >= 3:
        sim.violate("it holds", "it does not")


@pytest.mark.parametrize(("seeds_max", "seeds", "finds"), [(8, 4, 1), (7, 4, 1), (3, 2, 0), (1, 1, 0)])
def test_strategies_get_more_seeds_within_a_bound_until_one_finds_the_entry(
    seeds_max: int, seeds: int, finds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is hard to find also gets a best strategy."""
    monkeypatch.setitem(cast("dict[str, ZooWorld]", WORLDS), "seldom", ZooWorld(f"{__file__}:seldom", (OLD_LISTS,)))
    hard = replace(entry_named("quota-not-enforced"), breaks=("it holds",), world="seldom")
    monkeypatch.setitem(KEPT, hard.name, hard)
    own, *_ = compare_entry(hard.name, 1, seeds_max).trials
    assert (own.seeds, own.finds) == (seeds, finds)


def test_the_same_seeds_give_the_same_best_in_another_process() -> None:
    def results(executor: str) -> list[tuple[str | None, list[tuple[str, int, int, int]]]]:
        found = hunt_zoo(
            ["quota-never-refunded"],
            seeds=3,
            compare=2,
            executor=executor,
            shrink_runs=0,
        )
        return [
            (row.best.strategy if row.best else None, [(t.strategy, t.seeds, t.finds, t.steps) for t in row.strategies])
            for row in found.rows
        ]

    assert results("inline") == results("process")


def test_the_command_compares_strategies_and_prints_the_best_of_each_entry() -> None:
    def run(*arguments: str) -> tuple[str, str]:
        command = ["zoo", "quota-not-enforced", "--seeds", "2", "--executor", "inline", "--shrink-runs", "0"]
        done = CliRunner().invoke(main, [*command, *arguments])
        assert done.exit_code == 0
        return done.stdout, done.stderr

    report = json.loads(run("--compare", "2", "-o", "json")[0])
    (row,) = report["rows"]
    by_name = {each["strategy"]: each for each in row["strategies"]}
    assert list(by_name) == [*(each.name for each in contenders(entry_named("quota-not-enforced"))), COVERAGE]
    assert by_name[row["best"]]["finds"] == 2
    assert by_name[row["best"]]["cpu_s_per_find"] > 0
    assert {"strategy", "entries", "found", "best", "alone", "sooner"} == set(report["strategies"][0])
    assert report["strategies"][0]["strategy"] == row["best"]
    assert f"{row['best']}  2 in 2 seeds" in run("--compare", "2")[0]

    plain = json.loads(run("-o", "json")[0])
    assert (plain["rows"][0]["best"], plain["rows"][0]["strategies"], plain["strategies"]) == (None, [], [])
    assert "its finds" not in run()[0]


def test_the_table_of_a_comparison_has_the_first_finder_the_best_and_a_summary() -> None:
    trials = (trial("swarm", finds=1, steps=4_000), trial("late views", finds=4, steps=2_000))
    row = EntryResult("one", "quotas", "-", found=True, strategy="swarm", seeds=3, strategies=trials)
    missed = EntryResult("two", "quotas", "-", found=False, seeds=3, strategies=(trial("swarm", finds=0, steps=9),))
    text = table(ZooReport([row, missed]))
    lines = text.splitlines()
    assert lines[0].split()[-3:] == ["best", "its", "finds"]
    assert lines[1].endswith("late views  4 in 10 seeds")
    assert lines[2].split()[-2:] == ["-", "-"]
    assert "best for 1 of the 1 entries that a strategy found" in text
    assert "8.0 times as soon as plain random" in text


def test_the_seed_cost_is_null_if_no_standard_seed_was_run() -> None:
    """Zero would look like a measurement."""
    assert hunt_zoo([], executor="inline").as_json()["seed_cpu_ms"] is None

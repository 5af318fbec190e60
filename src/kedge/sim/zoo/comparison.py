"""Compare strategies: which finds an entry soonest, over some seeds of each, and how each does over the whole zoo.

`hunt` runs the trials in its pool, `table` shows them. The cost of a find is counted in steps of the simulation, which
are proportional to CPU time and equal on every machine, so that the best strategy is too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from kedge.sim.kernel.targets import find_target
from kedge.sim.zoo.coverage import COVERAGE, first_find, found_in
from kedge.sim.zoo.entry import ZooEntry, entry_named
from kedge.sim.zoo.strategies import BASELINE, PLAIN_RANDOM, Strategy
from kedge.sim.zoo.worlds import WORLDS

FINDS_ENOUGH = 5
"""Finds after which the trial of a strategy ends early."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of some seeds of one strategy against one entry."""

    entry: str
    strategy: str
    targeted: bool
    """False for swarms, which aim at no particular fault."""
    seeds: int
    finds: int
    steps: int
    """The steps of all seeds together."""
    cpu_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "targeted": self.targeted,
            "seeds": self.seeds,
            "finds": self.finds,
            "steps": self.steps,
            "cpu_s": round(self.cpu_s, 2),
            "cpu_s_per_find": round(self.cpu_s / self.finds, 2) if self.finds else None,
        }

    def and_then(self, more: Trial) -> Trial:
        """The sum with further seeds of the same strategy."""
        return replace(
            self,
            seeds=self.seeds + more.seeds,
            finds=self.finds + more.finds,
            steps=self.steps + more.steps,
            cpu_s=self.cpu_s + more.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class StrategyComparison:
    """The trials of every strategy against one entry."""

    entry: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class StrategySummary:
    """The results of one strategy, or of several used in turn, over the zoo."""

    strategy: str
    entries: int
    """Entries that it was tried on."""
    found: int
    best: int
    """Entries that no other strategy finds sooner."""
    alone: int
    """Entries that it found and plain random did not."""
    sooner: float | None
    """Speed relative to plain random: the median over entries that either found; None if there is none."""


def contenders(entry: ZooEntry) -> tuple[Strategy, ...]:
    """The strategies to compare: all of the entry's world, even if its hunt does not use them, and the swarms."""
    own = WORLDS[entry.world].strategies
    names = {each.name for each in own}
    return (*own, *(each for each in BASELINE if each.name not in names))


def compare_entry(name: str, seeds: int, seeds_max: int) -> StrategyComparison:
    """Try every strategy on an entry. If none finds it, double the seeds of each, up to `seeds_max`.

    A module-level function, so that any executor can pickle it.
    """
    ways = [*(way.name for way in contenders(entry_named(name))), COVERAGE]
    trials = [_try(name, way, range(seeds)) for way in ways]
    while not any(each.finds for each in trials) and 2 * seeds <= seeds_max:
        more = [_try(name, way, range(seeds, 2 * seeds)) for way in ways]
        trials = [each.and_then(one) for each, one in zip(trials, more, strict=True)]
        seeds *= 2
    return StrategyComparison(name, tuple(trials))


def _try(name: str, way: str, seeds: range) -> Trial:
    return try_coverage(name, seeds) if way == COVERAGE else try_strategy(name, way, seeds)


def try_coverage(name: str, seeds: range) -> Trial:
    """Search an entry by coverage, with as many runs as there are seeds, until `FINDS_ENOUGH` finds.

    Each find ends a search, and the next one begins without a corpus: the cost of a find is that of a first find.
    """
    entry = entry_named(name)
    done = finds = steps = 0
    cpu_s = 0.0
    while done < len(seeds) and finds < FINDS_ENOUGH:
        search = first_find(entry, seed=seeds.start + done, runs_max=len(seeds) - done)
        done += search.done
        finds += found_in(entry, search)
        steps += search.steps
        cpu_s += search.cpu_s
    return Trial(entry.name, COVERAGE, targeted=False, seeds=done, finds=finds, steps=steps, cpu_s=cpu_s)


def try_strategy(name: str, strategy: str, seeds: range) -> Trial:
    """Run seeds of one strategy against one entry, until `FINDS_ENOUGH` finds."""
    entry = entry_named(name)
    (way,) = [each for each in contenders(entry) if each.name == strategy]
    aimed = way.applied(find_target(WORLDS[entry.world].reference))
    # A world must be sound under its own strategies only; under another one it may break unmodified.
    foreign = way not in WORLDS[entry.world].strategies
    done = finds = steps = 0
    cpu_s = 0.0
    for seed in seeds:
        if finds == FINDS_ENOUGH:
            break
        begin_s = time.process_time()
        with entry.patch():
            outcome = aimed.run(seed)
        cpu_s += time.process_time() - begin_s
        steps += outcome.steps
        if outcome.violation is not None and entry.is_found_by(outcome.violation):
            control = aimed.run(seed).violation if foreign else None
            finds += control is None or not entry.is_found_by(control)
        done += 1
    return Trial(entry.name, way.name, way.targeted, done, finds, steps, cpu_s)


def steps_per_find(trials: Sequence[Trial]) -> float:
    """Cost of a find if these strategies are used in turn; without a find, a lower bound of it."""
    finds = sum(each.finds / each.seeds for each in trials)
    if not finds:
        return float(sum(each.steps for each in trials))
    return sum(each.steps / each.seeds for each in trials) / finds


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The trial whose finds cost least; among equals the one with more finds, then the first."""
    finders = [each for each in trials if each.finds]
    return min(finders, key=lambda each: (steps_per_find([each]), -each.finds), default=None)


def strategy_summaries(compared: Sequence[Sequence[Trial]]) -> list[StrategySummary]:
    """The summary of each strategy over the trials of each entry, sorted by how often it is the best."""
    names = {each.strategy: None for trials in compared for each in trials}
    ways = [
        _standing(name, compared, [[each for each in trials if each.strategy == name] for trials in compared])
        for name in names
    ]
    return sorted(ways, key=lambda each: (-each.best, -each.found))


def targeted_summary(compared: Sequence[Sequence[Trial]]) -> StrategySummary:
    """The summary of the targeted plans used in turn, because a hunt cannot know in advance which is the best."""
    return _standing("targeted, in turn", compared, [[each for each in trials if each.targeted] for trials in compared])


def turns_summary(compared: Sequence[Sequence[Trial]]) -> StrategySummary:
    """The summary of all strategies used in turn, as a hunt does; the search by coverage chooses among the same."""
    return _standing("all, in turn", compared, [[t for t in trials if t.strategy != COVERAGE] for trials in compared])


def all_summaries(compared: Sequence[Sequence[Trial]]) -> list[StrategySummary]:
    """Each strategy, and the two ways to use several in turn."""
    return [*strategy_summaries(compared), targeted_summary(compared), turns_summary(compared)]


def _standing(name: str, compared: Sequence[Sequence[Trial]], chosen: Sequence[Sequence[Trial]]) -> StrategySummary:
    tried = found = best = alone = 0
    factors = []
    for trials, ours in zip(compared, chosen, strict=True):
        if not ours:
            continue
        random = [each for each in trials if each.strategy == PLAIN_RANDOM]
        finds, random_finds = (any(each.finds for each in some) for some in (ours, random))
        tried += 1
        found += finds
        best += best_of(trials) in ours
        alone += finds and not random_finds
        if finds or random_finds:
            factors.append(steps_per_find(random) / steps_per_find(ours))
    return StrategySummary(name, tried, found, best, alone, median(factors) if factors else None)

"""Which way to look finds an entry soonest: some seeds of each, and what paid over the whole zoo.

`hunting` carries the trials over its pool, `table` shows them. What a find costs is counted in steps of the simulation:
they are what CPU is spent on, and the same on every machine, so that the best is the same too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from kedge.sim.kernel.targets import find_target
from kedge.sim.zoo.entry import ZooEntry, entry_named
from kedge.sim.zoo.strategies import BASELINE, PLAIN_RANDOM, Strategy
from kedge.sim.zoo.worlds import WORLDS

FINDS_ENOUGH = 5
"""A strategy that found an entry so often is known well enough: the rest of its seeds is spared."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What some seeds of one strategy came to against one entry."""

    entry: str
    strategy: str
    targeted: bool
    """False for the swarms, which aim at nothing."""
    seeds: int
    finds: int
    steps: int
    """Of all those seeds."""
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
        """With further seeds of the same strategy."""
        return replace(
            self,
            seeds=self.seeds + more.seeds,
            finds=self.finds + more.finds,
            steps=self.steps + more.steps,
            cpu_s=self.cpu_s + more.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """What every strategy came to against one entry."""

    entry: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class StrategySummary:
    """How one strategy, or several taken in turn, did over the zoo."""

    strategy: str
    entries: int
    """Those that it was tried on."""
    found: int
    best: int
    """Entries that no other strategy finds sooner."""
    alone: int
    """Entries that it found, and plain random did not in its seeds."""
    sooner: float | None
    """Times as soon as plain random, in the middle of the entries that either found; None if there is none."""


def contenders(entry: ZooEntry) -> tuple[Strategy, ...]:
    """All that is compared: every strategy of the entry's world, those too that its hunt leaves out, and the swarms."""
    own = WORLDS[entry.world].strategies
    names = {each.name for each in own}
    return (*own, *(each for each in BASELINE if each.name not in names))


def compare_entry(name: str, seeds: int, seeds_max: int) -> Comparison:
    """Try every strategy on an entry; if none finds it, give each as many again, as long as that is within `seeds_max`.

    A module-level function, so that any executor can carry it.
    """
    ways = [way.name for way in contenders(entry_named(name))]
    trials = [try_strategy(name, way, range(seeds)) for way in ways]
    while not any(each.finds for each in trials) and 2 * seeds <= seeds_max:
        more = [try_strategy(name, way, range(seeds, 2 * seeds)) for way in ways]
        trials = [each.and_then(one) for each, one in zip(trials, more, strict=True)]
        seeds *= 2
    return Comparison(name, tuple(trials))


def try_strategy(name: str, strategy: str, seeds: range) -> Trial:
    """Run seeds of one strategy against one entry, until it is known well enough."""
    entry = entry_named(name)
    (way,) = [each for each in contenders(entry) if each.name == strategy]
    aimed = way.applied(find_target(WORLDS[entry.world].reference))
    # A world is held to its own strategies only. Where another strikes, the unmodified one may break as well.
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
    """What a find costs whoever takes these strategies in turn; with no find, what it costs at least."""
    finds = sum(each.finds / each.seeds for each in trials)
    if not finds:
        return float(sum(each.steps for each in trials))
    return sum(each.steps / each.seeds for each in trials) / finds


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The one whose finds cost least; of equals the one that found more often, then the first."""
    finders = [each for each in trials if each.finds]
    return min(finders, key=lambda each: (steps_per_find([each]), -each.finds), default=None)


def strategy_summaries(compared: Sequence[Sequence[Trial]]) -> list[StrategySummary]:
    """How each strategy did, given the trials of each entry: those that are best most often come first."""
    names = {each.strategy: None for trials in compared for each in trials}
    ways = [
        _standing(name, compared, [[each for each in trials if each.strategy == name] for trials in compared])
        for name in names
    ]
    return sorted(ways, key=lambda each: (-each.best, -each.found))


def targeted_summary(compared: Sequence[Sequence[Trial]]) -> StrategySummary:
    """How the targeted plans did, taken in turn: nobody who hunts knows beforehand which of them is the best."""
    return _standing("targeted, in turn", compared, [[each for each in trials if each.targeted] for trials in compared])


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

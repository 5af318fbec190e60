"""Hunt the entries of the zoo, and clean seeds of the unmodified control plane, in a pool of processes.

One worker runs the seeds of an entry until an invariant that it should break is broken; then it shrinks the failure.
`comparison` tries the strategies one by one; `table` and `kedge.cli.zoo` show the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from kedge.errors import check
from kedge.kept import SUFFIX, write_kept
from kedge.sim.kernel.artefacts import make_artefact, sections_of
from kedge.sim.kernel.hunt import make_executor
from kedge.sim.kernel.shrink import FailureCondition, shrink
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget, find_target
from kedge.sim.zoo.comparison import StrategyComparison, Trial, all_summaries, best_of, compare_entry
from kedge.sim.zoo.entry import ZooEntry, entry_named
from kedge.sim.zoo.find import entry_target
from kedge.sim.zoo.strategies import Strategy
from kedge.sim.zoo.worlds import STANDARD, WORLDS

CLEAN_BATCH = 10
SHRINK_RUNS = 60
"""Runs to shrink one find: enough to see how many faults it needs."""
SEEDS_MAX = 2_000
LOOK_S = 1.0
"""How often `on_wait` is called."""


@dataclass(frozen=True, slots=True)
class EntryResult:
    """The result of the hunt for one entry."""

    name: str
    world: str
    source: str
    found: bool
    invariant: str = ""
    strategy: str = ""
    seeds: int = 0
    """Seeds up to and including the first find."""
    cpu_s: float = 0.0
    """CPU time of those seeds, without shrinking."""
    faults: int = -1
    """Faults that are left in the shrunk failure; -1 if it was not shrunk."""
    steps: int = 0
    others: tuple[str, ...] = ()
    """Other invariants that broke in earlier seeds."""
    strategies: tuple[Trial, ...] = ()
    """The trial of each strategy, if they were compared."""
    file: str = ""
    """The file of the shrunk failure, if finds are kept."""

    @property
    def best(self) -> Trial | None:
        return best_of(self.strategies)

    def as_json(self) -> dict[str, Any]:
        best = self.best
        return {
            **asdict(self),
            "best": best.strategy if best is not None else None,
            "strategies": [each.as_json() for each in self.strategies],
        }


@dataclass(frozen=True, slots=True)
class CleanFinding:
    """An invariant that the unmodified control plane broke: a bug in kedge, or in the invariant."""

    target: str
    seed: int
    strategy: str
    invariant: str
    message: str


@dataclass(frozen=True, slots=True)
class CleanResult:
    """The result of some seeds of the unmodified control plane."""

    world: str
    cpu_s: tuple[float, ...]
    """The CPU time of each seed."""
    findings: tuple[CleanFinding, ...]

    @property
    def seeds(self) -> int:
        return len(self.cpu_s)


@dataclass(slots=True)
class ZooReport:
    """The results of a hunt of the zoo."""

    rows: list[EntryResult] = field(default_factory=list)
    cleans: list[CleanResult] = field(default_factory=list)

    @property
    def found(self) -> int:
        return sum(row.found for row in self.rows)

    @property
    def median_seeds(self) -> float:
        return float(median(row.seeds for row in self.rows if row.found)) if self.found else 0.0

    @property
    def clean_seeds(self) -> int:
        return sum(each.seeds for each in self.cleans)

    @property
    def clean_findings(self) -> list[CleanFinding]:
        return [finding for each in self.cleans for finding in each.findings]

    @property
    def seed_cpu_ms(self) -> float | None:
        """Median CPU time of a seed of the standard simulation; None if none was run."""
        costs = [cost for each in self.cleans if each.world == STANDARD for cost in each.cpu_s]
        return 1000 * median(costs) if costs else None

    @property
    def compared(self) -> list[tuple[Trial, ...]]:
        return [row.strategies for row in self.rows if row.strategies]

    @property
    def passed(self) -> bool:
        return self.found == len(self.rows) and not self.clean_findings

    def as_json(self) -> dict[str, Any]:
        cpu_ms = self.seed_cpu_ms
        ways = all_summaries(self.compared) if self.compared else []
        return {
            "entries": len(self.rows),
            "found": self.found,
            "median_seeds": self.median_seeds,
            "clean_seeds": self.clean_seeds,
            "clean_findings": len(self.clean_findings),
            "seed_cpu_ms": None if cpu_ms is None else round(cpu_ms, 1),
            "findings": [asdict(each) for each in self.clean_findings],
            "strategies": [asdict(each) for each in ways],
            "rows": [row.as_json() for row in self.rows],
        }


def strategies_of(entry: ZooEntry) -> tuple[Strategy, ...]:
    """The strategies that hunt an entry: all of its world, or those that aim at it."""
    every = WORLDS[entry.world].strategies
    found = tuple(each for each in every if not entry.by or each.name in entry.by)
    check(len(found) == len(entry.by or every), f"{entry.name}: {entry.world} has not all of {', '.join(entry.by)}")
    return found


# -- in the workers --------------------------------------------------------------------------------


def hunt_entry(name: str, seeds: int = SEEDS_MAX, shrink_runs: int = SHRINK_RUNS, keep: str = "") -> EntryResult:
    """Hunt one entry until it is found; keep the find in the folder `keep`.

    A module-level function, so that any executor can pickle it.
    """
    entry = entry_named(name)
    targets = [entry_target(entry.name, strategy.name) for strategy in strategies_of(entry)]
    result = EntryResult(entry.name, entry.world, entry.source, found=False, seeds=seeds)
    begin_s = time.process_time()
    others: dict[str, None] = {}
    for seed in range(seeds):
        target = targets[seed % len(targets)]
        outcome = target.run(seed)
        if outcome.violation is None:
            continue
        if not entry.is_found_by(outcome.violation):
            others[outcome.violation.invariant] = None
            continue
        found = replace(
            result,
            found=True,
            invariant=outcome.violation.invariant,
            strategy=strategies_of(entry)[seed % len(targets)].name,
            seeds=seed + 1,
            cpu_s=time.process_time() - begin_s,
            steps=outcome.steps,
            others=tuple(others),
        )
        return _shrunk(found, target, outcome, shrink_runs, keep)
    return replace(result, cpu_s=time.process_time() - begin_s, others=tuple(others))


def _shrunk(found: EntryResult, target: SimulationTarget, outcome: RunOutcome, runs_max: int, keep: str) -> EntryResult:
    """Shrink a find, and keep it in a file named by its entry."""
    conditions: tuple[FailureCondition, ...] = ()
    if runs_max:
        # The list of faults that it needs is only for readers of the file.
        shrunk = shrink(target, outcome, runs_max=runs_max, condition_runs_max=runs_max if keep else 0)
        outcome, conditions = shrunk.outcome, shrunk.conditions
        found = replace(found, faults=len(outcome.faults), steps=outcome.steps)
    if not keep:
        return found
    path = Path(keep) / f"{found.name}-{outcome.hash[:8]}{SUFFIX}"
    write_kept(path, sections_of(make_artefact(target, outcome, conditions)))
    return replace(found, file=str(path))


def hunt_clean(world: str, start: int, seeds: int) -> CleanResult:
    """Run seeds of an unmodified world under each of its strategies in turn."""
    place = WORLDS[world]
    target = find_target(place.reference)
    costs, findings = [], []
    for seed in range(start, start + seeds):
        strategy = place.strategies[seed % len(place.strategies)]
        begin_s = time.process_time()
        violation = strategy.applied(target).run(seed).violation
        costs.append(time.process_time() - begin_s)
        if violation is not None:
            details = violation.invariant, violation.message[:400]
            findings.append(CleanFinding(place.reference, seed, strategy.name, *details))
    return CleanResult(world, tuple(costs), tuple(findings))


# -- the hunt --------------------------------------------------------------------------------------


def hunt_zoo(
    names: Sequence[str],
    *,
    seeds: int = SEEDS_MAX,
    clean: int = 0,
    compare: int = 0,
    jobs: int = 1,
    executor: str = "process",
    shrink_runs: int = SHRINK_RUNS,
    keep: str = "",
    on_progress: Callable[[EntryResult | CleanResult | StrategyComparison], object] = lambda _: None,
    on_wait: Callable[[Sequence[str]], object] = lambda _: None,
) -> ZooReport:
    """Hunt the entries of these names, and `clean` seeds of unmodified worlds, the standard simulation among them.

    With `compare`, up to that many seeds of each strategy are run against each entry, more only if none finds it.
    Finds are kept in the folder `keep`, if it is given. `on_progress` is called with each result, `on_wait` about every
    second with the entries that are being hunted.
    """
    found = ZooReport()
    trials: dict[str, tuple[Trial, ...]] = {}
    pool: Executor = make_executor(executor, jobs)
    try:
        hunts: dict[Future[Any], str] = {
            pool.submit(hunt_entry, name, seeds, shrink_runs, keep): name for name in names
        }
        left = {*hunts, *(pool.submit(hunt_clean, *batch) for batch in clean_batches(clean))}
        if compare:
            hunts |= {pool.submit(compare_entry, name, compare, seeds): name for name in names}
        left |= set(hunts)
        while left:
            done, left = wait(left, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                match result := future.result():
                    case EntryResult():
                        found.rows.append(result)
                    case StrategyComparison():
                        trials[result.entry] = result.trials
                    case _:
                        found.cleans.append(result)
                on_progress(result)
            on_wait([name for future, name in hunts.items() if future.running()][:jobs])
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    order = {name: place for place, name in enumerate(names)}
    found.rows.sort(key=lambda row: order[row.name])
    found.rows = [replace(row, strategies=trials.get(row.name, ())) for row in found.rows]
    return found


def clean_batches(clean: int) -> Iterator[tuple[str, int, int]]:
    """Distribute seeds over the worlds. The standard simulation is first, and gets the fewest: it costs most."""
    small = [name for name in WORLDS if name != STANDARD]
    worlds = [STANDARD, *small, *small]
    turn, done = 0, 0
    starts: dict[str, int] = {}
    while done < clean:
        size = min(CLEAN_BATCH, clean - done)
        target = worlds[turn % len(worlds)]
        start = starts.get(target, 0)
        yield target, start, size
        starts[target] = start + size
        turn += 1
        done += size

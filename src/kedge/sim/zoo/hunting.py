"""Hunt every entry of the zoo, and the unmodified control plane beside it, over a pool of processes.

An entry is hunted in one worker, seed after seed, until an invariant that it should break is broken; then the failure
is shrunk there. `table` and `kedge.cli.zoo` show what came of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from kedge.errors import KedgeError
from kedge.sim.kernel.hunt import make_executor
from kedge.sim.kernel.scenarios import Scenario, find_scenario
from kedge.sim.kernel.shrink import shrink
from kedge.sim.zoo import themes
from kedge.sim.zoo.entries import Entry
from kedge.sim.zoo.plans import STRATEGIES, strategy_of

STANDARD = "kedge.sim.standard:standard"
CLEAN_BATCH = 10
SHRINK_RUNS = 60
"""Runs one find may cost to shrink: enough to see how many faults it needs."""
SEEDS_MAX = 2_000


class UnknownEntry(KedgeError):
    """There is no such entry in the zoo. `kedge zoo --list` names them all."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of the hunt for one entry."""

    name: str
    theme: str
    source: str
    found: bool
    invariant: str = ""
    strategy: str = ""
    seeds: int = 0
    """Seeds up to and with the first find."""
    cpu_s: float = 0.0
    faults: int = -1
    """Faults that are left in the shrunk failure; -1 if it was not shrunk."""
    steps: int = 0
    others: tuple[str, ...] = ()
    """Invariants that broke on the way and are not among those that it should break."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An invariant that the unmodified control plane broke: a bug of kedge, or of the invariant."""

    target: str
    seed: int
    strategy: str
    invariant: str
    message: str


@dataclass(slots=True)
class Census:
    """The zoo as a hunt found it."""

    rows: list[Row] = field(default_factory=list)
    clean_seeds: int = 0
    clean_findings: list[Finding] = field(default_factory=list)
    clean_cpu_s: float = 0.0
    seed_cpu_ms: float = 0.0
    """What one seed of the standard scenario costs."""

    @property
    def found(self) -> int:
        return sum(row.found for row in self.rows)

    @property
    def median_seeds(self) -> float:
        return float(median(row.seeds for row in self.rows if row.found)) if self.found else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "entries": len(self.rows),
            "found": self.found,
            "median_seeds": self.median_seeds,
            "clean_seeds": self.clean_seeds,
            "clean_findings": len(self.clean_findings),
            "seed_cpu_ms": round(self.seed_cpu_ms, 1),
            "findings": [asdict(each) for each in self.clean_findings],
            "rows": [asdict(row) for row in self.rows],
        }


def all_entries() -> tuple[Entry, ...]:
    from kedge.sim.zoo import nodes, runtime, service, workloads

    return (*service.ENTRIES, *runtime.ENTRIES, *workloads.ENTRIES, *nodes.ENTRIES)


def entry_named(name: str) -> Entry:
    for entry in all_entries():
        if entry.name == name:
            return entry
    raise UnknownEntry(f"the zoo has no {name!r}: `kedge zoo --list` names what it has")


def theme_of(entry: Entry) -> Scenario:
    return find_scenario(f"{themes.__name__}:{entry.theme}")


# -- in the workers --------------------------------------------------------------------------------


def hunt_entry(name: str, seeds: int, shrink_runs: int = SHRINK_RUNS) -> Row:
    """Hunt one entry until it is found. A module-level function, so that any executor can carry it."""
    entry = entry_named(name)
    scenario = theme_of(entry)
    begin_s = time.process_time()
    others: dict[str, None] = {}
    with entry.patch():
        for seed in range(seeds):
            strategy = strategy_of(seed)
            aimed = strategy.applied(scenario)
            outcome = aimed.run(seed)
            if outcome.violation is None:
                continue
            if outcome.violation.invariant not in entry.breaks:
                others[outcome.violation.invariant] = None
                continue
            cpu_s = time.process_time() - begin_s
            faults, steps = -1, outcome.steps
            if shrink_runs:
                shrunk = shrink(aimed, outcome, runs_max=shrink_runs).outcome
                faults, steps = len(shrunk.tape.strikes()), shrunk.steps
            return Row(
                entry.name,
                entry.theme,
                entry.source,
                found=True,
                invariant=outcome.violation.invariant,
                strategy=strategy.name,
                seeds=seed + 1,
                cpu_s=cpu_s,
                faults=faults,
                steps=steps,
                others=tuple(others),
            )
    cpu_s = time.process_time() - begin_s
    return Row(entry.name, entry.theme, entry.source, found=False, seeds=seeds, cpu_s=cpu_s, others=tuple(others))


@dataclass(frozen=True, slots=True)
class Clean:
    """What some seeds of the unmodified control plane came to."""

    target: str
    seeds: int
    cpu_s: float
    findings: tuple[Finding, ...]


def hunt_clean(target: str, start: int, seeds: int) -> Clean:
    """Run seeds of an unmodified world under every strategy."""
    scenario = find_scenario(target)
    begin_s = time.process_time()
    findings = []
    for seed in range(start, start + seeds):
        strategy = strategy_of(seed)
        violation = strategy.applied(scenario).run(seed).violation
        if violation is not None:
            findings.append(Finding(target, seed, strategy.name, violation.invariant, violation.message[:400]))
    return Clean(target, seeds, time.process_time() - begin_s, tuple(findings))


# -- the hunt --------------------------------------------------------------------------------------


def census(
    names: Sequence[str],
    *,
    seeds: int = SEEDS_MAX,
    clean: int = 0,
    jobs: int = 1,
    executor: str = "process",
    shrink_runs: int = SHRINK_RUNS,
    on_progress: Callable[[Row | Clean], object] = lambda _: None,
) -> Census:
    """Hunt the entries of these names, and `clean` seeds of unmodified worlds, the standard scenario among them."""
    found = Census()
    pool: Executor = make_executor(executor, jobs)
    try:
        futures: list[Future[Any]] = [pool.submit(hunt_entry, name, seeds, shrink_runs) for name in names]
        futures += [pool.submit(hunt_clean, *batch) for batch in clean_batches(clean)]
        for future in as_completed(futures):
            result = future.result()
            if isinstance(result, Row):
                found.rows.append(result)
            else:
                _add_clean(found, result)
            on_progress(result)
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    order = {name: place for place, name in enumerate(names)}
    found.rows.sort(key=lambda row: order[row.name])
    return found


def _add_clean(found: Census, result: Clean) -> None:
    found.clean_seeds += result.seeds
    found.clean_cpu_s += result.cpu_s
    found.clean_findings.extend(result.findings)
    if result.target == STANDARD:
        found.seed_cpu_ms = 1000 * result.cpu_s / result.seeds


def clean_batches(clean: int) -> Iterator[tuple[str, int, int]]:
    """Share seeds out among the worlds: a tenth is of the standard scenario, which costs most."""
    worlds = [*themes.all_themes()] * 2 + [STANDARD]
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


STRATEGY_NAMES = tuple(strategy.name for strategy in STRATEGIES)

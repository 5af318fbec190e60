"""A campaign: draw mutants, try each once in a pool of workers, and count which of them tests and hunt killed.

Results are kept in a state folder, below a hash of the package, the tests and the options: a campaign that was stopped
goes on where it was, and a changed safeguard, judge or test is tried again. `trials` tries one; `kedge.cli.zoo` shows
the report.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kedge.sim.kernel.hunt import DASK, make_executor
from kedge.sim.kernel.targets import find_target
from kedge.sim.zoo.mutants.draw import Mutant, draw_mutants
from kedge.sim.zoo.mutants.sources import checkout, hashed, source_hash, tests_hash
from kedge.sim.zoo.mutants.trials import MutantResult, TrialOptions, measure_reached, try_mutant
from kedge.sim.zoo.worlds import STANDARD, WORLDS

REACHED = "reached.json"


@dataclass(slots=True)
class MutantReport:
    """The results of a campaign, in the order of the draw."""

    seed: int
    lines: int
    """Lines that clean worlds execute, among which the mutants were drawn."""
    tested: bool
    """Whether tests were run: there are a checkout and pytest."""
    rows: list[MutantResult] = field(default_factory=list)

    @property
    def killed_by_tests(self) -> int:
        return sum(bool(row.killed_by_tests) for row in self.rows)

    @property
    def killed_by_hunt(self) -> int:
        return sum(row.killed_by_hunt for row in self.rows)

    @property
    def killed_by_both(self) -> int:
        return sum(bool(row.killed_by_tests) and row.killed_by_hunt for row in self.rows)

    @property
    def survivors(self) -> list[MutantResult]:
        return [row for row in self.rows if row.survived]

    def as_json(self) -> dict[str, Any]:
        return {
            "mutants": len(self.rows),
            "killed_by_tests": self.killed_by_tests if self.tested else None,
            "killed_by_hunt": self.killed_by_hunt,
            "killed_by_both": self.killed_by_both,
            "survived": len(self.survivors),
            "seed": self.seed,
            "lines": self.lines,
            "rows": [row.as_json() for row in self.rows],
        }


def run_campaign(
    count: int,
    *,
    seed: int,
    state: Path,
    layers: Collection[str] = (),
    names: Collection[str] = (),
    options: TrialOptions | None = None,
    jobs: int = 1,
    executor: str = "process",
    on_progress: Callable[[MutantResult], object] = lambda _: None,
) -> MutantReport:
    """Try `count` mutants, or those of them with these names. Results of an earlier run in `state` are used again."""
    options = options or TrialOptions()
    package = source_hash()
    reached = reached_lines(state / package / REACHED)
    mutants = draw_mutants(count, seed, reached, layers)
    if names:
        mutants = [mutant for mutant in mutants if mutant.name in names]
    tree = checkout()
    kept = state / package / hashed([tests_hash(tree) if tree else "", repr(options)])
    kept.mkdir(parents=True, exist_ok=True)
    rows = {row.name: row for mutant in mutants if (row := _read(kept, mutant.name)) is not None}
    left = [mutant for mutant in mutants if mutant.name not in rows]
    for row in _tried(left, options, jobs, executor) if left else ():
        rows[row.name] = row
        write_atomically(kept / f"{row.name}.json", asdict(row))
        on_progress(row)
    report = MutantReport(seed, sum(map(len, reached.values())), tree is not None and options.tests_cpu_s > 0)
    report.rows = [rows[mutant.name] for mutant in mutants]
    return report


def _tried(mutants: Sequence[Mutant], options: TrialOptions, jobs: int, executor: str) -> Any:
    pool = _executor(executor, jobs)
    try:
        for done in as_completed([pool.submit(try_mutant, mutant, options) for mutant in mutants]):
            yield done.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _executor(name: str, jobs: int) -> Executor:
    if name.startswith(DASK):
        from kedge.sim.kernel.dask_executor import DaskExecutor

        return DaskExecutor(name, find_target(WORLDS[STANDARD].reference))
    return make_executor(name, jobs)


def reached_lines(path: Path) -> dict[str, dict[int, list[str]]]:
    """The worlds that execute each line, measured once for each state of the package."""
    if path.exists():
        kept: dict[str, dict[str, list[str]]] = json.loads(path.read_text())
        return {module: {int(line): worlds for line, worlds in lines.items()} for module, lines in kept.items()}
    found = measure_reached()
    write_atomically(path, found)
    return found


def _read(folder: Path, name: str) -> MutantResult | None:
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    known = {each.name for each in fields(MutantResult)}
    row = {key: value for key, value in json.loads(path.read_text()).items() if key in known}
    return MutantResult(**{**row, "worlds": tuple(row["worlds"])})


def write_atomically(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(value))
    partial.replace(path)

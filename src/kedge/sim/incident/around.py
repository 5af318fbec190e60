"""The search around a recorded run: its neighbours by growing distance, and the conditions of a failure.

`hunt_around` runs the neighbours until one breaks a rule, and `conditions` finds the faults and actions that the
failure needs; for a run that is bad itself, only these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kedge.kept import SUFFIX
from kedge.sim.incident.conditions import CONDITION_RUNS_MAX, StepCondition, describe, necessary_conditions
from kedge.sim.incident.draft import ScenarioDraft
from kedge.sim.incident.neighbours import Neighbour, neighbours, with_delay
from kedge.sim.incident.rerun import IncidentProgram, IncidentRun

RUNS_MAX: Final = 200
"""Neighbours of one search, unless others are asked for."""

OnRun = Callable[[int, str, str], None]
"""Called after each run with its number, the neighbour, and the rule that it broke."""


@dataclass(frozen=True, slots=True)
class BadNeighbour:
    """A rule that a neighbour of the recorded run breaks."""

    rule: str
    message: str
    neighbour: Neighbour
    """With the least delays with which it still breaks the rule."""
    conditions: tuple[StepCondition, ...]
    path: Path | None = None
    """The file of its run."""


@dataclass(slots=True)
class AroundReport:
    """The outcome of a search."""

    rule: str
    """The rule that the recorded run itself broke; empty for a good one."""
    message: str
    conditions: list[StepCondition] = field(default_factory=list)
    """Faults and actions that the failure of the recorded run needs, and others that it does not."""
    misses: list[BadNeighbour] = field(default_factory=list)
    runs: int = 0
    left: int = 0
    """Neighbours that were not tried."""
    distance: float = 0.0
    """The distance of the farthest neighbour that was tried."""


def hunt_around(
    program: IncidentProgram,
    *,
    runs_max: int = RUNS_MAX,
    on_run: OnRun = lambda *_: None,
    directory: Path | None = None,
) -> AroundReport:
    """Search the neighbours of a run until one breaks a rule; for a bad run, find its conditions.

    The failing neighbour is kept in `directory`.
    """
    run = program.run()
    report = AroundReport(run.rule, run.message, runs=1)
    on_run(1, "the recorded run", run.rule)
    if run.rule:
        budget = SearchBudget(program, runs_max, on_run, 1)
        report.conditions = list(necessary_conditions(program.draft, run, budget))
        report.runs = budget.runs
        return report
    found = neighbours(program)
    budget = SearchBudget(program, runs_max, on_run, 1)
    tried = 0
    for neighbour in found:
        if not budget.left:
            break
        tried += 1
        report.distance = neighbour.distance
        other = budget.run(program.draft.beside(*neighbour.steps), neighbour.text)
        if other.rule:
            budget.add(CONDITION_RUNS_MAX)
            report.misses.append(examine(program, neighbour, other, budget, directory))
            break
    report.runs, report.left = budget.runs, len(found) - tried
    return report


def examine(
    program: IncidentProgram, neighbour: Neighbour, run: IncidentRun, budget: SearchBudget, directory: Path | None
) -> BadNeighbour:
    """The least neighbour that still breaks the rule, its conditions, and its file."""
    needed = _fewer(program.draft, neighbour, run.rule, budget)
    if needed.steps != neighbour.steps:
        run = budget.run(program.draft.beside(*needed.steps), needed.text)
    conditions = tuple(necessary_conditions(program.draft.beside(*needed.steps), run, budget))
    path = None if directory is None else _keep(program, needed, directory)
    return BadNeighbour(run.rule, run.message, _least(needed, conditions), conditions, path)


def _keep(program: IncidentProgram, neighbour: Neighbour, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    run = program.run(program.draft.beside(*neighbour.steps), keep=True)
    return run.keep(directory / f"{program.draft.name}-around{SUFFIX}")


class SearchBudget:
    """Counts runs."""

    def __init__(self, program: IncidentProgram, runs_max: int, on_run: OnRun, runs: int) -> None:
        self._program = program
        self._runs_max = runs_max
        self._on_run = on_run
        self.runs = runs

    @property
    def left(self) -> int:
        return max(0, self._runs_max - self.runs)

    def add(self, runs: int) -> None:
        """Allow so many runs from now on, however many are left."""
        self._runs_max = self.runs + runs

    def run(self, draft: ScenarioDraft, text: str) -> IncidentRun:
        self.runs += 1
        found = self._program.run(draft)
        self._on_run(self.runs, text, found.rule)
        return found


def _fewer(draft: ScenarioDraft, neighbour: Neighbour, rule: str, budget: SearchBudget) -> Neighbour:
    """The neighbour without the steps that its failure does not need."""
    steps = list(neighbour.steps)
    for step in neighbour.steps:
        if len(steps) == 1 or not budget.left:
            break
        left = [each for each in steps if each is not step]
        if budget.run(draft.beside(*left), f"without {describe(step)}").rule == rule:
            steps = left
    return Neighbour(tuple(steps), neighbour.component)


def _least(neighbour: Neighbour, conditions: Sequence[StepCondition]) -> Neighbour:
    """The neighbour with the least delays with which its failure still comes."""
    least = {describe(each.step): each.least_s for each in conditions if each.least_s is not None}
    steps = [with_delay(step, least[describe(step)]) if describe(step) in least else step for step in neighbour.steps]
    return Neighbour(tuple(steps), neighbour.component)

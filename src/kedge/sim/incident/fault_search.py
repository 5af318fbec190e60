"""The search around a recorded run: its neighbours by growing distance, and the conditions of a failure.

`hunt_around` runs the neighbours until one breaks a rule, and `conditions` finds the faults and actions that the
failure needs; for a run that is bad itself, only these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kedge.kept import SUFFIX
from kedge.sim.incident.conditions import CONDITION_RUNS_MAX, StepCondition, necessary_conditions
from kedge.sim.incident.draft import ScenarioDraft
from kedge.sim.incident.nearby_faults import NearbyFaults, search_order
from kedge.sim.incident.rerun import IncidentProgram, IncidentRun
from kedge.sim.incident.smallest_fault import narrowed, with_least
from kedge.sim.judges.invariants import COSTS, FRESHNESS

RUNS_MAX: Final = 200
"""Neighbours of one search, unless others are asked for."""
SHORT_PART: Final = 0.75
"""The part of the runs that are made without their endings, if they have one."""
HARMLESS: Final = (FRESHNESS, COSTS)
"""Rules that may be broken without harm: the search goes on, and does not judge them any more."""

OnRun = Callable[[int, str, str], None]
"""Called after each run with its number, the neighbour, and the rule that it broke."""


@dataclass(frozen=True, slots=True)
class NearbyFailure:
    """A rule that a neighbour of the recorded run breaks."""

    rule: str
    message: str
    neighbour: NearbyFaults
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
    misses: list[NearbyFailure] = field(default_factory=list)
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
    budget = SearchBudget(program, runs_max, on_run, 1)
    if run.rule:
        report.conditions = list(necessary_conditions(program.draft, run, budget))
        report.runs = budget.runs
        return report
    found = _search(program, budget, report)
    if found is not None:
        budget.add(CONDITION_RUNS_MAX)
        report.misses.append(examine(budget.program, *found, budget, directory))
    report.runs = budget.runs
    return report


def _search(
    program: IncidentProgram, budget: SearchBudget, report: AroundReport
) -> tuple[NearbyFaults, IncidentRun] | None:
    """The first neighbour whose run breaks a rule, and that run.

    A decision on an old view, or a costly one, may do no harm. Such a neighbour is returned only if no other does
    harm. The runs are first made without their endings, which cost most, and then with them.
    """
    order = search_order(program)
    short = _without_ending(program.draft)
    plans = [(short, SHORT_PART), (program.draft, 1.0)] if short.document != program.draft.document else [(short, 1.0)]
    harmless: tuple[NearbyFaults, IncidentRun, IncidentProgram] | None = None
    runs_max = budget.left
    for draft, part in plans:
        budget.program = replace(budget.program, draft=draft)
        for place, neighbour in enumerate(order):
            if budget.left <= runs_max * (1.0 - part):
                break
            report.left = min(report.left or len(order), len(order) - place - 1)
            report.distance = max(report.distance, neighbour.distance)
            run = budget.run(draft.beside(*neighbour.steps), neighbour.text)
            while run.rule in HARMLESS and budget.left:
                harmless = harmless or (neighbour, run, budget.program)
                budget.program = replace(budget.program, unjudged=(*budget.program.unjudged, run.rule))
                run = budget.run(draft.beside(*neighbour.steps), f"{neighbour.text}, {run.rule} not judged")
            if run.rule:
                return neighbour, run
    if harmless is None:
        return None
    neighbour, run, budget.program = harmless
    return neighbour, run


def _without_ending(draft: ScenarioDraft) -> ScenarioDraft:
    """A copy whose runs end with its last step."""
    standing = [each for each in draft.document.get("expect", ()) if "within" not in each]
    return draft.changed(**{"expect": standing, "settles within": "0s"})


def examine(
    program: IncidentProgram, neighbour: NearbyFaults, run: IncidentRun, budget: SearchBudget, directory: Path | None
) -> NearbyFailure:
    """The least neighbour that still breaks the rule, its conditions, and its file."""
    needed = narrowed(program, neighbour, run.rule, budget)
    if needed.steps != neighbour.steps:
        run = budget.run(program.draft.beside(*needed.steps), needed.text)
    conditions = tuple(necessary_conditions(program.draft.beside(*needed.steps), run, budget))
    path = None if directory is None else _keep(program, needed, directory)
    return NearbyFailure(run.rule, run.message, with_least(needed, conditions), conditions, path)


def _keep(program: IncidentProgram, neighbour: NearbyFaults, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    run = program.run(program.draft.beside(*neighbour.steps), keep=True)
    return run.keep(directory / f"{program.draft.name}-around{SUFFIX}")


class SearchBudget:
    """Counts runs."""

    def __init__(self, program: IncidentProgram, runs_max: int, on_run: OnRun, runs: int) -> None:
        self.program = program
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
        found = self.program.run(draft)
        self._on_run(self.runs, text, found.rule)
        return found

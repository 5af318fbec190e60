"""Narrows a neighbour that breaks a rule: fewer faults, later begins and the least delays with which it still does.

`fault_search` uses wide faults, because a wide fault includes many narrow ones. Runs are counted by the caller.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from kedge.sim.incident.conditions import RunBudget, StepCondition, describe
from kedge.sim.incident.draft import duration, seconds_of
from kedge.sim.incident.nearby_faults import LATE, NearbyFaults, moments_of_kind, with_delay
from kedge.sim.incident.rerun import IncidentProgram


def narrowed(program: IncidentProgram, neighbour: NearbyFaults, rule: str, budget: RunBudget) -> NearbyFaults:
    """The neighbour without the steps that its failure does not need, each of the others as late as it may begin."""
    return _later(program, _fewer(program, neighbour, rule, budget), rule, budget)


def _fewer(program: IncidentProgram, neighbour: NearbyFaults, rule: str, budget: RunBudget) -> NearbyFaults:
    steps = list(neighbour.steps)
    for step in neighbour.steps:
        if len(steps) == 1 or not budget.left:
            break
        left = [each for each in steps if each is not step]
        if budget.run(program.draft.beside(*left), f"without {describe(step)}").rule == rule:
            steps = left
    return NearbyFaults(tuple(steps), neighbour.component)


def _later(program: IncidentProgram, neighbour: NearbyFaults, rule: str, budget: RunBudget) -> NearbyFaults:
    """Watches that are late from the last commit on that they must lack. They catch up when they did before."""
    steps = list(neighbour.steps)
    for number, step in enumerate(steps):
        if LATE not in step:
            continue
        # The first is known to break the rule, so only the others are tried.
        tried: Sequence[Mapping[str, Any]] = _begins(program, step)
        low, high = 0, len(tried)
        while low < high and budget.left:
            middle = (low + high) // 2
            others = [*steps[:number], tried[middle], *steps[number + 1 :]]
            text = NearbyFaults(tuple(others)).text
            if budget.run(program.draft.beside(*others), text).rule == rule:
                steps, low = others, middle + 1
            else:
                high = middle
    return NearbyFaults(tuple(steps), neighbour.component)


def _begins(program: IncidentProgram, step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A late watch with each later begin, earliest first."""
    begin_s = seconds_of(step["at"])
    end_s = begin_s + seconds_of(step[LATE]["by"])
    moments = moments_of_kind(program, step[LATE]["of"])
    first, last = bisect_left(moments, begin_s + 0.001), bisect_left(moments, end_s)
    return [{"at": duration(at_s), LATE: {**step[LATE], "by": duration(end_s - at_s)}} for at_s in moments[first:last]]


def with_least(neighbour: NearbyFaults, conditions: Sequence[StepCondition]) -> NearbyFaults:
    """The neighbour with the least delays with which its failure still comes."""
    least = {describe(each.step): each.least_s for each in conditions if each.least_s is not None}
    steps = [with_delay(step, least[describe(step)]) if describe(step) in least else step for step in neighbour.steps]
    return NearbyFaults(tuple(steps), neighbour.component)

"""A bandit that gives steps of the simulation to the arms of a search that still find new things.

Shares are by stride: the arm that has used least for its weight is next. Costs are steps and not seconds, and nothing
is drawn, so equal results lead to equal choices on every machine. `coverage_search` has the arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MEMORY = 0.8
"""How much of its past an arm keeps at each run. An arm that finds nothing loses its weight in some ten runs."""
EVEN_SHARE = 0.5
"""Steps that all arms share evenly, whatever they find; the rest goes to those that find. New features are a hint and
not the aim: a bug that only one strategy finds costs at most about twice as much as with strategies in turn."""
NEW_ASSUMED = 0.1
"""New features that every arm is assumed to have found of late: without any find all arms have about equal shares."""
STEPS_GUESSED = 1_000
"""The cost of a run before any has ended."""
STEPS_MIN = 50
"""The least that a run costs: a run that could not be made must not be free, or it would be made again and again."""


@dataclass(slots=True)
class ArmTally:
    """The runs of one arm, and its weight."""

    name: str
    runs: int = 0
    steps: int = 0
    new: int = 0
    """Features that its runs reached first."""
    finds: int = 0
    """Its runs that broke an invariant."""
    cost: int = 0
    """Its steps, and at least `STEPS_MIN` for each run."""
    recent_new: float = 0.0
    recent_cost: float = 0.0
    passed: float = 0.0
    """Steps used, each divided by the weight of its time: the least is next."""

    @property
    def rate(self) -> float:
        """New features for a step, of late."""
        return (self.recent_new + NEW_ASSUMED) / max(1.0, self.recent_cost)


class Bandit:
    """Chooses the next arm. A choice is charged at once, so that many runs may be under way."""

    def __init__(self, names: Sequence[str]) -> None:
        self.arms = [ArmTally(name) for name in names]

    def choose(self, able: Sequence[int]) -> int:
        """The arm to run next, among those that can run now."""
        chosen = min(able, key=lambda place: (self.arms[place].passed, place))
        arm = self.arms[chosen]
        # An arm that could not run for a while must not catch up all at once.
        least = arm.passed
        for place, other in enumerate(self.arms):
            if place not in able:
                other.passed = max(other.passed, least)
        arm.passed += self._cost_expected(arm) / self.weight(arm)
        return chosen

    def weight(self, arm: ArmTally) -> float:
        """The share of the steps that it should get; an even one before its first result."""
        even = 1.0 / len(self.arms)
        if not arm.runs:
            return even
        return EVEN_SHARE * even + (1.0 - EVEN_SHARE) * arm.rate / sum(each.rate for each in self.arms if each.runs)

    def _cost_expected(self, arm: ArmTally) -> float:
        """The mean cost of its runs; before its first result, that of all arms."""
        known = [arm] if arm.runs else self.arms
        runs = sum(each.runs for each in known)
        return sum(each.cost for each in known) / runs if runs else STEPS_GUESSED

    def add(self, place: int, steps: int, new: int, found: bool) -> None:
        """Count a run that has ended."""
        arm, cost = self.arms[place], max(steps, STEPS_MIN)
        arm.runs += 1
        arm.steps += steps
        arm.cost += cost
        arm.new += new
        arm.finds += found
        arm.recent_new = MEMORY * arm.recent_new + new
        arm.recent_cost = MEMORY * arm.recent_cost + cost

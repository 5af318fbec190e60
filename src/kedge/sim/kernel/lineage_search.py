"""Lineage search: lose the messages that good outcomes rest on, few at a time, until nothing is left to lose.

A successful run shows one support of each outcome: the messages that it rested on. Only a plan that loses a message of
every known support can prevent the outcome, so just these are run, smallest first (lineage-driven fault injection,
Alvaro 2015). A run that succeeds all the same shows another support: a redundancy. `lineage` follows the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kedge.sim.kernel.choices import Tape
from kedge.sim.kernel.lineage import LINEAGE, Lineage, Message
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget
from kedge.sim.kernel.world import SimWorld

PLANS_MAX = 2_000
"""Plans of one search. The report states when this bound ended it."""

Plan: TypeAlias = frozenset[Message]


@dataclass(slots=True)
class OutcomeLineage:
    """The supports of one outcome that are known, and the plans that cut them."""

    name: str
    supports: list[Plan] = field(default_factory=list)
    plans: int = 0
    """Plans that cut every support known when they ran."""
    cut: set[Message] = field(default_factory=set)
    """Messages that were lost in some plan."""
    finished: bool = False
    """No plan is left that cuts every support within the bound."""


@dataclass(slots=True)
class LineageSearch:
    """The progress of a search."""

    target: SimulationTarget
    faults: int
    outcomes: dict[str, OutcomeLineage] = field(default_factory=dict)
    runs: int = 0
    failure: RunOutcome | None = None

    @property
    def finished(self) -> bool:
        return bool(self.outcomes) and all(each.finished for each in self.outcomes.values())


def search_lineage(
    target: SimulationTarget,
    *,
    faults: int,
    plans_max: int = PLANS_MAX,
    on_run: Callable[[LineageSearch], object] = lambda search: None,  # noqa: ARG005
) -> LineageSearch:
    """Run `target` with every plan of at most `faults` losses that cuts all known supports of an outcome.

    Ends at the first plan that breaks an invariant.
    """
    found = LineageSearch(replace(target, policy=LINEAGE, faults=LINEAGE), faults)
    if not _try(found, frozenset()):
        return found
    on_run(found)
    tried: set[Plan] = {frozenset()}
    while found.runs <= plans_max:
        chosen = _next_plan(found, tried)
        if chosen is None:
            return found
        about, plan = chosen
        tried.add(plan)
        about.plans += 1
        about.cut |= plan
        held = _try(found, plan)
        on_run(found)
        if not held:
            return found
    return found


def _next_plan(found: LineageSearch, tried: set[Plan]) -> tuple[OutcomeLineage, Plan] | None:
    """The smallest plan that was not tried, and the outcome whose supports it cuts."""
    for size in range(1, found.faults + 1):
        for about in found.outcomes.values():
            plan = next((each for each in hitting_sets(about.supports, size) if each not in tried), None)
            if plan is not None:
                return about, plan
    for about in found.outcomes.values():
        about.finished = True
    return None


def hitting_sets(supports: Sequence[Plan], size: int) -> Iterator[Plan]:
    """Sets of at most `size` messages with one of every support. Each is found by way of its own messages only."""
    yield from _hitting(sorted(supports, key=len), frozenset(), size)


def _hitting(supports: Sequence[Plan], chosen: Plan, left: int) -> Iterator[Plan]:
    open_ = next((each for each in supports if not each & chosen), None)
    if open_ is None:
        if chosen:
            yield chosen
        return
    if left:
        for message in sorted(open_):
            yield from _hitting(supports, chosen | {message}, left - 1)


def _try(found: LineageSearch, lost: Plan) -> bool:
    """Run without these messages. False if an invariant broke."""
    captured: list[Lineage] = []
    target = found.target

    def make_simulation(world: SimWorld) -> object:
        world.lineage = Lineage(world, lost)
        captured.append(world.lineage)
        return target.make_simulation(world)

    outcome = replace(target, make_simulation=make_simulation).run(Tape(0, LINEAGE.name), lenient=True)
    found.runs += 1
    if outcome.violation is not None:
        found.failure = outcome
        return False
    for name, support in captured[0].supports().items():
        about = found.outcomes.setdefault(name, OutcomeLineage(name))
        if support not in about.supports:
            about.supports.append(support)
    return True

"""Coverage of one run: pairs of marks, states of objects beside states of caches, and faults at steps of decisions.

It follows events and marks that a run has anyway, and draws nothing: a run with coverage is the same run. The kernel
collects marks and faults; a cluster adds states (`kedge.sim.cluster.state_coverage`). `coverage_search` uses it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from kedge.logs import DECISION
from kedge.sim.kernel.choices import Tape, TapePosition
from kedge.sim.kernel.trace import Event

if TYPE_CHECKING:
    from kedge.sim.kernel.simulation import RunOutcome
    from kedge.sim.kernel.targets import SimulationTarget
    from kedge.sim.kernel.world import SimWorld

MARK_PAIRS, STATES, FAULT_STEPS = "marks", "states", "faults"
SORTS = (MARK_PAIRS, STATES, FAULT_STEPS)
RUN_FEATURES_MAX = 20_000
"""Features of each sort that one run may have; later ones are not kept."""


class Feature(NamedTuple):
    """Something that a run reached."""

    sort: str
    hash: int
    """A hash of its text, equal in every process."""
    position: TapePosition
    """When the run reached it first."""


_COPY = re.compile(r"-\d+$")


class RunCoverage:
    """Collects the features of one run, as texts."""

    def __init__(self, world: SimWorld) -> None:
        self.features: dict[str, dict[str, TapePosition]] = {sort: {} for sort in SORTS}
        """By sort and text, with the position at which each was reached first."""
        self._position = world.choices.position
        self._marks: list[str] = []
        """In the order in which they were reached first."""
        self._paired: dict[str, int] = {}
        """By mark: how many of the others it has been paired with. A mark in a loop costs nothing."""
        self._last_calls: dict[str, str] = {}
        """By host: the last call of it that arrived."""
        world.coverage = self
        world.listeners.append(self._happened)

    def add(self, sort: str, feature: str) -> None:
        found = self.features[sort]
        if feature not in found and len(found) < RUN_FEATURES_MAX:
            found[feature] = self._position()

    def marked(self, name: str) -> None:
        """Add the mark, after each mark that was reached before."""
        first = name not in self._paired
        if first:
            self.add(MARK_PAIRS, name)
        for earlier in self._marks[self._paired.get(name, 0) :]:
            self.add(MARK_PAIRS, f"{earlier} > {name}")
        self._paired[name] = len(self._marks)
        if first:
            self._marks.append(name)

    def _happened(self, event: Event) -> None:
        if event.kind == "call":
            what, _, way = event.text.partition(" ")
            self._last_calls[way.partition(">")[0]] = what
        elif event.kind == "fault":
            kind, _, place = event.text.partition(": ")
            point, _, about = place.rpartition(" ")
            caller = about.partition(">")[0]
            actor = role_of(DECISION.get().partition(":")[0] or caller)
            self.add(FAULT_STEPS, f"{kind} at {point} of {actor}, after {self._last_calls.get(caller, 'nothing')}")

    def hashed(self) -> tuple[Feature, ...]:
        """Every feature so far, small enough to send from a worker."""
        return tuple(
            Feature(sort, _hash(sort, text), position)
            for sort, found in self.features.items()
            for text, position in found.items()
        )


def role_of(host: str) -> str:
    """The name of a host without its number: copies of one component are alike."""
    return _COPY.sub("", host)


def _hash(sort: str, feature: str) -> int:
    return int.from_bytes(blake2b(f"{sort} {feature}".encode(), digest_size=8).digest(), "big")


def run_covered(target: SimulationTarget, tape: Tape | int, *, lenient: bool = False) -> tuple[RunOutcome, RunCoverage]:
    """Run a target, and collect the coverage of the run."""
    collected: list[RunCoverage] = []

    def make_simulation(world: SimWorld) -> object:
        collected.append(RunCoverage(world))
        return target.make_simulation(world)

    outcome = replace(target, make_simulation=make_simulation).run(tape, lenient=lenient)
    return outcome, collected[0]

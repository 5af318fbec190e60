"""Replay of an artefact: exact on the build that made it, a regression test on any other.

An exact replay ends with "same", or with the first difference. A regression run follows the tape leniently: faults are
found again by label and occurrence, missing choices take defaults, the invariants judge, and the drift is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kedge.sim.kernel.artefacts import Artefact, fingerprint
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget, find_target
from kedge.sim.kernel.trace_diff import TraceDifference, first_difference


class ReplayVerdict(Enum):
    """The result of a replay."""

    SAME = "same"
    """The same run, to the last step."""
    DIVERGED = "diverged"
    """The same build took another path: something in it is not deterministic."""
    STILL_FAILS = "still fails"
    """Another build breaks the same invariant."""
    FAILS_OTHERWISE = "fails otherwise"
    """Another build breaks another invariant."""
    HOLDS = "holds"
    """Another build keeps every invariant on this tape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay, with its result."""

    verdict: ReplayVerdict
    outcome: RunOutcome
    summary: str
    difference: TraceDifference | None = None
    drift: str = ""
    """Regression only: how far the run was from the recorded one."""

    @property
    def passed(self) -> bool:
        """On the same build, the run was the same; on another, the failure no longer happens."""
        return self.verdict in (ReplayVerdict.SAME, ReplayVerdict.HOLDS)


def replay(artefact: Artefact, *, target: SimulationTarget | None = None, regression: bool | None = None) -> Replay:
    """Run `artefact` again. `regression` forces the kind of replay; without it the build decides."""
    target = target or find_target(artefact.target)
    if regression is None:
        regression = fingerprint(target) != artefact.build
    return _as_regression(artefact, target) if regression else _exactly(artefact, target)


def _exactly(artefact: Artefact, target: SimulationTarget) -> Replay:
    outcome = target.run(artefact.tape, name_strands=True)
    if outcome.hash == artefact.hash and outcome.diverged is None:
        return Replay(
            verdict=ReplayVerdict.SAME,
            outcome=outcome,
            summary=f"same: {outcome.violation or 'every invariant held'}, trace {outcome.hash}",
        )
    difference = first_difference(artefact.trace, outcome.trace, other_strands=outcome.strands)
    where = f" {difference}" if difference is not None else ""
    tape = f"; {outcome.diverged}" if outcome.diverged is not None else ""
    return Replay(
        verdict=ReplayVerdict.DIVERGED,
        outcome=outcome,
        summary=f"diverged on the same build{where}{tape}. One is the record, the other this run:"
        " something here is not deterministic",
        difference=difference,
    )


def _as_regression(artefact: Artefact, target: SimulationTarget) -> Replay:
    outcome = target.run(artefact.tape, lenient=True, name_strands=True)
    difference = first_difference(artefact.trace, outcome.trace, other_strands=outcome.strands)
    drift = _drift(artefact, outcome, difference)
    if outcome.violation is None:
        verdict, summary = ReplayVerdict.HOLDS, "holds: every invariant is kept on this tape"
    elif artefact.violation is not None and outcome.violation.group == artefact.violation.group:
        verdict, summary = ReplayVerdict.STILL_FAILS, f"still fails: {outcome.violation}"
    else:
        verdict, summary = ReplayVerdict.FAILS_OTHERWISE, f"fails otherwise: {outcome.violation}"
    return Replay(verdict=verdict, outcome=outcome, summary=summary, difference=difference, drift=drift)


def _drift(artefact: Artefact, outcome: RunOutcome, difference: TraceDifference | None) -> str:
    if difference is None:
        return "no drift: the run is the recorded one"
    recorded = sum(len(choices) for choices in artefact.tape.streams.values())
    taken = sum(len(choices) for choices in outcome.tape.streams.values())
    struck, planned = len(outcome.tape.strikes()), len(artefact.tape.strikes())
    shared = difference.step / max(1, len(artefact.trace.steps))
    return (
        f"drifted after {difference.step} of {len(artefact.trace.steps)} steps ({shared:.0%});"
        f" {outcome.missing_choices} of {taken} choices were not on the tape ({recorded} recorded),"
        f" {struck} of {planned} faults struck; first difference {difference}"
    )

"""Runs a file again as a whole cluster: the scenario of a kept run with its tape, or a recorded incident rebuilt.

A rebuilt incident is compared with its recording; of a few seeds the nearest run is kept, because the
order of ready processes and pauses before retries are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from kedge.kept import read_kept, write_kept
from kedge.observe.readers.recording import Recording, read_recording
from kedge.sim.incident.draft import ScenarioDraft, kept_draft
from kedge.sim.incident.effects import EffectComparison, compare_runs
from kedge.sim.incident.rebuild import rebuild
from kedge.sim.kernel import RunOutcome, SimulationTarget, Tape, make_artefact, read_artefact
from kedge.sim.kernel.artefacts import RUN, sections_of
from kedge.sim.scenario.kept_scenarios import ScenarioVariant, kept_scenario
from kedge.sim.scenario.runner import scenario_target

SEEDS = 4
"""Runs of a rebuilt incident, of which the nearest to the recording is used."""


@dataclass(frozen=True, slots=True)
class IncidentProgram:
    """A file as a program of the simulator."""

    draft: ScenarioDraft
    recording: Recording
    begin: datetime
    """The recorded moment at which the steps begin."""
    without: str = ""
    """The safeguard that is removed."""
    tape: Tape | None = None
    """The choices of the recorded run; None for an incident of real processes."""
    seed: int = 0
    exact: bool = False
    """The scenario is the one that was run, and not one that was rebuilt."""
    left_out: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    """Invariants that are left out, by name."""

    @property
    def lasts_s(self) -> float:
        """How long the recording goes on after its begin."""
        return (self.recording.commits[-1].at - self.begin).total_seconds() if self.recording.commits else 0.0

    def run(self, draft: ScenarioDraft | None = None, *, lenient: bool = True, keep: bool = False) -> IncidentRun:
        """Run it, or a changed copy of it, on the choices of the recorded run as far as they fit."""
        variant = ScenarioVariant(self.without, invariants=self.invariants, lenient=lenient, unjudged=self.unjudged)
        target, runners = scenario_target((draft or self.draft).scenario(), variant)
        outcome = target.run(self.seed if self.tape is None else self.tape, lenient=self.tape is not None, keep=keep)
        runner = runners[-1]
        recording = runner.cluster.record().recording()
        begin = recording.states[0].at + timedelta(seconds=runner.begin_s)
        return IncidentRun(target, outcome, recording, begin, runner.taken)

    def compare(self, run: IncidentRun, other: IncidentRun | None = None) -> EffectComparison:
        """A run beside the recording; with `other`, that one beside the run."""
        one, begin = (self.recording, self.begin) if other is None else (run.recording, run.begin)
        then = run if other is None else other
        lasts_s = min(
            self.lasts_s,
            *(
                (each.commits[-1].at - at).total_seconds()
                for each, at in ((one, begin), (then.recording, then.begin))
                if each.commits
            ),
        )
        return compare_runs(one, then.recording, begins=(begin, then.begin), lasts_s=lasts_s)


@dataclass(frozen=True, slots=True)
class IncidentRun:
    """One run of a program."""

    target: SimulationTarget
    outcome: RunOutcome
    recording: Recording
    begin: datetime
    """When its steps began."""
    taken: Mapping[int, float] = field(default_factory=dict)
    """By the number of a step: when it was taken, in seconds since the begin."""

    @property
    def lasted_s(self) -> float:
        """Seconds from the begin to the last commit."""
        commits = self.recording.commits
        return max(0.0, (commits[-1].at - self.begin).total_seconds()) if commits else 0.0

    def keep(self, path: Path) -> Path:
        """Write it to a file. Only a run with `keep` has its recording in it."""
        write_kept(path, sections_of(make_artefact(self.target, self.outcome)))
        return path

    @property
    def rule(self) -> str:
        """The rule that it broke; empty if all of them held."""
        return "" if self.outcome.violation is None else self.outcome.violation.invariant

    @property
    def message(self) -> str:
        return "" if self.outcome.violation is None else self.outcome.violation.message


def is_kept_run(path: Path) -> bool:
    """Whether a file has a run of the simulator, and not a recording of real processes."""
    return any(getattr(section, "name", "") == RUN for section in read_kept(path))


def load_program(path: Path, *, without: str = "") -> IncidentProgram:
    """The program of a file. `without` removes a safeguard of the components, beside the one of the recorded run.

    Raises:
        BadKeptFile: it cannot be read.
        NotRebuildable: it lacks a part that a simulation needs.
    """
    recording = read_recording(path)
    if is_kept_run(path):
        artefact = read_artefact(path)
        kept = kept_scenario(artefact)
        if kept is not None and recording.states:
            begin = recording.states[0].at + timedelta(seconds=kept.begin_s)
            return IncidentProgram(
                kept_draft(kept), recording, begin, without or kept.without, artefact.tape, artefact.seed, exact=True,
                invariants=kept.invariants, unjudged=kept.unjudged,
            )  # fmt: skip
    rebuilt = rebuild(recording, name=path.stem)
    return IncidentProgram(rebuilt.draft, recording, rebuilt.begin, without, left_out=rebuilt.left_out)


def nearest(program: IncidentProgram, *, seeds: int = SEEDS) -> tuple[IncidentProgram, IncidentRun, EffectComparison]:
    """The program with the seed whose run is nearest to the recording, that run, and how it compares."""
    best: tuple[IncidentProgram, IncidentRun, EffectComparison] | None = None
    for seed in range(1 if program.exact else seeds):
        one = program if program.exact else replace(program, seed=seed)
        run = one.run()
        found = one.compare(run)
        if best is None or len(found.departures) < len(best[2].departures):
            best = (one, run, found)
        if not found.departures:
            break
    assert best is not None
    return best

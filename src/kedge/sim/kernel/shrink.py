"""Shrink a failing run: make it simpler while it fails in the same way, and find which of its faults it needs.

Fewer faults first, then fewer schedule deviations, then fewer objects, then fewer steps. A candidate is an edited tape
that is replayed leniently. The tape that is kept is the one recorded by that run, so it replays exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kedge.errors import check
from kedge.sim.kernel.choices import DETAIL, Choice, Tape, pack, unpack
from kedge.sim.kernel.simulation import RunOutcome
from kedge.sim.kernel.targets import SimulationTarget

SHRINK_RUNS_MAX = 600
"""Runs that shrinking one failure may cost. The report states when this bound ended it."""
CONDITION_RUNS_MAX = 60
"""Further runs to find which of its faults a failure needs."""


@dataclass(frozen=True, slots=True)
class FailureCondition:
    """A fault or schedule deviation of a failing run, and whether the failure needs it."""

    what: str
    needed: bool | None
    """None if no run was left to try it."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The simplest failing run that was found, and its cost."""

    outcome: RunOutcome
    conditions: tuple[FailureCondition, ...]
    runs: int
    exhausted: bool
    """True if `SHRINK_RUNS_MAX` ended it, so there may be a simpler one."""


class OutOfRuns(Exception):
    """The budget of runs is spent. Never leaves this module."""


def shrink(
    target: SimulationTarget,
    failure: RunOutcome,
    *,
    runs_max: int = SHRINK_RUNS_MAX,
    condition_runs_max: int = CONDITION_RUNS_MAX,
    on_run: Callable[[RunOutcome], object] = lambda outcome: None,  # noqa: ARG005
) -> Shrunk:
    """Shrink `failure`, a run of `target` that broke an invariant.

    Its conditions are tried in at most `runs_max` further runs, and never in more than `condition_runs_max`.
    """
    check(failure.violation is not None, "only a failing run can be shrunk")
    shrinker = _Shrinker(target, failure, runs_max, on_run)
    exhausted = False
    try:
        shrinker.to_fixpoint()
    except OutOfRuns:
        exhausted = True
    return Shrunk(shrinker.best, shrinker.conditions(min(runs_max, condition_runs_max)), shrinker.runs, exhausted)


class _Shrinker:
    def __init__(
        self, target: SimulationTarget, failure: RunOutcome, runs_max: int, on_run: Callable[[RunOutcome], object]
    ) -> None:
        assert failure.violation is not None
        self.best = failure
        self.runs = 0
        self._target = target
        self._group = failure.violation.group
        self._runs_max = runs_max
        self._on_run = on_run

    def to_fixpoint(self) -> None:
        while True:
            before = _size(self.best)
            self._fewer_faults()
            self._milder_faults()
            self._fewer_deviations()
            self._fewer_objects()
            self._shorter()
            if _size(self.best) >= before:
                return

    def conditions(self, runs_max: int) -> tuple[FailureCondition, ...]:
        """Remove each remaining fault, one at a time, then all deviations, and check whether the run still fails."""
        tape = self.best.tape
        without: list[tuple[str, Tape]] = []
        for place in tape.strikes():
            label, bound, _ = tape.streams["faults"][place]
            without.append((self._describe_strike(place), _with_choice(tape, "faults", place, (label, bound, 0))))
        if deviations := tape.deviations():
            plain = tape.copy()
            plain.schedule = array("I")
            without.append((f"{deviations} deviation{'s' if deviations > 1 else ''} from the plain schedule", plain))
        return tuple(
            FailureCondition(what, not self._fails(self._try_free(candidate)) if number < runs_max else None)
            for number, (what, candidate) in enumerate(without)
        )

    def _describe_strike(self, place: int) -> str:
        order = self.best.tape.strikes().index(place)
        strikes = [event for event in self.best.faults if ": " in event.text]
        if order < len(strikes):
            return f"{strikes[order].text} at {strikes[order].at_s:.4f}s"
        return self.best.tape.streams["faults"][place][0]

    # -- trying

    def _try(self, tape: Tape) -> bool:
        """Run a candidate; keep it if it fails in the same way and is simpler."""
        if self.runs >= self._runs_max:
            raise OutOfRuns
        self.runs += 1
        outcome = self._target.run(tape, lenient=True)
        self._on_run(outcome)
        if self._fails(outcome) and _size(outcome) < _size(self.best):
            self.best = outcome
            return True
        return False

    def _try_free(self, tape: Tape) -> RunOutcome:
        return self._target.run(tape, lenient=True)

    def _fails(self, outcome: RunOutcome) -> bool:
        return outcome.violation is not None and outcome.violation.group == self._group

    # -- passes

    def _fewer_faults(self) -> None:
        self._without("faults", lambda tape: tape.strikes())

    def _milder_faults(self) -> None:
        """Shorten lasting faults, and prefer the first kind of fault at each point."""
        for place in range(len(self.best.tape.streams["faults"])):
            choices = self.best.tape.streams["faults"]
            if place >= len(choices):
                return
            label, bound, value = choices[place]
            if value and label.startswith(DETAIL):
                self._try(_with_choice(self.best.tape, "faults", place, (label, bound, 0)))

    def _fewer_objects(self) -> None:
        """Lower each workload choice by bisection, to 0 if the run still fails."""
        place = 0
        while place < len(self.best.tape.streams["workload"]):
            label, bound, value = self.best.tape.streams["workload"][place]
            low = 0
            while low < value:
                middle = (low + value) // 2
                if self._try(_with_choice(self.best.tape, "workload", place, (label, bound, middle))):
                    if place >= len(self.best.tape.streams["workload"]):
                        break
                    value = self.best.tape.streams["workload"][place][2]
                else:
                    low = middle + 1
            place += 1

    def _shorter(self) -> None:
        """Least latency wherever the failure does not need a greater one."""
        self._without("network", lambda tape: [i for i, choice in enumerate(tape.streams["network"]) if choice[2]])

    def _fewer_deviations(self) -> None:
        if not self.best.tape.deviations():
            return
        plain = self.best.tape.copy()
        plain.schedule = array("I")
        if self._try(plain):
            return
        self._cut_the_tail()
        self._zero_in_chunks(_deviating, _without_deviations)

    def _cut_the_tail(self) -> None:
        """Find by bisection how much of the schedule matters; the rest becomes plain."""
        low, high = 0, len(self.best.tape.schedule)
        while low < high:
            middle = (low + high) // 2
            candidate = self.best.tape.copy()
            candidate.schedule = candidate.schedule[:middle]
            if self._try(candidate):
                high = min(middle, _last_deviation(self.best.tape) + 1)
            else:
                low = middle + 1

    def _without(self, stream: str, places: Callable[[Tape], list[int]]) -> None:
        def without(tape: Tape, gone: Sequence[int]) -> Tape:
            candidate = tape.copy()
            for place in gone:
                label, bound, _ = candidate.streams[stream][place]
                candidate.streams[stream][place] = (label, bound, 0)
            return candidate

        self._zero_in_chunks(places, without)

    def _zero_in_chunks(
        self, places: Callable[[Tape], list[int]], without: Callable[[Tape, Sequence[int]], Tape]
    ) -> None:
        """Delta debugging: remove all, halves, quarters, down to single choices, while the run still fails."""
        size = max(1, len(places(self.best.tape)))
        while True:
            start = 0
            while start < len(left := places(self.best.tape)):
                if not self._try(without(self.best.tape, left[start : start + size])):
                    start += size
            if size == 1:
                return
            size = max(1, size // 2)


def _size(outcome: RunOutcome) -> tuple[int, ...]:
    """The order in which a run is simpler, most important first. Ties are no progress."""
    tape = outcome.tape
    return (
        len(tape.strikes()),
        sum(choice[2] for choice in tape.streams["faults"] if choice[0].startswith(DETAIL)),
        tape.deviations(),
        sum(choice[2] for choice in tape.streams["workload"]),
        outcome.steps,
        sum(1 for choice in tape.streams["network"] if choice[2]),
    )


def _with_choice(tape: Tape, stream: str, place: int, choice: Choice) -> Tape:
    candidate = tape.copy()
    candidate.streams[stream][place] = choice
    return candidate


def _deviating(tape: Tape) -> list[int]:
    return [place for place, code in enumerate(tape.schedule) if unpack(code)[1]]


def _last_deviation(tape: Tape) -> int:
    places = _deviating(tape)
    return places[-1] if places else -1


def _without_deviations(tape: Tape, gone: Sequence[int]) -> Tape:
    candidate = tape.copy()
    for place in gone:
        candidate.schedule[place] = pack(unpack(candidate.schedule[place])[0], 0)
    return candidate

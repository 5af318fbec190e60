"""The necessary conditions of a failure: the faults and the actions of people that it needs, how much, and when.

The steps of the failing run are pinned to the times at which they were taken, so that a changed step does not move the
others. Then each is removed. A delay that is needed is bisected, and so is the time of an action, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from kedge.api.wellknown import EVENT_KIND, LEASE_KIND
from kedge.observe.records import CommitRecord
from kedge.sim.incident.draft import ScenarioDraft, duration, named, seconds_of, verbs_of
from kedge.sim.incident.rerun import IncidentRun
from kedge.sim.kernel.fault_registry import FAULTS
from kedge.sim.scenario.steps import SCENARIO_STEP

CONDITION_RUNS_MAX: Final = 100
"""Runs that the conditions of one failure may cost."""
SHIFT_S_MAX: Final = 60.0
"""How far an action is moved."""
_TAIL_S: Final = 30.0
"""How long a run goes on after an action that was moved: faults stop at its end."""
_PRECISION_S: Final = 0.1
_SHIFT_PRECISION_S: Final = 0.25
_LASTS: Final = {"delay watch": "by", "partition node": "lasting", "partition": "lasting", "pause node": "lasting",
                 "delay requests": "by", "slow disk": "by", "slow pull": "by", "slow start": "by",
                 "lose node": "lasting", "lose reply": "timeout"}  # fmt: skip
"""By verb: the argument whose least value is looked for."""
_NO_ACTS: Final = ("expect", "note", "view", "repair scans", "bring back node")
_PART: Final = "meanwhile"

Run = Callable[[ScenarioDraft, str], IncidentRun]


class RunBudget(Protocol):
    """Runs changed copies of a program, and counts them."""

    @property
    def left(self) -> int: ...

    def run(self, draft: ScenarioDraft, text: str) -> IncidentRun: ...


@dataclass(frozen=True, slots=True)
class StepCondition:
    """One step of a failing run, and whether the failure needs it."""

    step: Mapping[str, Any]
    needed: bool
    text: str
    least_s: float | None = None
    """The least delay with which the failure still comes; None if the step has none."""

    def __str__(self) -> str:
        return f"{'needs' if self.needed else 'does not need'} {self.text}"


def necessary_conditions(draft: ScenarioDraft, run: IncidentRun, budget: RunBudget) -> Iterator[StepCondition]:
    """The conditions in the order of time. Ends early if the budget does."""
    pinned = _pinned(draft, run, budget)
    for place, step in enumerate(pinned.document[_PART]):
        if not budget.left:
            return
        if not (_is_fault(step) or _is_act(step)):
            continue
        shown = describe(step)
        if budget.run(_removed(pinned, place), f"without {shown}").rule == run.rule:
            yield StepCondition(step, needed=False, text=shown)
        elif _is_act(step):
            yield StepCondition(step, needed=True, text=f"{shown}{_window(pinned, place, run, budget)}")
        else:
            least_s = _least(pinned, place, run.rule, budget)
            yield StepCondition(step, needed=True, text=_with_least(step, least_s), least_s=least_s)


def describe(step: Mapping[str, Any]) -> str:
    """A step in the words of scenarios."""
    verb = verbs_of(step)[0]
    value = step[verb]
    if verb == "admit":
        metadata = value["metadata"]
        shown = named(str(value["kind"]), str(metadata.get("namespace", "")), str(metadata.get("name", "")))
    elif isinstance(value, Mapping):
        shown = ", ".join(f"{name} {each}" for name, each in value.items())
    else:
        shown = str(value)
    at = f" at {step['at']}" if "at" in step else ""
    return f"{verb} ({shown}){at}"


def _with_least(step: Mapping[str, Any], least_s: float | None) -> str:
    [verb] = verbs_of(step)[:1]
    if least_s is None:
        return describe(step)
    if verb == "delay watch":
        late = step[verb]
        to = f" to {late['to']}" if "to" in late else ""
        return f"the watch of {late['of']}{to} at least {least_s:.1f} s late, from {step['at']} on"
    return f"{describe(step)}, at least {least_s:.1f} s"


def _is_fault(step: Mapping[str, Any]) -> bool:
    return verbs_of(step)[0] in {each.name for each in FAULTS if each.point == SCENARIO_STEP}


def _is_act(step: Mapping[str, Any]) -> bool:
    return not _is_fault(step) and verbs_of(step)[0] not in _NO_ACTS


# -- pinned steps ----------------------------------------------------------------------------------


def _pinned(draft: ScenarioDraft, run: IncidentRun, budget: RunBudget) -> ScenarioDraft:
    """A copy in which each step has the time at which it was taken, and which breaks the same rule.

    Endings cost most of a run, so they are left out if the rule is broken without them. If no copy breaks it, the
    steps keep the order of the file, and those of `meanwhile` alone are changed.
    """
    document = draft.document
    until_s = run.lasted_s
    taken = [
        {"at": duration(run.taken[number]), verbs_of(step)[0]: step[verbs_of(step)[0]]}
        for number, step in enumerate(document["steps"])
        if number in run.taken and verbs_of(step)[0] not in ("expect", "note")
    ]
    beside = [step for step in document.get(_PART, ()) if seconds_of(step["at"]) <= until_s]
    steps = sorted([*taken, *deepcopy(beside)], key=lambda step: seconds_of(step["at"]))
    end_s = max([until_s, *run.taken.values()]) + SHIFT_S_MAX + _TAIL_S
    pinned = draft.changed(**{"steps": [{"at": duration(end_s), "note": "the end"}], _PART: steps})
    standing = [each for each in document.get("expect", ()) if "within" not in each]
    short = pinned.changed(**{"expect": standing, "settles within": "0s"})
    for copy, text in ((short, "with the times of its steps"), (pinned, "with the times of its steps and its ending")):
        if budget.left and budget.run(copy, text).rule == run.rule:
            return copy
    return draft.changed(**{_PART: list(document.get(_PART, ()))})


def _removed(draft: ScenarioDraft, place: int) -> ScenarioDraft:
    steps = deepcopy(list(draft.document[_PART]))
    del steps[place]
    return draft.changed(**{_PART: steps})


def _replaced(draft: ScenarioDraft, place: int, step: Mapping[str, Any]) -> ScenarioDraft:
    steps = deepcopy(list(draft.document[_PART]))
    steps[place] = step
    return draft.changed(**{_PART: sorted(steps, key=lambda each: seconds_of(each["at"]))})


# -- how much --------------------------------------------------------------------------------------


def _least(draft: ScenarioDraft, place: int, rule: str, budget: RunBudget) -> float | None:
    """The least delay with which the failure still comes; None if the step has none."""
    step = draft.document[_PART][place]
    [verb] = verbs_of(step)[:1]
    name = _LASTS.get(verb, "")
    arguments = step[verb]
    if not name or not isinstance(arguments, Mapping) or name not in arguments:
        return None
    low_s, high_s = 0.0, seconds_of(str(arguments[name]))
    while high_s - low_s > max(_PRECISION_S, high_s / 50) and budget.left:
        middle_s = (low_s + high_s) / 2
        changed = {**step, verb: {**arguments, name: duration(middle_s)}}
        other = budget.run(_replaced(draft, place, changed), f"{verb} {name} {duration(middle_s)}")
        low_s, high_s = (low_s, middle_s) if other.rule == rule else (middle_s, high_s)
    return high_s


# -- when ------------------------------------------------------------------------------------------


def _window(draft: ScenarioDraft, place: int, run: IncidentRun, budget: RunBudget) -> str:
    """Between which moments an action leads to the failure, as text; empty if it may be moved by `SHIFT_S_MAX`."""
    at_s = seconds_of(draft.document[_PART][place]["at"])
    later = _boundary(draft, place, at_s + SHIFT_S_MAX, run, budget)
    earlier = _boundary(draft, place, max(0.0, at_s - SHIFT_S_MAX), run, budget)
    text = ""
    if later is not None:
        text += f", before {_moment(later.bad_s, later.good_s, later.good, last=True)}"
    if earlier is not None:
        text += f", after {_moment(earlier.good_s, earlier.bad_s, earlier.bad, last=False)}"
    return text


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Two times of an action, near each other: with the first the failure comes, with the second it does not."""

    bad_s: float
    good_s: float
    bad: IncidentRun
    good: IncidentRun


def _boundary(draft: ScenarioDraft, place: int, far_s: float, run: IncidentRun, budget: RunBudget) -> _Boundary | None:
    step = draft.document[_PART][place]

    def moved(to_s: float) -> IncidentRun:
        changed = {**step, "at": duration(to_s)}
        return budget.run(_replaced(draft, place, changed), describe(changed))

    bad_s, bad = seconds_of(step["at"]), run
    if not budget.left or bad_s == far_s or (good := moved(far_s)).rule == run.rule:
        return None
    good_s = far_s
    while abs(good_s - bad_s) > _SHIFT_PRECISION_S and budget.left:
        middle_s = (good_s + bad_s) / 2
        other = moved(middle_s)
        if other.rule == run.rule:
            bad_s, bad = middle_s, other
        else:
            good_s, good = middle_s, other
    return _Boundary(bad_s, good_s, bad, good)


def _moment(since_s: float, until_s: float, run: IncidentRun, *, last: bool) -> str:
    """A time, with the commit next to it that decided: the one that one of two runs had before the action."""
    since, until = (run.begin + timedelta(seconds=each) for each in (since_s, until_s))
    found = [
        (commit, key)
        for commit in run.recording.commits
        if since < commit.at <= until
        for key in _keys(commit)
        if key.kind not in (LEASE_KIND, EVENT_KIND)
    ]
    at = duration(until_s)
    if not found:
        return at
    commit, key = found[-1 if last else 0]
    return f"{at} (revision {commit.revision}, {named(key.kind, key.namespace, key.name)})"


def _keys(commit: CommitRecord) -> list[Any]:
    return [*(each.key for each in commit.written), *commit.deleted]

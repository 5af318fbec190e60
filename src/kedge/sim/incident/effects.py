"""Compares two runs by the effects of their decisions: what each component did to each object, in order.

Times, revisions, uids and statuses differ between any two runs, so they are no part of an effect; the conditions at the
end are compared apart. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from kedge.api.objects import Object
from kedge.api.wellknown import EVENT_KIND, LEASE_KIND
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Call, Decision, PodAct
from kedge.sim.incident.draft import named

_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DONE: Final = ("done", "removed")
_ACTS: Final = ("start", "restart", "stop", "exit", "fail")
_STATUS: Final = "patch status"
_CHANGE_CHARS: Final = 120
"""A longer patch is shown without its content: names of the fields that it changes."""


class Effect(NamedTuple):
    """One act of one component on one object."""

    at: datetime
    actor: str
    target: str
    what: str


class Departure(NamedTuple):
    """The first act on an object that differs between two runs."""

    at_s: float
    """Since the steps began."""
    actor: str
    target: str
    before: str
    """The act in the first run; empty if there was none."""
    after: str

    def __str__(self) -> str:
        return (
            f"{int(self.at_s // 60):02d}:{self.at_s % 60:06.3f} {self.actor}, {self.target}:"
            f" {self.after or 'nothing'} instead of {self.before or 'nothing'}"
        )


@dataclass(frozen=True, slots=True)
class EffectComparison:
    """How two runs compare."""

    same: int
    """Acts that both have."""
    departures: tuple[Departure, ...]
    """By time; at most one an actor and object."""
    conditions: tuple[str, ...]
    """Conditions at the end that came out otherwise, one sentence each."""


def compare_runs(
    one: Recording, other: Recording, *, begins: tuple[datetime, datetime], lasts_s: float
) -> EffectComparison:
    """Compare two runs from the begin of each, for as long as both lasted."""
    before, after = (_by_place(each, begin, lasts_s) for each, begin in zip((one, other), begins, strict=True))
    same, departures = 0, []
    for place in sorted({*before, *after}):
        left, right = before.get(place, []), after.get(place, [])
        equal = 0
        while equal < min(len(left), len(right)) and left[equal].what == right[equal].what:
            equal += 1
        same += equal
        if equal == len(left) == len(right):
            continue
        first, second = left[equal : equal + 1], right[equal : equal + 1]
        at_s = min(
            [(each.at - begins[0]).total_seconds() for each in first]
            + [(each.at - begins[1]).total_seconds() for each in second]
        )
        departures.append(Departure(at_s, *place, first[0].what if first else "", second[0].what if second else ""))
    ends = [
        _conditions(each, begin + timedelta(seconds=lasts_s)) for each, begin in zip((one, other), begins, strict=True)
    ]
    return EffectComparison(same, tuple(sorted(departures)), tuple(_differing(*ends)))


# -- effects ---------------------------------------------------------------------------------------


def _by_place(recording: Recording, begin: datetime, lasts_s: float) -> dict[tuple[str, str], list[Effect]]:
    found: dict[tuple[str, str], list[Effect]] = defaultdict(list)
    until = begin + timedelta(seconds=lasts_s)
    for each in sorted(effects_of(recording)):
        place = found[each.actor, each.target]
        if begin < each.at <= until and (not place or place[-1].what != each.what):
            place.append(each)
    return found


def effects_of(recording: Recording) -> Iterator[Effect]:
    """The acts of every decision, in the order of decisions. The exit of a process that was stopped is none."""
    stopped: set[tuple[Key, str, int]] = set()
    for decision in recording.decisions:
        for step in decision.steps:
            if isinstance(step, Call) and step.outcome in _DONE and step.key is not None and step.verb != _STATUS:
                at = decision.began + timedelta(seconds=step.began_s)
                if (what := _act_of(step)) and step.key.kind != EVENT_KIND:
                    yield Effect(at, decision.controller, _name(step.key), what)
            elif isinstance(step, PodAct) and step.verb in _ACTS:
                place = (decision.key, step.container, step.attempt)
                if step.verb == "stop":
                    stopped.add(place)
                elif step.verb == "exit" and place in stopped:
                    continue
                why = f": {step.why}" if step.verb in ("exit", "stop") and step.why else ""
                yield Effect(
                    decision.began, decision.controller, _name(decision.key), f"{step.verb} {step.container}{why}"
                )
        if (chosen := _choice_of(decision)) is not None:
            yield chosen


def _choice_of(decision: Decision) -> Effect | None:
    """A pod that fits nowhere: no call shows it."""
    attempt = decision.scheduling
    if attempt is None or attempt.choice is None or attempt.node:
        return None
    return Effect(decision.began, decision.controller, _name(decision.key), "fits nowhere")


def _act_of(call: Call) -> str:
    intent = call.intent
    if call.verb == "bind":
        return f"bind to {intent.get('node', '')}"
    if call.verb == "patch":
        fields = _plain_patch(intent)
        return f"change {fields}" if fields else ""
    return call.verb.replace("ensure", "create")


def _plain_patch(intent: Any) -> str:
    """The changed fields with their values; only their names if the text is long. Empty for a status alone."""
    if not isinstance(intent, Mapping):
        return "by a JSON patch"
    left = {name: value for name, value in intent.items() if name not in ("metadata", "status")}
    metadata = {
        name: sorted(value) if isinstance(value, Mapping) else value
        for name, value in (intent.get("metadata") or {}).items()
        if name in ("labels", "annotations", "finalizers")
    }
    text = _UID.sub("*", str({**left, **metadata}))
    return ("" if text == "{}" else text) if len(text) <= _CHANGE_CHARS else f"of {', '.join([*left, *metadata])}"


def _name(key: Key) -> str:
    return _UID.sub("*", named(key.kind, key.namespace, key.name))


# -- conditions ------------------------------------------------------------------------------------


def _conditions(recording: Recording, until: datetime) -> dict[tuple[str, str], str]:
    held: dict[Key, Object] = {each.key: each for state in recording.states for each in state.objects}
    for commit in recording.commits:
        if commit.at > until:
            break
        held.update({each.key: each for each in commit.written})
        for key in commit.deleted:
            held.pop(key, None)
    found = {}
    for key, each in held.items():
        if key.kind in (LEASE_KIND, EVENT_KIND):
            continue
        for condition in (each.edit().get("status") or {}).get("conditions") or ():
            reason = f" ({condition['reason']})" if condition.get("reason") else ""
            found[_name(key), condition["type"]] = f"{condition.get('status')}{reason}"
    return found


def _differing(before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]) -> Iterator[str]:
    there = {name for name, _ in before} & {name for name, _ in after}
    for name, condition in sorted(place for place in {*before, *after} if place[0] in there):
        one, other = before.get((name, condition)), after.get((name, condition))
        if one != other:
            yield f"{name}: {condition} is {other or 'absent'} instead of {one or 'absent'}"

"""A scenario made of a recording alone: its objects, components and limits, and the outside world as timed steps.

`outside_writes`, `late_watches` and `recorded_failures` find the steps. The components are the real ones, and decide
again; `effects` compares the run with the recording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kedge.api.objects import Object
from kedge.api.wellknown import NODE_KIND, RECORDING_WINDOW_KIND
from kedge.controllers import CONTROLLERS
from kedge.errors import KedgeError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.readers.recording import Recording
from kedge.sim.incident.draft import DUMP, ScenarioDraft, duration, named, seconds_of
from kedge.sim.incident.late_watches import late_watches
from kedge.sim.incident.outside_writes import outside_acts
from kedge.sim.incident.recorded_failures import recorded_failures
from kedge.sim.standard import LIMITS

MANAGER: Final = "manager"
ALWAYS: Final = ("node-lifecycle", "garbage")
"""Controllers without which no cluster behaves like one."""
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The wall clock of a simulation when it begins."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_LIFE: Final = re.compile(r"(-\d+)?(#\d+)?$")
_TAIL_S: Final = 5.0
"""How long a run goes on after the last recorded commit."""


class NotRebuildable(KedgeError):
    """The recording lacks a part that a simulation needs. The message names it."""


@dataclass(frozen=True, slots=True)
class RebuiltIncident:
    """A recording as a scenario."""

    draft: ScenarioDraft
    begin: datetime
    """The recorded moment at which its steps begin."""
    left_out: tuple[str, ...]
    """Recorded acts that no step can express, one sentence each."""


def rebuild(recording: Recording, *, name: str = "incident", begin: datetime | None = None) -> RebuiltIncident:
    """Make the scenario. It begins with the recorded state, or at a later moment of the recording.

    Raises:
        NotRebuildable: the recording has no history, or no node.
    """
    if not recording.states or not recording.commits:
        raise NotRebuildable("the recording has no history of the store: record it again while a server runs")
    begin = recording.states[0].at if begin is None else begin
    held = _held(recording, begin)
    nodes = [each for each in held.values() if each.key.kind == NODE_KIND]
    if not nodes:
        raise NotRebuildable("the recording has no node at its begin: record it when nodes are registered")
    dump = tuple(_shifted(held[key].edit(), _BEGIN - begin) for key in sorted(held) if _is_loaded(key))
    components = _components(recording)
    copies = _copies(recording)
    limits = _limits(recording)
    world = _world(recording, copies, limits)
    if draws := list(_draws(recording, begin)):
        world["draws"] = draws
    acts = outside_acts(recording, held, begin)
    steps = [
        *acts.steps,
        *late_watches(recording, components, begin),
        *recorded_failures(recording, components, copies, begin, limits.get("lease_s", LIMITS.lease_s)),
    ]
    known = {each.key.name for each in nodes}
    new = sorted(key.name for key in held if key.kind == NODE_KIND and key.name not in known)
    acts.left_out += [f"node {each} joined during the recording" for each in new]
    lasted_s = (recording.commits[-1].at - begin).total_seconds()
    document = {
        "scenario": name,
        "story": f"Rebuilt from a recording of {lasted_s:.0f} s with {len(recording.decisions)} decisions.",
        "world": world,
        "steps": [{"at": duration(lasted_s + _TAIL_S), "note": "the recording ends"}],
        "meanwhile": sorted(steps, key=lambda step: seconds_of(step["at"])),
        "settles within": "0s",
    }
    return RebuiltIncident(ScenarioDraft(document, dump), begin, tuple(acts.left_out))


def _held(recording: Recording, begin: datetime) -> dict[Key, Object]:
    held = {each.key: each for each in recording.states[0].objects}
    for commit in recording.commits:
        if commit.at > begin:
            break
        held.update({each.key: each for each in commit.written})
        for key in commit.deleted:
            held.pop(key, None)
    return held


def _is_loaded(key: Key) -> bool:
    return key.kind != RECORDING_WINDOW_KIND


def _shifted(value: Any, by: timedelta) -> Any:
    """The same data with every time moved, so that an age in the simulation is the recorded age."""
    match value:
        case dict():
            return {name: _shifted(each, by) for name, each in value.items()}
        case list():
            return [_shifted(each, by) for each in value]
        case str() if _TIME.fullmatch(value):
            moved = datetime.fromisoformat(value.replace("Z", "+00:00")) + by
            form = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in value else "%Y-%m-%dT%H:%M:%SZ"
            return moved.strftime(form)
    return value


def _components(recording: Recording) -> dict[str, str]:
    """By run of a process in decisions: the component in the simulation."""
    found = {}
    for decision in recording.decisions:
        if decision.scheduling is not None:
            found[decision.process] = decision.controller
        elif decision.controller in CONTROLLERS:
            found.setdefault(decision.process, MANAGER)
    return found


def _copies(recording: Recording) -> Mapping[str, int]:
    """By component: on how many hosts it ran at once."""
    components = _components(recording)
    hosts: dict[str, set[str]] = {}
    for part in recording.received:
        for decider in part.deciders:
            if decider in components:
                hosts.setdefault(components[decider], set()).add(part.process.partition("#")[0])
    families = {part.process.partition("#")[0] for part in recording.received}
    return {
        component: max(len(names), sum(_LIFE.sub("", each) == component for each in families))
        for component, names in hosts.items()
    }


def _world(recording: Recording, copies: Mapping[str, int], limits: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.controller for each in recording.decisions}
    schedulers = {each.controller for each in recording.decisions if each.scheduling is not None}
    controllers = [name for name in CONTROLLERS if name in names or name in ALWAYS]
    world: dict[str, Any] = {
        "dump": DUMP,
        "schedulers": {name: copies.get(name, 1) for name in sorted(schedulers or {"default-scheduler"})},
        "controllers": controllers,
        "managers": copies.get(MANAGER, 1),
    }
    if limits:
        world["limits"] = dict(limits)
    return world


def _draws(recording: Recording, begin: datetime) -> Iterator[dict[str, Any]]:
    """The draws of attempts in which they may matter: several nodes were feasible, or pods were preempted."""
    for decision in recording.decisions:
        attempt, at_s = decision.scheduling, (decision.began - begin).total_seconds()
        if attempt is None or attempt.draw is None or attempt.choice is None or at_s < 0:
            continue
        if (attempt.choice.node and attempt.choice.feasible > 1) or attempt.victims:
            pod = named(decision.key.kind, decision.key.namespace, decision.key.name)
            yield {"pod": pod, "at": duration(at_s), "draw": attempt.draw}


def _limits(recording: Recording) -> dict[str, Any]:
    """The recorded limits that differ from those of scenarios. A process records only those that it was given."""
    known = {each.name for each in fields(Limits)}
    production, found = Limits(), {}
    simulated = any(each.text == "the cluster starts" for each in recording.outside)
    if not simulated:
        found = {name: getattr(production, name) for name in known}
    for event in recording.outside:
        if event.kind == "start":
            found.update({name: value for name, value in event.data.get("limits", {}).items() if name in known})
    found.pop("decisions_sample_every", None)
    return {
        name: value
        for name, value in sorted(found.items())
        if value != getattr(LIMITS, name) and isinstance(value, int | float) and not isinstance(value, bool)
    }

"""The neighbours of a recorded run: single further faults, each with its distance, nearest first.

Races are decided at writes, so the moments are those of recorded commits: a watch is late from just before a commit of
its kind, a leader ends or is deposed at one of its own writes, a node goes after one of its pods was written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Final

from kedge.api.wellknown import EVENT_KIND, LEASE_KIND
from kedge.observe.records import Decision
from kedge.sim.incident.draft import duration, named, seconds_of
from kedge.sim.incident.rerun import IncidentProgram

DELAYS_S: Final = (2.0, 8.0, 25.0)
APART_S: Final = 1.0
"""Commits that are nearer to each other are one moment."""
LOST_REPLY, DEPOSED, CRASHED, NODE_GONE = 1.0, 2.0, 2.0, 3.0
"""Distances of faults; a late delivery has the tenth part of its seconds."""
TOGETHER_S: Final = 1.0
"""Two faults of one component are tried together if one is in the time of the other, or as near to it."""
_DELAY_UNIT_S: Final = 10.0
_DOWN: Final = "5s"
_NO_ANSWER: Final = "5s"
"""How long a client waits for a lost reply."""
_GONE: Final = ("1m", "5m")
_GONE_UNIT_S: Final = 240.0
"""So much more than the shortest absence of a node is one more of distance."""
LATE: Final = "delay watch"
_NODE_VERBS: Final = ("partition node", "lose node")
_MOMENTS_MAX: Final = 5
"""Moments of one sort of fault for one component: further ones are near the others."""
_BEFORE_S: Final = 0.002
_LOST_VERBS: Final = {"bind": "bind", "reserve": "reserve", "ensure": "create", "delete": "delete"}


@dataclass(frozen=True, slots=True)
class NearbyFaults:
    """One further fault, or several."""

    steps: tuple[Mapping[str, Any], ...]
    component: str = ""
    """The component that it strikes; empty for a node."""

    @property
    def distance(self) -> float:
        """The sum of its faults. Watches that are late together are one late link."""
        late_s = max((seconds_of(each[LATE]["by"]) for each in self.steps if LATE in each), default=0.0)
        return late_s / _DELAY_UNIT_S + sum(_distance(each) for each in self.steps if LATE not in each)

    @property
    def text(self) -> str:
        """The steps in the words of scenarios."""
        return " and ".join(_text(each) for each in self.steps)


def _distance(step: Mapping[str, Any]) -> float:
    [(verb, value)] = [(name, each) for name, each in step.items() if name != "at"]
    if verb in _NODE_VERBS:
        return NODE_GONE + max(0.0, seconds_of(value["lasting"]) - seconds_of(_GONE[0])) / _GONE_UNIT_S
    return {"lose reply": LOST_REPLY, "depose leader": DEPOSED, "restart leader": CRASHED}[verb]


def with_delay(step: Mapping[str, Any], delay_s: float) -> dict[str, Any]:
    """A copy of a late watch, or of a node that is gone, for another time. Others stay as they are."""
    verb = next(name for name in step if name != "at")
    name = "by" if verb == LATE else "lasting"
    if verb != LATE and verb not in _NODE_VERBS:
        return dict(step)
    return {**step, verb: {**step[verb], name: duration(delay_s)}}


def _text(step: Mapping[str, Any]) -> str:
    [(verb, value)] = [(name, each) for name, each in step.items() if name != "at"]
    shown = value if isinstance(value, str) else ", ".join(f"{name} {each}" for name, each in value.items())
    return f"{verb} ({shown}) at {step['at']}"


def neighbours(program: IncidentProgram) -> list[NearbyFaults]:
    """Single faults, and two together that strike one component at one time, nearest first."""
    written = [each for each in program.recording.decisions if _writes(each) and each.began >= program.begin]
    failures = [*_lost_replies(program, written), *_ended_leaders(program, written)]
    found = [
        *_late_watches(program),
        *failures,
        *_lost_nodes(program),
        *_pairs([each for each in failures if len(each.steps) == 1], list(_late_links(program))),
    ]
    return sorted(found, key=lambda each: each.distance)


def search_order(program: IncidentProgram) -> list[NearbyFaults]:
    """Every neighbour in the order of a search.

    Sorts of faults take turns, so that a search that ends early has tried each; a farther sort begins some turns later.
    Of most sorts wide faults are first: all watches of a component late for the longest time, and nodes gone for the
    longest, because a wide fault includes many narrow ones. It may also hide them, so single late watches are a sort of
    their own. The others follow, nearest first.
    """
    written = [each for each in program.recording.decisions if _writes(each) and each.began >= program.begin]
    lost = list(_lost_replies(program, written))
    ended = list(_ended_leaders(program, written))
    links = list(_wide_links(program))
    pairs = [*_pairs([each for each in (*lost, *ended) if len(each.steps) == 1], links)]
    gone = [each for each in _lost_nodes(program) if _lasts_s(each) == seconds_of(_GONE[-1])]
    narrow = sorted(_late_watches(program), key=lambda each: each.distance)
    alone = [each for each in lost if len(each.steps) == 1]
    unseen = sorted((each for each in lost if len(each.steps) > 1), key=lambda each: -each.distance)
    nearest = (0.0, 0.0, LOST_REPLY, LOST_REPLY, DEPOSED, NODE_GONE, CRASHED)
    sorts = (narrow, links, alone, unseen, ended, _nodes_in_turn(gone), pairs)
    begun = [[*[None] * round(distance), *each] for distance, each in zip(nearest, sorts, strict=True)]
    wide = [each for turn in zip_longest(*begun) for each in turn if each is not None]
    tried = {each.text for each in wide}
    return [*wide, *(each for each in neighbours(program) if each.text not in tried)]


def _lasts_s(neighbour: NearbyFaults) -> float:
    return max(seconds_of(value["lasting"]) for step in neighbour.steps for name, value in step.items() if name != "at")


def _nodes_in_turn(gone: Sequence[NearbyFaults]) -> list[NearbyFaults]:
    """Nodes that are gone, each node once before a second moment of any."""
    by_node: dict[str, list[NearbyFaults]] = defaultdict(list)
    for each in gone:
        by_node[next(value["node"] for name, value in each.steps[0].items() if name != "at")].append(each)
    return [each for turn in zip_longest(*by_node.values()) for each in turn if each is not None]


def _wide_links(program: IncidentProgram) -> Iterator[NearbyFaults]:
    """All watches of a component that have events, late together for the longest time. Every moment at which a single
    watch would be late is in the first half of such a time."""
    late_s = DELAYS_S[-1]
    for component, moments in _watched(program):
        times = sorted({at for found in moments.values() for at in _spread(_apart(found, APART_S))})
        for moment in _apart(times, late_s / 2):
            kinds = [
                kind
                for kind, found in sorted(moments.items())
                if any(0.0 <= (at - moment).total_seconds() <= late_s for at in found)
            ]
            yield NearbyFaults(tuple(_late_step(program, moment, kind, late_s, component) for kind in kinds), component)


def moments_of_kind(program: IncidentProgram, kind: str) -> list[float]:
    """When a watch of a kind may begin to be late: just before each commit of it, in seconds since the begin."""
    times = (
        (commit.at - program.begin).total_seconds() - _BEFORE_S
        for commit in program.recording.commits
        if commit.at > program.begin
        and any(key.kind.partition(".")[0] == kind for key in (*(each.key for each in commit.written), *commit.deleted))
    )
    return sorted(set(times))


def _pairs(failures: Sequence[NearbyFaults], late: Sequence[NearbyFaults]) -> Iterator[NearbyFaults]:
    """A late link together with a lost reply or the end of a leader: a bad network often causes both."""
    for one in failures:
        at_s = seconds_of(one.steps[0]["at"])
        for other in late:
            since_s = seconds_of(other.steps[0]["at"])
            lasts_s = seconds_of(other.steps[0]["delay watch"]["by"])
            if one.component == other.component and since_s - TOGETHER_S <= at_s <= since_s + lasts_s:
                yield NearbyFaults((*one.steps, *other.steps), one.component)


def _writes(decision: Decision) -> bool:
    return any(call.outcome in ("done", "removed") for call in decision.calls)


def _at(program: IncidentProgram, moment: Any, *, before_s: float = _BEFORE_S) -> str:
    return duration((moment - program.begin).total_seconds() - before_s)


def _spread(moments: list[Any]) -> list[Any]:
    """At most `_MOMENTS_MAX` of them: the first, the last, and those between at equal distances."""
    if len(moments) <= _MOMENTS_MAX:
        return moments
    step = (len(moments) - 1) / (_MOMENTS_MAX - 1)
    return [moments[round(place * step)] for place in range(_MOMENTS_MAX)]


# -- sorts of faults -------------------------------------------------------------------------------


def _watched(program: IncidentProgram) -> Iterator[tuple[str, dict[str, list[datetime]]]]:
    """By component: the kinds that its decisions read, with the times of their commits."""
    read: dict[str, set[str]] = defaultdict(set)
    for decision in program.recording.decisions:
        if decision.pod_run is None:
            read[_component(decision)] |= {mark.cache for mark in decision.marks if "[" not in mark.cache}
    for component, kinds in sorted(read.items()):
        yield component, _commits_of(program, kinds - {LEASE_KIND, EVENT_KIND})


def _late_watches(program: IncidentProgram) -> Iterator[NearbyFaults]:
    """One watch of one component, late from just before a commit."""
    for component, moments in _watched(program):
        for kind, times in sorted(moments.items()):
            for moment in _spread(_apart(times, APART_S)):
                for late_s in DELAYS_S:
                    step = _late_step(program, moment, kind, late_s, component)
                    yield NearbyFaults((step,), component)


def _late_step(program: IncidentProgram, at: datetime, kind: str, late_s: float, to: str) -> dict[str, Any]:
    return {
        "at": _at(program, at),
        "delay watch": {"of": kind.partition(".")[0], "by": duration(late_s), "to": to},
    }


def _late_links(program: IncidentProgram) -> Iterator[NearbyFaults]:
    """All watches of a component that have events, late together. `fault_search` finds those that a failure needs."""
    for component, moments in _watched(program):
        times = sorted({at for found in moments.values() for at in found})
        for moment in _spread(_apart(times, APART_S)):
            for late_s in DELAYS_S:
                steps = [
                    _late_step(program, moment, kind, late_s, component)
                    for kind in sorted(moments)
                    if any(0.0 <= (at - moment).total_seconds() <= late_s for at in moments[kind])
                ]
                yield NearbyFaults(tuple(steps), component)


def _commits_of(program: IncidentProgram, kinds: set[str]) -> dict[str, list[datetime]]:
    """By kind: the times of its commits after the begin."""
    found: dict[str, list[datetime]] = defaultdict(list)
    for commit in program.recording.commits:
        if commit.at > program.begin:
            for kind in {*(each.key.kind for each in commit.written), *(key.kind for key in commit.deleted)} & kinds:
                found[kind].append(commit.at)
    return found


def _apart(times: Sequence[datetime], by_s: float) -> list[datetime]:
    """The first of each group of times that are near each other."""
    kept: list[datetime] = []
    for each in times:
        if not kept or (each - kept[-1]).total_seconds() >= by_s:
            kept.append(each)
    return kept


def _component(decision: Decision) -> str:
    return decision.controller if decision.scheduling is not None else "manager"


def _lost_replies(program: IncidentProgram, written: list[Decision]) -> Iterator[NearbyFaults]:
    """The reply to some writes of each sort of each component: the first, the last, and one between."""
    found: dict[tuple[str, str, str], dict[str, tuple[NearbyFaults, datetime]]] = defaultdict(dict)
    for decision in written:
        if decision.pod_run is not None:
            continue
        for call in decision.calls:
            if call.key is None or call.verb not in _LOST_VERBS:
                continue
            name = "*" if call.key.name.count("-") >= 4 else call.key.name
            lost = {
                "to": _LOST_VERBS[call.verb],
                "on": named(call.key.kind, call.key.namespace, name),
                "by": _component(decision),
                "timeout": _NO_ANSWER,
            }
            step = {"at": _at(program, decision.began), "lose reply": lost}
            made = NearbyFaults((step,), _component(decision))
            sent = decision.began + timedelta(seconds=call.began_s)
            found[decision.controller, call.verb, call.key.kind].setdefault(made.text, (made, sent))
    for (_, _, kind), each in found.items():
        for made, sent in _spread(list(each.values())):
            yield made
            yield from _unseen_writes(program, made, kind, sent)


def _unseen_writes(
    program: IncidentProgram, failure: NearbyFaults, kind: str, sent: datetime
) -> Iterator[NearbyFaults]:
    """A write whose writer fails, and whose watch is late: the component cannot see that it was committed.

    The watch is late from just after the request: earlier changes of the kind are no part of it.
    """
    for late_s in DELAYS_S:
        late = {"of": kind.partition(".")[0], "by": duration(late_s), "to": failure.component}
        step = {"at": _at(program, sent, before_s=-_BEFORE_S), LATE: late}
        yield NearbyFaults((*failure.steps, step), failure.component)


def _ended_leaders(program: IncidentProgram, written: list[Decision]) -> Iterator[NearbyFaults]:
    """The leader of each controller and scheduler ends, or loses its lease, in the middle of a write."""
    moments: dict[tuple[str, str], dict[datetime, Decision]] = defaultdict(dict)
    for decision in written:
        if decision.pod_run is None and decision.fence:
            moments[decision.controller, _component(decision)][decision.began] = decision
    for (controller, component), decisions in sorted(moments.items()):
        for moment in _spread(_apart(sorted(decisions), APART_S)):
            at = _at(program, moment, before_s=-_BEFORE_S)
            for step in ({"depose leader": controller}, {"restart leader": {"of": controller, "down": _DOWN}}):
                ended = NearbyFaults(({"at": at, **step},), component)
                yield ended
                for kind in sorted({call.key.kind for call in decisions[moment].calls if call.key is not None}):
                    if kind not in (LEASE_KIND, EVENT_KIND):
                        yield from _unseen_writes(program, ended, kind, moment)


def _lost_nodes(program: IncidentProgram) -> Iterator[NearbyFaults]:
    """Each node that started a process is cut off, or loses power, some time after its starts."""
    moments: dict[str, list[Any]] = defaultdict(list)
    for decision in program.recording.decisions:
        if decision.pod_run is not None and decision.began >= program.begin:
            moments[decision.pod_run.node].append(decision.began)
    for node, times in sorted(moments.items()):
        for moment in _spread(times):
            at = _at(program, moment, before_s=-1.0)
            for verb in _NODE_VERBS:
                for lasting in _GONE:
                    yield NearbyFaults(({"at": at, verb: {"node": node, "lasting": lasting}},))

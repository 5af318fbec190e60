"""Failures that a recording shows, as steps: silent nodes, ended processes, lost replies, and containers that ended.

Each belongs to the outside world: no component can decide it again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any, Final

from kedge.api.objects import Object
from kedge.api.views import NodeView, PodView
from kedge.api.wellknown import LEASE_KIND, NODE_KIND, NODE_LEASE_NAMESPACE, POD_KIND, SIM_RUN_S_LABEL
from kedge.keys import NODE_USER_PREFIX, Key
from kedge.observe.readers.recording import Recording
from kedge.observe.records import UNDER_WAY, Decision, PodAct
from kedge.sim.incident.draft import duration, named

_SILENT: Final = 1.8
"""A gap of so many intervals between two heartbeats is a silence."""
_DOWN_S: Final = 1.0
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CALLS: Final = {"ensure": "create", "create": "create", "patch status": "patch", "patch": "patch", "bind": "bind",
                 "reserve": "reserve", "delete": "delete", "evict": "evict", "update": "update"}  # fmt: skip
"""By verb of a recorded call: the verb of the request."""
_EXIT: Final = re.compile(r"exit code (\d+)")


def recorded_failures(
    recording: Recording, components: Mapping[str, str], copies: Mapping[str, int], begin: datetime, lease_s: float
) -> Iterator[dict[str, Any]]:
    """The steps of all failures after `begin`. `lease_s` is how long the lease of a leader lasts."""
    for at, step in (
        *_silent_nodes(recording),
        *_ended_processes(recording, components, copies, lease_s),
        *_lost_replies(recording, components),
        *_ended_containers(recording),
        *_failed_probes(recording),
    ):
        if at > begin:
            yield {"at": duration((at - begin).total_seconds()), **step}


# -- nodes -----------------------------------------------------------------------------------------


def _silent_nodes(recording: Recording) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Nodes that wrote nothing for longer than their heartbeats take."""
    signs: dict[str, list[datetime]] = defaultdict(list)
    beats: dict[str, list[datetime]] = defaultdict(list)
    boots: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for commit in recording.commits:
        for each in commit.written:
            if each.key.kind == NODE_KIND:
                boots[each.key.name].append((commit.at, each.as_view(NodeView).status.node_info.boot_id))
            if each.origin.caller.startswith(NODE_USER_PREFIX):
                name = each.origin.caller.removeprefix(NODE_USER_PREFIX)
                signs[name].append(commit.at)
                if each.key.kind == LEASE_KIND and each.key.namespace == NODE_LEASE_NAMESPACE:
                    beats[name].append(commit.at)
    gaps = [(b - a).total_seconds() for times in beats.values() for a, b in pairwise(times)]
    if not gaps:
        return
    silence_s, last = _SILENT * median(gaps), recording.commits[-1].at
    for name in sorted(signs):
        for since, until in pairwise([*signs[name], last]):
            if (until - since).total_seconds() <= silence_s:
                continue
            lasting = {} if until == last else {"lasting": duration((until - since).total_seconds())}
            before = [boot for at, boot in boots[name] if at <= since]
            after = [boot for at, boot in boots[name] if at >= until]
            rebooted = bool(before and after) and before[-1] != after[0]
            yield (
                since + timedelta(milliseconds=50),
                {"lose node" if rebooted else "partition node": {"node": name, **lasting}},
            )


# -- processes -------------------------------------------------------------------------------------


def _ended_processes(
    recording: Recording, components: Mapping[str, str], copies: Mapping[str, int], lease_s: float
) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Runs of a process that another run of the same component followed."""
    spans: dict[str, dict[str, tuple[datetime, datetime, str]]] = defaultdict(dict)
    for decision in recording.decisions:
        component = components.get(decision.process)
        if component is None:
            continue
        ended = decision.began + timedelta(seconds=decision.took_s)
        first, last, name = spans[component].get(decision.process, (decision.began, ended, decision.controller))
        spans[component][decision.process] = (min(first, decision.began), max(last, ended), name)
    starts = sorted(each.at for each in recording.outside if each.kind == "restart")
    done: list[datetime] = []
    for component, runs in spans.items():
        for one, other in _successions(list(runs.values())):
            begun = next((at for at in starts if one < at <= other), None)
            if any(abs((one - each).total_seconds()) < _DOWN_S for each in done):
                continue  # controllers of one process end together
            done.append(one)
            down = duration(_down_s(one, begun, other, lease_s))
            moment = one + timedelta(milliseconds=1)
            if copies.get(component, 1) > 1:
                leading = next(name for _, last, name in runs.values() if last == one)
                yield moment, {"restart leader": {"of": leading, "down": down}}
            else:
                yield moment, {"restart": {"component": component, "down": down}}


def _down_s(ended: datetime, begun: datetime | None, decided: datetime, lease_s: float) -> float:
    """How long a process was down, from its end, the start of the next one if known, and the first decision of that."""
    if begun is not None:
        return max(_DOWN_S, (begun - ended).total_seconds())
    gap_s = (decided - ended).total_seconds()
    # The successor of a killed process first sees the lease unchanged for its whole duration.
    return max(_DOWN_S, gap_s - (lease_s if gap_s >= lease_s else _DOWN_S))


def _successions(runs: Sequence[tuple[datetime, datetime, str]]) -> Iterator[tuple[datetime, datetime]]:
    """The end of each run and the first decision of the next run of the same controller."""
    by_controller: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for first, last, name in runs:
        by_controller[name].append((first, last))
    for spans in by_controller.values():
        for (_, ended), (begun, _) in pairwise(sorted(spans)):
            if begun > ended:
                yield ended, begun


def _lost_replies(recording: Recording, components: Mapping[str, str]) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Writes that had no answer for a while, or never."""
    operations = {each.origin.operation for commit in recording.commits for each in commit.written}
    for decision in recording.decisions:
        component = components.get(decision.process)
        for call in decision.calls if component is not None else ():
            unanswered = call.unanswered_s > 0 or call.outcome == "OutcomeUnknown"
            cut_off = call.outcome == UNDER_WAY and bool(decision.cut_off)
            if call.key is None or call.verb not in _CALLS or not (unanswered or cut_off):
                continue
            committed = call.operation in operations or call.outcome == "done"
            lost = {
                "to": _CALLS[call.verb],
                "on": named(call.key.kind, call.key.namespace, _UID.sub("*-*-*-*-*", call.key.name)),
                "by": component,
                "after": "commit" if committed else "nothing",
                "timeout": duration(call.unanswered_s or call.took_s or 1.0),
            }
            yield decision.began - timedelta(milliseconds=5), {"lose reply": lost}


# -- containers ------------------------------------------------------------------------------------


def _acts(recording: Recording) -> Iterator[tuple[Decision, PodAct]]:
    for decision in sorted(recording.decisions, key=lambda each: each.began):
        if decision.pod_run is not None:
            for step in decision.steps:
                if isinstance(step, PodAct):
                    yield decision, step


def _ended_containers(recording: Recording) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Processes that ended without a stop by their agent."""
    timed = _timed_pods(recording)
    stopped: set[tuple[Key, str, int]] = set()
    for decision, act in _acts(recording):
        place = (decision.key, act.container, act.attempt)
        if act.verb == "stop":
            stopped.add(place)
        elif act.verb == "exit" and place not in stopped and decision.key not in timed:
            code = _EXIT.match(act.why)
            if code is not None and "LostContact" not in act.why:
                name = named(decision.key.kind, decision.key.namespace, decision.key.name)
                yield decision.began, {"end process": {"of": name, "code": int(code[1])}}


def _timed_pods(recording: Recording) -> frozenset[Key]:
    """Pods whose simulated processes end by themselves, or that have init containers."""
    versions: Iterator[Object] = (each for commit in recording.commits for each in commit.written)
    found = set()
    for each in versions:
        if each.key.kind == POD_KIND:
            pod = each.as_view(PodView)
            if SIM_RUN_S_LABEL in pod.labels or pod.spec.init_containers:
                found.add(each.key)
    return frozenset(found)


def _failed_probes(recording: Recording) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """From the first failed probe of a pod to the next one that passed."""
    failing: dict[Key, datetime] = {}
    for decision, act in _acts(recording):
        if act.verb != "probe":
            continue
        if act.why in ("ready", "started", "alive"):
            since = failing.pop(decision.key, None)
            if since is not None:
                yield since, _probe_step(decision.key, (decision.began - since).total_seconds())
        elif "fail" in act.why or "no answer" in act.why:
            failing.setdefault(decision.key, decision.began)
    for key, since in failing.items():
        yield since, _probe_step(key, (recording.commits[-1].at - since).total_seconds())


def _probe_step(key: Key, lasting_s: float) -> dict[str, Any]:
    return {"fail probe": {"of": named(key.kind, key.namespace, key.name), "lasting": duration(lasting_s)}}

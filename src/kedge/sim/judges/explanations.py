"""Explanations of an unmet ending: the last decision about the object, the component that acts next, the last fault.

`endings` finds the object. The facts here come from the components themselves, so they explain a failure and never
decide whether there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kedge.keys import Key
from kedge.observe.records import CacheRead, Call, Decision
from kedge.runtime import Controller
from kedge.sim.cluster import Cluster
from kedge.sim.cluster.decision_observers import ObservedDecision

if TYPE_CHECKING:
    from kedge.sim.judges.invariants import Judge

INPUTS_MAX = 12
"""Reads and calls of a decision that are printed: the last ones."""
AGENT = "agent-"


class LastDecisions:
    """The newest decision about each object, of any component."""

    def __init__(self, cluster: Cluster) -> None:
        self._sim = cluster.sim
        self._by_key: dict[Key, tuple[float, ObservedDecision]] = {}
        cluster.observe_decisions(self._decided)

    def _decided(self, ended: ObservedDecision) -> None:
        self._by_key[ended.key] = (self._sim.now_s, ended)

    def about(self, key: Key) -> tuple[float, ObservedDecision] | None:
        """The decision, and when it ended."""
        return self._by_key.get(key)


def explain_unmet(judge: Judge, key: Key, waits_for: str, by: str) -> str:
    """The object and what it waits for in the first line; then the decision, the next component and the fault."""
    found = judge.facts.objects.get(key)
    version = f" (revision {found.revision})" if found is not None else ", which does not exist,"
    return "\n".join(
        (
            f"{key}{version} waits for {waits_for}",
            *_last_decision(judge.last_decisions.about(key)),
            *_next(judge.cluster, key, by),
            _last_fault(judge.cluster, key, by),
        )
    )


def _last_decision(found: tuple[float, ObservedDecision] | None) -> Iterator[str]:
    if found is None:
        yield "last decision: none about it"
        return
    at_s, ended = found
    record = ended.record
    if record is None:
        yield f"last decision: {ended.id} on {ended.host} bound it at {at_s:.1f} s"
        return
    error = f", {record.error}" if record.error else ""
    yield f"last decision: {record.id} on {ended.host} ended at {at_s:.1f} s: {record.result or 'cut off'}{error}"
    yield from (f"  {line}" for line in _inputs(record)[-INPUTS_MAX:])


def _inputs(record: Decision) -> list[str]:
    lines = [f"woken by {what}" + (f", written by {writer}" if writer else "") for what, writer in record.wakes[-1:]]
    for step in record.steps:
        match step:
            case CacheRead():
                about = "/".join(each for each in step.about if each)
                lines.append(f"{step.verb} {step.cache} {about}: revision {step.revision}, {step.age_s:.1f} s old")
            case Call():
                lines.append(f"{step.verb} {step.key}: {step.outcome}")
            case _:
                pass
    return lines


def _next(cluster: Cluster, key: Key, by: str) -> Iterator[str]:
    if by.startswith(AGENT):
        node = cluster.nodes.get(by.removeprefix(AGENT))
        state = "there is no such machine" if node is None else "it is up" if node.host.up else "it is down"
        yield f"next: {by}; {state}"
        return
    hosts = [
        (process.host.name, each) for process in cluster.processes if not process.ended for each in process.components
    ]
    shown = [(host, each) for host, each in hosts if isinstance(each, Controller) and each.name == by]
    if not shown:
        found = ", ".join(host for host, each in hosts if type(each).__name__.lower() == by)
        yield f"next: {by} on {found}" if found else f"next: {by}, which does not run"
    for host, controller in shown:
        leads = "leads" if controller.statistics().leading else "does not lead"
        report = controller.explain(key)
        if report is None:
            yield f"next: {by} on {host} {leads}, and its queue does not have the key: a change must wake it"
            continue
        error = f", last error {type(report.last_error).__name__}" if report.last_error is not None else ""
        yield (
            f"next: {by} on {host} {leads}; the key is {report.state.value} ({report.wait_reason.value}),"
            f" {report.failures} failures{error}"
        )


def _last_fault(cluster: Cluster, key: Key, by: str) -> str:
    """The last fault whose text names the object, its component's host, or the machine."""
    names = {key.name, by.removeprefix(AGENT)}
    for process in cluster.processes:
        if any(getattr(each, "name", "") == by or type(each).__name__.lower() == by for each in process.components):
            names.add(process.host.name)
    for event in reversed(cluster.sim.faults.struck):
        if names & {event.host, *re.split(r"[ >:,]+", event.text)}:
            return f"last fault: {event.text} at {event.at_s:.1f} s"
    return "last fault: none touched it"

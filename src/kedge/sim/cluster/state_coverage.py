"""States of objects beside states of caches, at each commit and each decision of a cluster.

Added to the coverage of a run (`kedge.sim.kernel.run_coverage`), with the calls of decisions that did not simply
succeed. Committed objects, caches and records of decisions are read; nothing is drawn or awaited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from kedge.keys import Key, Revision
from kedge.observe.records import Call
from kedge.sim.cluster.decision_observers import ObservedDecision
from kedge.sim.cluster.links import Commit
from kedge.sim.kernel.run_coverage import FAULT_STEPS, STATES, RunCoverage, role_of

if TYPE_CHECKING:
    from kedge.sim.cluster.cluster import Cluster

SUCCESSES = frozenset({"done", "unchanged", "removed", "read"})
"""Outcomes of calls that need no fault."""
STEP_MAX = 8
"""Later steps of a decision count as this one."""


class StateCoverage:
    """Follows the commits and decisions of one cluster."""

    def __init__(self, cluster: Cluster, coverage: RunCoverage) -> None:
        self._cluster = cluster
        self._coverage = coverage
        self._commits: dict[str, list[Revision]] = {}
        """By kind: the revisions that changed an object of it."""
        self._states: dict[Key, tuple[Revision, str]] = {}
        """By object: its version whose state was computed last."""
        cluster.sim.check_always(self._committed)
        cluster.observe_decisions(self._decided)

    def _committed(self, commit: Commit) -> None:
        """Add the new state of each object, beside how far each cache of its kind is behind."""
        for kind in {key.kind: None for key in commit.keys}:
            self._commits.setdefault(kind, []).append(commit.revision)
        for process in self._cluster.processes:
            if process.ended:
                continue
            for key in commit.keys:
                for cache in process.context.caches.of_kind(key.kind):
                    lag = self._lag(key.kind, cache.revision)
                    self._coverage.add(STATES, f"{role_of(process.host.name)}: {self._state(key)}; {lag} behind")

    def _decided(self, ended: ObservedDecision) -> None:
        """Add the state of the object, beside how far the caches were behind when the decision began."""
        state, component = self._state(ended.key), role_of(ended.controller)
        for mark in ended.marks:
            kind = mark.cache.partition("[")[0]
            lag = self._lag(kind, mark.revision)
            self._coverage.add(STATES, f"{component}: {state}; {kind} {lag} behind")
        for number, step in enumerate(() if ended.record is None else ended.record.steps):
            if isinstance(step, Call) and (step.outcome not in SUCCESSES or step.unanswered_s):
                what = f"{step.verb} {step.outcome}{' late' if step.unanswered_s else ''}"
                self._coverage.add(FAULT_STEPS, f"{component} step {min(number, STEP_MAX)}: {what}")

    def _lag(self, kind: str, revision: Revision) -> int:
        """Commits of a kind that a view lacks, to the power of two below."""
        commits = self._commits.get(kind, [])
        missed = len(commits) - bisect_right(commits, revision)
        return 1 << (missed.bit_length() - 1) if missed else 0

    def _state(self, key: Key) -> str:
        entry = self._cluster.store.newest(key)
        if entry is None:
            return f"{key.kind} gone"
        known = self._states.get(key)
        if known is None or known[0] != entry.modified:
            known = self._states[key] = entry.modified, f"{key.kind} {state_of(entry.value)}"
        return known[1]


def state_of(value: bytes) -> str:
    """The state of an object of any kind in few words: counts, names and times are left out."""
    try:
        body = msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return "not JSON"
    return " ".join(_traits(body)) if isinstance(body, dict) else "not an object"


def _traits(body: Mapping[str, Any]) -> Iterator[str]:
    metadata, spec, status = (_part(body, name) for name in ("metadata", "spec", "status"))
    if metadata.get("deletionTimestamp"):
        yield "terminating"
    if metadata.get("finalizers"):
        yield "held"
    if spec.get("nodeName"):
        yield "bound"
    if "phase" in status:
        yield str(status["phase"])
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        yield "not observed"
    for wanted in ("replicas", "parallelism"):
        if isinstance(spec.get(wanted), int):
            had = next((status[name] for name in ("replicas", "active") if isinstance(status.get(name), int)), 0)
            yield "too few" if had < spec[wanted] else "too many" if had > spec[wanted] else "complete"
    conditions = status.get("conditions")
    if isinstance(conditions, list):
        true = (each for each in conditions if isinstance(each, dict) and each.get("status") == "True")
        yield from sorted(str(each.get("type")) for each in true)


def _part(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name)
    return found if isinstance(found, dict) else {}

"""The freshness of decisions: no component acts on a view that it knows, or could know, to be too old.

`invariants.Judge` uses this. The age of a view is computed from the commits and not from what its cache reports. A
finding needs no harm: a decision on an old view was right by luck.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from kedge.api.wellknown import DEPLOYMENT_KIND, POD_KIND, REPLICA_SET_KIND
from kedge.keys import Key, Revision
from kedge.limits import Limits
from kedge.observe.records import CacheRead, Call, Decision
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.cluster.decision_observers import ObservedDecision
from kedge.sim.judges.facts import Finding


class FreshnessBudget(NamedTuple):
    """The oldest view on which a controller may add replicas."""

    kinds: tuple[str, ...]
    """The kinds that it reads."""
    limit: str
    """The limit that declares it."""


BUDGETS: Mapping[str, FreshnessBudget] = {
    "autoscaler": FreshnessBudget((DEPLOYMENT_KIND, REPLICA_SET_KIND, POD_KIND), "autoscaler_cache_age_s"),
}
"""By controller. Writes of the others are proved again by the commit."""
SLACK_S = 1.0
"""A decision takes a moment between its check and its last read."""


class FreshnessJudge:
    """The writes of each key's decisions, and the time of each commit."""

    def __init__(self, cluster: Cluster, limits: Limits, found: Callable[[str, str], None]) -> None:
        self._sim = cluster.sim
        self._find = cluster.find
        self._limits = limits
        self._found = found
        self._wrote: dict[str, list[tuple[Key, Revision]]] = {}
        """By decision that has not ended: its commits."""
        self._owed: dict[tuple[str, Key], dict[str, dict[Key, Revision]]] = {}
        """By run of a controller and key: the newest own version of each object, by kind."""
        self._commits: dict[str, tuple[list[Revision], list[float]]] = {}
        """By kind with a budget: revisions, and their times."""
        self._budgeted = frozenset(kind for budget in BUDGETS.values() for kind in budget.kinds)
        cluster.observe_decisions(self._decided)

    def commit(self, commit: Commit) -> None:
        """Note the decision and the time of a commit."""
        decision = commit.origin.decision
        if decision:
            self._wrote.setdefault(decision, []).extend((key, commit.revision) for key in commit.keys)
        for kind in {key.kind: None for key in commit.keys if key.kind in self._budgeted}:
            revisions, times = self._commits.setdefault(kind, ([], []))
            revisions.append(commit.revision)
            times.append(self._sim.now_s)

    def _decided(self, ended: ObservedDecision) -> None:
        wrote = self._wrote.pop(ended.id, ())
        record = ended.record
        if record is None or record.scheduling is not None:
            read = {mark.cache: mark.revision for mark in ended.marks}
            findings = _before_fence(ended, read)
        else:
            read = {step.cache: step.revision for step in record.steps if isinstance(step, CacheRead)}
            findings = chain(_before_fence(ended, read), self._unseen_writes(record), self._too_old(record, read))
        for cause, message in findings:
            self._found(f"{cause} {ended.controller}", f"{message} ({ended.id})")
            return
        if record is None or record.scheduling is not None:
            return
        calls = [step for step in record.steps if isinstance(step, Call)]
        # The server generates some names: then only the reply has the key.
        targets = {each.key for each in calls} | {found.key for each in calls for found in each.reply}
        owed = [(key, revision) for key, revision in wrote if key in targets]
        if owed:
            found = self._owed.setdefault((record.controller + record.process, record.key), {})
            for key, revision in owed:
                found.setdefault(key.kind, {})[key] = revision

    def _unseen_writes(self, record: Decision) -> Iterator[Finding]:
        """Reads that lack a version that an earlier decision about the same key wrote."""
        owed = self._owed.get((record.controller + record.process, record.key))
        if not owed:
            return
        for step in record.steps:
            versions = owed.get(step.cache) if isinstance(step, CacheRead) else None
            if versions is None or not isinstance(step, CacheRead):
                continue
            read = {each.key: each.revision for each in step.objects}
            for key, revision in versions.items():
                had = read.get(key, 0)
                if had >= revision or (not had and not self._is_missed(step, key, revision)):
                    continue
                version = f"version {had}" if had else f"revision {step.revision}, which lacks it"
                yield "own write", f"{_about(record)} on {key} at {version}, and had written {revision}"

    def _is_missed(self, step: CacheRead, key: Key, revision: Revision) -> bool:
        """Whether a read would have found an object that it did not find, had its cache been at `revision`."""
        found = self._find(key) if step.revision < revision else None
        if found is None:
            return False
        match step.verb:
            case "get":
                return step.about == (key.namespace, key.name)
            case "list":
                return step.about[1] == "" and step.about[0] in ("", key.namespace)
            case _:
                owners = (each.uid for each in found.metadata.owner_references if each.controller)
                return step.about[1] in owners

    def _too_old(self, record: Decision, read: Mapping[str, Revision]) -> Iterator[Finding]:
        """Additions of replicas on a view that lacked a commit for longer than the budget."""
        budget = BUDGETS.get(record.controller)
        grown = None if budget is None else _grown(record)
        if budget is None or grown is None:
            return
        most_s = getattr(self._limits, budget.limit)
        began_s = self._sim.now_s - record.took_s
        for kind in budget.kinds:
            age_s = began_s - self._unseen_since_s(kind, read.get(kind, 0), began_s) if kind in read else 0.0
            if age_s > most_s + SLACK_S:
                view = f"{kind} at revision {read[kind]}, which had been out of date for {age_s:.1f} s"
                text = f"{record.controller} added replicas to {grown} on {view}"
                yield "budget", f"{text}; {budget.limit} is {most_s:.1f} s"

    def _unseen_since_s(self, kind: str, revision: Revision, now_s: float) -> float:
        """When the first commit of a kind was made that a view at `revision` lacks; `now_s` if it lacks none."""
        revisions, times = self._commits.get(kind, ([], []))
        place = bisect_right(revisions, revision)
        return min(times[place], now_s) if place < len(times) else now_s


def _about(decision: Decision | ObservedDecision) -> str:
    return f"{decision.controller} decided about {decision.key}"


def _before_fence(ended: ObservedDecision, read: Mapping[str, Revision]) -> Iterator[Finding]:
    """Views that lack writes of the leader before."""
    for cache, revision in read.items():
        if revision < ended.fence:
            leader = f"as the leader since revision {ended.fence}"
            yield "fence", f"{_about(ended)} {leader}, on {cache} at revision {revision}"


def _grown(record: Decision) -> Key | None:
    """The object to which a decision added replicas; None if it added none."""
    had = {
        each.key: each.view.spec.replicas
        for step in record.steps
        if isinstance(step, CacheRead) and step.verb == "get"
        for each in step.objects
        if each.key.kind == DEPLOYMENT_KIND
    }
    for step in record.steps:
        if isinstance(step, Call) and step.key in had and step.outcome == "done":
            wanted = step.intent.get("spec", {}).get("replicas")
            if wanted is not None and wanted > had[step.key]:
                return step.key
    return None

"""Tallies: for each row of the node table, how many of its pods a rule is about.

Pods that no rule can tell apart are one `CountedPods`; a rule weighs each once. `snapshot` adds and removes pods;
`domains` sums a tally over zones, hosts or whatever a rule calls near.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kedge.api.selectors import LabelSelector
from kedge.api.views.base import Labels
from kedge.placement.ledger import HostPort
from kedge.scheduler.state.columns import Ints, grown
from kedge.scheduler.state.shapes import (
    HARD_AFFINITY_WEIGHT,
    NO_LABELS,
    NO_TERMS,
    PodRequest,
    Term,
    WeightedTerm,
    pod_terms,
)

NamespaceLabels = Mapping[str, Labels]


class CountedPods:
    """Placed pods that no rule can tell apart, and how many of them each row has."""

    __slots__ = ("labels", "namespace", "ports", "rows", "tallies", "terminating", "terms", "workload")

    def __init__(self, request: PodRequest) -> None:
        wants = request.wants
        self.namespace = request.namespace
        self.labels = request.labels
        self.workload = request.workload
        self.terminating = request.terminating
        self.ports = wants.ports
        self.terms = pod_terms(wants.affinity, request.namespace, request.labels) if wants.affinity else NO_TERMS
        self.rows: dict[int, int] = {}
        self.tallies: list[tuple[PodTally, int]] = []
        """The tallies that count this class, and for how much each pod of it counts there."""


class TallyRule(Protocol):
    """What a tally counts. Hashable: shapes whose rules are alike share a tally."""

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        """For how much one pod of the class counts; 0 for not at all."""


@dataclass(frozen=True, slots=True)
class SelectorRule:
    """Pods of a namespace that a spread constraint's selector matches. Those on their way out count no more."""

    namespace: str
    selector: LabelSelector

    def weigh(self, pods: CountedPods, _namespaces: NamespaceLabels) -> int:
        if pods.terminating or pods.namespace != self.namespace:
            return 0
        return int(self.selector.matches(pods.labels))


@dataclass(frozen=True, slots=True)
class TermsRule:
    """Pods that every one of the terms means. To be near one of them is what required affinity asks."""

    terms: tuple[Term, ...]

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        labels = namespaces.get(pods.namespace, NO_LABELS)
        return int(all(term.means(pods.namespace, pods.labels, labels) for term in self.terms))


@dataclass(frozen=True, slots=True)
class AntiAffinityOfOthersRule:
    """Pods whose own required anti-affinity means the pod that is to be placed: the rule is symmetric."""

    topology_key: str
    namespace: str
    labels: Labels

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        labels = namespaces.get(self.namespace, NO_LABELS)
        return sum(
            term.topology_key == self.topology_key and term.means(self.namespace, self.labels, labels)
            for term in pods.terms.anti_affinity
        )


@dataclass(frozen=True, slots=True)
class AttractionRule:
    """The pull between a pod to be placed and those there: its preferences about them, and theirs about it."""

    topology_key: str
    namespace: str
    labels: Labels
    preferred: tuple[WeightedTerm, ...]

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        key, theirs = self.topology_key, namespaces.get(pods.namespace, NO_LABELS)
        ours = namespaces.get(self.namespace, NO_LABELS)
        pull = sum(
            weight
            for term, weight in self.preferred
            if term.topology_key == key and term.means(pods.namespace, pods.labels, theirs)
        )
        pull += sum(
            weight
            for term, weight in pods.terms.preferred
            if term.topology_key == key and term.means(self.namespace, self.labels, ours)
        )
        required = sum(
            term.topology_key == key and term.means(self.namespace, self.labels, ours) for term in pods.terms.affinity
        )
        return pull + HARD_AFFINITY_WEIGHT * required


@dataclass(frozen=True, slots=True)
class WorkloadRule:
    """Replicas of one workload, which `maxZoneSkew` counts. Those on their way out count no more."""

    namespace: str
    workload: str

    def weigh(self, pods: CountedPods, _namespaces: NamespaceLabels) -> int:
        return int(not pods.terminating and (pods.namespace, pods.workload) == (self.namespace, self.workload))


@dataclass(frozen=True, slots=True)
class PortConflictRule:
    """Pods that hold a port of their node which the pod to be placed asks for."""

    ports: tuple[HostPort, ...]

    def weigh(self, pods: CountedPods, _namespaces: NamespaceLabels) -> int:
        return int(any(port.clashes(taken) for port in self.ports for taken in pods.ports))


class PodTally:
    """A rule's count of the pods on each row."""

    __slots__ = ("rows", "rule", "users", "version", "weighing")

    def __init__(self, rule: TallyRule, capacity: int) -> None:
        self.rule = rule
        self.rows: Ints = np.zeros(capacity, np.int64)
        self.weighing = 0
        """How many of the live classes count here. With none every row is zero, and readers may skip it."""
        self.version = 0
        self.users = 0

    def add(self, row: int, weight: int) -> None:
        self.rows[row] += weight
        self.version += 1


class Tallies:
    """Every tally that some shape uses, and every class of pods, kept in step."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tallies: dict[TallyRule, PodTally] = {}
        self._classes: dict[object, CountedPods] = {}
        self._last: tuple[PodRequest, CountedPods] | None = None
        """The class asked for last, which is among them: a series of pods alike need not look it up each time."""
        self.namespaces: dict[str, Labels] = {}
        self.mentioned: dict[str, int] = {}
        """Label keys that terms of placed pods look at. It only grows: a shape made under less stays right for the
        pods that still have it, and a term that comes and goes does not undo all work each time."""
        self.anti_affinity_keys: dict[str, None] = {}
        """Topology keys of required anti-affinity terms of placed pods; likewise."""
        self.attraction_keys: dict[str, None] = {}
        """Topology keys of those of their terms that count in scores; likewise."""
        self.epoch = 0
        """Moves when one of the three grows, or a namespace's labels change: shapes then look again what they need."""

    @property
    def count(self) -> int:
        return len(self._tallies)

    def grow(self, capacity: int) -> None:
        self._capacity = capacity
        for tally in self._tallies.values():
            tally.rows = grown(tally.rows, capacity)

    # -- classes

    def class_of(self, request: PodRequest) -> CountedPods:
        """The class a pod belongs to; its tallies are known from here on."""
        last = self._last
        if last is not None and last[0] is request:
            return last[1]
        found = self._class_of(request)
        self._last = request, found
        return found

    def _class_of(self, request: PodRequest) -> CountedPods:
        wants = request.wants
        key = request if wants.affinity is not None or wants.ports else request[1:]
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = CountedPods(request)
            self._weigh_class(found)
            self._mention(found)
        return found

    def place(self, pods: CountedPods, row: int) -> None:
        rows = pods.rows
        rows[row] = rows.get(row, 0) + 1
        for tally, weight in pods.tallies:
            tally.add(row, weight)

    def take_away(self, pods: CountedPods, row: int) -> None:
        left = pods.rows[row] - 1
        if left:
            pods.rows[row] = left
        else:
            del pods.rows[row]
        for tally, weight in pods.tallies:
            tally.add(row, -weight)

    def forget_empty(self, request: PodRequest, pods: CountedPods) -> None:
        """Drop a class that has no pod any more."""
        if pods.rows:
            return
        self._last = None
        wants = request.wants
        del self._classes[request if wants.affinity is not None or wants.ports else request[1:]]
        for tally, _ in pods.tallies:
            tally.weighing -= 1

    def _weigh_class(self, pods: CountedPods) -> None:
        for tally in self._tallies.values():
            weight = tally.rule.weigh(pods, self.namespaces)
            if weight:
                pods.tallies.append((tally, weight))
                tally.weighing += 1

    def _mention(self, pods: CountedPods) -> None:
        terms = pods.terms
        if terms is NO_TERMS:
            return
        before = len(self.mentioned) + len(self.anti_affinity_keys) + len(self.attraction_keys)
        attracting = [*terms.affinity, *(weighted.term for weighted in terms.preferred)]
        for term in (*attracting, *terms.anti_affinity):
            for requirement in term.selector.requirements:
                self.mentioned[requirement.key] = 1
        for term in attracting:
            self.attraction_keys[term.topology_key] = None
        for term in terms.anti_affinity:
            self.anti_affinity_keys[term.topology_key] = None
        if len(self.mentioned) + len(self.anti_affinity_keys) + len(self.attraction_keys) > before:
            self.epoch += 1

    # -- tallies

    def use(self, rule: TallyRule) -> PodTally:
        """The tally of a rule, counted at once if nobody used it yet. Each use is to be ended with `end`."""
        tally = self._tallies.get(rule)
        if tally is None:
            tally = self._tallies[rule] = PodTally(rule, self._capacity)
            for pods in self._classes.values():
                self._count(tally, pods)
        tally.users += 1
        return tally

    def end(self, tally: PodTally) -> None:
        tally.users -= 1
        if not tally.users:
            del self._tallies[tally.rule]
            for pods in self._classes.values():
                pods.tallies = [entry for entry in pods.tallies if entry[0] is not tally]

    def _count(self, tally: PodTally, pods: CountedPods) -> None:
        weight = tally.rule.weigh(pods, self.namespaces)
        if not weight:
            return
        pods.tallies.append((tally, weight))
        tally.weighing += 1
        rows = np.fromiter(pods.rows.keys(), np.int64, len(pods.rows))
        tally.rows[rows] += weight * np.fromiter(pods.rows.values(), np.int64, len(pods.rows))
        tally.version += 1

    # -- namespaces

    def put_namespace(self, name: str, labels: Labels | None) -> None:
        """Set a namespace's labels, or forget it. Every rule is counted anew, since any may select namespaces."""
        if self.namespaces.get(name) == labels:
            return
        if labels is None:
            del self.namespaces[name]
        else:
            self.namespaces[name] = labels
        self.epoch += 1
        for tally in self._tallies.values():
            tally.rows[:] = 0
            tally.weighing = 0
            tally.version += 1
        for pods in self._classes.values():
            pods.tallies = []
            for tally in self._tallies.values():
                self._count(tally, pods)

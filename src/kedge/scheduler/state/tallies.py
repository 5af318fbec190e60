"""Tallies: for each row of the node table, the number of its pods that a rule matches.

Pods that every rule treats the same are one `CountedPods`; a rule weighs each such class once. `snapshot` adds and
removes pods; `domains` sums a tally over zones, hosts or other domains.
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
    """A class of placed pods that every rule treats the same, and their number on each row."""

    __slots__ = ("labels", "namespace", "ports", "rows", "tallies", "terminating", "terms", "workload")

    def __init__(self, request: PodRequest) -> None:
        requirements = request.requirements
        self.namespace = request.namespace
        self.labels = request.labels
        self.workload = request.workload
        self.terminating = request.terminating
        self.ports = requirements.ports
        self.terms = (
            pod_terms(requirements.affinity, request.namespace, request.labels) if requirements.affinity else NO_TERMS
        )
        self.rows: dict[int, int] = {}
        self.tallies: list[tuple[PodTally, int]] = []
        """The tallies that count this class, with the weight of one pod in each."""


class TallyRule(Protocol):
    """The rule of a tally. Hashable: shapes with equal rules share a tally."""

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        """The weight of one pod of the class; 0 if it does not count."""


@dataclass(frozen=True, slots=True)
class SelectorRule:
    """Pods of a namespace that a spread constraint's selector matches. Terminating pods do not count."""

    namespace: str
    selector: LabelSelector

    def weigh(self, pods: CountedPods, _namespaces: NamespaceLabels) -> int:
        if pods.terminating or pods.namespace != self.namespace:
            return 0
        return int(self.selector.matches(pods.labels))


@dataclass(frozen=True, slots=True)
class TermsRule:
    """Pods that match every term of a required affinity."""

    terms: tuple[Term, ...]

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        labels = namespaces.get(pods.namespace, NO_LABELS)
        return int(all(term.matches_pod(pods.namespace, pods.labels, labels) for term in self.terms))


@dataclass(frozen=True, slots=True)
class AntiAffinityOfOthersRule:
    """Placed pods whose own required anti-affinity matches the pod: the rule is symmetric."""

    topology_key: str
    namespace: str
    labels: Labels

    def weigh(self, pods: CountedPods, namespaces: NamespaceLabels) -> int:
        labels = namespaces.get(self.namespace, NO_LABELS)
        return sum(
            term.topology_key == self.topology_key and term.matches_pod(self.namespace, self.labels, labels)
            for term in pods.terms.anti_affinity
        )


@dataclass(frozen=True, slots=True)
class AttractionRule:
    """Preferred terms in both directions: the pod's about placed pods, and theirs about it."""

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
            if term.topology_key == key and term.matches_pod(pods.namespace, pods.labels, theirs)
        )
        pull += sum(
            weight
            for term, weight in pods.terms.preferred
            if term.topology_key == key and term.matches_pod(self.namespace, self.labels, ours)
        )
        required = sum(
            term.topology_key == key and term.matches_pod(self.namespace, self.labels, ours)
            for term in pods.terms.affinity
        )
        return pull + HARD_AFFINITY_WEIGHT * required


@dataclass(frozen=True, slots=True)
class WorkloadRule:
    """Replicas of one workload, which `maxZoneSkew` counts. Terminating pods do not count."""

    namespace: str
    workload: str

    def weigh(self, pods: CountedPods, _namespaces: NamespaceLabels) -> int:
        return int(not pods.terminating and (pods.namespace, pods.workload) == (self.namespace, self.workload))


@dataclass(frozen=True, slots=True)
class PortConflictRule:
    """Placed pods that hold a host port that the pod requests."""

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
        """The number of classes that count here. At 0 every row is zero, and readers may skip it."""
        self.version = 0
        self.users = 0

    def add(self, row: int, weight: int) -> None:
        self.rows[row] += weight
        self.version += 1


class Tallies:
    """Every tally in use, and every class of placed pods."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tallies: dict[TallyRule, PodTally] = {}
        self._classes: dict[object, CountedPods] = {}
        self._last: tuple[PodRequest, CountedPods] | None = None
        """The class of the last request: replicas arrive one after another, and skip the lookup."""
        self.namespaces: dict[str, Labels] = {}
        self.mentioned: dict[str, int] = {}
        """Label keys in terms of placed pods. It grows until `mention_again`: older shapes stay correct, and a term
        that is added and removed again and again does not discard them each time."""
        self.anti_affinity_keys: dict[str, None] = {}
        """Topology keys of required anti-affinity terms of placed pods; as above."""
        self.attraction_keys: dict[str, None] = {}
        """Topology keys of their terms that count in scores; as above."""
        self._keys_least = 0
        """How many keys the three had after `mention_again`."""
        self.epoch = 0
        """Incremented when one of the three grows, or a namespace's labels change: shapes are then made again."""

    @property
    def count(self) -> int:
        return len(self._tallies)

    def grow(self, capacity: int) -> None:
        self._capacity = capacity
        for tally in self._tallies.values():
            tally.rows = grown(tally.rows, capacity)

    # -- classes

    def class_of(self, request: PodRequest) -> CountedPods:
        """The class of a pod. A new class is weighed by every tally."""
        last = self._last
        if last is not None and last[0] is request:
            return last[1]
        found = self._class_of(request)
        self._last = request, found
        return found

    def _class_of(self, request: PodRequest) -> CountedPods:
        requirements = request.requirements
        key = request if requirements.affinity is not None or requirements.ports else request[1:]
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
        """Drop a class without pods."""
        if pods.rows:
            return
        self._last = None
        requirements = request.requirements
        del self._classes[request if requirements.affinity is not None or requirements.ports else request[1:]]
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
        before = self.key_count
        attracting = [*terms.affinity, *(weighted.term for weighted in terms.preferred)]
        for term in (*attracting, *terms.anti_affinity):
            for requirement in term.selector.requirements:
                self.mentioned[requirement.key] = 1
        for term in attracting:
            self.attraction_keys[term.topology_key] = None
        for term in terms.anti_affinity:
            self.anti_affinity_keys[term.topology_key] = None
        if self.key_count > before:
            self.epoch += 1

    @property
    def key_count(self) -> int:
        return len(self.mentioned) + len(self.anti_affinity_keys) + len(self.attraction_keys)

    def keys_crowded(self, most: int) -> bool:
        """Whether there are more keys than `most`, and than twice those of the pods at the last `mention_again`."""
        return self.key_count > max(most, 2 * self._keys_least)

    def mention_again(self) -> None:
        """Forget the keys of pods that are gone. Shapes that exist are wrong after it: make them again."""
        for keys in (self.mentioned, self.anti_affinity_keys, self.attraction_keys):
            keys.clear()
        for pods in self._classes.values():
            self._mention(pods)
        self._keys_least = self.key_count
        self.epoch += 1

    # -- tallies

    def use(self, rule: TallyRule) -> PodTally:
        """The tally of a rule; a new one is counted at once. Every call needs a matching `end`."""
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
        """Set or remove a namespace's labels. Every rule is counted again: any may select namespaces."""
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

"""Filters of required affinity and anti-affinity between pods, in both directions.

The anti-affinity terms of placed pods keep a new pod away just as its own terms do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import numpy as np

from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.plugin import PodFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import ABSENT, Bools, Ints
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.shapes import NO_LABELS
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import AntiAffinityOfOthersRule, PodTally, TermsRule


class _ApartFilter(PodFilter):
    """Rows in whose domain no pod counts. A node without the topology key is in no domain, and passes."""

    unblocked_by = ClusterEvent.NODE | ClusterEvent.TOPOLOGY | ClusterEvent.POD_GONE | ClusterEvent.NAMESPACE
    preemptible = True

    def __init__(self, snapshot: Snapshot, topology_key: str, tally: PodTally) -> None:
        self.detail = topology_key
        self.ok: Bools = np.zeros(0, np.bool_)
        self._domains = DomainCounts(snapshot, topology_key, tally)

    def rebuild(self) -> None:
        self._domains.rebuild()
        self._compute()

    def _compute(self) -> None:
        domains = self._domains
        if domains.tally.weighing:
            self.ok = (domains.counts == 0)[domains.ids]
        else:
            self.ok = np.ones(len(domains.ids), np.bool_)

    def update(self, rows: list[int]) -> Ints | None:
        domains = self._domains
        moved = domains.update(rows)
        if moved is None:
            before = self.ok
            self._compute()
            return np.flatnonzero(before != self.ok)
        flips = []
        for row, domain, _ in moved:
            empty = bool(domains.counts[domain] == 0)
            if empty != self.ok[row]:
                near = domains.rows_of(row, domain)
                self.ok[near] = empty
                flips.append(near)
        if not flips:
            return None
        return np.concatenate(flips) if len(flips) > 1 else flips[0]


class AntiAffinityFilter(_ApartFilter):
    """One required anti-affinity term of the pod."""

    reason = Reason.POD_ANTI_AFFINITY
    label = BLOCKER_LABELS[Reason.POD_ANTI_AFFINITY]

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterator[Self]:
        for term in context.shape.terms.anti_affinity:
            yield cls(context.snapshot, term.topology_key, context.use_tally(TermsRule((term,))))


class AntiAffinityOfOthersFilter(_ApartFilter):
    """Required anti-affinity terms of placed pods: the rule is symmetric."""

    reason = Reason.ANTI_AFFINITY_OF_OTHERS
    label = BLOCKER_LABELS[Reason.ANTI_AFFINITY_OF_OTHERS]

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterator[Self]:
        snapshot, key = context.snapshot, context.shape.key
        for topology_key in snapshot.tallies.anti_affinity_keys:
            rule = AntiAffinityOfOthersRule(topology_key, key.namespace, key.labels)
            yield cls(snapshot, topology_key, context.use_tally(rule))


class AffinityFilter(PodFilter):
    """Rows that share a domain, for every term's topology key, with a pod that all terms match.

    A pod that matches its own terms may go to any node with the topology keys while no such pod is placed.
    """

    reason = Reason.POD_AFFINITY
    label = BLOCKER_LABELS[Reason.POD_AFFINITY]
    # POD_GONE: once the last matching pod is gone, the first of a series may go anywhere.
    unblocked_by = (
        ClusterEvent.NODE
        | ClusterEvent.TOPOLOGY
        | ClusterEvent.POD_PLACED
        | ClusterEvent.POD_GONE
        | ClusterEvent.NAMESPACE
    )

    def __init__(
        self, snapshot: Snapshot, topology_keys: tuple[str, ...], tally: PodTally, *, matches_itself: bool
    ) -> None:
        self.ok: Bools = np.zeros(0, np.bool_)
        self._parts = [DomainCounts(snapshot, key, tally) for key in dict.fromkeys(topology_keys)]
        self._means_itself = matches_itself
        self._first = False
        self._total = 0

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterator[Self]:
        snapshot, key, terms = context.snapshot, context.shape.key, context.shape.terms.affinity
        if terms:
            own = snapshot.tallies.namespaces.get(key.namespace, NO_LABELS)
            yield cls(
                snapshot,
                tuple(term.topology_key for term in terms),
                context.use_tally(TermsRule(terms)),
                matches_itself=all(term.matches_pod(key.namespace, key.labels, own) for term in terms),
            )

    def rebuild(self) -> None:
        for part in self._parts:
            part.rebuild()
        self._compute()

    def _compute(self) -> None:
        self._total = sum(int(part.counts.sum()) for part in self._parts)
        self._first = self._means_itself and not self._total
        self.ok = np.ones(len(self._parts[0].ids), np.bool_)
        for part in self._parts:
            self.ok &= self._near(part)[part.ids]

    def _near(self, part: DomainCounts) -> Bools:
        near = np.ones(part.domains, np.bool_) if self._first else part.counts > 0
        near[ABSENT] = False
        return near

    def update(self, rows: list[int]) -> Ints | None:
        near_rows: list[Ints] = []
        for part in self._parts:
            moved = part.update(rows)
            if moved is None:
                return self._recompute(rows)
            for row, domain, change in moved:
                self._total += change
                if self._first or not self._total:
                    return self._recompute(rows)
                if len(moved) > 1 or (part.counts[domain] > 0) != (part.counts[domain] - change > 0):
                    near_rows.append(part.rows_of(row, domain))
        if not near_rows:
            return None
        changed = np.concatenate(near_rows) if len(near_rows) > 1 else near_rows[0]
        answer = np.ones(len(changed), np.bool_)
        for part in self._parts:
            answer &= self._near(part)[part.ids[changed]]
        self.ok[changed] = answer
        return changed

    def _recompute(self, rows: list[int]) -> Ints:
        for part in self._parts:
            part.update(rows)  # a part that is up to date does nothing
        before = self.ok
        self._compute()
        return np.flatnonzero(before != self.ok)

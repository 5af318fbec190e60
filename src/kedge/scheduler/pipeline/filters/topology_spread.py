"""The filter of topology spread constraints: no domain may be further ahead of the emptiest one than allowed.

`SkewFilter` is the arithmetic; `zone_skew` applies it to a policy's `maxZoneSkew`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Self

import numpy as np

from kedge.placement.reasons import BLOCKER_LABELS, Reason
from kedge.scheduler.pipeline.filters.node_labels import selected
from kedge.scheduler.pipeline.filters.taints import tolerated
from kedge.scheduler.pipeline.plugin import PodFilter, ShapeContext
from kedge.scheduler.queue.events import ClusterEvent
from kedge.scheduler.state.columns import ABSENT, EVERY, Bools, Ints, as_rows
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.shapes import PodRequirements, Spread
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import PodTally, SelectorRule

_MANY_PART = 16
"""If more than one row in this many changes, all rows are computed."""
_NO_MINIMUM = 2**31 - 1
"""The minimum when no domain counts: no domain can be ahead of it."""


class SkewFilter(PodFilter):
    """Rows whose domain, with this pod, is at most `skew_max` ahead of the emptiest domain."""

    preemptible = True

    def __init__(
        self,
        snapshot: Snapshot,
        topology_key: str,
        tally: PodTally,
        *,
        skew_max: int,
        domains_min: int = 1,
        itself: int = 1,
    ) -> None:
        self.ok: Bools = np.zeros(0, np.bool_)
        self._domains = DomainCounts(snapshot, topology_key, tally)
        self._skew_max = skew_max
        self._domains_min = domains_min
        self._itself = itself
        self._free: Bools | None = None
        self._present: Bools = self.ok
        self._allowed: Bools = self.ok
        self._low = 0
        self._at_low = 0

    @abstractmethod
    def counted_rows(self) -> Bools:
        """The rows whose domains and pods count."""

    def free_rows(self) -> Bools | None:
        """The rows that the rule does not apply to; None if it applies to all."""
        return None

    def rebuild(self) -> None:
        counted = self.counted_rows()
        self._free = self.free_rows()
        domains = self._domains
        domains.rebuild(counted)
        self._present = np.bincount(domains.ids[counted], minlength=domains.domains) > 0
        self._present[ABSENT] = False
        self._compute()

    def _compute(self) -> None:
        self._find_low()
        self._allowed = self._allowed_domains()
        self._compute_rows()

    def _compute_rows(self) -> None:
        self.ok = self._allowed[self._domains.ids]
        if self._free is not None:
            self.ok |= self._free

    def _find_low(self) -> None:
        present = self._domains.counts[self._present]
        if len(present) < self._domains_min:
            self._low, self._at_low = 0, -1  # too few domains: the global minimum is 0
        elif not len(present):
            self._low, self._at_low = _NO_MINIMUM, -1
        else:
            self._low = int(present.min())
            self._at_low = int(np.count_nonzero(present == self._low))

    def _allowed_domains(self) -> Bools:
        allowed: Bools = self._domains.counts + (self._itself - self._low) <= self._skew_max
        allowed[ABSENT] = False
        return allowed

    def update(self, rows: list[int]) -> Ints | slice | None:
        domains = self._domains
        moved = domains.update(rows)
        if moved is None:
            self._compute()
            return EVERY
        if not moved:
            return None
        if self._low_moved(moved):
            before = self._allowed
            self._find_low()
            self._allowed = self._allowed_domains()
            return self._flipped(np.flatnonzero(before != self._allowed))
        flips = []
        for _, domain, _ in moved:
            allowed = bool(domains.counts[domain] + self._itself - self._low <= self._skew_max)
            if allowed != self._allowed[domain]:
                self._allowed[domain] = allowed
                flips.append(domain)
        return self._flipped(as_rows(flips))

    def _flipped(self, which: Ints) -> Ints | slice | None:
        """Compute the rows of domains whose answer changed, and return them."""
        if not len(which):
            return None
        ids = self._domains.ids
        if int(self._domains.sizes[which].sum()) * _MANY_PART > len(ids):
            self._compute_rows()
            return EVERY
        changed = np.flatnonzero(np.isin(ids, which))
        self.ok[changed] = self._allowed[ids[changed]]
        if self._free is not None:
            self.ok[changed] |= self._free[changed]
        return changed

    def _low_moved(self, moved: list[tuple[int, int, int]]) -> bool:
        """Whether the count of the emptiest domain may have changed."""
        if self._at_low < 0:
            return False
        if len(moved) > 1:
            return True
        _, domain, change = moved[0]
        if not self._present[domain]:
            return False
        now = int(self._domains.counts[domain])
        if now <= self._low:
            return True
        if now - change == self._low:
            self._at_low -= 1
        return self._at_low == 0


class TopologySpreadFilter(SkewFilter):
    """One `DoNotSchedule` constraint of the pod. Only nodes with every constraint's topology key count."""

    reason = Reason.TOPOLOGY_SPREAD
    label = BLOCKER_LABELS[Reason.TOPOLOGY_SPREAD]
    unblocked_by = ClusterEvent.NODE | ClusterEvent.TOPOLOGY | ClusterEvent.POD_PLACED | ClusterEvent.POD_GONE

    def __init__(self, context: ShapeContext, constraint: Spread) -> None:
        self.detail = constraint.topology_key
        self._snapshot = context.snapshot
        self._shape = context.shape
        self._constraint = constraint
        super().__init__(
            context.snapshot,
            constraint.topology_key,
            context.use_tally(SelectorRule(context.shape.key.namespace, constraint.selector)),
            skew_max=constraint.skew_max,
            domains_min=constraint.domains_min,
            itself=int(constraint.counts_itself),
        )

    @classmethod
    def for_shape(cls, context: ShapeContext) -> Iterator[Self]:
        for constraint in context.shape.spread_required:
            yield cls(context, constraint)

    def counted_rows(self) -> Bools:
        rows = rows_included(self._snapshot, self._shape.requirements, self._constraint)
        for constraint in self._shape.spread_required:
            rows &= self._snapshot.column(constraint.topology_key).ids != ABSENT
        return rows


def rows_included(snapshot: Snapshot, requirements: PodRequirements, constraint: Spread) -> Bools:
    """The rows that a constraint's node inclusion policies let count."""
    rows = snapshot.exists.copy()
    if constraint.honor_affinity:
        rows &= selected(snapshot, requirements)
    if constraint.honor_taints:
        rows &= tolerated(snapshot, requirements.tolerations)
    return rows

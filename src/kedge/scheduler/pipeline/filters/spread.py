"""The filter of one topology spread constraint: a domain may not get further ahead of the emptiest one than allowed.

A policy's `maxZoneSkew` is the same rule, over zones, for the replicas of one workload.
"""

from __future__ import annotations

import numpy as np

from kedge.scheduler.pipeline.filters.blockers import Blocker
from kedge.scheduler.state.columns import ABSENT, EVERY, Bools, Ints, as_rows
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import PodTally

_MANY_PART = 16
"""Rows that are more than one in so many are not picked out."""
_NO_MINIMUM = 2**31 - 1
"""Stands for the emptiest domain when there is none: then nothing can be ahead of it."""


class SpreadFilter:
    """Rows whose domain would, with this pod, be at most `skew_max` ahead of the emptiest domain."""

    def __init__(
        self,
        snapshot: Snapshot,
        blocker: Blocker,
        topology_key: str,
        tally: PodTally,
        *,
        skew_max: int,
        domains_min: int = 1,
        itself: int = 1,
    ) -> None:
        self.blocker = blocker
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

    @property
    def tally(self) -> PodTally:
        return self._domains.tally

    def rebuild(self, counted: Bools, free: Bools | None = None) -> None:
        """Count anew. `counted` are the nodes whose domains and pods count; `free` those the rule is not about."""
        self._free = free
        domains = self._domains
        domains.rebuild(counted)
        self._present = np.bincount(domains.ids[counted], minlength=domains.domains) > 0
        self._present[ABSENT] = False
        self._judge_all()

    def _judge_all(self) -> None:
        self._find_low()
        self._allowed = self._judged()
        self._judge_rows()

    def _judge_rows(self) -> None:
        self.ok = self._allowed[self._domains.ids]
        if self._free is not None:
            self.ok |= self._free

    def _find_low(self) -> None:
        present = self._domains.counts[self._present]
        if len(present) < self._domains_min:
            self._low, self._at_low = 0, -1  # too few domains: the global minimum is nothing, whatever they hold
        elif not len(present):
            self._low, self._at_low = _NO_MINIMUM, -1
        else:
            self._low = int(present.min())
            self._at_low = int(np.count_nonzero(present == self._low))

    def _judged(self) -> Bools:
        allowed: Bools = self._domains.counts + (self._itself - self._low) <= self._skew_max
        allowed[ABSENT] = False
        return allowed

    def update(self, rows: list[int]) -> Ints | slice | None:
        """Follow changed claims. The rows whose answer changed, or all if they may be many; None if none did."""
        domains = self._domains
        moved = domains.update(rows)
        if moved is None:
            self._judge_all()
            return EVERY
        if not moved:
            return None
        if self._low_moved(moved):
            before = self._allowed
            self._find_low()
            self._allowed = self._judged()
            return self._flipped(np.flatnonzero(before != self._allowed))
        flips = []
        for _, domain, _ in moved:
            allowed = bool(domains.counts[domain] + self._itself - self._low <= self._skew_max)
            if allowed != self._allowed[domain]:
                self._allowed[domain] = allowed
                flips.append(domain)
        return self._flipped(as_rows(flips))

    def _flipped(self, which: Ints) -> Ints | slice | None:
        """The rows of domains whose answer is another now, judged anew."""
        if not len(which):
            return None
        ids = self._domains.ids
        if int(self._domains.sizes[which].sum()) * _MANY_PART > len(ids):
            self._judge_rows()
            return EVERY
        changed = np.flatnonzero(np.isin(ids, which))
        self.ok[changed] = self._allowed[ids[changed]]
        if self._free is not None:
            self.ok[changed] |= self._free[changed]
        return changed

    def _low_moved(self, moved: list[tuple[int, int, int]]) -> bool:
        """Whether the emptiest domain's count may be another now."""
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

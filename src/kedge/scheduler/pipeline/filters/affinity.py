"""Filters of required affinity and anti-affinity between pods, in both directions.

A pod's own terms are its shape's; the anti-affinity of pods already placed binds a new pod just as much.
"""

from __future__ import annotations

import numpy as np

from kedge.placement.reasons import Reason
from kedge.scheduler.pipeline.filters.blockers import Blocker
from kedge.scheduler.state.columns import ABSENT, Bools, Ints
from kedge.scheduler.state.domains import DomainCounts
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import PodTally


class AntiAffinityFilter:
    """Rows in whose domain no pod counts. A node without the topology key is near to nobody."""

    def __init__(self, snapshot: Snapshot, blocker: Blocker, topology_key: str, tally: PodTally) -> None:
        self.blocker = blocker
        self.ok: Bools = np.zeros(0, np.bool_)
        self._domains = DomainCounts(snapshot, topology_key, tally)

    @property
    def tally(self) -> PodTally:
        return self._domains.tally

    def rebuild(self) -> None:
        self._domains.rebuild()
        self._judge_all()

    def _judge_all(self) -> None:
        domains = self._domains
        if domains.tally.weighing:
            self.ok = (domains.counts == 0)[domains.ids]
        else:
            self.ok = np.ones(len(domains.ids), np.bool_)

    def update(self, rows: list[int]) -> Ints | None:
        """Follow changed claims. The rows whose answer changed; None if none did."""
        domains = self._domains
        moved = domains.update(rows)
        if moved is None:
            before = self.ok
            self._judge_all()
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


class AffinityFilter:
    """Rows near, by every term's topology key, to a pod that all terms mean.

    The first of a series that wants to be near its own kind may go anywhere that has the topology keys.
    """

    def __init__(
        self, snapshot: Snapshot, topology_keys: tuple[str, ...], tally: PodTally, *, means_itself: bool
    ) -> None:
        self.blocker = Blocker(Reason.POD_AFFINITY)
        self.ok: Bools = np.zeros(0, np.bool_)
        self._parts = [DomainCounts(snapshot, key, tally) for key in dict.fromkeys(topology_keys)]
        self._means_itself = means_itself
        self._first = False
        self._total = 0

    @property
    def tally(self) -> PodTally:
        return self._parts[0].tally

    def rebuild(self) -> None:
        for part in self._parts:
            part.rebuild()
        self._judge_all()

    def _judge_all(self) -> None:
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
        """Follow changed claims. The rows whose answer changed; None if none did."""
        near_rows: list[Ints] = []
        for part in self._parts:
            moved = part.update(rows)
            if moved is None:
                return self._all_anew(rows)
            for row, domain, change in moved:
                self._total += change
                if self._first or not self._total:
                    return self._all_anew(rows)
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

    def _all_anew(self, rows: list[int]) -> Ints:
        for part in self._parts:
            part.update(rows)  # those that followed already have nothing left to do
        before = self.ok
        self._judge_all()
        return np.flatnonzero(before != self.ok)

"""Counts of pods by topology domain: by zone, by host, or by any other label of nodes.

A domain is one value of one label. Filters and scores of spread and affinity read these counts; `tallies` counts the
pods of each node.
"""

from __future__ import annotations

import numpy as np

from kedge.scheduler.state.columns import ABSENT, Bools, Ids, Ints, as_rows
from kedge.scheduler.state.snapshot import Snapshot
from kedge.scheduler.state.tallies import PodTally


class DomainCounts:
    """A tally, summed over the domains of one topology key. Nodes without the key are in no domain."""

    __slots__ = ("_column", "_seen", "_snapshot", "_version", "counted", "counts", "sizes", "tally")

    def __init__(self, snapshot: Snapshot, topology_key: str, tally: PodTally) -> None:
        self._snapshot = snapshot
        self._column = snapshot.column(topology_key)
        self.tally = tally
        self.counted: Bools | None = None
        """The rows whose pods count; None for all."""
        self.counts: Ints = np.zeros(1, np.int64)
        """By domain. Nodes without the label are not counted, so the first is always zero."""
        self.sizes: Ints = self.counts
        """Rows in each domain."""
        self._seen: Ints = self.counts
        self._version = -1

    @property
    def ids(self) -> Ids:
        """The domain of each row."""
        return self._column.ids

    @property
    def domains(self) -> int:
        return len(self._column.values)

    def rebuild(self, counted: Bools | None = None) -> None:
        self.counted = counted
        self._recount()

    def _recount(self) -> None:
        seen = self.tally.rows.copy()
        if self.counted is not None:
            seen[~self.counted] = 0
        self._seen = seen
        self.counts = np.zeros(self.domains, np.int64)
        self.sizes = np.bincount(self.ids, minlength=self.domains)
        if self.tally.weighing:
            np.add.at(self.counts, self.ids, seen)
            self.counts[ABSENT] = 0
        self._version = self.tally.version

    def update(self, rows: list[int]) -> list[tuple[int, int, int]] | None:
        """Follow the tally on rows whose claims changed: (row, domain, change) for each whose domain's count moved.

        None if there were too many rows: everything was counted again.
        """
        tally = self.tally
        if tally.version == self._version:
            return []
        if len(rows) > self._snapshot.limits.scheduler_repair_max:
            self._recount()
            return None
        self._version = tally.version
        moved = []
        for row in rows:
            now = int(tally.rows[row]) if self.counted is None or self.counted[row] else 0
            change = now - int(self._seen[row])
            if not change:
                continue
            self._seen[row] = now
            domain = int(self.ids[row])
            if domain != ABSENT:
                self.counts[domain] += change
                moved.append((row, domain, change))
        return moved

    def rows_of(self, row: int, domain: int) -> Ints:
        """Every row of a domain, given one row of it."""
        if self.sizes[domain] == 1:
            return as_rows((row,))
        return np.flatnonzero(self.ids == domain)

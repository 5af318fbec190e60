"""Selection: the feasible rows with the highest total, and the tie rule. It is defined here, once.

`shape_state` reports changed totals, and `decide` takes a row. As long as single rows change, nothing is searched.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from kedge.scheduler.state.columns import Ints
from kedge.scheduler.state.snapshot import Snapshot

INFEASIBLE = -1
"""The total of a row without a node, or that is not feasible."""
_GONE_MAX = 32


def choose(snapshot: Snapshot, totals: Ints, draw: int) -> int:
    """The row of the best node; -1 if none is feasible.

    It is number `draw`, modulo their count, of the best nodes in order of name. Each is equally likely; row numbers do
    not matter.
    """
    best = BestRows(snapshot)
    return best.take(totals, draw)


class BestRows:
    """The highest total of one shape, and the nodes that have it."""

    __slots__ = ("_gone", "_order", "_snapshot", "_tied", "total")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order: Ints | None = None
        """The order of names that `_tied` refers to. If it is not the snapshot's, search again."""
        self._tied: Ints | list[int] = []
        """The positions, by name, of the rows with the highest total. An array after a search; a list once single rows
        change, since it is faster to edit, but slower to make."""
        self._gone: list[int] = []
        """Indexes into the array of rows that no longer have it: few, until it becomes a list."""
        self.total = INFEASIBLE

    def forget(self) -> None:
        """More than single rows changed."""
        self._order = None

    def moved(self, row: int, was: int, now: int) -> None:
        """The total of one row changed."""
        if was == now or self._order is None:
            return
        snapshot = self._snapshot
        if self._order is not snapshot.order():
            self._order = None
            return
        total = self.total
        if now < total > was:
            return
        place = snapshot.place_of(row)
        if now > total:
            self.total, self._tied, self._gone = now, [place], []
            return
        tied = self._tied
        if now < total and not isinstance(tied, list):
            insort(self._gone, int(tied.searchsorted(place)))
            if len(self._gone) >= _GONE_MAX:
                self._as_list(tied)
        else:
            tied = tied if isinstance(tied, list) else self._as_list(tied)
            if now < total:
                del tied[bisect_left(tied, place)]
            else:
                insort(tied, place)
        if len(self._tied) == len(self._gone):
            self._order = None

    def _as_list(self, tied: Ints) -> list[int]:
        left: list[int] = np.delete(tied, self._gone).tolist()
        self._tied, self._gone = left, []
        return left

    def take(self, totals: Ints, draw: int) -> int:
        """The row of the best node for a draw; -1 if none is feasible."""
        order = self._snapshot.order()
        if self._order is not order:
            self._search(totals, order)
        if self.total == INFEASIBLE:
            return INFEASIBLE
        at = draw % (len(self._tied) - len(self._gone))
        for gone in self._gone:
            if gone > at:
                break
            at += 1
        return int(order[self._tied[at]])

    def first(self, count: int) -> list[int] | None:
        """The first rows by name that have the highest total, after `take`; None if fewer than `count` have it."""
        order, tied, gone = self._order, self._tied, self._gone
        if order is None or len(tied) - len(gone) < count:
            return None
        found: list[int] = []
        at, skipped = 0, 0
        while len(found) < count:
            if skipped < len(gone) and gone[skipped] == at:
                skipped += 1
            else:
                found.append(int(order[tied[at]]))
            at += 1
        return found

    def _search(self, totals: Ints, order: Ints) -> None:
        self._order, self._gone = order, []
        self.total = int(totals.max(initial=INFEASIBLE))
        self._tied = [] if self.total == INFEASIBLE else np.flatnonzero((totals == self.total)[order])

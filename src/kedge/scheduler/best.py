"""The best rows of one shape, and which of them is taken: the tie rule stands here, once.

`states` says which totals moved, and `decide` takes a row. While only single rows move, nothing is searched again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from kedge.scheduler.columns import Ints
from kedge.scheduler.snapshot import Snapshot

INFEASIBLE = -1
"""The total of a row that is no node, or that cannot take the pod."""


def choose(snapshot: Snapshot, totals: Ints, draw: int) -> int:
    """The row of the best node; -1 if none is feasible.

    Of the best, in the order of their names, it is the one at place `draw`, going round: each is as likely as any
    other, and which rows they have decides nothing.
    """
    best = Best(snapshot)
    return best.take(totals, draw)


class Best:
    """The highest total of one shape, and the nodes that have it."""

    __slots__ = ("_order", "_snapshot", "_tied", "total")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order: Ints | None = None
        """The order of names that `_tied` is about. None, or one that is not the snapshot's: search anew."""
        self._tied: Any = ()
        """The places, in the order of names, of those with the highest total: an array, or a list once one moved."""
        self.total = INFEASIBLE

    def forget(self) -> None:
        """More changed than single rows."""
        self._order = None

    def moved(self, row: int, was: int, now: int) -> None:
        """The total of one row is another."""
        if was == now or self._order is None:
            return
        if self._order is not self._snapshot.order():
            self._order = None
            return
        total = self.total
        if now < total > was:
            return
        place = int(self._snapshot.places()[row])
        if now > total:
            self.total, self._tied = now, [place]
            return
        tied = self._tied
        if not isinstance(tied, list):
            tied = self._tied = tied.tolist()
        if now == total:
            insort(tied, place)
            return
        del tied[bisect_left(tied, place)]
        if not tied:
            self._order = None

    def take(self, totals: Ints, draw: int) -> int:
        """The row of the best node for a draw; -1 if none is feasible."""
        order = self._snapshot.order()
        if self._order is not order:
            self._search(totals, order)
        if self.total == INFEASIBLE:
            return INFEASIBLE
        tied: Sequence[int] = self._tied
        return int(order[tied[draw % len(tied)]])

    def _search(self, totals: Ints, order: Ints) -> None:
        self._order = order
        self.total = int(totals.max(initial=INFEASIBLE))
        self._tied = () if self.total == INFEASIBLE else np.flatnonzero((totals == self.total)[order])

"""The best rows of one shape, and which of them is taken: the tie rule stands here, once.

`states` says which totals moved, and `decide` takes a row. While only single rows move, nothing is searched again.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from kedge.scheduler.state.columns import Ints
from kedge.scheduler.state.snapshot import Snapshot

INFEASIBLE = -1
"""The total of a row that is no node, or that cannot take the pod."""
_GONE_MAX = 32


def choose(snapshot: Snapshot, totals: Ints, draw: int) -> int:
    """The row of the best node; -1 if none is feasible.

    Of the best, in the order of their names, it is the one at place `draw`, going round: each is as likely as any
    other, and which rows they have decides nothing.
    """
    best = BestRows(snapshot)
    return best.take(totals, draw)


class BestRows:
    """The highest total of one shape, and the nodes that have it."""

    __slots__ = ("_gone", "_order", "_snapshot", "_tied", "total")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order: Ints | None = None
        """The order of names that `_tied` is about. None, or one that is not the snapshot's: search anew."""
        self._tied: Ints | list[int] = []
        """The places, in the order of names, of those with the highest total. After a search it is an array; where they
        move one by one for a while it is a list, which is quicker to change, but not to make."""
        self._gone: list[int] = []
        """Which of the array have it no more, by index: few, until it is made a list."""
        self.total = INFEASIBLE

    def forget(self) -> None:
        """More changed than single rows."""
        self._order = None

    def moved(self, row: int, was: int, now: int) -> None:
        """The total of one row is another."""
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

    def _search(self, totals: Ints, order: Ints) -> None:
        self._order, self._gone = order, []
        self.total = int(totals.max(initial=INFEASIBLE))
        self._tied = [] if self.total == INFEASIBLE else np.flatnonzero((totals == self.total)[order])

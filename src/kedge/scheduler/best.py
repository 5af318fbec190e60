"""The best rows of one shape, and which of them is taken: the tie rule stands here, once.

`states` says which totals moved, and `decide` takes a row. While only single rows move, nothing is searched again.
"""

from __future__ import annotations

from bisect import insort

import numpy as np

from kedge.scheduler.columns import Ints
from kedge.scheduler.snapshot import Snapshot

INFEASIBLE = -1
"""The total of a row that is no node, or that cannot take the pod."""
_GONE_MAX = 32
_NOBODY: Ints = np.zeros(0, np.int64)


def choose(snapshot: Snapshot, totals: Ints, draw: int) -> int:
    """The row of the best node; -1 if none is feasible.

    Of the best, in the order of their names, it is the one at place `draw`, going round: each is as likely as any
    other, and which rows they have decides nothing.
    """
    best = Best(snapshot)
    return best.take(totals, draw)


class Best:
    """The highest total of one shape, and the nodes that have it."""

    __slots__ = ("_gone", "_order", "_snapshot", "_tied", "total")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._order: Ints | None = None
        """The order of names that `_tied` is about. None, or one that is not the snapshot's: search anew."""
        self._tied: Ints = _NOBODY
        """The places, in the order of names, of those with the highest total, and of some that had it."""
        self._gone: list[int] = []
        """Which of `_tied` have it no more, in order: few, so that the array is not copied each time."""
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
            self.total, self._tied, self._gone = now, np.asarray((place,)), []
            return
        at = int(self._tied.searchsorted(place))
        if now < total:
            insort(self._gone, at)
            if len(self._gone) == len(self._tied):
                self._order = None
            elif len(self._gone) >= _GONE_MAX:
                self._tied, self._gone = np.delete(self._tied, self._gone), []
        elif at < len(self._tied) and self._tied[at] == place:
            self._gone.remove(at)
        else:
            self._tied = np.insert(self._tied, at, place)
            self._gone = [each + (each >= at) for each in self._gone]

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
        self._tied = _NOBODY if self.total == INFEASIBLE else np.flatnonzero((totals == self.total)[order])

"""The filter on resources, pod count included. It changes with every claim.

A few rows are judged one by one in plain integers, many all at once in columns; the two agree, as a test holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kedge.placement.reasons import Reason
from kedge.scheduler.pipeline.filters.blockers import Blocker
from kedge.scheduler.state.columns import Bools
from kedge.scheduler.state.shapes import Wants
from kedge.scheduler.state.snapshot import AMOUNT_MAX, NodeRow, Snapshot


def shortages_all(snapshot: Snapshot, wants: Wants) -> Iterator[tuple[Blocker, Bools]]:
    """Each resource by name, with the rows that have too little of it. Nothing asked is never short."""
    for resource, amount in sorted(wants.requests.items()):
        if amount <= 0:
            continue
        column = snapshot.resources.get(resource)
        if column is None:
            short = np.ones(snapshot.capacity, np.bool_)
        else:
            short = snapshot.claimed[column] + min(amount, AMOUNT_MAX + 1) > snapshot.offered[column]
        yield Blocker(Reason.RESOURCE, resource), short


def fits_all(snapshot: Snapshot, wants: Wants) -> Bools:
    fitting = snapshot.exists.copy()
    for _, short in shortages_all(snapshot, wants):
        fitting &= ~short
    return fitting


def fits_row(snapshot: Snapshot, wants: Wants, node: NodeRow) -> bool:
    offered, claimed, columns = node.offered, node.claimed, snapshot.resources
    if offered is None:
        return False
    for resource, amount in wants.requests.items():
        if amount <= 0:
            continue
        has = offered.get(resource, 0)
        if claimed.get(columns.get(resource, -1), 0) + amount > (has if has < AMOUNT_MAX else AMOUNT_MAX):
            return False
    return True

"""The best nodes, followed change by change, are those that a search finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import encode
from tests.objects import node

from kedge.api.views import NodeView, decode_as
from kedge.scheduler import Snapshot, snapshot_of
from kedge.scheduler.pipeline.selection import INFEASIBLE, BestRows, choose

NODES = 100
"""More rows than are marked as gone before the list is built."""
ROWS = st.one_of(st.integers(0, 9), st.integers(0, NODES - 1))
MOVES = st.lists(st.tuples(ROWS, st.sampled_from([INFEASIBLE, 5, 6, 7, 7])), min_size=40, max_size=200)


def snapshot_of_many() -> Snapshot:
    """Rows and names are not in the same order."""
    return snapshot_of(decode_as(NodeView, encode(node(f"node-{n * 37 % NODES:03}"))) for n in range(NODES))


SNAPSHOT = snapshot_of_many()


@given(st.sampled_from([INFEASIBLE, 5, 6]), MOVES, st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_following_changes_equals_a_search(at_first: int, moves: list[tuple[int, int]], draw: int) -> None:
    totals = np.full(SNAPSHOT.capacity, INFEASIBLE, np.int64)
    totals[:NODES] = at_first
    best = BestRows(SNAPSHOT)
    for number, (row, total) in enumerate(moves):
        was, totals[row] = int(totals[row]), total
        best.moved(row, was, total)
        found = choose(SNAPSHOT, totals, draw + number)
        assert best.take(totals, draw + number) == found
        assert best.total == (totals[found] if found >= 0 else INFEASIBLE)


def test_the_best_nodes_fill_up_one_by_one_in_any_order() -> None:
    totals = np.full(SNAPSHOT.capacity, INFEASIBLE, np.int64)
    totals[:NODES] = 9
    best, taken = BestRows(SNAPSHOT), []
    for draw in range(NODES):
        row = best.take(totals, draw * 7919)
        assert row == choose(SNAPSHOT, totals, draw * 7919)
        taken.append(row)
        totals[row] = 8
        best.moved(row, 9, 8)
    assert sorted(taken) == list(range(NODES))
    assert totals[best.take(totals, 0)] == 8


def test_a_new_node_shifts_the_positions_of_all() -> None:
    snapshot = snapshot_of(decode_as(NodeView, encode(node(name))) for name in ("node-b", "node-c"))
    totals = np.full(snapshot.capacity, INFEASIBLE, np.int64)
    totals[:2] = 9
    best = BestRows(snapshot)
    assert snapshot.at(best.take(totals, 0)).name == "node-b"
    snapshot.put_node(decode_as(NodeView, encode(node("node-a"))))
    totals[2] = 9
    best.moved(2, INFEASIBLE, 9)
    assert [snapshot.at(best.take(totals, draw)).name for draw in range(3)] == ["node-a", "node-b", "node-c"]

"""Power cuts, syncs that lie and errors of the disk under a SQLite store. `make torture` has many more of each."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path

import pytest
from tests.torture.counts import report, scaled
from tests.torture.disk_trace import run_shimmed
from tests.torture.power_cuts import cut_power

SEED = os.environ.get("KEDGE_TORTURE_SEED") or str(random.randrange(10**9))

pytestmark = pytest.mark.slow


def test_a_power_cut_at_any_point_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    print(f"KEDGE_TORTURE_SEED={SEED}")
    cuts = scaled("CUTS", 300)
    runs = max(1, cuts // 300)
    counts = asyncio.run(cut_power(tmp_path, SEED, runs=runs, commits=400, honest=cuts // runs, lying=0))
    faults = {f"power cut, {kind} of the unsynced writes kept": count for kind, count in counts.honest.items()}
    report("power cuts", disk_faults=faults, acknowledged=counts.acknowledged, lost=0)
    assert counts.honest.total() > cuts * 0.9
    assert counts.honest["torn"] > cuts // 20


def test_a_sync_that_lies_leaves_an_older_store_or_one_that_reports_the_loss(tmp_path: Path) -> None:
    print(f"KEDGE_TORTURE_SEED={SEED}")
    cuts = scaled("CUTS", 300)
    runs = max(1, cuts // 300)
    counts = asyncio.run(cut_power(tmp_path, SEED, runs=runs, commits=400, honest=0, lying=cuts // runs))
    faults = {f"lying syncs, {kind} of the writes kept": count for kind, count in counts.lying.items()}
    report("lying syncs", disk_faults=faults, acknowledged=counts.acknowledged)
    print(
        f"{counts.noticed} noticed, {counts.mixed} of them mixed; {counts.silent} without a trace; {counts.whole} whole"
    )
    assert counts.noticed > cuts // 10
    assert counts.whole > cuts // 20


def test_an_error_of_the_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    cases = scaled("DISK_ERRORS", 40)
    printed = run_shimmed(tmp_path, tmp_path / "a.db", ["errors", str(tmp_path), SEED, str(cases)])
    counts = json.loads(printed)
    ended = counts["ended"]
    faults = {f"EIO in a {name}": count for name, count in counts["struck"].items()}
    report(
        "disk errors", disk_faults=faults, acknowledged=ended["acknowledged"], unknown=ended["OutcomeUnknown"], lost=0
    )
    assert sum(faults.values()) > cases // 4
    assert ended["OutcomeUnknown"], "no commit was in doubt: the test is void"


def test_a_sync_that_never_ends_does_not_hold_the_loop(tmp_path: Path) -> None:
    """Every sync stalls until the loop has made a hundred turns: commits, checkpoints and a compaction."""
    store = tmp_path / "a.db"
    printed = run_shimmed(tmp_path, store, ["stalls", str(store), "-1", "12"])
    counts = json.loads(printed)
    print(printed)
    assert counts["turns"] > 12 * 100

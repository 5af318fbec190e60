"""The benchmarks run, small: their figures mean nothing here. Each ends with one line of JSON for other programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.up_workload import until
from tests.kit.process_nodes import keeper_pids

from kedge.agent.process.channel import start_keeper

ROOT = Path(__file__).parents[2]
KEYS = {
    "store": {
        "commit_vs_bare_sqlite", "commit_busy_vs_bare_sqlite", "create_vs_bare_sqlite", "watch_1000_vs_100",
        "list_splice_speedup", "etcd_commit_vs_bare_etcd", "bytes_per_cached_pod",
    },
    "simulation": {"call_soon_fifo_vs_asyncio", "sleep0_fifo_vs_asyncio", "timers_vs_simpy"},
    "runtime": {"reconciles_per_second", "reconcile_vs_bare_write", "recording_overhead", "queue_ops_per_second"},
    "observe": {"scheduler_overhead", "runtime_overhead", "why_ms", "bytes_per_record"},
    "http": {
        "get_vs_bare", "create_vs_bare", "patch_vs_bare", "list_vs_bare", "watch_1000_vs_bare", "reconcile_vs_kopf",
        "scheduler_https_pods_per_second", "get_us", "create_us", "patch_us", "list_us", "watch_1000_us",
        "etcd_2_creates_per_second", "lease_p99_quiet_ms", "lease_p99_flood_ms",
    },
    "cluster": {
        "clone_to_ready_s", "help_cpu_ms", "idle_cpu_percent", "idle_memory_mb", "kill_to_ready_s", "pods_per_second",
        "bare_loop_per_second", "supervisord_per_second", "many_pods_ready_s",
    },
    "rewind": {
        "ring_overhead",
        "bytes_per_decision",
        "replayed_per_second",
        "page_first_view_s",
        "page_frame_ms_p95",
    },
    "scheduler": {"shape", "pods_per_second", "p50_ms", "p99_ms", "decisions_per_second"},
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_a_benchmark_prints_a_table_and_then_its_figures(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *table, figures = done.stdout.splitlines()
    assert len(table) > 3
    assert KEYS[name] <= json.loads(figures).keys()


def test_an_unknown_shape_is_refused_with_the_list_of_shapes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduler", "--shape", "spred"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "'spread'" in done.stderr


def test_every_shape_binds_every_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.scheduler import PEER, SHAPES, measure

    assert SHAPES.keys() == PEER.keys()
    for shape in SHAPES:  # it waits until all are bound, and fails if they never are
        figures = asyncio.run(measure(shape, nodes=200, part=0.02, folder=tmp_path))
        assert figures["pods_per_second"] > 0


def test_an_overhead_is_taken_from_the_rounds_that_were_disturbed_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds with most context switches are left out, also where they would make the figure lower."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.overhead import Turns, Upkeep, summary_of

    without = Turns(runs=100, cpu_s=1.0)
    quiet = [(Turns(runs=100, cpu_s=1.1), without)] * 30
    disturbed = [(Turns(runs=100, cpu_s=0.5, preempted=9), without)] * 10
    found = summary_of([*disturbed, *quiet], {True: Upkeep(), False: Upkeep()}, per_survivor_s=0.0)
    assert (found.rounds, found.rounds_used) == (40, 30)
    assert found.figure == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.1, 0.1))


def test_work_that_is_done_once_a_second_is_part_of_an_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn has the flush of the log in it, nor a certain share of the garbage collector."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.overhead import Turns, Upkeep, summary_of

    rounds = [(Turns(runs=100, cpu_s=1.0, survivors=20), Turns(runs=100, cpu_s=1.0))] * 10
    found = summary_of(rounds, {True: Upkeep(cpu_s=0.3), False: Upkeep()}, per_survivor_s=0.001)
    assert found.figure == pytest.approx(0.02 + 0.03)


def test_the_cost_of_a_cluster_includes_its_keepers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.cluster import keepers_below

    start_keeper(tmp_path / "state" / "nodes" / "node-1")
    start_keeper(tmp_path / "other" / "nodes" / "node-1")
    try:
        # The process that the keeper was forked from has the same words for a moment.
        ours, others = tmp_path / "state", tmp_path / "other"
        until(lambda: keepers_below(ours) == keeper_pids(ours) and len(keeper_pids(ours)) == 1, "one keeper is counted")
        assert set(keepers_below(ours)).isdisjoint(keeper_pids(others))
    finally:
        for pid in keeper_pids(tmp_path):
            os.kill(pid, signal.SIGKILL)

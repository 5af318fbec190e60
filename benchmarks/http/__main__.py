"""The API over HTTPS: `python -m benchmarks.http [--quick] [--no-etcd] [--only PART ...]`.

Load comes from this process, over TLS on loopback; each server is a process of its own. A figure is the CPU time of the
server for one request, beside that of a bare server (httptools, TLS, a constant answer of the same size) in the same
round: rounds are short and alternate, and the median of their ratios counts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.http.fan_out import fan_out
from benchmarks.http.leases import renewals
from benchmarks.http.load import ServerUnderLoad, bare_server, kedge_server
from benchmarks.http.on_etcd import creates_on_etcd
from benchmarks.http.operators import reconcile
from benchmarks.http.scheduler import schedule
from benchmarks.http.verbs import Beside, creates, gets, lists, patches
from benchmarks.report import print_json, print_table
from kedge.limits import Limits
from kedge.server.http.server import bound_tls_buffers

Row = tuple[object, ...]


@dataclass
class Report:
    """Rows for the table and figures for the line of JSON."""

    rows: list[Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def beside(self, name: str, key: str, found: Beside, bar: float | None = None) -> None:
        self.rows.append((name, f"{found.our_us:,.1f}", f"{found.bare_us:,.1f}", found.ratio, _shown(bar)))
        self.figures[f"{key}_vs_bare"] = found.ratio
        self.figures[f"{key}_us"] = found.our_us
        self.figures[f"{key}_bare_us"] = found.bare_us


def _shown(bar: float | None) -> str:
    return "" if bar is None else f"{bar:g}"


@dataclass(frozen=True)
class Plan:
    """The parts to measure, and their size."""

    folder: Path
    quick: bool
    etcd: bool
    rounds: int
    only: frozenset[str]

    def wants(self, part: str) -> bool:
        return not self.only or part in self.only

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


async def measure_verbs(plan: Plan, ours: ServerUnderLoad, bare: ServerUnderLoad, report: Report) -> None:
    rounds, count = plan.size(plan.rounds, 2), plan.size(512, 128)
    if plan.wants("get"):
        for concurrency in (16, 64):
            found = await gets(ours, bare, count * 2, rounds, concurrency)
            key, bar = ("get", 2.0) if concurrency == 64 else (f"get_{concurrency}", None)
            report.beside(f"get, {concurrency} at once", key, found, bar)
    if plan.wants("create"):
        for concurrency in (1, 16, 64):
            found = await creates(ours, bare, count if concurrency > 1 else count // 4, rounds, concurrency)
            key, bar = ("create", 6.0) if concurrency == 64 else (f"create_{concurrency}", None)
            report.beside(f"create on SQLite, {concurrency} at once", key, found, bar)
    if plan.wants("patch"):
        report.beside("merge patch, 16 at once", "patch", await patches(ours, bare, count, rounds), 8)
    if plan.wants("list"):
        pods = plan.size(10_000, 500)
        report.beside(f"list of {pods:,} pods", "list", await lists(ours, bare, pods, rounds), 2)


async def measure_watches(plan: Plan, ours: ServerUnderLoad, bare: ServerUnderLoad, report: Report) -> None:
    for watchers in (1, 100, 1_000):
        events = plan.size(max(4, 1_000 // watchers), 2)
        count = min(watchers, plan.size(1_000, 20))
        found = await fan_out(ours, bare, count, events, plan.size(plan.rounds, 2))
        bar = 1.5 if watchers == 1_000 else None
        report.beside(f"event to {count:,} watchers", f"watch_{watchers}", found, bar)


async def measure_leases(plan: Plan, report: Report) -> None:
    state = plan.folder / "leases"
    with kedge_server(state) as server:
        pods, connections, seconds = plan.size(10_000, 500), plan.size(64, 16), plan.size(20, 2)
        found = await renewals(server, state, pods=pods, connections=connections, seconds=seconds)
    quiet, under = found.quiet_p99_ms, found.flood_p99_ms
    report.figures["lease_p99_quiet_ms"], report.figures["lease_p99_flood_ms"] = quiet, under
    report.figures["lease_cpu_p99_flood_ms"] = found.flood_cpu_p99_ms
    bar = max(25.0, 5 * quiet)
    report.rows += [
        ("lease renewal, p99 ms: flooded, quiet", f"{under:,.1f}", f"{quiet:,.1f}", "", f"≤ {bar:,.0f}"),
        ("  server's CPU in that time, p99 ms: flooded", f"{found.flood_cpu_p99_ms:,.1f}", "", "", ""),
    ]


async def measure_scheduler(plan: Plan, report: Report) -> None:
    part = 0.02 if plan.quick else 1.0
    for event_loop, key in (("asyncio", "scheduler_https"), ("uvloop", "scheduler_https_uvloop")):
        found = await schedule(plan.folder, nodes=int(5_000 * part), part=part, event_loop=event_loop)
        report.figures[f"{key}_pods_per_second"] = found["pods_per_second"]
        report.figures[f"{key}_server_us"] = found["server_us"]
        report.figures[f"{key}_scheduler_us"] = found["scheduler_us"]
        report.rows += [
            (f"scheduler on {event_loop}: pods a second", found["pods_per_second"], "", "", "≥ 1,000"),
            ("  creates a second meanwhile", found["creates_per_second"], "", "", ""),
            ("  server's CPU a pod", f"{found['server_us']:,.0f}", "", "", ""),
            ("  scheduler's CPU a pod", f"{found['scheduler_us']:,.0f}", "", "", ""),
        ]


async def measure_etcd(plan: Plan, report: Report) -> None:
    servers = plan.size(3, 2)
    found = await creates_on_etcd(plan.folder, servers, plan.size(2_000, 100))
    for n in range(1, servers + 1):
        rate, cost = found[f"{n}"], found[f"{n}_us"]
        report.figures[f"etcd_{n}_creates_per_second"] = rate
        report.figures[f"etcd_{n}_create_us"] = cost
        report.rows.append((f"create on etcd, {n} servers: {rate:,.0f} a second", f"{cost:,.0f}", "", "", ""))


async def measure_reconciles(plan: Plan, ours: ServerUnderLoad, state: Path, report: Report) -> None:
    found = await reconcile(ours, plan.folder, state, plan.size(600, 20), plan.size(5, 1))
    report.figures["reconcile_vs_kopf"] = found["ratio"]
    report.figures["reconciles_per_second"] = found["kedge"]
    report.figures["kopf_reconciles_per_second"] = found["kopf"]
    report.figures["reconcile_us"] = found["kedge_us"]
    report.figures["kopf_reconcile_us"] = found["kopf_us"]
    report.figures["reconcile_server_us"] = found["kedge_server_us"]
    report.figures["kopf_reconcile_server_us"] = found["kopf_server_us"]
    report.rows += [
        ("reconciles a second: kedge, kopf", found["kedge"], found["kopf"], found["ratio"], "≥ 5"),
        ("operator's CPU a reconcile: kedge, kopf", f"{found['kedge_us']:,.0f}", f"{found['kopf_us']:,.0f}", "", ""),
        (
            "server's CPU a reconcile: kedge, kopf",
            f"{found['kedge_server_us']:,.0f}",
            f"{found['kopf_server_us']:,.0f}",
            "",
            "",
        ),
    ]


async def measure(plan: Plan) -> Report:
    report = Report()
    state = plan.folder / "state"
    with kedge_server(state) as ours, bare_server(state, ours) as bare:
        await measure_verbs(plan, ours, bare, report)
        parts: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("watch", lambda: measure_watches(plan, ours, bare, report)),
            ("reconcile", lambda: measure_reconciles(plan, ours, state, report)),
        ]
        for name, part in parts:
            if plan.wants(name):
                await part()
    if plan.wants("lease"):
        await measure_leases(plan, report)
    if plan.wants("scheduler"):
        await measure_scheduler(plan, report)
    if plan.etcd and plan.wants("etcd"):
        await measure_etcd(plan, report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each comparison")
    parser.add_argument("--no-etcd", action="store_true", help="leave etcd out")
    parser.add_argument(
        "--only", action="append", default=[], help="one part; may be given again",
        choices=("get", "create", "patch", "list", "watch", "reconcile", "lease", "scheduler", "etcd"),
    )  # fmt: skip
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8_192)), hard))
    bound_tls_buffers(Limits())
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        plan = Plan(Path(folder), asked.quick, not asked.no_etcd, asked.rounds, frozenset(asked.only))
        report = asyncio.run(measure(plan))
    print_table(
        "HTTPS: CPU µs of the server for one request or delivered event (medians)",
        ("", "kedge", "bare", "ratio", "bar"),
        report.rows,
    )
    print_json(report.figures)


if __name__ == "__main__":
    main()

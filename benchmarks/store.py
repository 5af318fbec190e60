"""The store and the service beside the bare machine: `python -m benchmarks.store [--quick] [--no-etcd]`.

Everything is measured in one run on the same 1 KiB pods, in rounds that put each figure next to its peer, and
reported as the median of the rounds' ratios: on a noisy machine ratios count, single times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sqlite3
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import print_json, print_table
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Binding
from kedge.env import Env, system_env
from kedge.keys import Key
from kedge.server.service import Service
from kedge.store import Absent, Put, Store, StoreWatch
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore

CONCURRENCY = 64
POD = KINDS.of_key_kind("Pod")


def pod_body(name: str) -> dict[str, Any]:
    """A pod of about 1 KiB."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "risk-api", "tier": "backend", "pod-template-hash": "7f2c9d"},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/risk-api:42.1.7",
                    "command": ["/bin/risk-api", "--listen", "0.0.0.0:8080"],
                    "env": [{"name": f"SETTING_{n}", "value": f"value-of-setting-{n}"} for n in range(8)],
                    "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}, "limits": {"memory": "500Mi"}},
                }
            ],
            "nodeSelector": {"pool": "general"},
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
        },
        "status": {"phase": "Pending"},
    }


VALUE = encode_object(pod_body("risk-api-7f2c9d-00000"))


# -- the bare machine ------------------------------------------------------------------------------


def bare_sqlite(folder: Path, rows: int) -> float:
    """Rows a second: `executemany` of 64 rows a transaction, write-ahead log, full sync."""
    connection = sqlite3.connect(folder / f"bare-{time.monotonic_ns()}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (name TEXT PRIMARY KEY, value BLOB)")
    started = time.perf_counter()
    for first in range(0, rows, CONCURRENCY):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?)", [(f"Pod/default/p{n}", VALUE) for n in range(first, first + CONCURRENCY)]
        )
        connection.execute("COMMIT")
    rate = rows / (time.perf_counter() - started)
    connection.close()
    return rate


async def rate_of(write: Callable[[int], Awaitable[object]], count: int) -> float:
    """Writes a second with `CONCURRENCY` writers."""
    numbers = iter(range(count))

    async def worker() -> None:
        for n in numbers:
            await write(n)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(worker())
    return count / (time.perf_counter() - started)


# -- kedge -----------------------------------------------------------------------------------------


async def commit_rate(store: Store, prefix: str, count: int) -> float:
    async def write(n: int) -> None:
        key = Key("Pod", "default", f"{prefix}{n}")
        await store.commit([Absent(key)], [Put(key, VALUE)])

    return await rate_of(write, count)


async def commit_rate_busy(store: Store, prefix: str, count: int) -> float:
    """As `commit_rate`, while another task keeps the loop busy: 100 µs of work, then one turn for the other tasks."""

    async def busy() -> None:
        while True:
            until = time.perf_counter() + 100e-6
            while time.perf_counter() < until:
                msgspec.json.decode(VALUE)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(busy()) for _ in range(4)]
    try:
        return await commit_rate(store, prefix, count)
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def create_rate(service: Service, prefix: str, count: int) -> float:
    bodies = [msgspec.json.encode(pod_body(f"{prefix}{n}")) for n in range(count)]

    async def write(n: int) -> None:
        await service.create(POD, bodies[n])

    return await rate_of(write, count)


async def bind_rate(service: Service, prefix: str, count: int) -> float:
    """Binds a second of pods that `create_rate` made, two to a node, never two at once: those would conflict."""
    offered = {"cpu": "4", "memory": "32Gi", "pods": "110"}
    nodes = count // 2
    for n in range(nodes):
        labels = {"pool": "general", "topology.kubernetes.io/zone": f"zone-{n % 3}"}
        body = {"metadata": {"name": f"{prefix}{n}", "labels": labels}, "status": {"allocatable": offered}}
        await service.create(KINDS.of_key_kind("Node"), body)
    uids = [(await service.get(Key("Pod", "default", f"{prefix}{n}"))).uid for n in range(count)]

    async def write(n: int) -> None:
        node = f"{prefix}{n % nodes}"
        await service.bind(Binding(pod=Key("Pod", "default", f"{prefix}{n}"), pod_uid=uids[n], node=node))

    return await rate_of(write, count)


async def make_namespace(service: Service) -> None:
    await service.create(KINDS.of_key_kind("Namespace"), {"metadata": {"name": "default"}})


# -- parts -----------------------------------------------------------------------------------------


async def measure_sqlite(folder: Path, count: int, rounds: int) -> list[dict[str, float]]:
    found = []
    for n in range(rounds):
        env = system_env()
        store = await SqliteStore.open(folder / f"kedge-{n}.db", env)
        service = Service(store, env)
        await make_namespace(service)
        found.append(
            {
                "bare": bare_sqlite(folder, count),
                "commit": await commit_rate(store, "c", count),
                "busy": await commit_rate_busy(store, "b", count // 2),
                "create": await create_rate(service, "s", count // 2),
                "bind": await bind_rate(service, "s", count // 2),
            }
        )
        await store.close()
    return found


async def watch_cost_us(store: Store, watchers: int, deliveries: int) -> float:
    """Microseconds from the start of a commit to its last delivery, for each event delivered."""
    events = max(24, deliveries // watchers)
    seen = 0
    done = asyncio.Event()

    async def follow(stream: StoreWatch) -> None:
        nonlocal seen
        async for batch in stream:
            seen += len(batch.changes)
            if seen == events * watchers:
                done.set()

    streams = [await store.watch("Pod", after=await store.revision()) for _ in range(watchers)]
    tasks = [asyncio.create_task(follow(stream)) for stream in streams]
    await asyncio.sleep(0)
    started = time.perf_counter()
    for first in range(0, events, 8):  # eight commits share a sync, as under load
        names = range(first, min(first + 8, events))
        await asyncio.gather(*(store.commit([], [Put(Key("Pod", "default", f"p{n}"), VALUE)]) for n in names))
    await done.wait()
    cost_us = (time.perf_counter() - started) / (events * watchers) * 1e6
    for stream in streams:
        stream.close()
    await asyncio.gather(*tasks)
    await store.close()
    return cost_us


async def measure_watch(folder: Path, deliveries: int, rounds: int) -> list[dict[str, float]]:
    """Rounds of watch costs: with the disk's share (`sqlite 100`), and the fan-out alone (`memory 100`)."""
    found = []
    for n in range(rounds):
        row = {}
        for watchers in (1, 100, 1_000):
            on_disk = await SqliteStore.open(folder / f"watch-{n}-{watchers}.db", system_env())
            row[f"sqlite {watchers}"] = await watch_cost_us(on_disk, watchers, deliveries)
            row[f"memory {watchers}"] = await watch_cost_us(MemoryStore(system_env()), watchers, deliveries)
        found.append(row)
    return found


async def measure_list(service: Service, pods: int, rounds: int) -> tuple[float, float]:
    """Seconds to answer a list of `pods`: spliced from stored bytes, and decoded and encoded again."""
    spliced, encoded = [], []
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        listing = await service.list(POD)
        body = listing.json()
        spliced.append(time.perf_counter() - started)
        assert len(listing.objects) == pods
        started = time.perf_counter()
        listing = await service.list(POD)
        items = [
            {**(item := each.edit()), "metadata": {**item["metadata"], "resourceVersion": str(each.revision)}}
            for each in listing.objects
        ]
        again = msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "PodList",
                "metadata": {"resourceVersion": str(listing.revision)},
                "items": items,
            }
        )
        encoded.append(time.perf_counter() - started)
        assert len(msgspec.json.decode(body)["items"]) == len(msgspec.json.decode(again)["items"])
    return statistics.median(spliced), statistics.median(encoded)


def bytes_per_cached_pod(pods: int) -> float:
    """Memory of one pod in a cache: its bytes, its key and its decoded view."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cached = []
    for n in range(pods):
        name = f"risk-api-7f2c9d-{n:05}"
        value = encode_object(pod_body(name))
        found = Object(POD, Key("Pod", "default", name), value, revision=n + 1)
        assert found.view is not None
        cached.append(found)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(cached) == pods
    return used / pods


async def measure_etcd(env: Env, count: int, rounds: int) -> list[dict[str, float]]:
    # Imported here, so that --no-etcd does not need the etcd extra.
    from tests.etcd_server import etcd_server, sound_etcd, wheel_etcd

    from benchmarks.etcd import bare_put_rate
    from kedge.store.etcd import EtcdStore

    binary = sound_etcd() or wheel_etcd()
    if binary is None:
        raise SystemExit("no etcd was found: run make venv, or leave it out with --no-etcd")
    found = []
    with etcd_server(binary) as server:
        store = await EtcdStore.open([server.endpoint], env)
        service = Service(store, env)
        await make_namespace(service)
        for n in range(rounds):
            found.append(
                {
                    "bare": await bare_put_rate(server.endpoint, f"/bare/{n}/", VALUE, count, CONCURRENCY),
                    "commit": await commit_rate(store, f"c{n}-", count),
                    "create": await create_rate(service, f"s{n}-", count // 2),
                }
            )
        await store.close()
    return found


# -- all of it -------------------------------------------------------------------------------------


def ratio(rounds: list[dict[str, float]], of: str, to: str = "bare") -> float:
    return statistics.median(each[of] / each[to] for each in rounds)


def median(rounds: list[dict[str, float]], of: str) -> float:
    return statistics.median(each[of] for each in rounds)


async def measure(folder: Path, *, quick: bool, etcd: bool) -> dict[str, Any]:
    count, rounds, pods = (1_280, 1, 1_000) if quick else (6_400, 9, 10_000)
    sqlite = await measure_sqlite(folder, count, rounds)
    watch = await measure_watch(folder, 2_000 if quick else 100_000, rounds)
    env = system_env()
    store = await SqliteStore.open(folder / "list.db", env)
    service = Service(store, env)
    await make_namespace(service)
    await create_rate(service, "p", pods)
    spliced_s, encoded_s = await measure_list(service, pods, rounds)
    await store.close()
    cached = bytes_per_cached_pod(min(pods, 5_000))
    found_etcd = await measure_etcd(system_env(), count // 8, rounds) if etcd else []

    rows: list[tuple[object, ...]] = [
        ("bare sqlite3, batches of 64, full sync", f"{median(sqlite, 'bare'):,.0f} rows/s", "1.00"),
        ("commit on sqlite, 64 at once", f"{median(sqlite, 'commit'):,.0f} commits/s", ratio(sqlite, "commit")),
        ("the same on a busy loop", f"{median(sqlite, 'busy'):,.0f} commits/s", ratio(sqlite, "busy")),
        ("service create on sqlite", f"{median(sqlite, 'create'):,.0f} creates/s", ratio(sqlite, "create")),
        ("service bind on sqlite", f"{median(sqlite, 'bind'):,.0f} binds/s", ratio(sqlite, "bind")),
    ]
    if found_etcd:
        rows += [
            ("bare etcd puts, 64 at once", f"{median(found_etcd, 'bare'):,.0f} puts/s", "1.00"),
            (
                "commit on etcd, 64 at once",
                f"{median(found_etcd, 'commit'):,.0f} commits/s",
                ratio(found_etcd, "commit"),
            ),
            ("service create on etcd", f"{median(found_etcd, 'create'):,.0f} creates/s", ratio(found_etcd, "create")),
        ]
    for n in (1, 100, 1_000):
        rows.append((f"commit to delivery, {n:,} watchers", f"{median(watch, f'sqlite {n}'):,.2f} µs/event", ""))
    for n in (1, 100, 1_000):
        rows.append((f"fan-out alone, {n:,} watchers", f"{median(watch, f'memory {n}'):,.2f} µs/event", ""))
    rows += [
        (f"list of {pods:,} pods, spliced", f"{spliced_s * 1e3:,.1f} ms", ""),
        (f"list of {pods:,} pods, decoded and encoded", f"{encoded_s * 1e3:,.1f} ms", encoded_s / spliced_s),
        ("memory of a cached pod", f"{cached:,.0f} bytes", ""),
    ]
    print_table(
        f"Store, on pods of {len(VALUE):,} bytes (median of {rounds} rounds)", ("what", "figure", "ratio"), rows
    )
    figures: dict[str, Any] = {
        "commit_vs_bare_sqlite": ratio(sqlite, "commit"),
        "commit_busy_vs_bare_sqlite": ratio(sqlite, "busy"),
        "create_vs_bare_sqlite": ratio(sqlite, "create"),
        "binds_per_second": median(sqlite, "bind"),
        "watch_1000_vs_100": max(ratio(watch, "sqlite 1000", "sqlite 100"), ratio(watch, "memory 1000", "memory 100")),
        "list_splice_speedup": encoded_s / spliced_s,
        "bytes_per_cached_pod": round(cached),
    }
    if found_etcd:
        figures["etcd_commit_vs_bare_etcd"] = ratio(found_etcd, "commit")
        figures["etcd_create_vs_bare_etcd"] = ratio(found_etcd, "create")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--no-etcd", action="store_true", help="leave etcd out")
    parser.add_argument("--folder", help="where to put the databases (default: a temporary folder on this disk)")
    asked = parser.parse_args()
    base = asked.folder or os.environ.get("TMPDIR") or tempfile.gettempdir()
    with tempfile.TemporaryDirectory(dir=base) as folder:
        figures = asyncio.run(measure(Path(folder), quick=asked.quick, etcd=not asked.no_etcd))
    print_json(figures)


if __name__ == "__main__":
    main()

"""The cost of records and metrics, and of an answer from them: `python -m benchmarks.observe [--quick]`.

The same work is done with and without recording and metrics, in short turns of one run, and CPU time is compared: the
scheduler's `basic` shape on two clusters in one process, and the controller of `benchmarks.runtime`. Then `kedge why`
answers from a log of a million kept decisions.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.report import print_json, print_table
from benchmarks.runtime import BEGUN, CollectorClock, Overhead, Run, overhead_of, reconciles
from benchmarks.scheduler import NAMESPACE, NODE, Bench, bound, node, pod, start_bench
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.cli.live import evidence_from, owner_uids, related_keys, with_logged
from kedge.cli.timeline import timeline_of
from kedge.cli.why import answer_about
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.heap import tune_collector
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.metrics import BOUNDS_S, Counter, Gauge, Histogram, Metrics
from kedge.observe.readers.logged_part import answer_part, history_part
from kedge.observe.readers.recording import Recording
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.log_search import LogSearch
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import (
    AttemptChoice,
    CacheMark,
    CacheRead,
    Call,
    Decision,
    NodeAccount,
    SchedulingAttempt,
    ScoredNode,
    encode_intent,
)
from kedge.server.service import Service
from kedge.store import Put
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
DEPLOYMENT, REPLICA_SET = (KINDS.of_key_kind(each) for each in ("Deployment.apps", "ReplicaSet.apps"))
REPLICAS = 10
"""Pods of one Deployment in the log."""
LIVE = 500
"""Deployments of the log that exist when `why` is asked; the others are gone."""


# -- without metrics -------------------------------------------------------------------------------


class _NoCounter(Counter):
    def inc(self, amount: float = 1) -> None: ...


class _NoGauge(Gauge):
    def set(self, value: float) -> None: ...

    def inc(self, amount: float = 1) -> None: ...

    def dec(self, amount: float = 1) -> None: ...


class _NoHistogram(Histogram):
    def observe(self, value: float, decision: str = "") -> None: ...


class NoMetrics(Metrics):
    """Series that count nothing. The calls remain: what is measured is the work in them."""

    def counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        return self._series_of(_NoCounter, name, help_text, labels)

    def gauge(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return self._series_of(_NoGauge, name, help_text, labels)

    def histogram(
        self, name: str, help_text: str, labels: tuple[str, ...] = (), *, bounds: tuple[float, ...] = BOUNDS_S
    ) -> Histogram:
        del bounds
        return self._series_of(_NoHistogram, name, help_text, labels)


def metrics_of(*, recorded: bool) -> Metrics:
    return Metrics() if recorded else NoMetrics()


# -- the scheduler ---------------------------------------------------------------------------------


class MeasuredCluster:
    """One cluster of the `basic` shape, with or without recording, which lives for all rounds."""

    def __init__(self, folder: Path, *, recorded: bool) -> None:
        self._folder = folder / ("recorded" if recorded else "plain")
        self._recorded = recorded
        self._pods = 0
        self._flushed_s = 0.0
        self.env: Env
        self.bench: Bench
        self.log: DecisionLog | None = None
        self.recorder: Recorder | None = None

    async def start(self, nodes: int, pods: int) -> None:
        self._folder.mkdir()
        self.env = system_env(limits=Limits(client_in_flight_max=512), metrics=metrics_of(recorded=self._recorded))
        self.store = await SqliteStore.open(self._folder / "store.db", self.env)
        if self._recorded:
            self.log = DecisionLog(self._folder / "decisions", self.env)
            self.recorder = Recorder(self.env, log=self.log)
        self.bench = await start_bench(self.store, self.env, nodes=nodes, recorder=self.recorder)
        await self.place(pods)

    async def place(self, count: int) -> Run:
        """Create pods and wait until all are bound; CPU time of it."""
        bench = self.bench
        bench.created_s.clear()
        bench.bound_s.clear()
        bodies = [pod(f"pod-{self._pods + n}") for n in range(count)]
        self._pods += count
        collector = CollectorClock()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        await bench.create(bodies)
        await bound(bench, count)
        if self.log is not None and began_s - self._flushed_s >= self.env.limits.decision_log_sync_s:
            self.log.flush()  # as often as every process of kedge does
            self._flushed_s = began_s
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
        collector.stop()
        return Run(count, wall_s, cpu_s, collector_s=collector.cpu_s, survivors=collector.survivors)

    async def stop(self) -> None:
        await self.bench.stop()
        await self.store.close()


def scheduler_overhead(*, nodes: int, pods: int, rounds: int, folder: Path) -> Overhead:
    """Both clusters place the same pods in turns: the speed of the machine changes, and is the same for both."""
    loop = asyncio.new_event_loop()
    clusters = {recorded: MeasuredCluster(folder, recorded=recorded) for recorded in (True, False)}
    try:
        for each in clusters.values():
            loop.run_until_complete(each.start(nodes, pods))
        gc.collect()
        gc.freeze()
        return overhead_of(lambda recorded: loop.run_until_complete(clusters[recorded].place(pods)), rounds=rounds)
    finally:
        gc.unfreeze()
        for each in clusters.values():
            loop.run_until_complete(each.stop())
        loop.close()


def runtime_overhead(*, count: int, rounds: int, folder: Path) -> Overhead:
    def work(recorded: bool) -> Run:
        metrics = metrics_of(recorded=recorded)
        return asyncio.run(
            reconciles(count, recorded=recorded, failing=True, folder=folder, metrics=metrics, begun=BEGUN)
        )

    return overhead_of(work, rounds=rounds)


# -- a log of a million decisions ------------------------------------------------------------------


class Fleet:
    """Deployments whose pods are created, placed and reported ready, as decisions of three controllers."""

    def __init__(self) -> None:
        self._random = Random(1)
        self._revision = 1_000
        self._number = 0
        self.live: dict[Key, Object] = {}
        self._nodes = tuple(f"node-{n:05}" for n in range(100))
        parts = {"least-allocated": 60, "spread": 80}
        top = tuple(ScoredNode(each, 140, parts) for each in self._nodes[:3])
        self._account = NodeAccount(bytes(100), (), {}, top, None)

    def decisions(self, count: int) -> Iterator[Decision]:
        made = workload = 0
        while made < count:
            for each in self._workload(f"web-{workload:06}"):
                made += 1
                yield each
            workload += 1

    def _object(self, kind: str, name: str, owner: Object | None, decision: str, **parts: Any) -> Object:
        self._revision += 1
        found = KINDS.of_key_kind(kind)
        metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{kind}-{name}", "generation": 1}
        if owner is not None:
            reference = {"apiVersion": "apps/v1", "kind": owner.key.kind.partition(".")[0], "name": owner.key.name}
            metadata["ownerReferences"] = [{**reference, "uid": owner.uid, "controller": True}]
        body = {"apiVersion": found.api_version, "kind": found.kind, "metadata": metadata, **parts}
        key = Key(kind, "default", name)
        made = Object(
            found, key, encode_object(body), revision=self._revision, created=1, origin=Origin("op", decision)
        )
        if len(self.live) < LIVE * (REPLICAS + 2) or key in self.live:
            self.live[key] = made
        return made

    def _workload(self, name: str) -> Iterator[Decision]:
        template = {"metadata": {"labels": {"app": name}}, "spec": pod("x")["spec"]}
        spec = {"replicas": REPLICAS, "selector": {"matchLabels": {"app": name}}, "template": template}
        deployment = self._object("Deployment.apps", name, None, "", spec=spec)
        decided = self._id("deployments")
        owner = self._object("ReplicaSet.apps", f"{name}-a", deployment, decided, spec=spec)
        yield self._decision(decided, deployment, [self._get(deployment), self._write("create", owner)])
        for slot in range(REPLICAS):
            decided = self._id("replicasets")
            made = self._object("Pod", f"{name}-a-{slot}", owner, decided, spec=template["spec"])
            yield self._decision(decided, owner, [self._get(owner), self._write("create", made)])
            decided = self._id("default-scheduler")
            node_name = self._random.choice(self._nodes)
            placed = {**template["spec"], "nodeName": node_name}
            bound_pod = self._object("Pod", made.key.name, owner, decided, spec=placed)
            attempt = SchedulingAttempt(
                pod_revision=made.revision,
                choice=AttemptChoice(node_name, 140, 100, 100, "", "", False, ()),  # noqa: FBT003  a record
                account=self._account,
            )
            yield self._decision(decided, made, [self._write("bind", bound_pod)], scheduling=attempt)
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self._object("Pod", made.key.name, owner, "", spec=placed, status=ready)
        status = {"replicas": REPLICAS, "readyReplicas": REPLICAS, "observedGeneration": 1}
        decided = self._id("replicasets")
        written = self._object("ReplicaSet.apps", owner.key.name, deployment, decided, spec=spec, status=status)
        yield self._decision(decided, owner, [self._get(owner), self._write("patch", written)])

    def _id(self, controller: str) -> str:
        self._number += 1
        return f"{controller}:p:{self._number}"

    def _get(self, found: Object) -> CacheRead:
        about = (found.key.namespace, found.key.name)
        return CacheRead(found.key.kind, "get", about, 1, self._revision, 0.1, found.revision, (found,))

    def _write(self, verb: str, made: Object) -> Call:
        intent = encode_intent({"spec": {"replicas": REPLICAS}})
        return Call(
            verb, made.key, intent, "", f"op-{self._number}", 0.001, 0.002, "done", made.revision, None, (made,)
        )

    def _decision(self, name: str, about: Object, steps: list[CacheRead | Call], **fields: Any) -> Decision:
        return Decision(
            id=name,
            controller=name.partition(":")[0],
            process="p",
            key=about.key,
            tenant="default",
            priority=0,
            uid=about.uid,
            generation=1,
            wakes=((str(about.key), "api"),),
            began=BEGAN + timedelta(milliseconds=self._number),
            marks=tuple(CacheMark(kind, 1, self._revision, 0.1) for kind in ("Pod", "ReplicaSet.apps", "Node")),
            steps=list(steps),
            result="await change",
            kept="sample",
            **fields,
        )


def write_log(fleet: Fleet, count: int, folder: Path) -> tuple[float, float]:
    """Bytes of a record, and microseconds to encode and write it."""
    env = system_env(limits=Limits(decision_log_bytes_max=1 << 40, decision_log_segments_max=1 << 30))
    log = DecisionLog(folder, env)
    taken_s, records = 0.0, 0
    batch: list[Decision] = []

    def write() -> None:
        nonlocal taken_s, records
        began_s = time.process_time()
        for each in batch:
            log.append(each)
        log.flush()
        taken_s += time.process_time() - began_s
        records += len(batch)
        batch.clear()

    for each in fleet.decisions(count):
        batch.append(each)
        if len(batch) == 1_000:
            write()
    write()
    statistic = log.statistics()
    log.sync()  # it is not closed: a running cluster has records behind the last part of the index
    assert statistic.segments_dropped == 0
    assert statistic.lost == 0
    return statistic.bytes / records, 1e6 * taken_s / records


async def live_service(fleet: Fleet) -> Client:
    """A cluster in which the last objects of the log exist."""
    env = system_env()
    store = MemoryStore(env)
    service = Service(store, env)
    await service.create(NAMESPACE, {"metadata": {"name": "default"}})
    for n in range(100):
        await service.create(NODE, node(n))
    for found in fleet.live.values():
        await store.commit([], [Put(found.key, found.value)])  # not by the service, which would give it another uid
    return Client(DirectTransport(service), env, component="why")


async def why_ms(client: Client, folder: Path, key: Key) -> tuple[float, float]:
    """One answer, from opening the log to the last line of text: elapsed time, and CPU time."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    found = await evidence_from(client, Recording(), "default")
    search = LogSearch([folder])
    related = related_keys([key], found)
    part = answer_part(search, [key], related, owners=owner_uids(related, found))
    evidence = with_logged(found, part, search)
    text = answer_about(f"{key.kind}/{key.name}", "default", evidence).text()
    taken_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    assert "decisions kept from" in text
    assert "default-scheduler" in text
    return 1e3 * taken_s, 1e3 * cpu_s


def timeline_ms(folder: Path, key: Key) -> float:
    began_s = time.perf_counter()
    found = timeline_of(f"{key.kind}/{key.name}", "default", history_part(LogSearch([folder]), [key]))
    taken_s = time.perf_counter() - began_s
    assert found is not None
    assert len(found.decisions) > 0
    return 1e3 * taken_s


def answers(count: int, folder: Path, *, asked: int) -> dict[str, float]:
    fleet = Fleet()
    bytes_each, write_us = write_log(fleet, count, folder)
    gc.collect()
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(live_service(fleet))
    gc.freeze()
    draw = Random(2)
    keys = sorted(fleet.live)
    pods = draw.sample([each for each in keys if each.kind == "Pod"], asked)
    workloads = draw.sample([each for each in keys if each.kind == "Deployment.apps"], asked)
    of_pod = [loop.run_until_complete(why_ms(client, folder, each)) for each in pods]
    of_workload = [loop.run_until_complete(why_ms(client, folder, each)) for each in workloads]
    histories = [timeline_ms(folder, each) for each in workloads]
    opened_s = time.perf_counter()
    LogSearch([folder])
    opened_s = time.perf_counter() - opened_s
    loop.close()
    gc.unfreeze()
    return {
        "why_ms": statistics.median(each[0] for each in of_pod),
        "why_ms_max": max(each[0] for each in of_pod),
        "why_cpu_ms": statistics.median(each[1] for each in of_pod),
        "why_workload_ms": statistics.median(each[0] for each in of_workload),
        "why_workload_cpu_ms": statistics.median(each[1] for each in of_workload),
        "timeline_ms": statistics.median(histories),
        "open_ms": 1e3 * opened_s,
        "bytes_per_record": bytes_each,
        "write_us": write_us,
    }


# -- all of it -------------------------------------------------------------------------------------


def spread_of(name: str, found: Overhead) -> dict[str, float]:
    return {
        name: found.median,
        f"{name}_low": found.interval[0],
        f"{name}_high": found.interval[1],
        f"{name}_quartile_1": found.quartiles[0],
        f"{name}_quartile_3": found.quartiles[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part of the work: for a look, not for figures")
    quick = parser.parse_args().quick
    tune_collector()  # as every process of kedge does
    decisions = 20_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scheduling = scheduler_overhead(
            nodes=200 if quick else 5_000, pods=100, rounds=2 if quick else 60, folder=folder
        )
        running = runtime_overhead(count=75 if quick else 500, rounds=2 if quick else 120, folder=folder)
        answered = answers(decisions, folder / "log", asked=3 if quick else 15)
    figures = {
        **spread_of("scheduler_overhead", scheduling),
        **spread_of("runtime_overhead", running),
        **answered,
    }
    notes = {
        "scheduler_overhead": "CPU with records and metrics, against none, `basic`: median of rounds; bar 0.05",
        "runtime_overhead": "the same of a controller; bar 0.10",
        "why_ms": f"`why` of a pod over {decisions:,} kept decisions, median; bar 200",
        "why_ms_max": "the slowest of these",
        "why_cpu_ms": "CPU time of it: the machine may be busy",
        "why_workload_cpu_ms": "CPU time of it",
        "why_workload_ms": f"of a Deployment with {REPLICAS} pods",
        "timeline_ms": "`timeline` of the same",
        "open_ms": "opening the log: the heads of its indexes, and the decisions behind the last one",
        "bytes_per_record": "in the log, with versions and index",
        "write_us": "CPU time to encode, index and write one record",
    }
    for each in ("scheduler_overhead", "runtime_overhead"):
        notes[f"{each}_low"] = "the median is above this in 97.5 of 100 cases"
        notes[f"{each}_high"] = "and below this"
        notes[f"{each}_quartile_1"] = "a quarter of the rounds is below"
        notes[f"{each}_quartile_3"] = "a quarter of the rounds is above"
    rows = [(key, f"{value:.3f}" if "overhead" in key else float(value), notes[key]) for key, value in figures.items()]
    print_table("observe", ("figure", "value", "what"), rows)
    print_json({**figures, "decisions": decisions, "quick": quick})


if __name__ == "__main__":
    main()

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
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.overhead import BusyClock, Overhead, notes_of, overhead_of, shown
from benchmarks.report import print_json, print_table
from benchmarks.runtime import CountingController
from benchmarks.scheduler import NAMESPACE, NODE, bound, node, pod, start_bench
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.cli.live import evidence_from, owner_uids, related_keys, with_logged
from kedge.cli.timeline import timeline_of
from kedge.cli.why import answer_about
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
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
TURN = 25
"""Pods of one turn of `MeasuredCluster`."""
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
    """For `overhead_of`: a cluster of the `basic` shape, with or without recording and metrics."""

    def __init__(self, folder: Path, *, recorded: bool, nodes: int, **limits: int) -> None:
        self._folder = folder / f"cluster-{time.monotonic_ns()}"
        self._nodes = nodes
        self._pods = 0
        self._bodies: list[dict[str, Any]] = []
        own = Limits(client_in_flight_max=512, **limits)
        self._env = system_env(limits=own, metrics=metrics_of(recorded=recorded))
        self.clock = BusyClock()
        busy = replace(self._env, monotonic=self.clock.monotonic)
        self._log = DecisionLog(self._folder / "decisions", busy) if recorded else None
        self._recorder = Recorder(busy, log=self._log) if recorded else None

    async def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._store = await SqliteStore.open(self._folder / "store.db", self._env)
        self._bench = await start_bench(self._store, self._env, nodes=self._nodes, recorder=self._recorder)

    def prepare(self) -> None:
        self._bench.created_s.clear()
        self._bench.bound_s.clear()
        self._bodies = [pod(f"pod-{self._pods + n}") for n in range(TURN)]
        self._pods += TURN

    async def work(self) -> int:
        """Create pods, and wait until all are bound."""
        await self._bench.create(self._bodies)
        await bound(self._bench, TURN)
        return TURN

    def upkeep(self) -> None:
        if self._log is not None:
            self._log.flush()

    async def stop(self) -> None:
        await self._bench.stop()
        await self._store.close()


def scheduler_overhead(*, nodes: int, seconds: float, folder: Path) -> Overhead:
    return overhead_of(
        lambda recorded: MeasuredCluster(folder, recorded=recorded, nodes=nodes), seconds=seconds, blocks=2
    )


def runtime_overhead(*, seconds: float, folder: Path) -> Overhead:
    """As `recording_overhead` of `benchmarks.runtime`, with the metrics."""
    return overhead_of(
        lambda recorded: CountingController(folder, recorded=recorded, metrics=metrics_of(recorded=recorded)),
        seconds=seconds,
    )


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small part of the work: for a look, not for figures")
    quick = parser.parse_args().quick
    tune_collector()  # as every process of kedge does
    decisions = 20_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scheduling = scheduler_overhead(nodes=200 if quick else 5_000, seconds=2.0 if quick else 120.0, folder=folder)
        running = runtime_overhead(seconds=2.0 if quick else 120.0, folder=folder)
        answered = answers(decisions, folder / "log", asked=3 if quick else 15)
    figures = {
        **scheduling.figures("scheduler_overhead"),
        **running.figures("runtime_overhead"),
        **answered,
    }
    notes = {
        "scheduler_overhead": "CPU with records and metrics, against none, `basic`; bar 0.05",
        **notes_of("scheduler_overhead"),
        "runtime_overhead": "the same of a controller; bar 0.10",
        **notes_of("runtime_overhead"),
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
    rows = [(key, shown(key, value), notes[key]) for key, value in figures.items()]
    print_table("observe", ("figure", "value", "what"), rows)
    print_json({**figures, "decisions": decisions, "quick": quick})


if __name__ == "__main__":
    main()

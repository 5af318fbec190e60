"""The runtime beside the bare service: `python -m benchmarks.runtime [--quick]`.

One reconciler, woken by a watch, reading a cache, taken from a queue, writing a status: how many of those a second, and
what it costs to record them. Each figure stands next to its peer of the same run, and CPU time decides between two that
do the same work: on a noisy machine ratios count, single times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import statistics
import tempfile
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.report import print_json, print_table
from benchmarks.store import POD, pod_body
from kedge import Action, Context, Controller
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import ObjectList, Reply, Request
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.errors import Unavailable
from kedge.heap import tune_collector
from kedge.keys import Key
from kedge.limits import Limits
from kedge.metrics import Metrics
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.recorder import Recorder
from kedge.runtime import ControllerRuntime, ControllerSpec
from kedge.runtime.cache import BY_NODE, BY_OWNER, CacheSet, by_label
from kedge.runtime.queue import ItemOutcome, RunEffects, Wake, WorkQueue
from kedge.server.service import Service
from kedge.sim.kernel import NO_FAULTS, Simulation, run
from kedge.store import Put
from kedge.store.memory import MemoryStore

NAMESPACE = KINDS.of_key_kind("Namespace")
REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")
WORKERS = 8
FAILING_EVERY = 20
"""One key in so many fails the first time it runs."""
TENANTS = 10
BEGUN = 100
"""Objects before the clock of `recording` runs: the first decisions of a process are all noted, and its log begins a
file. That happens once in a process."""


@dataclass(frozen=True, slots=True)
class Run:
    """The work of one controller, and its cost."""

    runs: int
    wall_s: float
    cpu_s: float
    kept: int = 0
    seen: int = 0
    collector_s: float = 0.0
    """CPU time of the garbage collector, part of `cpu_s`."""
    survivors: int = 0
    """Allocations that were not freed at once: the collector runs after so many."""

    def __add__(self, other: Run) -> Run:
        return Run(
            self.runs + other.runs,
            self.wall_s + other.wall_s,
            self.cpu_s + other.cpu_s,
            self.kept + other.kept,
            self.seen + other.seen,
            self.collector_s + other.collector_s,
            self.survivors + other.survivors,
        )


class CollectorClock:
    """Measures the collector in one run.

    A short run has one collection more or less, by chance. So its time is taken out, and every run is charged by its
    share of the allocations that make the collector run.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.survivors = 0
        self._began_s = 0.0
        gc.callbacks.append(self._called)

    def _called(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self.survivors += gc.get_count()[0]
            self._began_s = time.process_time()
        else:
            self.cpu_s += time.process_time() - self._began_s

    def stop(self) -> None:
        gc.callbacks.remove(self._called)
        self.survivors += gc.get_count()[0]


# -- reconciles ------------------------------------------------------------------------------------


class Counter:
    """Reads its object and the pods it owns, and writes their number to the status."""

    def __init__(self, *, failing: bool) -> None:
        self._failing = failing
        self._failed: set[Key] = set()
        self.written = 0

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is None:
            return Action.await_change()
        if self._failing and int(key.name[-4:]) % FAILING_EVERY == 0 and key not in self._failed:
            self._failed.add(key)
            raise Unavailable(f"{key} fails once")
        pods = ctx.owned(POD, owner)
        if owner.view.status.observed_generation != owner.metadata.generation:
            await ctx.write_status(owner, {"replicas": len(pods), "readyReplicas": len(pods)})
            self.written += 1
        return Action.await_change()


def replica_set(n: int) -> dict[str, Any]:
    body = pod_body("unused")
    labels = {"app": f"web-{n:04}"}
    return {
        "metadata": {"name": f"web-{n:04}", "namespace": f"tenant-{n % TENANTS}"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": body["spec"]},
        },
    }


async def make_service(env: Env, count: int) -> Service:
    service = Service(MemoryStore(env), env)
    for n in range(TENANTS):
        await service.create(NAMESPACE, {"metadata": {"name": f"tenant-{n}"}})
    for n in range(count):
        await service.create(REPLICA_SET, replica_set(n))
    return service


async def reconciles(
    count: int, *, recorded: bool, failing: bool, folder: Path, metrics: Metrics | None = None, begun: int = 0
) -> Run:
    """Run a controller that reads `count` objects and writes the status of each.

    The clock runs from its start, or from when the first `begun` objects, which are not in `count`, are written.
    """
    env = system_env(limits=Limits(queue_backoff_s=0.01), metrics=metrics)
    service = await make_service(env, begun + count)
    client = Client(DirectTransport(service), env, component="counter")
    log = DecisionLog(folder / f"decisions-{time.monotonic_ns()}", env) if recorded else None
    recorder = Recorder(env, log=log) if recorded else None
    counter = Counter(failing=failing)
    controller = Controller(
        ControllerSpec(name="counter", kind=REPLICA_SET, owns=(POD,), workers=WORKERS),
        counter,
        ControllerRuntime(client, env, recorder=recorder),
    )
    task = asyncio.ensure_future(controller.run())
    while counter.written < begun:  # noqa: ASYNC110  polling costs less than an event
        await asyncio.sleep(0.001)
    runs = -controller.statistics().runs
    gc.collect()
    gc.freeze()  # objects made so far are not scanned while the clock runs
    collector = CollectorClock()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    while counter.written < begun + count or len(controller.queue):  # noqa: ASYNC110  as above
        await asyncio.sleep(0.002)
    if log is not None:
        log.flush()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    collector.stop()
    gc.unfreeze()
    await controller.stop()
    await task
    runs += controller.statistics().runs
    if recorder is None:
        return Run(runs, wall_s, cpu_s, collector_s=collector.cpu_s, survivors=collector.survivors)
    coverage = recorder.coverage()
    kept = sum(coverage.kept.values())
    return Run(runs, wall_s, cpu_s, kept, coverage.seen, collector.cpu_s, collector.survivors)


@dataclass(frozen=True, slots=True)
class Overhead:
    """The CPU time that recording adds to a run, as a share of it."""

    rounds: tuple[float, ...]
    """One figure a round, in order of size."""
    on: Run
    off: Run

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true median is in 95 of 100 cases, by the ranks of the rounds."""
        count = len(self.rounds)
        off = math.ceil(0.98 * math.sqrt(count))
        return self.rounds[max(0, count // 2 - off)], self.rounds[min(count - 1, count // 2 + off)]

    @property
    def quartiles(self) -> tuple[float, float]:
        count = len(self.rounds)
        return self.rounds[count // 4], self.rounds[(3 * count) // 4]


def recording(count: int, *, rounds: int, folder: Path) -> Overhead:
    """A controller that has run for a while, with and without recording."""
    return overhead_of(
        lambda recorded: asyncio.run(reconciles(count, recorded=recorded, failing=True, folder=folder, begun=BEGUN)),
        rounds=rounds,
    )


def overhead_of(work: Callable[[bool], Run], *, rounds: int) -> Overhead:
    """Do the same work with and without recording in turns, many times, and compare CPU time.

    The speed of the machine changes from one second to the next by more than the overhead. So a round is four short
    runs, in an order in which each kind is as early as the other, and the figure is the median of many rounds.
    """
    done: list[dict[bool, Run]] = []
    for n in range(rounds):
        found = {True: Run(0, 0.0, 0.0), False: Run(0, 0.0, 0.0)}
        outer = n % 2 == 0
        for recorded in (outer, not outer, not outer, outer):
            found[recorded] += work(recorded)
        done.append(found)
    on, off = (sum((each[kind] for each in done), Run(0, 0.0, 0.0)) for kind in (True, False))
    per_survivor_s = (on.collector_s + off.collector_s) / max(1, on.survivors + off.survivors)

    def cost_s(run: Run) -> float:
        return (run.cpu_s - run.collector_s + run.survivors * per_survivor_s) / run.runs

    return Overhead(tuple(sorted(cost_s(each[True]) / cost_s(each[False]) - 1 for each in done)), on, off)


async def bare_writes(count: int) -> Run:
    """The same status writes, straight to the service, as many at once as there are workers."""
    env = system_env()
    service = await make_service(env, count)
    keys = [Key("ReplicaSet.apps", f"tenant-{n % TENANTS}", f"web-{n:04}") for n in range(count)]
    patch = {"status": {"replicas": 0, "readyReplicas": 0, "observedGeneration": 1}}

    async def write(mine: list[Key]) -> None:
        for key in mine:
            await service.patch(key, patch, subresource="status")

    gc.collect()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(keys[n::WORKERS]) for n in range(WORKERS)))
    return Run(count, time.perf_counter() - began_s, time.process_time() - cpu_s)


# -- the queue -------------------------------------------------------------------------------------


async def queue_ops(keys: int, *, tenants: int = 100) -> float:
    """Adds, gets and dones a second, with `keys` keys in the queue throughout."""
    queue: WorkQueue[Key] = WorkQueue(system_env(), "bench", workers=WORKERS)
    wake = Wake("Pod/tenant/pod", "bench")
    for n in range(keys):
        queue.add(Key("Pod", f"tenant-{n % tenants}", f"pod-{n}"), wake)
    facts, outcome = RunEffects(changed=True, wrote=frozenset({("status", 1)})), ItemOutcome.success()
    began_s = time.perf_counter()
    for _ in range(keys):
        item = await queue.get()
        queue.done(item, outcome, facts)
        queue.add(item.key, wake)
    return 3 * keys / (time.perf_counter() - began_s)


def bare_ops(keys: int) -> float:
    """The same number of steps on the dictionary that any queue with deduplication needs."""
    queue = OrderedDict.fromkeys(Key("Pod", f"tenant-{n % 100}", f"pod-{n}") for n in range(keys))
    began_s = time.perf_counter()
    for _ in range(keys):
        key, _none = queue.popitem(last=False)
        queue[key] = None
    return 3 * keys / (time.perf_counter() - began_s)


# -- fairness --------------------------------------------------------------------------------------


class Mixed:
    """A thousand keys of one tenant that fail slowly, and one key of another that takes its usual time."""

    def __init__(self, *, fail_s: float) -> None:
        self._fail_s = fail_s
        self.ended: dict[int, float] = {}

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        found = ctx.get(key)
        if found is None:
            return Action.await_change()
        if key.namespace == "tenant-0":
            await asyncio.sleep(self._fail_s)
            raise Unavailable("it fails always")
        await asyncio.sleep(0.05)
        self.ended.setdefault(found.metadata.generation, asyncio.get_running_loop().time())
        return Action.await_change()


def fairness_ratio(*, noisy: int, fail_s: float) -> float:
    """The worst latency of the single key beside the failing ones, against the worst alone. In virtual time."""

    def worst_s(failing: int) -> float:
        async def program(sim: Simulation) -> float:
            host = sim.host("controller")
            env = host.env()
            service = Service(MemoryStore(env), env)
            for n in range(2):
                await service.create(NAMESPACE, {"metadata": {"name": f"tenant-{n}"}})
            for n in range(failing):
                await service.create(REPLICA_SET, replica_set(n * TENANTS))
            await service.create(REPLICA_SET, replica_set(1))
            mixed = Mixed(fail_s=fail_s)
            client = Client(DirectTransport(service), env, component="mixed")
            controller = Controller(
                ControllerSpec(kind=REPLICA_SET, workers=WORKERS), mixed, ControllerRuntime(client, env)
            )
            task = host.spawn(controller.run(), name="controller")
            await asyncio.sleep(30)
            waits = []
            for replicas in range(1, 21):
                began_s = asyncio.get_running_loop().time()
                key = Key("ReplicaSet.apps", "tenant-1", "web-0001")
                generation = (await service.patch(key, {"spec": {"replicas": replicas}})).object.metadata.generation
                await asyncio.sleep(1.0)
                while generation not in mixed.ended:  # noqa: ASYNC110  virtual time
                    await asyncio.sleep(0.1)
                waits.append(mixed.ended[generation] - began_s)
            task.cancel()
            return max(waits)

        outcome = run(program, 1, faults=NO_FAULTS)
        assert outcome.violation is None, str(outcome.violation)
        assert outcome.result is not None
        return float(outcome.result)

    return worst_s(noisy) / worst_s(0)


# -- the cache -------------------------------------------------------------------------------------


class AsOverAWire(DirectTransport):
    """Hands out objects of their own, with bytes of their own, as any transport but the direct one does."""

    async def send(self, request: Request[Reply]) -> Reply:
        reply = await super().send(request)
        return cast("Reply", self._copied(reply)) if isinstance(reply, ObjectList) else reply

    def _copied(self, page: ObjectList) -> ObjectList:
        copies = [
            Object(each.kind, each.key, bytes(bytearray(each.value)), revision=each.revision, created=each.created)
            for each in page.objects
        ]
        return msgspec.structs.replace(page, objects=copies)


async def make_pods(count: int) -> tuple[Service, Env]:
    env = system_env()
    store = MemoryStore(env)
    batch = []
    for n in range(count):
        body = pod_body(f"pod-{n:06}")
        body["metadata"]["uid"] = env.new_uid()
        batch.append(Put(Key("Pod", "default", f"pod-{n:06}"), encode_object(body)))
        if len(batch) == 100:
            await store.commit([], batch)
            batch = []
    await store.commit([], batch)
    return Service(store, env), env


async def relist(count: int) -> tuple[float, float]:
    """Seconds of one relist of a cache with three indexes, and of decoding the same bytes and no more."""
    service, env = await make_pods(count)
    client = Client(AsOverAWire(service), env, component="cache")
    caches = CacheSet(client, env)
    cache = caches.cache(POD)
    for index in (by_label("app"), BY_OWNER, BY_NODE):
        cache.add_index(index)
    began_s = time.perf_counter()
    await cache.wait_synced(within_s=300)
    taken_s = time.perf_counter() - began_s
    values = [each.value for each in cache.list().value]
    began_s = time.perf_counter()
    for value in values:
        msgspec.json.decode(value)
    decode_s = time.perf_counter() - began_s
    await caches.stop()
    return taken_s, decode_s


async def cache_bytes(count: int) -> float:
    """Memory of a cached object beyond its own bytes, with the metadata decoded for two indexes."""
    service, env = await make_pods(count)
    client = Client(AsOverAWire(service), env, component="cache")
    gc.collect()
    tracemalloc.start()
    caches = CacheSet(client, env)
    cache = caches.cache(POD)
    for index in (by_label("app"), BY_OWNER):
        cache.add_index(index)
    await cache.wait_synced(within_s=600)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    payload = sum(len(each.value) for each in cache.list().value)
    await caches.stop()
    return (taken - payload) / count


# -- all of it -------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: for a look, not for figures")
    quick = parser.parse_args().quick
    tune_collector()  # as every process of kedge does
    count, rounds, keys, pods = (300, 2, 10_000, 5_000) if quick else (2_000, 9, 100_000, 50_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, against_bare = [], []
        for _ in range(rounds):
            bare = asyncio.run(bare_writes(count))
            clean = asyncio.run(reconciles(count, recorded=False, failing=False, folder=folder))
            plain.append(clean.runs / clean.wall_s)
            against_bare.append((clean.cpu_s / count) / (bare.cpu_s / count))
        overhead = recording(count // 4, rounds=3 if quick else 120, folder=folder)
    ops = [(asyncio.run(queue_ops(keys)), bare_ops(keys)) for _ in range(max(1, rounds // 3))]
    relists = [asyncio.run(relist(pods)) for _ in range(max(1, rounds // 3))]
    fairness = max(fairness_ratio(noisy=100 if quick else 1_000, fail_s=each) for each in (0.02, 1.0, 20.0))
    figures = {
        "reconciles_per_second": statistics.median(plain),
        "reconcile_vs_bare_write": statistics.median(against_bare),
        "recording_overhead": overhead.median,
        "recording_overhead_low": overhead.interval[0],
        "recording_overhead_high": overhead.interval[1],
        "recording_overhead_quartile_1": overhead.quartiles[0],
        "recording_overhead_quartile_3": overhead.quartiles[1],
        "recording_kept": overhead.on.kept / overhead.on.seen,
        "queue_ops_per_second": statistics.median(each[0] for each in ops),
        "queue_vs_bare_dict": statistics.median(each[0] / each[1] for each in ops),
        "relist_50k_s": statistics.median(each[0] for each in relists),
        "relist_vs_decode": statistics.median(each[0] / each[1] for each in relists),
        "cache_bytes_per_object": asyncio.run(cache_bytes(pods)),
        "fairness_ratio": fairness,
    }
    notes = {
        "reconciles_per_second": "through watch, cache, queue and a status write, in one process",
        "reconcile_vs_bare_write": "CPU of a reconcile with its write, against the write alone",
        "recording_overhead": "CPU with sampling and a durable log, against none: median of rounds; bar 0.10",
        "recording_overhead_low": "the median is above this in 97.5 of 100 cases",
        "recording_overhead_high": "and below this",
        "recording_overhead_quartile_1": "a quarter of the rounds is below",
        "recording_overhead_quartile_3": "a quarter of the rounds is above",
        "recording_kept": "of the records, in full; at least 0.0625",
        "queue_ops_per_second": f"add, get and done with {keys:,} keys",
        "queue_vs_bare_dict": "against a dictionary alone",
        "relist_50k_s": f"{pods:,} pods, three indexes",
        "relist_vs_decode": "against decoding the same JSON",
        "cache_bytes_per_object": "beyond the object's own bytes",
        "fairness_ratio": "latency beside a thousand failing keys, against alone; bar 3",
    }
    print_table("runtime", ("figure", "value", "what"), [(key, float(figures[key]), notes[key]) for key in figures])
    print_json({**figures, "quick": quick})


if __name__ == "__main__":
    main()

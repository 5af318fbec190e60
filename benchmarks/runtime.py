"""The runtime beside the bare service: `python -m benchmarks.runtime [--quick]`.

One reconciler, woken by a watch, reading a cache, taken from a queue, writing a status: how many of those a second, and
what it costs to record them. Each figure stands next to its peer of the same run, and CPU time decides between two that
do the same work: on a noisy machine ratios count, single times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
import tracemalloc
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.overhead import BusyClock, notes_of, overhead_of, shown
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
TURN = FAILING_EVERY
"""Objects that get a new generation in one turn of `CountingController`."""


@dataclass(frozen=True, slots=True)
class Run:
    """The work of one controller, and its cost."""

    runs: int
    wall_s: float
    cpu_s: float


# -- reconciles ------------------------------------------------------------------------------------


class Counter:
    """Reads its object and the pods it owns, and writes their number to the status."""

    def __init__(self, *, failing: bool) -> None:
        self._failing = failing
        self._failed: set[Key] = set()
        self._unwritten = 0
        self.written = asyncio.Event()
        """All objects that are expected have their status."""

    def expect(self, count: int) -> None:
        """So many objects are new, or have a new generation."""
        self._unwritten = count
        self._failed.clear()
        self.written.clear()

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
            self._unwritten -= 1
            if self._unwritten == 0:
                self.written.set()
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


async def make_service(store: MemoryStore, env: Env, count: int) -> Service:
    service = Service(store, env)
    for n in range(TENANTS):
        await service.create(NAMESPACE, {"metadata": {"name": f"tenant-{n}"}})
    for n in range(count):
        await service.create(REPLICA_SET, replica_set(n))
    return service


def make_controller(counter: Counter, service: Service, env: Env, recorder: Recorder | None = None) -> Controller:
    client = Client(DirectTransport(service), env, component="counter")
    spec = ControllerSpec(name="counter", kind=REPLICA_SET, owns=(POD,), workers=WORKERS)
    return Controller(spec, counter, ControllerRuntime(client, env, recorder=recorder))


async def idle(controller: Controller) -> None:
    """Wait for the runs that the writes of the controller itself woke."""
    while len(controller.queue) or controller.queue.running:  # noqa: ASYNC110  polling costs less than an event
        await asyncio.sleep(0.0005)


async def reconciles(count: int) -> Run:
    """Run a controller that reads `count` objects and writes the status of each."""
    env = system_env()
    service = await make_service(MemoryStore(env), env, count)
    counter = Counter(failing=False)
    controller = make_controller(counter, service, env)
    counter.expect(count)
    gc.collect()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    task = asyncio.ensure_future(controller.run())
    await counter.written.wait()
    await idle(controller)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    await controller.stop()
    await task
    return Run(controller.statistics().runs, wall_s, cpu_s)


class CountingController:
    """For `overhead_of`: a controller that runs for long, some of whose objects get a new generation in each turn."""

    def __init__(self, folder: Path, *, recorded: bool, metrics: Metrics | None = None) -> None:
        # A failed key is tried again at once: a pause would only make the processor's caches cold.
        self._env = system_env(limits=Limits(queue_backoff_s=0.001), metrics=metrics)
        self.clock = BusyClock()
        busy = replace(self._env, monotonic=self.clock.monotonic)
        self._log = DecisionLog(folder / f"decisions-{time.monotonic_ns()}", busy) if recorded else None
        self.recorder = Recorder(busy, log=self._log) if recorded else None
        self._counter = Counter(failing=True)
        self._bodies: dict[Key, dict[str, Any]] = {}
        self._generation = 1
        self._runs = 0

    async def start(self) -> None:
        self._store = MemoryStore(self._env)
        service = await make_service(self._store, self._env, TURN)
        self._controller = make_controller(self._counter, service, self._env, self.recorder)
        self._counter.expect(TURN)
        self._running = asyncio.ensure_future(self._controller.run())
        await self.work()
        for each in (await self._store.list("ReplicaSet.apps")).entries:
            self._bodies[each.key] = msgspec.json.decode(each.value)

    def prepare(self) -> None:
        self._generation += 1
        self._counter.expect(TURN)
        for body in self._bodies.values():
            body["metadata"]["generation"] = self._generation
        self._store.commit_nowait([], [Put(key, encode_object(body)) for key, body in self._bodies.items()])

    async def work(self) -> int:
        await self._counter.written.wait()
        await idle(self._controller)
        before, self._runs = self._runs, self._controller.statistics().runs
        return self._runs - before

    def upkeep(self) -> None:
        if self._log is not None:
            self._log.flush()

    async def stop(self) -> None:
        await self._controller.stop()
        await self._running


async def bare_writes(count: int) -> Run:
    """The same status writes, straight to the service, as many at once as there are workers."""
    env = system_env()
    service = await make_service(MemoryStore(env), env, count)
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
            clean = asyncio.run(reconciles(count))
            plain.append(clean.runs / clean.wall_s)
            against_bare.append((clean.cpu_s / count) / (bare.cpu_s / count))
        recorders: list[Recorder] = []

        def subject(recorded: bool) -> CountingController:
            made = CountingController(folder, recorded=recorded)
            recorders.extend(() if made.recorder is None else [made.recorder])
            return made

        overhead = overhead_of(subject, seconds=2.0 if quick else 150.0)
    seen = [each.coverage() for each in recorders]
    ops = [(asyncio.run(queue_ops(keys)), bare_ops(keys)) for _ in range(max(1, rounds // 3))]
    relists = [asyncio.run(relist(pods)) for _ in range(max(1, rounds // 3))]
    fairness = max(fairness_ratio(noisy=100 if quick else 1_000, fail_s=each) for each in (0.02, 1.0, 20.0))
    figures = {
        "reconciles_per_second": statistics.median(plain),
        "reconcile_vs_bare_write": statistics.median(against_bare),
        **overhead.figures("recording_overhead"),
        "recording_kept": sum(sum(each.kept.values()) for each in seen) / sum(each.seen for each in seen),
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
        "recording_overhead": "CPU with sampling and a durable log, against none; bar 0.10",
        **notes_of("recording_overhead"),
        "recording_kept": "of the records, in full",
        "queue_ops_per_second": f"add, get and done with {keys:,} keys",
        "queue_vs_bare_dict": "against a dictionary alone",
        "relist_50k_s": f"{pods:,} pods, three indexes",
        "relist_vs_decode": "against decoding the same JSON",
        "cache_bytes_per_object": "beyond the object's own bytes",
        "fairness_ratio": "latency beside a thousand failing keys, against alone; bar 3",
    }
    rows = [(key, shown(key, value), notes[key]) for key, value in figures.items()]
    print_table("runtime", ("figure", "value", "what"), rows)
    print_json({**figures, "quick": quick})


if __name__ == "__main__":
    main()

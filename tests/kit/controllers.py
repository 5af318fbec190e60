"""Harnesses for controllers: with faults, for simulations of the runtime, and without, for small tests.

`ReplicasReconciler` is a controller as a user would write it. `FaultHarness` runs it on hosts that crash and keeps the
caches and records of every process, so that each decision can be rechecked. `ControllerHarness` has one process, one
API server, and a transport that withholds replies on request.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tests.objects import NAMESPACE

from kedge import Action, Context, Controller
from kedge.api.conditions import condition, is_true
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import List, ObjectList, OpenWatch, Reply, Request
from kedge.client.contract import Client
from kedge.env import Env, TaskSpawner
from kedge.errors import Fenced, OutcomeUnknown, Unavailable
from kedge.keys import Key, fence_key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.observe.records import CacheRead, Decision, NotStarted
from kedge.runtime import ControllerRuntime, ControllerSpec, ReceivedEvidence, Reconciler, recheck
from kedge.runtime.cache import CacheSet
from kedge.runtime.lease import SharedElection
from kedge.server.service import Service
from kedge.sim.cluster import API, STORE, Cluster, Commit, RemoteStore, RemoteTransport
from kedge.sim.cluster.links import Served
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run

POD = KINDS.of_key_kind("Pod")
REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")
LEASE = Key("Lease.coordination.k8s.io", "default", "replicas")


class ReplicasReconciler:
    """Keeps the pods of a ReplicaSet, one per slot, and writes their number to the status."""

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return Action.await_change()
        want = owner.view.spec.replicas
        pods = ctx.owned(POD, owner)
        names = {pod.key.name for pod in pods}
        for slot in range(want):
            if f"{key.name}-{slot}" not in names:
                await ctx.ensure(POD, pod_of(owner, slot))
        for pod in pods:
            if int(pod.key.name.rpartition("-")[2]) >= want and pod.metadata.deletion_timestamp is None:
                await ctx.delete(pod)
        there = condition("Complete", status=len(pods) == want, reason="Counted", message=f"{len(pods)} of {want}")
        await ctx.write_status(owner, {"replicas": len(pods), "conditions": [there]})
        return Action.await_change(condition="Complete", reason="Counted")


def pod_of(owner: Object, slot: int) -> dict[str, Any]:
    reference = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner.key.name, "uid": owner.uid, "controller": True,
    }  # fmt: skip
    return {
        "metadata": {
            "name": f"{owner.key.name}-{slot}",
            "namespace": owner.key.namespace,
            "labels": {"app": owner.key.name},
            "ownerReferences": [reference],
        },
        "spec": {"containers": [{"name": "main", "image": "app:1"}]},
    }


def replica_set(name: str, replicas: int, *, namespace: str = "default") -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]},
    }
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


QUICK = Limits(relist_every_s=30.0, resync_every_s=20.0, queue_resync_spread_s=5.0, decisions_sample_every=1)
"""Relists and resyncs happen within a run."""


@dataclass
class ControllerProcess:
    """One process of one controller: its inputs and its decisions."""

    controller: Controller
    caches: CacheSet
    recorder: Recorder
    env: Env
    host: Host
    life: int


class StaleLists(RemoteTransport):
    """A transport to a server that lags: sometimes it returns an old list, even one of another process."""

    def __init__(self, harness: FaultHarness, remote: Any) -> None:
        super().__init__(remote)
        self._harness = harness

    async def send(self, request: Request[Reply]) -> Reply:
        reply = await super().send(request)
        return cast("Reply", self._aged(request, cast("ObjectList", reply))) if isinstance(request, List) else reply

    def _aged(self, request: List, fresh: ObjectList) -> ObjectList:
        sim, old = self._harness.sim, self._harness.old_lists
        if request.options.continue_token:
            return fresh
        asked = f"{request.kind.key_kind} {request.options.limit}"
        if asked in old and sim.faults.active and sim.choose("a stale list", (False, False, False, True)):
            sim.sometimes("a stale list was served", old[asked].revision < fresh.revision)
            return old[asked]
        if asked not in old or sim.choose("the lagging server moves on", (True, False)):
            old[asked] = fresh
        return fresh


@dataclass
class FaultHarness:
    """Controllers on hosts, and all of their processes. It checks every commit."""

    sim: Simulation
    cluster: Cluster
    make: Callable[[], Reconciler] = ReplicasReconciler
    lease: Key | None = LEASE
    limits: Limits = QUICK
    stale_lists: bool = False
    processes: list[ControllerProcess] = field(default_factory=list)
    old_lists: dict[str, ObjectList] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    """The fence of each decision."""
    ended_s: dict[str, float] = field(default_factory=dict)
    made: dict[str, tuple[Key, int, float]] = field(default_factory=dict)
    """The key, revision and time of the write of each operation."""
    deleted: dict[Key, int] = field(default_factory=dict)
    """The last revision at which each key was deleted."""

    async def start(self, host: Host) -> None:
        env = host.env(limits=self.limits)
        server = self.cluster.servers[len(self.processes) % len(self.cluster.servers)]
        remote = host.remote(server, API)
        transport = StaleLists(self, remote) if self.stale_lists else RemoteTransport(remote)
        process = self.process(Client(transport, env, component=host.name), env, host)
        self.processes.append(process)
        await process.controller.run()

    def process(self, client: Client, env: Env, host: Host) -> ControllerProcess:
        caches = CacheSet(client, env)
        recorder = Recorder(env)
        spec = ControllerSpec(name="replicas", kind=REPLICA_SET, owns=(POD,))
        runtime = ControllerRuntime(client, env, caches, recorder, self.lease)
        controller = Controller(spec, ObservedReconciler(self, self.make()), runtime)
        return ControllerProcess(controller, caches, recorder, env, host, host.process.number)

    def believing_leaders(self) -> list[str]:
        """Running hosts that believe to lead."""
        return [
            each.host.name
            for each in self.processes
            if each.host.up and each.life == each.host.process.number and each.controller.statistics().leading
        ]

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        """Only one leader's writes are committed per term: the fence at a commit is the fence of the write."""
        entries = {entry.key: entry for entry in commit.store.entries()}
        fence = entries.get(fence_key(LEASE))
        for key in commit.keys:
            entry = entries.get(key)
            if entry is None:
                self.deleted[key] = commit.revision
                continue
            decision, operation = entry.origin.decision, entry.origin.operation
            if entry.modified != commit.revision or decision not in self.tokens or key.kind == "Operation.kedge.dev":
                continue
            self.made[operation] = key, commit.revision, self.sim.now_s
            if self.lease is not None and (fence is None or fence.modified != self.tokens[decision]):
                yield "two leaders", f"{decision} wrote {key} with token {self.tokens[decision]}, the fence is {fence}"

    async def recheck(self) -> int:
        """Recheck every decision of every process. Returns their number."""
        count = 0
        for process in self.processes:
            evidence = ReceivedEvidence.of(process.caches)
            for decision in reversed(list(process.recorder.decisions())):
                await recheck(decision, self.make(), evidence, process.env)
                count += 1
        return count

    def check_floors(self) -> None:
        """Every run started on caches that had its key's own writes in that process, and all writes before its term."""
        for process in self.processes:
            evidence = ReceivedEvidence.of(process.caches)
            due: dict[Key, dict[Key, int]] = {}
            for decision in reversed(list(process.recorder.decisions())):
                if any(isinstance(step, NotStarted) for step in decision.steps):
                    self.sim.sometimes("a floor was not met in time")
                    continue
                for mark in decision.marks:
                    if mark.revision < decision.fence:
                        self.sim.violate("a leader decides on nothing older than its term", f"{decision.id}: {mark}")
                floors = due.pop(decision.key, {})
                if floors:
                    self._check_seen(decision, floors, evidence)
                due[decision.key] = self._floors_of(decision)

    def _floors_of(self, decision: Decision) -> dict[Key, int]:
        floors: dict[Key, int] = {}
        for call in decision.calls:
            if call.outcome in ("done", "unchanged"):
                floors[call.reply[0].key] = call.revision
            elif call.outcome in ("OutcomeUnknown", "cancelled"):
                made = self.made.get(call.operation)
                self.sim.sometimes("an outcome was unknown", call.verb != "get")
                if made is not None and made[2] <= self.ended_s.get(decision.id, 0.0):
                    self.sim.sometimes("an unknown write had been made")
                    floors[made[0]] = made[1]
        return floors

    def _check_seen(self, decision: Decision, floors: dict[Key, int], evidence: ReceivedEvidence) -> None:
        held: dict[Key, Object] = {}
        for mark in decision.marks:
            held.update(evidence.state_at(CacheRead(mark.cache, "", (), mark.place, 0, 0, 0)))
        for key, revision in floors.items():
            found = held.get(key)
            gone = found is None and self.deleted.get(key, 0) > revision
            if not gone and (found is None or found.revision < revision):
                self.sim.violate(
                    "caches never serve below a floor",
                    f"{decision.id} had {found}, and its key wrote {revision} of {key}",
                )
            self.sim.sometimes("a floor was met")


class ObservedReconciler:
    """A reconciler that reports its runs to the harness."""

    def __init__(self, harness: FaultHarness, inner: Reconciler) -> None:
        self._harness = harness
        self._inner = inner
        self._running: set[Key] = set()

    async def reconcile(self, ctx: Context, key: Key) -> Any:
        harness, sim = self._harness, self._harness.sim
        if key in self._running:
            sim.violate("no key runs twice at once", str(key))
        self._running.add(key)
        harness.tokens[ctx.decision] = ctx._fence.revision if ctx._fence is not None else 0
        sim.sometimes("two believe that they lead", len(harness.believing_leaders()) > 1)
        try:
            return await self._inner.reconcile(ctx, key)
        except Fenced:
            sim.sometimes("a deposed leader was fenced off")
            raise
        finally:
            self._running.discard(key)
            harness.ended_s[ctx.decision] = sim.now_s


def pods_of(store: Any, name: str) -> list[str]:
    return sorted(
        each.key.name for each in store.entries() if each.key.kind == "Pod" and each.key.name.startswith(f"{name}-")
    )


def is_complete(cluster: Cluster, name: str, replicas: int) -> bool:
    """All pods exist, and the status of the newest generation shows it."""
    if pods_of(cluster.store, name) != [f"{name}-{slot}" for slot in range(replicas)]:
        return False
    for entry in cluster.store.entries():
        if entry.key == Key("ReplicaSet.apps", "default", name):
            view = Object(REPLICA_SET, entry.key, entry.value, revision=entry.modified).view
            observed = view.status.observed_generation == view.metadata.generation
            return observed and is_true(view.status.conditions, "Complete")
    return False


class ReplicaCeiling:
    """A ReplicaSet never has more pods than its largest size."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == "Pod" for key in commit.keys):
            for name in ("web", "db"):
                pods = pods_of(commit.store, name)
                if len(pods) > self._most:
                    yield "too many pods", f"{pods} at revision {commit.revision}"


async def new_cluster(sim: Simulation, *, servers: int = 2, mortal: bool = False) -> Cluster:
    """A cluster with a namespace. With `mortal` its API servers may crash and restart."""
    cluster = Cluster(sim, servers=servers)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})

    async def serve(host: Host) -> None:
        host.serve(
            API,
            Served(Service(RemoteStore(host.remote(cluster.store_host, STORE), cluster.store.incarnation), host.env())),
        )

    if mortal:
        for host in cluster.servers:
            host.boot(serve)
    return cluster


async def settle(
    sim: Simulation, cluster: Cluster, goal: Callable[[], bool], *, within_s: float = 300.0, silence_s: float = 22.0
) -> None:
    """No more faults: the goal is reached and stays, and then all writes stop.

    Earlier writes may still be committed until the client's deadline: a create whose requests were lost is retried.
    """
    sim.heal()
    sim.check_eventually(goal)
    await sim.converge(within_s=within_s, stays_s=5, unrest_s=Limits().client_deadline_s)
    before = written(cluster)
    await asyncio.sleep(silence_s)
    if written(cluster) != before:
        sim.violate("then silence", f"writes after everything was done: {written(cluster) - before}")


def written(cluster: Cluster) -> set[tuple[Key, int]]:
    """All versions, except those of leases, which change holders and are renewed for ever."""
    theirs = ("Lease.coordination.k8s.io", "Fence.kedge.dev", "Operation.kedge.dev")
    return {(entry.key, entry.modified) for entry in cluster.store.entries() if entry.key.kind not in theirs}


# -- one thing at a time ---------------------------------------------------------------------------


Work = Callable[[Context, Key], Awaitable[Any]]


class FunctionReconciler:
    """A reconciler from a function."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def reconcile(self, ctx: Context, key: Key) -> Any:
        return await self._work(ctx, key)


class UnreliableTransport:
    """A transport that can withhold replies: the request is executed, and the client gets no reply."""

    repeats_safely = True
    one_history = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.kinds = inner.kinds
        self.dark = False
        """Writes have an unknown outcome, and reads get no reply."""
        self.stuck = False
        """Writes are executed and never return."""
        self.mute = False
        """Watches deliver nothing, and lists get no reply: caches stay as they are."""
        self.streams = 0
        """Watches started so far."""
        self.dead = 0
        """This many of them stay open and deliver nothing; later ones work."""
        self.after_list: Callable[[], Awaitable[object]] | None = None
        """Called once, between a list and the watch that follows it."""
        self.asked: list[tuple[str, Key]] = []
        """Every request: its label and its target."""

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[Any, None]:
        self._note(request)
        return self._held(await self._inner.open_watch(request))

    async def send(self, request: Request[Reply]) -> Reply:
        self._note(request)
        reply: Reply = await self._inner.send(request)
        if isinstance(request, List):
            if self.mute:
                raise Unavailable("no reply")
            if self.after_list is not None:
                then, self.after_list = self.after_list, None
                await then()
        if not (self.dark or self.stuck):
            return reply
        if request.reads:
            if self.dark:
                raise Unavailable("no reply")
            return reply
        if self.stuck:
            await asyncio.get_running_loop().create_future()
        raise OutcomeUnknown("no reply")

    def _note(self, request: Request[Any]) -> None:
        self.asked.append((request.label, request.target))

    async def _held(self, stream: Any) -> AsyncGenerator[Any, None]:
        self.streams += 1
        number = self.streams
        try:
            async for event in stream:
                while self.mute or number <= self.dead:  # noqa: ASYNC110  a flag that a test sets
                    await asyncio.sleep(0.05)
                yield event
        finally:
            await stream.aclose()


class ControllerHarness:
    """One process on one host, one API server, and only the faults that a test requests."""

    def __init__(self, sim: Simulation, cluster: Cluster, limits: Limits) -> None:
        self.sim = sim
        self.cluster = cluster
        self.limits = limits
        self.reported: list[BaseException] = []
        self.transports: list[UnreliableTransport] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.reported.append(context.get("exception") or RuntimeError(context["message"]))
        )
        self.host, self.env, self.transport, self.client = self._process("controller")
        self.caches = CacheSet(self.client, self.env)
        self.recorder = Recorder(self.env)

    def _process(self, name: str) -> tuple[Host, Env, UnreliableTransport, Client]:
        host = self.sim.host(name)
        env = replace(host.env(limits=self.limits), spawn=TaskSpawner())
        transport = UnreliableTransport(self.cluster.transport(host))
        return host, env, transport, Client(transport, env, component=name)

    def another(self, name: str) -> ControllerHarness:
        """Another process in the same cluster."""
        other = ControllerHarness.__new__(ControllerHarness)
        other.sim, other.cluster, other.limits = self.sim, self.cluster, self.limits
        other.reported = self.reported
        other.host, other.env, other.transport, other.client = other._process(name)
        other.caches, other.recorder = CacheSet(other.client, other.env), Recorder(other.env)
        return other

    def controller(self, work: Work, *, lease: Key | SharedElection | None = None, **spec: Any) -> Controller:
        runtime = ControllerRuntime(self.client, self.env, self.caches, self.recorder, lease)
        return Controller(ControllerSpec(**{"kind": REPLICA_SET, **spec}), FunctionReconciler(work), runtime)

    def start(self, controller: Controller) -> asyncio.Task[None]:
        return self.host.spawn(controller.run(), name=controller.name)

    def open(self, work: Work, **named: Any) -> Controller:
        """A running controller."""
        controller = self.controller(work, **named)
        self.start(controller)
        return controller

    async def create(self, name: str = "web", replicas: int = 0, *, namespace: str = "default") -> Object:
        body = replica_set(name, replicas, namespace=namespace)
        return (await self.cluster.authority.create(REPLICA_SET, body)).object

    async def scale(self, name: str, replicas: int) -> Object:
        key = Key("ReplicaSet.apps", "default", name)
        return (await self.cluster.authority.patch(key, {"spec": {"replicas": replicas}})).object

    async def get(self, name: str = "web") -> Object:
        return await self.cluster.authority.get(Key("ReplicaSet.apps", "default", name))

    def decisions(self) -> list[Decision]:
        """Oldest first."""
        return list(self.recorder.decisions())[::-1]

    async def recheck(self, work: Work) -> int:
        evidence = ReceivedEvidence.of(self.caches)
        for decision in self.decisions():
            await recheck(decision, FunctionReconciler(work), evidence, self.env)
        return len(self.decisions())


KEEP_ALL = Limits(decisions_sample_every=1)


def with_harness(
    limits: Limits = KEEP_ALL,
) -> Callable[[Callable[[ControllerHarness], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run an async test in a simulation without faults, on virtual time."""

    def decorate(test: Callable[[ControllerHarness], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        @functools.wraps(test)
        def within() -> None:
            async def program(sim: Simulation) -> None:
                await test(ControllerHarness(sim, await new_cluster(sim, servers=1), limits))

            outcome = run(program, 1, faults=NO_FAULTS)
            assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}"

        del within.__dict__["__wrapped__"]  # or pytest would take `harness` for a fixture
        return within

    return decorate


async def until(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Let virtual time run until a condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  a condition without an event
            await asyncio.sleep(0.01)

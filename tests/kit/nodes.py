"""A small cluster for simulations of the upkeep controllers: simple agents, a simple binder, controllers on hosts.

The agents do what the controllers depend on: heartbeats, readiness, ends, confirmations. `ControllerFleet` keeps the
records of every process, so that each decision can be rechecked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.objects import LEASE, NAMESPACE, NODE, POD, node

from kedge.api.conditions import condition, is_true
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions, ListOptions, OpenWatch, WatchEvent
from kedge.api.timestamps import format_micro_time
from kedge.api.wellknown import NODE_LEASE_NAMESPACE
from kedge.client.contract import Client
from kedge.controllers.node.controller import lifecycle_controller
from kedge.controllers.replicaset.controller import replica_set_controller
from kedge.controllers.shared.node_leases import lease_key
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.runtime import Controller, ControllerRuntime, ReceivedEvidence, Reconciler, recheck
from kedge.runtime.cache import CacheSet
from kedge.runtime.status import plan_status
from kedge.sim.cluster import API, Cluster, Commit, RemoteTransport
from kedge.sim.judges.facts import LAG_S
from kedge.sim.kernel import Host, Simulation

NODES = ("node-0", "node-1", "node-2", "node-3")

QUICK = Limits(
    relist_every_s=30.0,
    resync_every_s=20.0,
    queue_resync_spread_s=5.0,
    decisions_sample_every=1,
    drain_s=2.0,
)
"""Relists and resyncs happen within a run."""
_ZONE = "topology.kubernetes.io/zone"


async def new_cluster(sim: Simulation, *, servers: int = 2) -> Cluster:
    cluster = Cluster(sim, servers=servers)
    for name in ("default", NODE_LEASE_NAMESPACE):
        await cluster.authority.create(NAMESPACE, {"metadata": {"name": name}})
    return cluster


# -- agents ----------------------------------------------------------------------------------------


class SimpleAgent:
    """A simplified agent of one node: bound pods run, terminating pods end."""

    def __init__(self, cluster: Cluster, name: str, *, zone: str = "zone-a", server: int = 0) -> None:
        self.cluster, self.name, self.zone, self.server = cluster, name, zone, server
        self.running: set[str] = set()
        """The uids of running pods, whatever the API shows."""
        self.dead = False
        """Permanently: a restart of its host does not help."""

    async def start(self, host: Host) -> None:
        env = host.env(limits=QUICK)
        client = Client(self.cluster.transport(host, server=self.server), env, component=self.name)
        beats = asyncio.ensure_future(self._beat(client, env))
        try:
            while not self.dead:
                with suppress(OperatingError):
                    await self._work(client, env)
                await asyncio.sleep(1.0)
        finally:
            beats.cancel()

    async def _beat(self, client: Client, env: Env) -> None:
        while not self.dead:
            with suppress(OperatingError, TimeoutError):
                async with asyncio.timeout(5.0):
                    await self._renew(client, env)
            await asyncio.sleep(env.limits.node_renew_s / 2)

    async def _renew(self, client: Client, env: Env) -> None:
        now = format_micro_time(env.now())
        lease = await client.find(lease_key(self.name))
        if lease is None:
            body = {"metadata": {"name": self.name, "namespace": NODE_LEASE_NAMESPACE}, "spec": {"renewTime": now}}
            await client.create(LEASE, body)
        else:
            await client.patch(lease.key, {"spec": {"renewTime": now}})
        found = await client.find(Key("Node", "", self.name))
        if found is not None and not is_true(found.view.status.conditions, "Ready"):
            await write_conditions(client, env, found, [condition("Ready", status=True, reason="AgentReady")])

    async def _work(self, client: Client, env: Env) -> None:
        listed = await client.list(POD, ListOptions(field_selector=f"spec.nodeName={self.name}"))
        mine = {pod.uid: pod for pod in listed.objects}
        for pod in mine.values():
            if pod.view.finished:
                continue
            if pod.view.terminating:
                self.running.discard(pod.uid)
                await client.patch(pod.key, {"status": {"phase": "Succeeded"}}, subresource="status")
                await client.delete(pod.key, DeleteOptions(uid=pod.uid, grace_s=0))
            elif not is_true(pod.view.status.conditions, "Ready"):
                self.running.add(pod.uid)
                ready = [condition("Ready", status=True, reason="Started")]
                await write_conditions(client, env, pod, ready, phase="Running", podIP=f"10.0.0.{len(self.running)}")
        self.running &= {uid for uid, pod in mine.items() if not pod.view.finished}
        ledger = await client.find(Key("NodeAllocation.kedge.dev", "", self.name))
        if ledger is None:
            return
        for uid in ledger.view.status.entries:
            if uid not in mine or mine[uid].view.finished:
                with suppress(OperatingError):
                    await client.confirm_ended(node=self.name, node_uid=ledger.view.spec.node_uid, pod_uid=uid)


async def write_conditions(
    client: Client, env: Env, found: Object, conditions: list[dict[str, Any]], **more: Any
) -> None:
    patch = plan_status(found, {"conditions": conditions, **more}, env.now())
    if patch is not None:
        await client.patch(found.key, patch, subresource="status")


class SimpleBinder:
    """The simplest scheduler: the first node that accepts the pod."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def start(self, host: Host) -> None:
        client = Client(self.cluster.transport(host), host.env(limits=QUICK), component="binder")
        while True:
            with suppress(OperatingError):
                await self._bind(client)
            await asyncio.sleep(1.0)

    async def _bind(self, client: Client) -> None:
        nodes = [each.key.name for each in (await client.list(NODE)).objects]
        for pod in (await client.list(POD)).objects:
            if pod.view.spec.node_name or pod.view.terminating or pod.view.finished:
                continue
            for name in nodes:
                try:
                    await client.bind(Binding(pod=pod.key, pod_uid=pod.uid, node=name))
                    break
                except OperatingError:
                    continue


# -- controllers -----------------------------------------------------------------------------------


class FilteredTransport(RemoteTransport):
    """A transport whose watches hide some keys: until it relists, a cache behind it is wrong about them without knowing
    it."""

    def __init__(self, remote: Any, hides: Callable[[Key], bool]) -> None:
        super().__init__(remote)
        self._hides = hides

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        return self._shown(await super().open_watch(request))

    async def _shown(self, stream: AsyncGenerator[WatchEvent, None]) -> AsyncGenerator[WatchEvent, None]:
        try:
            async for event in stream:
                if event.object is None or not self._hides(event.object.key):
                    yield event
        finally:
            await stream.aclose()


@dataclass
class ControllerFleet:
    """Controllers on hosts, each process with its own caches and recorder; all processes are kept."""

    cluster: Cluster
    limits: Limits = QUICK
    hidden: set[Key] = field(default_factory=set)
    """Keys that their watches hide."""
    processes: list[tuple[Controller, CacheSet, Recorder, Env]] = field(default_factory=list)

    def boot(self, sim: Simulation, make: Callable[..., Controller], *, copies: int = 1) -> list[Host]:
        named = Key("Lease.coordination.k8s.io", "default", make.__name__.replace("_", "-"))
        lease = named if copies > 1 else None
        hosts = []
        for n in range(copies):
            host = sim.host(f"{make.__name__}-{n}")
            host.boot(lambda host: self._start(host, make, lease))
            hosts.append(host)
        return hosts

    async def _start(self, host: Host, make: Callable[..., Controller], lease: Key | None) -> None:
        env = host.env(limits=self.limits)
        server = self.cluster.servers[len(self.processes) % len(self.cluster.servers)]
        transport = FilteredTransport(host.remote(server, API), self.hidden.__contains__)
        client = Client(transport, env, component=host.name)
        caches, recorder = CacheSet(client, env), Recorder(env)
        controller = make(ControllerRuntime(client, env, caches=caches, recorder=recorder, lease=lease))
        self.processes.append((controller, caches, recorder, env))
        await controller.run()

    async def recheck(self, makers: Mapping[str, Callable[[Env], Reconciler]]) -> int:
        """Recheck every decision. Returns their number."""
        count = 0
        for controller, caches, recorder, env in self.processes:
            make = makers.get(controller.name)
            if make is None:
                continue
            evidence = ReceivedEvidence.of(caches)
            for decision in reversed(list(recorder.decisions())):
                await recheck(decision, make(env), evidence, env)
                count += 1
        return count


# -- judging ---------------------------------------------------------------------------------------


def objects(store: Any, kind: str) -> list[Object]:
    found = KINDS.of_key_kind(kind)
    return [
        Object(found, entry.key, entry.value, revision=entry.modified, created=entry.created)
        for entry in store.entries()
        if entry.key.kind == kind
    ]


def find(store: Any, key: Key) -> Object | None:
    return next((each for each in objects(store, key.kind) if each.key == key), None)


def written(cluster: Cluster) -> set[tuple[Key, int]]:
    """All versions, except those of leases, which are renewed for ever."""
    theirs = ("Lease.coordination.k8s.io", "Fence.kedge.dev", "Operation.kedge.dev")
    return {(entry.key, entry.modified) for entry in cluster.store.entries() if entry.key.kind not in theirs}


async def settle(sim: Simulation, cluster: Cluster, goal: Callable[[], bool], *, within_s: float = 400.0) -> None:
    """No more faults: the goal is reached and stays, and then all writes stop.

    The goal may be lost once more soon after the faults end: 1. a node is silent, and its observer sends the condition
    Suspect; 2. the API server is paused and holds the request; 3. the faults end, and the goal holds; 4. the server
    writes the condition, which was true when it was sent.
    """
    sim.heal()
    sim.check_eventually(goal)
    await sim.converge(within_s=within_s, stays_s=5, unrest_s=LAG_S)
    await asyncio.sleep(40)  # writers of statuses come a little later
    before = written(cluster)
    await asyncio.sleep(60)
    assert goal(), "what was reached did not last"
    assert written(cluster) == before, f"writes after everything was done: {written(cluster) - before}"


def no_pod_is_released_on_suspicion(commit: Commit) -> Iterator[tuple[str, str]]:
    """A pod is released only when its node is lost in committed state."""
    pods = [key for key in commit.keys if key.kind == "Pod"]
    if not pods:
        return
    nodes = {each.key.name: each for each in objects(commit.store, "Node")}
    for pod in objects(commit.store, "Pod"):
        if pod.key in pods and pod.view.status.reason == "NodeLost":
            home = nodes.get(pod.view.spec.node_name)
            conditions = home.view.status.conditions if home is not None else ()
            if home is not None and not any(each.type == "Lost" for each in conditions):
                yield "released on suspicion", f"{pod.key} at revision {commit.revision}"


def node_body(name: str, *, zone: str = "zone-a", **more: Any) -> dict[str, Any]:
    return node(name, zone=zone, **more)


def zone_of(found: Object) -> str:
    return str(found.metadata.labels.get(_ZONE, ""))


async def cluster_with_agents(
    sim: Simulation, *, zones: int = 2, copies: int = 2, names: Sequence[str] = NODES
) -> tuple[Cluster, ControllerFleet, dict[str, Host], dict[str, SimpleAgent]]:
    cluster = await new_cluster(sim)
    sim.check_always(no_pod_is_released_on_suspicion)
    hosts, agents = {}, {}
    for n, name in enumerate(names):
        zone = f"zone-{n % zones}"
        await cluster.authority.create(NODE, node_body(name, zone=zone))
        hosts[name] = sim.host(f"agent-{name}")
        agents[name] = SimpleAgent(cluster, name, zone=zone, server=n % 2)
        hosts[name].boot(agents[name].start)
    sim.host("binder").boot(SimpleBinder(cluster).start)
    fleet = ControllerFleet(cluster)
    fleet.boot(sim, lifecycle_controller, copies=copies)
    fleet.boot(sim, replica_set_controller)
    return cluster, fleet, hosts, agents


def ready_pods(cluster: Cluster) -> dict[str, str]:
    """The nodes of ready pods, by uid."""
    pods = [each for each in objects(cluster.store, "Pod") if not each.view.finished and not each.view.terminating]
    return {each.uid: each.view.spec.node_name for each in pods if is_true(each.view.status.conditions, "Ready")}


def has_condition(cluster: Cluster, name: str, what: str) -> bool:
    found = find(cluster.store, Key("Node", "", name))
    return found is not None and is_true(found.view.status.conditions, what)


def claimed_uids(cluster: Cluster, name: str) -> set[str]:
    found = find(cluster.store, Key("NodeAllocation.kedge.dev", "", name))
    return set() if found is None else set(found.view.status.entries)

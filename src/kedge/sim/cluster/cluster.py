"""A whole control plane on simulated hosts: store, API servers, machines with agents, controllers, schedulers, users.

This is the second composition root. The components are the production ones; only the links between them (`links`), the
machines (`agents`) and the faults (`faults`) are simulated. Components are passed in as factories, so this module
imports none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from kedge.agent.core import Agent, ContainerProcess, Machine
from kedge.api.kinds import KINDS, Kind
from kedge.api.objects import Object
from kedge.api.requests import List, OpenWatch
from kedge.api.views import NodeView
from kedge.api.wellknown import NAMESPACE_KIND, NODE_KIND, SYSTEM_NAMESPACES, ZONE_LABEL
from kedge.client.contract import Client
from kedge.env import Env
from kedge.errors import OperatingError
from kedge.keys import NODE_USER_PREFIX, Key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.runtime import ControllerRuntime
from kedge.runtime.cache import CacheSet
from kedge.runtime.lease import SharedElection
from kedge.server.service import AdmissionChain, Service
from kedge.sim.cluster.agents import SYSTEM, OnStart, SimulatedDriver
from kedge.sim.cluster.decision_observers import ObservedRecorder, OnDecision
from kedge.sim.cluster.dump import DumpPlan, load_dump
from kedge.sim.cluster.faults import FaultyService, disk_slowness
from kedge.sim.cluster.links import (
    API,
    STORE,
    RemoteStore,
    RemoteTransport,
    Served,
    ServedStore,
    WatchedStore,
)
from kedge.sim.cluster.recording import ClusterRecording
from kedge.sim.cluster.relay import Relay
from kedge.sim.cluster.state_coverage import StateCoverage
from kedge.sim.kernel import Host, Simulation
from kedge.store import Entry, Store


class Component(Protocol):
    """A controller, a scheduler or an agent."""

    def run(self) -> Coroutine[Any, Any, Any]: ...


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The client, caches and recorder that all components of one control-plane process share."""

    client: Client
    env: Env
    caches: CacheSet
    recorder: Recorder

    def runtime(self, lease: Key | SharedElection | None = None) -> ControllerRuntime:
        """The runtime of one controller of this process."""
        return ControllerRuntime(self.client, self.env, self.caches, self.recorder, lease)


ComponentFactory = Callable[[ProcessContext], Component]
"""Makes one component of a process. Called each time the host starts."""
ProcessFactory = Callable[[ProcessContext], Sequence[Component]]
"""Makes all components of a process."""


@dataclass(slots=True)
class ControlPlaneProcess:
    """One incarnation of one control-plane process."""

    host: Host
    context: ProcessContext
    components: tuple[Component, ...]
    number: int
    """Its place among the processes of the host."""

    @property
    def ended(self) -> bool:
        """Whether it has crashed."""
        return not self.host.up or self.host.process.number != self.number


@dataclass(slots=True)
class Node:
    """One machine: its container processes, and the host of its agent."""

    sim: Simulation
    name: str
    host: Host
    driver: SimulatedDriver
    machine: Machine
    limits: Limits
    agents: list[Agent] = field(default_factory=list)
    """Every incarnation of its agent."""

    def power_off(self, *, for_s: float | None = None) -> None:
        """End agent and processes; no state of them survives. With `for_s`, power on again after that time."""
        self.host.crash()
        self.driver.power_off()
        if for_s is None:
            return
        world, dead = self.sim.world, self.host.process

        def restart() -> None:
            if self.host.process is dead:
                self.power_on()

        world.loop.call_later(for_s, restart, context=world.context)

    def power_on(self) -> None:
        self.host.restart()

    @property
    def key(self) -> Key:
        return Key(NODE_KIND, "", self.name)


class Cluster:
    """A store, API servers on it, and the machines and processes that are added."""

    def __init__(
        self,
        sim: Simulation,
        *,
        servers: int = 1,
        admission: AdmissionChain | None = None,
        limits: Limits | None = None,
        hostile: bool = False,
        scripted_slowness_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`hostile` servers can crash and have the faults of `faults`; other servers only lose messages. Where
        `scripted_slowness_s` is not zero, a commit takes so long."""
        self.sim = sim
        self.limits = limits or Limits()
        self.admission = admission or AdmissionChain()
        self._hostile = hostile
        self.store_host = sim.host(STORE)
        drawn_slowness_s = disk_slowness(sim) if hostile else lambda: 0.0
        self.store = WatchedStore(
            self.store_host,
            sim.commit,
            slowness_s=lambda: scripted_slowness_s() or drawn_slowness_s(),
            limits=self.limits,
        )
        self.store_host.serve(STORE, ServedStore(self.store))
        self._admissions: dict[str, _SwitchedAdmission] = {}
        self._relays: dict[str, Relay] = {}
        """The relay of each server's current incarnation, by server."""
        self.authority = Service(
            self.store, self.store_host.env(limits=self.limits), admission=self._admission_of(STORE)
        )
        """A service beside the store, without a link: to set up a test and to read committed state."""
        self.servers = [self._serve(sim.host(f"{API}-{n}")) for n in range(servers)]
        self.nodes: dict[str, Node] = {}
        self.drivers: dict[str, SimulatedDriver] = {}
        """By node: its machine."""
        self._start_observers: list[OnStart] = []
        self._decision_observers: list[OnDecision] = []
        self._follow_observers: list[Callable[[str, List | OpenWatch], None]] = []
        self.processes: list[ControlPlaneProcess] = []
        """Every control-plane process that was ever started, in order."""
        self._turn = 0
        self.recording: ClusterRecording | None = None
        """Set where the run is written to a file, or its timeline is wanted."""
        if sim.keeps:
            self.record()
        if sim.world.coverage is not None:
            StateCoverage(self, sim.world.coverage)

    def record(self) -> ClusterRecording:
        """Record the cluster's history from now on."""
        if self.recording is None:
            self.recording = ClusterRecording(self)
        return self.recording

    # -- servers -----------------------------------------------------------------------------------

    def client(self, host: Host, *, server: int = 0, limits: Limits | None = None) -> Client:
        """A client on `host`, connected to one of the servers."""
        return Client(self.transport(host, server=server), host.env(limits=limits), component=host.name)

    def transport(self, host: Host, *, server: int = 0) -> RemoteTransport:
        return RemoteTransport(host.remote(self.servers[server], API), on_follow=partial(self._followed, host.name))

    def observe_follows(self, observer: Callable[[str, List | OpenWatch], None]) -> None:
        """Call `observer` with the host and the request whenever a client lists a kind, or opens a watch of it."""
        self._follow_observers.append(observer)

    def _followed(self, host: str, request: List | OpenWatch) -> None:
        for observer in self._follow_observers:
            observer(host, request)

    def admit_by(self, admission: AdmissionChain, *, servers: Sequence[str] = ()) -> None:
        """Change the admission policies in mid-run: on every server at once, or only on `servers`."""
        for name in servers or tuple(self._admissions):
            self._admissions[name].chain = admission
        text = f"policies changed on {', '.join(servers) or 'every server'}"
        self.sim.note("admission", text)
        if self.recording is not None:
            self.recording.admission_changed(text, tuple(servers), admission)

    def _serve(self, host: Host) -> Host:
        if self._hostile:
            host.boot(self._serve_until_crash)
        else:
            host.serve(API, Served(self._service(host)))
        return host

    async def _serve_until_crash(self, host: Host) -> None:
        service = self._service(host)
        host.serve(API, FaultyService(service, self.sim, self._touch, self.compact, host.name))
        self._relays[host.name].begin()
        await service.run_upkeep()

    def _service(self, host: Host) -> Service:
        remote, env = host.remote(self.store_host, STORE), host.env(limits=self.limits)
        relay = self._relays[host.name] = Relay(remote, env)
        store: Store = RemoteStore(remote, self.store.incarnation, relay)
        return Service(store, env, admission=self._admission_of(host.name))

    async def _touch(self, key: Key, patch: Mapping[str, Any]) -> None:
        """Write as another client, on the host of the store: a timer that a commit starts must outlive any server."""
        await self.store_host.run(self.authority.patch(key, patch))

    async def compact(self, *, keep: int = 0) -> None:
        """Drop all history but the last `keep` revisions, of the store and of every relay: an older watch must list."""
        until = max(0, await self.store.revision() - keep)
        await self.store.compact(until)
        for relay in self._relays.values():
            relay.compact(until)

    def _admission_of(self, server: str) -> AdmissionChain:
        return self._admissions.setdefault(server, _SwitchedAdmission(self.admission))

    # -- machines ----------------------------------------------------------------------------------

    def add_node(
        self,
        name: str,
        *,
        zone: str = "zone-a",
        cpu: str = "4",
        memory: str = "16Gi",
        pods: str = "110",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        limits: Limits | None = None,
        **resources: str,
    ) -> Node:
        """A machine whose agent registers it as a node."""
        machine = Machine(
            name=name,
            capacity={"cpu": cpu, "memory": memory, "pods": pods, **resources},
            labels={ZONE_LABEL: zone, **(labels or {})},
            taints=tuple(taints),
        )
        return self.add_machine(machine, limits=limits)

    def add_machine(self, machine: Machine, *, limits: Limits | None = None) -> Node:
        name = machine.name
        host = self.sim.host(name)
        driver = SimulatedDriver(self.sim, host, name, subnet=len(self.nodes), on_start=self._process_started)
        node = self.nodes[name] = Node(self.sim, name, host, driver, machine, limits or self.limits)
        self.drivers[name] = driver
        host.boot(lambda host: self._run_agent(host, node))
        return node

    def power_on_machines(self) -> None:
        for node in self.nodes.values():
            if not node.host.up:
                node.power_on()

    async def restore_sizes(self, nodes: Iterable[Node]) -> None:
        """Let nodes offer the CPU of their machine again."""
        for node in nodes:
            with suppress(OperatingError):  # a deleted node registers again with its full size
                size = {"status": {"allocatable": {"cpu": node.machine.capacity["cpu"]}}}
                await self.authority.patch(node.key, size, subresource="status")

    def observe_starts(self, observer: OnStart) -> None:
        """Call `observer` with the machine and the process whenever a container process starts."""
        self._start_observers.append(observer)

    def observe_decisions(self, observer: OnDecision) -> None:
        """Call `observer` with every decision of a component, when it ends."""
        self._decision_observers.append(observer)

    def _process_started(self, driver: SimulatedDriver, process: ContainerProcess) -> None:
        for observer in self._start_observers:
            observer(driver, process)

    async def _run_agent(self, host: Host, node: Node) -> None:
        env = host.env(limits=self._recorded(node.limits))
        transport = self.transport(host, server=self._next_server())
        transport.caller = f"{NODE_USER_PREFIX}{node.name}"
        client = Client(transport, env, component=host.name)
        machine = Machine(
            name=node.name,
            capacity=node.machine.capacity,
            labels=node.machine.labels,
            taints=node.machine.taints,
            boot_id=node.driver.boot_id,
            system=SYSTEM,
        )
        agent = Agent(client, env, node.driver, machine, ObservedRecorder(env, host.name, self._decision_observers))
        node.agents.append(agent)
        await agent.run()

    # -- control-plane processes -------------------------------------------------------------------

    def boot(
        self,
        name: str,
        makers: Sequence[ComponentFactory] | ProcessFactory,
        *,
        copies: int = 1,
        limits: Limits | None = None,
    ) -> list[Host]:
        """Run components together in one process, on each of `copies` hosts, which may crash and restart."""
        hosts = [self.sim.host(f"{name}-{n}" if copies > 1 else name) for n in range(copies)]
        for host in hosts:
            host.boot(lambda host: self._run_process(host, makers, limits or self.limits))
        return hosts

    async def _run_process(
        self, host: Host, makers: Sequence[ComponentFactory] | ProcessFactory, limits: Limits
    ) -> None:
        env = host.env(limits=self._recorded(limits))
        client = Client(self.transport(host, server=self._next_server()), env, component=host.name)
        recorder = ObservedRecorder(env, host.name, self._decision_observers)
        context = ProcessContext(client, env, CacheSet(client, env), recorder)
        made = makers(context) if callable(makers) else [make(context) for make in makers]
        process = ControlPlaneProcess(host, context, tuple(made), host.process.number)
        self.processes.append(process)
        async with asyncio.TaskGroup() as group:
            for component in process.components:
                group.create_task(component.run(), name=type(component).__name__)

    def _recorded(self, limits: Limits) -> Limits:
        """A recording has every decision: its story shows what each of them read."""
        return limits if self.recording is None else replace(limits, decisions_sample_every=1)

    def _next_server(self) -> int:
        """The server of a new process: round-robin, so that every server has clients."""
        self._turn += 1
        return self._turn % len(self.servers)

    # -- setup -------------------------------------------------------------------------------------

    async def set_up(self, *namespaces: str) -> None:
        """Create the system namespaces, `default` and `namespaces`, unless a dump brought them."""
        for name in dict.fromkeys(("default", *SYSTEM_NAMESPACES, *namespaces)):
            if self.find(Key(NAMESPACE_KIND, "", name)) is not None:
                continue
            await self.authority.create(KINDS.of_key_kind(NAMESPACE_KIND), {"metadata": {"name": name}})

    async def load(self, objects: Sequence[Mapping[str, Any]]) -> DumpPlan:
        """Start from the dump of a real cluster: its objects, and a machine a node. Add a judge only afterwards."""
        plan = await load_dump(self.store, self.store_host.env(), objects)
        for node in self.all(NODE_KIND):
            view = node.as_view(NodeView)
            capacity = {name: str(amount) for name, amount in view.status.capacity.items()}
            self.add_machine(Machine(name=view.name, capacity=capacity, labels=view.labels))
        return plan

    async def create(self, body: Mapping[str, Any], *, namespace: str = "") -> Object:
        """Create an object without a link or a fault in between."""
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        return (await self.authority.create(kind, body, namespace=namespace)).object

    # -- committed state ---------------------------------------------------------------------------

    def find(self, key: Key) -> Object | None:
        """The committed version of an object."""
        entry = self.store.newest(key)
        return None if entry is None else _object(entry)

    def all(self, kind: str, *, namespace: str = "") -> list[Object]:
        """The committed objects of a kind, in key order."""
        found = [e for e in self.store.entries() if e.key.kind == kind and namespace in ("", e.key.namespace)]
        return [_object(each) for each in sorted(found, key=lambda each: each.key)]

    def versions(self, *, but: Sequence[str] = ()) -> dict[Key, int]:
        """The revision of every object, except of the kinds `but`. Two equal results mean no write in between."""
        return {each.key: each.modified for each in self.store.entries() if each.key.kind not in but}


class _SwitchedAdmission(AdmissionChain):
    """The policies of one server, which may change while it runs."""

    def __init__(self, chain: AdmissionChain) -> None:
        super().__init__()
        self.chain = chain

    def for_write(self, verb: str, kind: Kind, subresource: str) -> AdmissionChain | None:
        return self.chain.for_write(verb, kind, subresource)


def _object(entry: Entry) -> Object:
    kind = KINDS.of_key_kind(entry.key.kind)
    return Object(kind, entry.key, entry.value, revision=entry.modified, created=entry.created, origin=entry.origin)

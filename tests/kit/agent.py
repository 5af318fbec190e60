"""Harnesses of the agent: simulated nodes with real agents, and a driver for tests in real time."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kit.controllers import UnreliableTransport
from tests.objects import pod, pod_key

from kedge.agent.core import Consumption, ContainerProcess, ContainerSetup, Identity, KeptPod, Machine
from kedge.agent.core.node import NodeRegistration
from kedge.agent.core.pods import PodWorker
from kedge.agent.core.usage import UsageMeter
from kedge.agent.core.worker_context import WorkerContext
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Binding, Reply, Request
from kedge.api.views import Container, LifecycleHook, PodView, Probe
from kedge.api.views.decode import decode_view
from kedge.api.wellknown import EVENT_KIND
from kedge.client.contract import Client
from kedge.env import Env, TaskSpawner
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.runtime.cache import CacheSet
from kedge.sim.cluster import Cluster
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, RunOutcome, Simulation, run

CALM = Limits(watch_probe_s=30.0, agent_audit_s=20.0)
NODE = Key("Node", "", "node-a")
LEDGER = Key("NodeAllocation.kedge.dev", "", "node-a")


async def new_cluster(sim: Simulation, *nodes: str, hostile: bool = False, limits: Limits = CALM) -> Cluster:
    """A cluster with agents on `nodes`, checked by the invariants."""
    cluster = Cluster(sim, servers=2, hostile=hostile, limits=limits)
    await cluster.set_up()
    Judge(cluster)
    for name in nodes:
        cluster.add_node(name)
    await until(lambda: len(cluster.all("Node")) == len(nodes))
    return cluster


async def until(holds: Callable[[], bool], *, within_s: float = 300.0) -> None:
    for _ in range(int(within_s * 4)):
        if holds():
            return
        await asyncio.sleep(0.25)
    raise AssertionError(f"the condition did not hold within {within_s:.0f} s")


async def bind(cluster: Cluster, body: dict[str, Any], node: str = "node-a") -> str:
    """Create a pod and bind it. Returns its uid."""
    made = await cluster.create(body)
    await cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node=node))
    return made.uid


def is_ready(cluster: Cluster, name: str = "web-0") -> bool:
    found = cluster.find(pod_key(name))
    return found is not None and any(c.type == "Ready" and c.status == "True" for c in found.view.status.conditions)


def live(cluster: Cluster, node: str = "node-a") -> list[str]:
    return [process.pod for process in cluster.nodes[node].driver.live()]


def claims(cluster: Cluster) -> list[str]:
    ledger = cluster.find(LEDGER)
    return [] if ledger is None else [entry.name for entry in ledger.view.status.entries.values()]


def without_faults(program: Callable[[Simulation], Any]) -> RunOutcome:
    """Run a program in a simulation without faults, and fail on a violation."""
    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}\n{outcome.timeline()[-2000:]}"
    return outcome


# -- values ----------------------------------------------------------------------------------------

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def pod_view(**spec: Any) -> PodView:
    """A pod on node-a with one container, without an API."""
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "default", "uid": "u1", **spec.pop("metadata", {})},
        "status": spec.pop("status", {}),
        "spec": {"nodeName": "node-a", "containers": [{"name": "main", "image": "web:1"}], **spec},
    }
    view = decode_view(KINDS.of_key_kind("Pod"), encode_object(body))
    assert isinstance(view, PodView)
    return view


def process_of(
    container: str = "main", *, attempt: int = 0, running: bool = True, exit_code: int = 0, since_s: float = 0.0
) -> ContainerProcess:
    """A process of that pod."""
    return ContainerProcess(
        identity=Identity("u1", container, attempt, 7, "n1"),
        namespace="default",
        pod="web-0",
        running=running,
        started_at=NOW,
        ended_at=None if running else NOW + timedelta(seconds=1),
        exit_code=exit_code,
        since_s=since_s,
    )


# -- one part at a time ----------------------------------------------------------------------------


class HookedTransport(UnreliableTransport):
    """Calls `before` ahead of every request."""

    before: Callable[[Request[Any]], Awaitable[None]] | None = None

    async def send(self, request: Request[Reply]) -> Reply:
        if self.before is not None:
            await self.before(request)
        return await super().send(request)


class FakeDriver:
    """A driver whose processes start at once and end when the test ends them. It records every call."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._listener: Callable[[str], None] = lambda _: None
        self.table: dict[Identity, ContainerProcess] = {}
        self.started: list[tuple[Identity, float | None]] = []
        """Every start, with its `keep_s`."""
        self.stopped: list[tuple[Identity, float]] = []
        """Every stop, with its grace."""
        self.setups: dict[Identity, ContainerSetup] = {}
        self.updated: list[ContainerSetup] = []
        """Every update of volumes."""
        self.services: dict[str, str] = {}
        self.hooks: list[tuple[Identity, LifecycleHook]] = []
        self.hook_result = ""
        self.hook_s = 0.0
        self.removed: list[str] = []
        self.kept: list[Identity] = []
        self.forgotten: list[Identity] = []
        self.pull_error: Exception | None = None
        self.after_pull: Callable[[], Awaitable[object]] | None = None
        self.on_stop: Callable[[Identity], None] = self.end
        self.probe_passes: Callable[[Probe], bool] = lambda _: True
        self.probe_output = "no answer"
        self.probe_s = 0.0
        self.usage: dict[Identity, Consumption] = {}

    def end(self, identity: Identity, *, exit_code: int = 0) -> None:
        now = self._env.now()
        process = self.table[identity]
        self.table[identity] = replace(
            process, running=False, ended_at=now, exit_code=exit_code, since_s=self._env.monotonic()
        )
        self._listener(identity.pod_uid)

    def run(self, identity: Identity, *, pod: str = "web-0") -> None:
        """A process that an earlier run of the agent has started."""
        self.table[identity] = ContainerProcess(
            identity=identity, namespace="default", pod=pod, running=True, started_at=self._env.now()
        )

    async def pull(self, image: str) -> None:
        del image
        if self.pull_error is not None:
            raise self.pull_error
        if self.after_pull is not None:
            then, self.after_pull = self.after_pull, None
            await then()

    async def prepare(self, pod: PodView) -> str:
        return self.address(pod.uid)

    async def service_variables(self, pod: PodView) -> Mapping[str, str]:
        del pod
        return self.services

    async def update_volumes(self, pod: PodView, setup: ContainerSetup) -> None:
        del pod
        self.updated.append(setup)

    async def resize(self, identity: Identity, container: Container) -> None:
        self.table[identity] = replace(self.table[identity], resources=container.resources)

    async def start(
        self, identity: Identity, pod: PodView, container: Container, setup: ContainerSetup, *, keep_s: float | None
    ) -> None:
        del container
        self.setups[identity] = setup
        self.started.append((identity, keep_s))
        if identity not in self.table:
            self.run(identity, pod=pod.name)

    async def keep(self, identity: Identity, for_s: float) -> None:
        del for_s
        self.kept.append(identity)

    async def stop(self, identity: Identity, *, grace_s: float, cause: str = "") -> None:
        self.table[identity] = replace(self.table[identity], message=cause)
        self.stopped.append((identity, grace_s))
        self.on_stop(identity)

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(self.table.values())

    async def forget(self, identity: Identity) -> None:
        self.forgotten.append(identity)
        self.table.pop(identity, None)

    async def probe(self, identity: Identity, probe: Probe) -> str:
        del identity
        await asyncio.sleep(self.probe_s)
        return "" if self.probe_passes(probe) else self.probe_output

    async def run_hook(self, identity: Identity, hook: LifecycleHook, *, within_s: float) -> str:
        self.hooks.append((identity, hook))
        await asyncio.sleep(min(self.hook_s, within_s))
        return self.hook_result

    async def remove(self, pod_uid: str) -> None:
        self.removed.append(pod_uid)

    async def kept_pods(self) -> Sequence[KeptPod]:
        return ()

    async def consumption(self) -> Mapping[Identity, Consumption]:
        return self.usage

    def address(self, pod_uid: str) -> str:
        del pod_uid
        return "10.0.0.1"

    def listen(self, on_change: Callable[[str], None]) -> None:
        self._listener = on_change


class AgentHarness:
    """The parts of one agent on a real service in virtual time, with a fake driver."""

    def __init__(self, sim: Simulation, cluster: Cluster, limits: Limits) -> None:
        self.cluster = cluster
        self.reported: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.reported.append(context.get("exception") or RuntimeError(context["message"]))
        )
        host = sim.host("agent")
        self.env = replace(host.env(limits=limits), spawn=TaskSpawner())
        self.transport = HookedTransport(cluster.transport(host))
        self.client = Client(self.transport, self.env, component="agent")
        self.driver = FakeDriver(self.env)
        self.machine = Machine(name="node-a", capacity={"cpu": "4", "memory": "8Gi", "pods": "110"}, boot_id="boot-1")
        self.caches = CacheSet(self.client, self.env)
        self.calls: list[str] = []
        """The callbacks of the registration, in order: "clear" with the nodes that existed then, or "contact"."""
        self.workers: list[PodWorker] = []
        self.finished: list[str] = []
        """The uids of the pods whose workers are done."""
        self.meter = UsageMeter(self.env, self.driver)
        self.node = self.registration()
        self.restart()

    def restart(self) -> None:
        """Another run of the agent: new workers keep nothing of the earlier ones."""
        self.recorder = Recorder(self.env)
        self.context = WorkerContext(self.client, self.env, self.driver, self.node, self.recorder)

    def registration(self) -> NodeRegistration:
        return NodeRegistration(
            self.client,
            self.env,
            self.machine,
            self.caches,
            self.meter,
            clear=self._clear,
            on_contact=lambda: self.calls.append("contact"),
        )

    async def _clear(self) -> None:
        nodes = len(self.cluster.all("Node"))
        self.calls.append(f"clear at {nodes} nodes")

    @property
    def clears(self) -> list[str]:
        return [each for each in self.calls if each != "contact"]

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[Any]:
        return self.env.spawn(work, name="under test")

    async def in_contact(self) -> None:
        """Register the node, and confirm one heartbeat."""
        await self.node.register()
        self.node.contact_s = self.env.monotonic()

    async def bound_pod(self, **body: Any) -> Object:
        """A pod that is bound to this node, as committed."""
        return await self.bind(await self.cluster.create(pod(**body)))

    async def bind(self, made: Object) -> Object:
        await self.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node=self.machine.name))
        return await self.cluster.authority.get(made.key)

    def worker(self, found: Object) -> PodWorker:
        """A worker that has got this version from the cache."""
        worker = PodWorker(self.context, found.uid, found.key, self.finished.append)
        self.workers.append(worker)
        self.driver.listen(lambda _: worker.wake())
        worker.update(found)
        return worker

    def events(self) -> dict[str, dict[str, Any]]:
        """The Events about pods, by reason."""
        return {each.edit()["reason"]: each.edit() for each in self.cluster.all(EVENT_KIND)}

    def status(self, name: str = "web-0") -> Any:
        found = self.cluster.find(pod_key(name))
        assert found is not None, f"there is no pod {name}"
        return found.view.status


ONE_ATTEMPT = Limits(client_attempts_max=1, breaker_failures_max=10_000)


def with_agent(
    limits: Limits = ONE_ATTEMPT,
) -> Callable[[Callable[[AgentHarness], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run an async test on a harness in a simulation without faults."""

    def decorate(test: Callable[[AgentHarness], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        @functools.wraps(test)
        def within() -> None:
            async def program(sim: Simulation) -> None:
                cluster = Cluster(sim, servers=1)
                await cluster.set_up()
                harness = AgentHarness(sim, cluster, limits)
                await test(harness)
                assert not harness.reported, harness.reported

            without_faults(program)

        del within.__dict__["__wrapped__"]  # else pytest takes `harness` for a fixture
        return within

    return decorate


# -- in real time ----------------------------------------------------------------------------------


class TableDriver:
    """A driver in real time: processes are table entries and run until stopped; the command `true` ends at once."""

    def __init__(self) -> None:
        self._table: dict[Identity, ContainerProcess] = {}
        self._listener: Callable[[str], None] = lambda _: None
        self.cores = 0.0
        """The cores that each process uses."""

    async def pull(self, image: str) -> None:
        del image

    async def prepare(self, pod: PodView) -> str:
        return self.address(pod.uid)

    async def service_variables(self, pod: PodView) -> Mapping[str, str]:
        del pod
        return {}

    async def update_volumes(self, pod: PodView, setup: ContainerSetup) -> None:
        del pod, setup

    async def resize(self, identity: Identity, container: Container) -> None:
        self._table[identity] = replace(self._table[identity], resources=container.resources)

    async def start(
        self, identity: Identity, pod: PodView, container: Container, setup: ContainerSetup, *, keep_s: float | None
    ) -> None:
        del setup, keep_s
        ends = tuple(container.command) == ("true",)
        if identity not in self._table:
            now = datetime.now(UTC)
            self._table[identity] = ContainerProcess(
                identity=identity,
                namespace=pod.namespace,
                pod=pod.name,
                running=not ends,
                started_at=now,
                ended_at=now if ends else None,
                since_s=time.monotonic(),
                resources=container.resources,
            )
            self._listener(identity.pod_uid)

    async def keep(self, identity: Identity, for_s: float) -> None:
        del identity, for_s

    async def stop(self, identity: Identity, *, grace_s: float, cause: str = "") -> None:
        del grace_s, cause
        process = self._table.get(identity)
        if process is not None and process.running:
            self._table[identity] = replace(process, running=False, ended_at=datetime.now(UTC))
            self._listener(identity.pod_uid)

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(self._table.values())

    async def forget(self, identity: Identity) -> None:
        self._table.pop(identity, None)

    async def probe(self, identity: Identity, probe: Probe) -> str:
        del probe
        return "" if identity in self._table and self._table[identity].running else "it does not run"

    async def run_hook(self, identity: Identity, hook: LifecycleHook, *, within_s: float) -> str:
        del identity, hook, within_s
        return ""

    async def remove(self, pod_uid: str) -> None:
        del pod_uid

    async def kept_pods(self) -> Sequence[KeptPod]:
        return ()

    async def consumption(self) -> Mapping[Identity, Consumption]:
        now_s = time.monotonic()
        return {
            identity: Consumption(self.cores * (now_s - process.since_s))
            for identity, process in self._table.items()
            if process.running
        }

    def address(self, pod_uid: str) -> str:
        return f"10.0.0.{int(pod_uid[:2], 16) or 1}"

    def listen(self, on_change: Callable[[str], None]) -> None:
        self._listener = on_change

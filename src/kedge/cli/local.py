"""A whole cluster in one process: API server, controllers, scheduler and agents, on one state folder.

`kedge up` runs it. Agents start real processes through their keepers, which outlive it: the next start finds them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kedge.agent.core import Agent, Machine
from kedge.agent.process import ProcessDriver
from kedge.agent.process.channel import may_hold_processes
from kedge.api.wellknown import REGION_LABEL, ZONE_LABEL
from kedge.cli.server import open_store, start_https, url_of
from kedge.cli.state_folder import AGENT_LOCK, folder_lock
from kedge.cli.wiring import ControlPlane, ensure_namespaces, stop_plane
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.errors import Unavailable
from kedge.observe.recording.log import DecisionLog
from kedge.observe.recording.recorder import Recorder
from kedge.server.http.server import ApiServer
from kedge.server.service import Service

_WINDOW_S = 3600.0
ZONES = ("zone-a", "zone-b", "zone-c")


@dataclass(slots=True)
class LocalCluster:
    """A cluster that runs."""

    url: str
    state: Path
    client: Client
    plane: ControlPlane
    drivers: dict[str, ProcessDriver] = field(default_factory=dict)
    """By node."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`.

        Raises:
            Unavailable: a component ended before that; a cluster without it would only seem to run.
        """
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([stopping, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in self.tasks:
            if task.done() and not stop.is_set():
                cause = None if task.cancelled() else task.exception()
                raise Unavailable(f"{task.get_name()} ended: {cause!r}: start kedge up again") from cause

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"


@asynccontextmanager
async def local_cluster(
    state: Path, host: str, port: int, nodes: int, env: Env | None = None
) -> AsyncIterator[LocalCluster]:
    """Start every part, and stop them in the opposite order. Processes of pods live on: see `stop_processes`."""
    env = env or system_env()
    store = await open_store(state, "sqlite", env)
    service = Service(store, env)
    transport = DirectTransport(service)
    client = Client(transport, env, component="up")
    server = ApiServer(service, env)
    tasks: list[asyncio.Task[Any]] = []
    drivers: dict[str, ProcessDriver] = {}
    log: DecisionLog | None = None
    locks = ExitStack()
    try:
        await ensure_namespaces(client)
        bound = await start_https(server, state, host, port, env)
        log = DecisionLog(state / "decisions", env)
        tasks.append(env.spawn(log.run(), name="decision log"))
        recorder = Recorder(env, log=log)
        tasks.append(env.spawn(_keep_everything(recorder, env), name="keep every decision"))
        plane = ControlPlane(transport, env, recorder=recorder)
        tasks.append(env.spawn(service.run_upkeep(), name="upkeep"))
        tasks.append(env.spawn(plane.run(), name="control plane"))
        for number in range(1, nodes + 1):
            name, zone = f"node-{number}", ZONES[(number - 1) % len(ZONES)]
            locks.enter_context(folder_lock(node_folder(state, name) / AGENT_LOCK, "kedge agent"))
            driver = drivers[name] = ProcessDriver(node_folder(state, name), environment=os.environ)
            agent = Agent(Client(transport, env, component=f"agent-{name}"), env, driver, machine_of(name, zone))
            tasks.append(env.spawn(agent.run(), name=f"agent {name}"))
        yield LocalCluster(url_of(host, bound), state, client, plane, drivers, tasks)
        await stop_plane(plane)
    finally:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop()
        for driver in drivers.values():
            await driver.close()
        if log is not None:
            log.close()
        await store.close()
        locks.close()


async def _keep_everything(recorder: Recorder, env: Env) -> None:
    """A local cluster is small enough to keep every decision. A window is open for a bounded time, so it is renewed."""
    while True:
        recorder.open_window("local cluster", until_s=env.monotonic() + 2 * _WINDOW_S)
        await asyncio.sleep(_WINDOW_S)


def node_folder(state: Path, name: str) -> Path:
    return state / "nodes" / name


def machine_of(name: str, zone: str) -> Machine:
    """One of several nodes that share this machine: each offers all of it."""
    cpus = os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        name=name,
        capacity={"cpu": str(cpus), "memory": str(memory), "pods": "110", "ephemeral-storage": "10Gi"},
        labels={ZONE_LABEL: zone, REGION_LABEL: "local"},
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        addresses=("127.0.0.1",),
    )


async def stop_processes(state: Path, *, grace_s: float) -> int:
    """Stop every process of every node below `state`, and their keepers. Returns how many nodes there were.

    Raises:
        Unavailable: an agent still runs there and would start them again, or a process cannot be stopped.
    """
    folders = [each for each in sorted((state / "nodes").glob("*")) if may_hold_processes(each)]
    results = await asyncio.gather(*(_stop_node(each, grace_s) for each in folders), return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return len(folders)


async def _stop_node(folder: Path, grace_s: float) -> None:
    with folder_lock(folder / AGENT_LOCK, "kedge agent"):
        driver = ProcessDriver(folder, environment=os.environ)
        try:
            await driver.shutdown(grace_s=grace_s)
        finally:
            await driver.close()

"""A whole cluster in one process: API server, controllers, scheduler and agents, on one state folder.

`kedge up` runs it. Agents start real processes through their keepers, which outlive it: the next start finds them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kedge.agent.core import Agent, ApiAccess, Machine, NodeCondition
from kedge.agent.process import ProcessDriver
from kedge.agent.process.channel import may_hold_processes
from kedge.agent.process.endpoint import AgentEndpoint, EndpointAddress
from kedge.agent.process.services import ServiceProxies
from kedge.agent.process.system_info import read_system_info
from kedge.agent.process.volumes import unmount_volumes
from kedge.api.access import CONTROLLERS, MASTERS, NODES, SCHEDULERS
from kedge.api.wellknown import REGION_LABEL, ZONE_LABEL
from kedge.cli.controller_identities import ControllerIdentities, controller_roles
from kedge.cli.debug_pages import add_debug_pages
from kedge.cli.encryption_keys import make_cipher, start_cipher
from kedge.cli.incidents.history import IncidentHistory
from kedge.cli.incidents.servers import OwnIncidents
from kedge.cli.live_faults.fault_socket import FaultSocket
from kedge.cli.live_faults.links import CONTROL_PLANE, FaultLink
from kedge.cli.live_page import LivePage
from kedge.cli.live_records import PlaneRecords
from kedge.cli.membership.serving_certificate import ServingCertificate
from kedge.cli.server import ServerIdentity, client_host, ensure_identity, start_https, url_of
from kedge.cli.state_folder import AGENT_LOCK, DECISIONS, INCIDENTS, folder_lock
from kedge.cli.store_options import StoreChoice
from kedge.cli.wiring import ControlPlane, ensure_namespaces, stop_plane
from kedge.client.contract import Client, Transport
from kedge.client.direct import DirectTransport
from kedge.client.http import ServerAddress
from kedge.env import Env, system_env
from kedge.errors import KedgeError, Unavailable
from kedge.keys import NODE_USER_PREFIX
from kedge.logs import INFO
from kedge.observe.recording.recorder import Recorder
from kedge.observe.recording.rules import KeepRules
from kedge.observe.recording.span_exporter import SendSpans
from kedge.server.audit import Auditor
from kedge.server.http.server import ApiServer
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.ui.page_mount import PageMount

_log = logging.getLogger("kedge.cli")
_WINDOW_S = 3600.0
ZONES = ("zone-a", "zone-b", "zone-c")
UP_USER, PLANE_USER = "system:kedge-up", "system:kedge-control-plane"
"""The callers beside versions that `kedge up` and its control plane write."""
PLANE_GROUPS = (CONTROLLERS, SCHEDULERS)


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
    processes_left: int = 0
    """Processes of pods that run on after the cluster has stopped."""

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


@dataclass(frozen=True, slots=True)
class ClusterSignals:
    """The spans and the audit log of a cluster, which None leaves out, and the rules of its decision log."""

    send_spans: SendSpans | None = None
    auditor: Auditor | None = None
    rules: KeepRules = field(default_factory=KeepRules)


NO_SIGNALS = ClusterSignals()


def _control_plane(
    link: Transport, env: Env, state: Path, signals: ClusterSignals, incidents: OwnIncidents
) -> ControlPlane:
    return ControlPlane(
        link,
        env,
        decisions=state / DECISIONS,
        send_spans=signals.send_spans,
        incidents=incidents,
        rules=signals.rules,
    )


@asynccontextmanager
async def local_cluster(
    state: Path,
    host: str,
    port: int,
    nodes: int,
    env: Env | None = None,
    *,
    signals: ClusterSignals = NO_SIGNALS,
    encryption_keys: Path | None = None,
    replace_keys: bool = False,
) -> AsyncIterator[LocalCluster]:
    """Start every part, and stop them in the opposite order. Processes of pods live on: see `stop_processes`."""
    identity = ensure_identity(state, host, env := env or system_env())
    cipher = make_cipher(encryption_keys, env)
    store = await StoreChoice().open(state, env, cipher=cipher)
    service = Service(store, env, token_keys=identity.token_keys, certificate_signer=identity.signer, cipher=cipher)
    direct = partial(DirectTransport, service, auditor=signals.auditor)
    client = Client(direct(caller=UP_USER, groups=(MASTERS,)), env, component="up")
    server = ApiServer(service, env, agents_tls=identity.agents_tls, auditor=signals.auditor)
    tasks: list[asyncio.Task[Any]] = []
    drivers: dict[str, ProcessDriver] = {}
    cluster: LocalCluster | None = None
    endpoints: list[AgentEndpoint] = []
    locks = ExitStack()
    faults = FaultSocket(state, env.limits)
    try:
        await start_cipher(encryption_keys, cipher, store, env)
        await _prepare(service, client, identity, replace_keys=replace_keys)
        bound = await start_https(server, identity, host, port)
        inner = direct(caller=PLANE_USER, groups=PLANE_GROUPS, authorized=True)
        link = ControllerIdentities(faults.add(FaultLink(CONTROL_PLANE, inner)))
        incidents = _own_incidents(state, identity, env)
        server.handler.incidents = incidents.folder
        plane = _control_plane(link, env, state, signals, incidents)
        add_debug_pages(server.handler.add_page, plane, env, lambda: store.statistics().revision)
        tasks += _spawn_parts(env, service, plane, IncidentHistory(client, env, incidents, process="up"), identity)
        tasks.append(_serve_page(env, server, service, plane, client, url_of(host, bound)))
        access = ApiAccess(client_host(host), bound, (state / "ca.crt").read_text())
        for number in range(1, nodes + 1):
            name, zone = f"node-{number}", ZONES[(number - 1) % len(ZONES)]
            locks.enter_context(folder_lock((place := node_folder(state, name)) / AGENT_LOCK, "kedge agent"))
            inner = direct(caller=f"{NODE_USER_PREFIX}{name}", groups=(NODES,), authorized=True)
            own = Client(faults.add(FaultLink(name, inner)), env, component=f"agent-{name}")
            tasks += await _start_agent(own, env, place, (name, zone), access, plane.recorder, drivers, endpoints)
        await faults.start()
        cluster = LocalCluster(url_of(host, bound), state, client, plane, drivers, tasks)
        yield cluster
        await stop_plane(plane)
    finally:
        await faults.stop()
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in endpoints))
        await server.stop()
        left = [await leave_node(node_folder(state, name), driver) for name, driver in drivers.items()]
        if cluster is not None:
            cluster.processes_left = sum(left)
        await store.close()
        locks.close()


def _own_incidents(state: Path, identity: ServerIdentity, env: Env) -> OwnIncidents:
    return OwnIncidents(IncidentFolder(state / INCIDENTS, env, secret=identity.authority.derived_secret("incidents")))


def _serve_page(
    env: Env, server: ApiServer, service: Service, plane: ControlPlane, client: Client, url: str
) -> asyncio.Task[Any]:
    page = LivePage(client, PlaneRecords(plane, env), service, env, url)
    server.handler.page = PageMount(page, env)
    return env.spawn(page.run(), name="page")


def _spawn_parts(
    env: Env, service: Service, plane: ControlPlane, history: IncidentHistory, identity: ServerIdentity
) -> list[asyncio.Task[Any]]:
    service.record_to(plane.recorder)
    return [
        env.spawn(_keep_everything(plane.recorder, env), name="keep every decision"),
        env.spawn(history.run(), name="history for incidents"),
        env.spawn(service.run_upkeep(), name="upkeep"),
        env.spawn(service.run_credentials(), name="credentials"),
        env.spawn(identity.run_renewals(), name="renewals of certificates"),
        env.spawn(plane.run(), name="control plane"),
    ]


async def _start_agent(
    client: Client,
    env: Env,
    folder: Path,
    place: tuple[str, str],
    access: ApiAccess,
    recorder: Recorder,
    drivers: dict[str, ProcessDriver],
    endpoints: list[AgentEndpoint],
) -> list[asyncio.Task[Any]]:
    """Start the agent of a node; `place` is its name and zone. Its driver and endpoint are added for the end."""
    name, zone = place
    services = ServiceProxies(client, env, folder, boot_id=boot_id())
    driver = drivers[name] = ProcessDriver(folder, environment=os.environ, limits=env.limits, services=services)
    endpoints.append(AgentEndpoint(driver, env))
    address = await start_endpoint(endpoints[-1], "127.0.0.1", 0, access.authority_pem)
    machine = machine_of(name, zone, address, await driver.conditions())
    agent = Agent(client, env, driver, machine, recorder, access)
    return [
        env.spawn(services.run(), name=f"services of {name}"),
        env.spawn(agent.run(), name=f"agent {name}"),
        *spawn_certificate(client, env, name, address, endpoints[-1]),
    ]


def spawn_certificate(
    client: Client, env: Env, node: str, address: EndpointAddress | None, endpoint: AgentEndpoint
) -> list[asyncio.Task[Any]]:
    """Request and renew the certificate by which API servers recognise the agent of a node, if it listens."""
    if address is None:
        return []

    def notify(text: str) -> None:
        env.log.write(INFO, f"the agent of {node} {text}", {"node": node})

    made = ServingCertificate(client, env, node, use=endpoint.use_certificate, notify=notify)
    return [env.spawn(made.run(), name=f"certificate of {node}")]


async def _prepare(service: Service, client: Client, identity: ServerIdentity, *, replace_keys: bool) -> None:
    """Write and check what a server needs before it serves. Raises `Terminal` for other keys than the store's."""
    await ensure_namespaces(client)
    await service.check_keys(identity.shared_keys, replace=replace_keys)
    await service.ensure_default_roles(controller_roles())


async def leave_node(folder: Path, driver: ProcessDriver) -> int:
    """Disconnect from a keeper, and return how many processes it holds. A keeper without any is stopped."""
    running = 0
    try:
        # The log and not the socket: a keeper that was started just now has no socket yet.
        if (folder / "keeper.log").exists():
            running = sum(each.running for each in await driver.processes())
            if not running:
                await driver.shutdown(grace_s=0)
    except KedgeError as error:
        _log.warning("the keeper of %s was not asked whether it is idle: %s", folder, error)
    finally:
        await driver.close()
    return running


async def _keep_everything(recorder: Recorder, env: Env) -> None:
    """A local cluster is small enough to keep every decision. A window is open for a bounded time, so it is renewed."""
    while True:
        recorder.open_window("local cluster", until_s=env.monotonic() + 2 * _WINDOW_S)
        await asyncio.sleep(_WINDOW_S)


def node_folder(state: Path, name: str) -> Path:
    return state / "nodes" / name


async def start_endpoint(endpoint: AgentEndpoint, host: str, port: int, authority_pem: str) -> EndpointAddress | None:
    """Let an agent listen for API servers; without their authority none could be recognised, so it does not."""
    return await endpoint.start(host, port, authority_pem) if authority_pem else None


def authorities_of(address: ServerAddress) -> str:
    """The authorities in a kubeconfig, as PEM; empty if it has none of its own."""
    found = address.tls.get_ca_certs(binary_form=True) if address.tls is not None else []
    return "".join(ssl.DER_cert_to_PEM_cert(each) for each in found)


def boot_id() -> str:
    """Differs after each start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine_of(
    name: str, zone: str, endpoint: EndpointAddress | None = None, conditions: tuple[NodeCondition, ...] = ()
) -> Machine:
    """One of several nodes that share this machine: each offers all of it."""
    cpus = os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        name=name,
        capacity={"cpu": str(cpus), "memory": str(memory), "pods": "110", "ephemeral-storage": "10Gi"},
        labels={ZONE_LABEL: zone, REGION_LABEL: "local"},
        boot_id=boot_id(),
        system=read_system_info(Path("/")),
        addresses=(endpoint.host if endpoint is not None else "127.0.0.1",),
        endpoint_port=endpoint.port if endpoint is not None else 0,
        conditions=conditions,
    )


async def stop_processes(state: Path, *, grace_s: float) -> int:
    """Stop every process of every node below `state`, and their keepers. Returns how many nodes had any.

    Raises:
        Unavailable: an agent still runs there and would start them again, or a process cannot be stopped.
    """
    folders = [each for each in sorted((state / "nodes").glob("*")) if may_hold_processes(each)]
    results = await asyncio.gather(*(_stop_node(each, grace_s) for each in folders), return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException):
            raise each
    for folder in (state / "nodes").glob("*"):
        unmount_volumes(folder / "pods")  # of a keeper that was killed when it held no process
    return sum(each is True for each in results)


async def _stop_node(folder: Path, grace_s: float) -> bool:
    """Stop the processes of one node. Returns whether any was running; an idle keeper is none."""
    with folder_lock(folder / AGENT_LOCK, "kedge agent"):
        driver = ProcessDriver(folder, environment=os.environ)
        try:
            running = True  # unless its keeper denies it
            with suppress(KedgeError):
                running = any(each.running for each in await driver.processes())
            await driver.shutdown(grace_s=grace_s)
            return running
        finally:
            await driver.close()

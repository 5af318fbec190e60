"""`kedge agent`: one node, which runs its pods as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.component import run_component
from kedge.cli.configuration.option import config_option
from kedge.cli.keep_option import DECISIONS_TENANTS_OPTION, keep_rules
from kedge.cli.listen_address import METRICS_OPTION, WILDCARDS, listen_address, parse_listen
from kedge.cli.log_options import log_options
from kedge.cli.membership.options import IdentitySource, identity_options
from kedge.cli.otlp_option import OTLP_ENDPOINT_OPTION, span_sender
from kedge.cli.state_folder import AGENT_LOCK, DECISIONS, command_errors, folder_lock
from kedge.client.http import FailoverTransport, ServerAddress
from kedge.env import Env
from kedge.errors import Unavailable
from kedge.limits import Limits

if TYPE_CHECKING:
    from kedge.cli.membership.certificates import ComponentIdentity


@click.command()
@identity_options("agent")
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for all state.")
@click.option("--name", default=socket.gethostname, show_default="the host's name", help="Name of the node.")
@click.option("--zone", default="zone-a", show_default=True, help="Zone of the node.")
@click.option(
    "--listen",
    type=listen_address,
    metavar="HOST:PORT",
    default="127.0.0.1:0",
    show_default=True,
    help="Address for logs and exec; API servers connect to it. With 0.0.0.0 the Node has the address that faces them.",
)
@METRICS_OPTION
@OTLP_ENDPOINT_OPTION
@DECISIONS_TENANTS_OPTION
@log_options
@config_option
def agent(
    source: IdentitySource,
    state: Path,
    name: str,
    zone: str,
    listen: str,
    metrics_listen: str | None,
    otlp_endpoint: str,
    decisions_tenants: tuple[str, ...],
    limits: Limits,
) -> None:
    """Register this machine as a node and run its pods until SIGTERM. Their processes keep running after that."""
    host, port = parse_listen(listen)

    async def work(transport: FailoverTransport, env: Env, stop: asyncio.Event) -> None:
        from kedge.agent.core import Agent, ApiAccess
        from kedge.agent.process import ProcessDriver
        from kedge.agent.process.endpoint import AgentEndpoint
        from kedge.agent.process.services import ServiceProxies
        from kedge.cli.incidents.recording_process import recording_process
        from kedge.cli.incidents.servers import RemoteIncidents
        from kedge.cli.local import authorities_of, boot_id, leave_node, machine_of, spawn_certificate, start_endpoint
        from kedge.client.contract import Client

        client = Client(transport, env, component=f"agent-{name}")
        services = ServiceProxies(client, env, state, boot_id=boot_id())
        driver = ProcessDriver(state, environment=os.environ, limits=env.limits, services=services)
        endpoint = AgentEndpoint(driver, env)
        server = source.addresses()[0]
        authorities = authorities_of(server)
        address = await start_endpoint(endpoint, host, port, authorities)
        if address is not None and host in WILDCARDS:
            address = address._replace(host=await facing_address(host, server))
        access = ApiAccess(server.host, server.port, authorities) if authorities else None
        machine = machine_of(name, zone, address, await driver.conditions())
        proxying = env.spawn(services.run(), name="services")
        incidents = RemoteIncidents(transport.rest_clients, env.limits)
        log, rules = state / DECISIONS, keep_rules(decisions_tenants)
        async with (
            span_sender(otlp_endpoint) as send_spans,
            recording_process(
                client, env, log, incidents, process=f"agent-{name}", rules=rules, send_spans=send_spans
            ) as recorder,
        ):
            running = env.spawn(Agent(client, env, driver, machine, recorder, access).run(), name="agent")
            beside = [proxying, *spawn_certificate(client, env, name, address, endpoint)]
            await _run_until(stop, running, beside)
        await endpoint.stop()
        await leave_node(state, driver)

    def identity() -> ComponentIdentity:
        from kedge.cli.membership.certificates import agent_identity

        return agent_identity(name)

    with command_errors(state), folder_lock(state / AGENT_LOCK, "kedge agent"):
        run_component(source, f"agent {name}", limits, work, identity=identity, metrics_listen=metrics_listen)


async def _run_until(stop: asyncio.Event, running: asyncio.Task[None], beside: Sequence[asyncio.Task[None]]) -> None:
    """Run an agent and the tasks beside it until `stop` is set, or until it fails: then its error is raised."""
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, running, *beside):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await asyncio.gather(*beside, return_exceptions=True)


async def facing_address(host: str, server: ServerAddress) -> str:
    """The address of this machine on the way to an API server, which reaches the machine by it.

    Raises:
        Unavailable: there is no way to the server.
    """
    family = socket.AF_INET6 if host == "::" else socket.AF_INET
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            server.host, server.port, family=family, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])  # a datagram socket chooses a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Unavailable(
            f"no address of this machine leads to {server.host}: {error.strerror or error}: pass --listen with the "
            "address that API servers connect to, or check the network"
        ) from error

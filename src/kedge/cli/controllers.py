"""`kedge controllers`: every controller, in a process of its own. One of several such processes leads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kedge.cli.component import STATE_OPTION, own_log_folder, run_component
from kedge.cli.configuration.option import config_option
from kedge.cli.event_loop import EVENT_LOOP_OPTION
from kedge.cli.keep_option import DECISIONS_TENANTS_OPTION, keep_rules
from kedge.cli.listen_address import METRICS_OPTION
from kedge.cli.log_options import log_options
from kedge.cli.membership.options import IdentitySource, identity_options
from kedge.cli.otlp_option import OTLP_ENDPOINT_OPTION, span_sender
from kedge.client.http import FailoverTransport
from kedge.env import Env
from kedge.limits import Limits

if TYPE_CHECKING:
    from kedge.cli.membership.certificates import ComponentIdentity


@click.command()
@identity_options("controllers")
@STATE_OPTION
@METRICS_OPTION
@EVENT_LOOP_OPTION
@OTLP_ENDPOINT_OPTION
@DECISIONS_TENANTS_OPTION
@log_options
@config_option
def controllers(
    source: IdentitySource,
    state: Path,
    metrics_listen: str | None,
    event_loop: str,
    otlp_endpoint: str,
    decisions_tenants: tuple[str, ...],
    limits: Limits,
) -> None:
    """Run every controller until SIGTERM. One of several such processes leads; the others stand by with warm caches."""

    async def work(transport: FailoverTransport, env: Env, stop: asyncio.Event) -> None:
        from kedge.cli.controller_identities import ControllerIdentities
        from kedge.cli.incidents.servers import RemoteIncidents
        from kedge.cli.wiring import ControlPlane, run_until

        with own_log_folder(state, "controllers") as folder:
            async with span_sender(otlp_endpoint) as send_spans:
                plane = ControlPlane(
                    ControllerIdentities(transport),
                    env,
                    decisions=folder,
                    component="controllers",
                    schedulers=(),
                    send_spans=send_spans,
                    rules=keep_rules(decisions_tenants),
                    incidents=RemoteIncidents(transport.rest_clients, env.limits),
                )
                await run_until(plane, stop)

    def identity() -> ComponentIdentity:
        from kedge.cli.membership.certificates import CONTROLLERS_IDENTITY

        return CONTROLLERS_IDENTITY

    run_component(
        source,
        "controllers",
        limits,
        work,
        identity=identity,
        event_loop=event_loop,
        metrics_listen=metrics_listen,
    )

"""`kedge scheduler`: one scheduler, in a process of its own. One of several of the same name leads."""

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
@identity_options("scheduler")
@click.option("--name", default="", help="schedulerName of the pods that it places; the default scheduler's if empty.")
@STATE_OPTION
@METRICS_OPTION
@EVENT_LOOP_OPTION
@OTLP_ENDPOINT_OPTION
@DECISIONS_TENANTS_OPTION
@log_options
@config_option
def scheduler(
    source: IdentitySource,
    name: str,
    state: Path,
    metrics_listen: str | None,
    event_loop: str,
    otlp_endpoint: str,
    decisions_tenants: tuple[str, ...],
    limits: Limits,
) -> None:
    """Run a scheduler until SIGTERM. One of several of the same name leads; the others stand by with warm caches."""

    async def work(transport: FailoverTransport, env: Env, stop: asyncio.Event) -> None:
        from kedge.cli.incidents.servers import RemoteIncidents
        from kedge.cli.wiring import ControlPlane, run_until
        from kedge.scheduler import DEFAULT_NAME

        names = (name or DEFAULT_NAME,)
        with own_log_folder(state, "scheduler") as folder:
            async with span_sender(otlp_endpoint) as send_spans:
                plane = ControlPlane(
                    transport,
                    env,
                    decisions=folder,
                    component="scheduler",
                    schedulers=names,
                    controllers=False,
                    send_spans=send_spans,
                    rules=keep_rules(decisions_tenants),
                    incidents=RemoteIncidents(transport.rest_clients, env.limits),
                )
                await run_until(plane, stop)

    def identity() -> ComponentIdentity:
        from kedge.cli.membership.certificates import SCHEDULER

        return SCHEDULER

    run_component(
        source,
        "scheduler",
        limits,
        work,
        identity=identity,
        event_loop=event_loop,
        metrics_listen=metrics_listen,
    )

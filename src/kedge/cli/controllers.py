"""`kedge controllers`: every controller, in a process of its own. One of several such processes leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.component import SERVER_OPTION, STATE_OPTION, own_log_folder, run_component
from kedge.cli.configuration.option import config_option
from kedge.cli.event_loop import EVENT_LOOP_OPTION
from kedge.cli.kubeconfig_option import KUBECONFIG_OPTION
from kedge.cli.listen_address import METRICS_OPTION
from kedge.cli.log_options import log_options
from kedge.cli.otlp_option import OTLP_ENDPOINT_OPTION, span_sender
from kedge.client.contract import Transport
from kedge.env import Env
from kedge.limits import Limits


@click.command()
@KUBECONFIG_OPTION
@SERVER_OPTION
@STATE_OPTION
@METRICS_OPTION
@EVENT_LOOP_OPTION
@OTLP_ENDPOINT_OPTION
@log_options
@config_option
def controllers(
    kubeconfig: tuple[Path, ...],
    servers: tuple[str, ...],
    state: Path,
    metrics_listen: str | None,
    event_loop: str,
    otlp_endpoint: str,
    limits: Limits,
) -> None:
    """Run every controller until SIGTERM. One of several such processes leads; the others stand by with warm caches."""

    async def work(transport: Transport, env: Env, stop: asyncio.Event) -> None:
        from kedge.cli.controller_identities import ControllerIdentities
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
                )
                await run_until(plane, stop)

    run_component(
        kubeconfig, servers, "controllers", limits, work, event_loop=event_loop, metrics_listen=metrics_listen
    )

"""`kedge controllers`: every controller, in a process of its own. One of several such processes leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.component import KUBECONFIG_OPTION, run_component
from kedge.client.http import HttpTransport
from kedge.env import Env


@click.command()
@KUBECONFIG_OPTION
def controllers(kubeconfig: Path) -> None:
    """Run every controller until SIGTERM. One of several such processes leads; the others stand by with warm caches."""
    run_component(kubeconfig, "controllers", _work)


async def _work(transport: HttpTransport, env: Env, stop: asyncio.Event) -> None:
    from kedge.cli.wiring import ControlPlane, run_until

    await run_until(ControlPlane(transport, env, component="controllers", schedulers=()), stop)

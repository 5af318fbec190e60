"""`kedge scheduler`: one scheduler, in a process of its own. One of several of the same name leads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.component import KUBECONFIG_OPTION, run_component
from kedge.client.http import HttpTransport
from kedge.env import Env


@click.command()
@KUBECONFIG_OPTION
@click.option("--name", default="", help="schedulerName of the pods that it places; the default scheduler's if empty.")
def scheduler(kubeconfig: Path, name: str) -> None:
    """Run a scheduler until SIGTERM. One of several of the same name leads; the others stand by with warm caches."""

    async def work(transport: HttpTransport, env: Env, stop: asyncio.Event) -> None:
        from kedge.cli.wiring import ControlPlane, run_until
        from kedge.scheduler import DEFAULT_NAME

        names = (name or DEFAULT_NAME,)
        plane = ControlPlane(transport, env, component="scheduler", schedulers=names, controllers=False)
        await run_until(plane, stop)

    run_component(kubeconfig, "scheduler", work)

"""`kedge agent`: one node, which runs its pods as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

import click

from kedge.cli.component import KUBECONFIG_OPTION, run_component
from kedge.cli.state_folder import AGENT_LOCK, command_errors, folder_lock
from kedge.client.http import HttpTransport
from kedge.env import Env


@click.command()
@KUBECONFIG_OPTION
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for all state.")
@click.option("--name", default=socket.gethostname, show_default="the host's name", help="Name of the node.")
@click.option("--zone", default="zone-a", show_default=True, help="Zone of the node.")
def agent(kubeconfig: Path, state: Path, name: str, zone: str) -> None:
    """Register this machine as a node and run its pods until SIGTERM. Their processes keep running after that."""

    async def work(transport: HttpTransport, env: Env, stop: asyncio.Event) -> None:
        from kedge.agent.core import Agent
        from kedge.agent.process import ProcessDriver
        from kedge.cli.local import machine_of
        from kedge.client.contract import Client

        driver = ProcessDriver(state, environment=os.environ)
        client = Client(transport, env, component=f"agent-{name}")
        running = env.spawn(Agent(client, env, driver, machine_of(name, zone)).run(), name="agent")
        waiting = asyncio.ensure_future(stop.wait())
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await driver.close()

    with command_errors(state), folder_lock(state / AGENT_LOCK, "kedge agent"):
        run_component(kubeconfig, f"agent {name}", work)

"""Components in processes of their own: shared by `kedge scheduler`, `kedge controllers` and `kedge agent`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from kedge.cli.state_folder import command_errors
from kedge.client.http import HttpTransport, read_kubeconfig
from kedge.env import Env, system_env

KUBECONFIG_OPTION = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    envvar="KUBECONFIG",
    required=True,
    help="The server and this component's identity.",
)

Work = Callable[[HttpTransport, Env, asyncio.Event], Awaitable[None]]


def run_component(kubeconfig: Path, name: str, work: Work) -> None:
    """Run a component until SIGTERM or Ctrl-C. `work` gets the event that is set then."""
    with command_errors():
        asyncio.run(_run(kubeconfig, name, work))


async def _run(kubeconfig: Path, name: str, work: Work) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    address = read_kubeconfig(kubeconfig)
    transport = HttpTransport(address)
    click.echo(f"{name} uses https://{address.host}:{address.port}", err=True)
    try:
        await work(transport, system_env(), stop)
    finally:
        await transport.close()

"""`kedge up`: a working cluster of real processes, from one command."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click


def default_state() -> Path:
    """`$XDG_STATE_HOME/kedge`, as the XDG rules have it."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "kedge"


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder for all state.")
@click.option("--listen", default="127.0.0.1:6443", show_default=True, help="HOST:PORT; port 0 picks a free one.")
@click.option(
    "--nodes", default=3, show_default=True, type=click.IntRange(1, 50), help="Local nodes, spread over zones."
)
@click.option("--demo", is_flag=True, help="Run the example, break it, show the repair, and stop everything.")
def up(state: Path | None, listen: str, nodes: int, demo: bool) -> None:
    """Run a whole cluster here: API server, scheduler, controllers and nodes with real processes.

    Ctrl-C stops the cluster and leaves its processes running; the next `kedge up` finds them again, and `kedge down`
    stops them.
    """
    from kedge.cli.server import parse_listen
    from kedge.cli.state_folder import UP_LOCK, command_errors, folder_lock

    host, port = parse_listen(listen)
    folder = state or default_state()
    if demo:
        _demo(nodes)
        return
    with command_errors(folder), folder_lock(folder / UP_LOCK, "kedge up"):
        asyncio.run(_run(folder, host, port, nodes))


def _demo(nodes: int) -> None:
    from kedge.cli.demo import demo as hunt_demo
    from kedge.cli.state_folder import command_errors
    from kedge.cli.up_demo import run_demo

    try:
        with command_errors():
            asyncio.run(run_demo(nodes))
    except asyncio.CancelledError as error:
        raise click.Abort from error
    click.echo("\nthe same kind of failure, hunted in simulation:\n")
    click.get_current_context().invoke(hunt_demo)


async def _run(state: Path, host: str, port: int, nodes: int) -> None:
    from kedge.cli.local import local_cluster

    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with local_cluster(state, host, port, nodes) as cluster:
        click.echo(f"serving {cluster.url} with {nodes} nodes; state is in {state}", err=True)
        click.echo(f"try:\n  export KUBECONFIG={cluster.kubeconfig}\n  kubectl get nodes\n  kedge down", err=True)
        await cluster.run_until(stop)
        click.echo("stopping; processes of pods keep running (kedge down stops them)", err=True)

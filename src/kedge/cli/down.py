"""`kedge down`: stop every process that a local cluster started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.up import default_state


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@click.option("--grace", "grace_s", default=5.0, show_default=True, help="Seconds between SIGTERM and SIGKILL.")
def down(state: Path | None, grace_s: float) -> None:
    """Stop every process of the local cluster, and leave nothing running. State stays: `kedge up` continues from it."""
    from kedge.cli.local import stop_processes

    folder = state or default_state()
    nodes = asyncio.run(stop_processes(folder, grace_s=grace_s))
    click.echo(f"stopped the processes of {nodes} nodes in {folder}")

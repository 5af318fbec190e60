"""`kedge down`: stop every process that a local cluster started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from kedge.cli.up import default_state


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@click.option(
    "--grace",
    "grace_s",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0, 3600),
    help="Seconds between SIGTERM and SIGKILL.",
)
def down(state: Path | None, grace_s: float) -> None:
    """Stop every process of the local cluster, and leave nothing running. State stays: `kedge up` continues from it."""
    from kedge.cli.state_folder import command_errors

    folder = state or default_state()
    if not folder.is_dir():
        if state is not None:
            raise click.ClickException(f"{folder} is not a folder: pass the --state that `kedge up` was given")
        click.echo(f"nothing runs: there is no {folder}")
        return
    with command_errors(folder):
        nodes = asyncio.run(stop_everything(folder, grace_s=grace_s))
    if nodes:
        click.echo(f"stopped the processes of {nodes} node{'s' * (nodes != 1)} in {folder}")
    else:
        click.echo(f"no process of a pod runs in {folder}")


async def stop_everything(folder: Path, *, grace_s: float) -> int:
    """Stop `kedge up` of this folder and every process that it started. Returns how many nodes had any."""
    from kedge.cli.local import stop_processes
    from kedge.cli.state_folder import UP_LOCK, folder_lock, stop_holder

    if pid := stop_holder(folder / UP_LOCK):
        click.echo(f"stopped kedge up (process {pid})")
    with folder_lock(folder / UP_LOCK, "kedge up"):  # no new one starts meanwhile
        return await stop_processes(folder, grace_s=grace_s)

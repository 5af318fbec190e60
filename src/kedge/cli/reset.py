"""`kedge reset`: remove the state of a local cluster, after asking."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import click

from kedge.cli.up import default_state


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` was given.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def reset(state: Path | None, yes: bool) -> None:
    """Stop the local cluster and remove its state: objects, certificates, records and logs."""
    from kedge.cli.down import stop_everything
    from kedge.cli.state_folder import command_errors

    folder = state or default_state()
    if not folder.exists():
        click.echo(f"nothing to remove: there is no {folder}")
        return
    if not (folder / "kedge.db").is_file():
        raise click.ClickException(f"{folder} has no state of a cluster (no kedge.db): pass the right --state")
    if not yes:
        click.confirm(f"Stop the cluster in {folder} and remove everything in that folder?", abort=True, err=True)
    with command_errors(folder):
        asyncio.run(stop_everything(folder, grace_s=5.0))
        shutil.rmtree(folder)
    click.echo(f"removed {folder}")

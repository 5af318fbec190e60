"""`kedge secrets`: keys that encrypt Secrets at rest. `add-key` edits a key file; `rotate` asks a running server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from kedge.cli.kubeconfig_option import KUBECONFIG_OPTION
from kedge.cli.state_folder import command_errors


@click.group()
def secrets() -> None:
    """Make and rotate the keys that encrypt Secrets at rest."""


@secrets.command(name="add-key")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--name", default="", help="Name of the key; key-1, key-2, ... if left out.")
def add_key_to(file: Path, name: str) -> None:
    """Put a new key first in FILE, or make FILE.

    With several servers on one store, give all of them the new key as the second entry first.
    """
    from kedge.store.encryption import add_key, read_key_file

    with command_errors(file.parent):
        if not name:
            taken = {each.name for each in read_key_file(file).keys} if file.exists() else set()
            name = next(each for number in range(1, len(taken) + 2) if (each := f"key-{number}") not in taken)
        made = add_key(file, name, os.urandom)
    click.echo(f"{file}: key {made.name} (fingerprint {made.fingerprint}) is first")


@secrets.command()
@KUBECONFIG_OPTION
def rotate(kubeconfig: tuple[Path, ...]) -> None:
    """Write every Secret again with the first key of the server's key file. Then older keys can be removed."""
    with command_errors():
        done = asyncio.run(_rotate(kubeconfig))
    unneeded = ", ".join(done["unneeded"])
    left = f"; remove {unneeded} from the key file" if unneeded else ""
    click.echo(f"{done['rewritten']} objects written again with {done['writer']}{left}")


async def _rotate(kubeconfig: tuple[Path, ...]) -> dict[str, Any]:
    from kedge.api.wellknown import ROTATE_KEYS_PATH
    from kedge.client.http import read_kubeconfig
    from kedge.client.http.rest import RestClient

    rest = RestClient(read_kubeconfig(*kubeconfig), on_warning=lambda text: click.echo(text, err=True))
    try:
        found: dict[str, Any] = await rest.call("POST", ROTATE_KEYS_PATH)
        return found
    finally:
        await rest.close()

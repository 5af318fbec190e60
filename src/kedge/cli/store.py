"""`kedge store`: verify the file of a SQLite store, and bring what is sound out of a damaged one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.backup import reporter
from kedge.cli.state_folder import command_errors

if TYPE_CHECKING:
    from kedge.store.sqlite import ExaminedFile, StoreFinding

DAMAGED = 3
"""Exit code of a command that found damage and did its work."""
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)


@click.group()
def store() -> None:
    """Verify and salvage the file of a store on SQLite: `kedge.db` in a state folder. Stop its server first."""


@store.command()
@click.argument("file", type=_FILE)
@_OUTPUT
def check(file: Path, output: str) -> None:
    """Verify all of FILE: pages, checksums, the log's agreement with itself, ledgers and quotas. Changes nothing.

    Exit code 0: everything is sound. 3: something is not, and is listed. 1: FILE cannot be checked.
    """
    from kedge.cli.store_agreement import disagreements
    from kedge.store.sqlite import examine_file

    with command_errors():
        examined = examine_file(file, reporter("versions verified"))
    findings = (*examined.findings, *disagreements(examined.entries))
    _print(file, examined, findings, output)
    raise SystemExit(DAMAGED if findings else 0)


@store.command()
@click.argument("file", type=_FILE)
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@_OUTPUT
def salvage(file: Path, out: Path, output: str) -> None:
    """Write the newest sound version of every object of FILE to the new store OUT, and list what is lost.

    FILE is not changed. An object whose newest version is lost is written as its last sound one; one whose deletion is
    lost comes back. Exit code 0: nothing is lost. 3: something is, and is listed. 1: nothing was written.
    """
    from kedge.cli.store_agreement import disagreements
    from kedge.env import system_env
    from kedge.store.sqlite import restore_to_sqlite, salvage_file

    with command_errors(out.parent):
        found = salvage_file(file, reporter("versions read"))
        env = system_env()
        written = restore_to_sqlite(
            out,
            found.entries,
            found.revision,
            found.incarnation or env.new_uid(),
            slice_rows=env.limits.backup_rows_max,
            progress=reporter("objects written"),
        )
        asyncio.run(written)
    findings = (*found.findings, *disagreements(found.entries))
    _print(out, found, findings, output)
    raise SystemExit(DAMAGED if findings else 0)


def _print(file: Path, examined: ExaminedFile, findings: Sequence[StoreFinding], output: str) -> None:
    if output == "json":
        document: dict[str, Any] = {
            "file": str(file),
            "incarnation": examined.incarnation,
            "objects": len(examined.entries),
            "versions": examined.versions,
            "findings": [each._asdict() for each in findings],
        }
        click.echo(json.dumps(document, indent=2))
        return
    for part, what in findings:
        click.echo(f"{part}: {what}")
    verdict = f"{len(findings)} findings" if findings else "sound"
    click.echo(f"{file}: {len(examined.entries)} objects, {examined.versions} versions: {verdict}")

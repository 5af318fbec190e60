"""`kedge doctor`: the programs and features of this machine, and what works without each."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option("--state", type=click.Path(path_type=Path, file_okay=False), help="Folder that `kedge up` would use.")
@click.option("--listen", default="127.0.0.1:6443", show_default=True, help="HOST:PORT that `kedge up` would use.")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", help="How to print.")
def doctor(state: Path | None, listen: str, output: str) -> None:
    """Check this machine. Exit code 1 only if something is missing that kedge cannot work without."""
    from kedge.cli.examinations import Outcome, examine
    from kedge.cli.listen_address import parse_listen
    from kedge.cli.up import default_state

    found = list(examine(state or default_state(), *parse_listen(listen)))
    if output == "json":
        rows = [
            {"name": each.name, "outcome": each.outcome.value, "found": each.found, "without": each.without}
            for each in found
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        width = max(len(each.name) for each in found)
        for each in found:
            click.echo(f"{each.outcome.value:8} {each.name:{width}}  {each.found}")
            if each.outcome is not Outcome.OK:
                click.echo(f"{'':8} {'':{width}}  {each.without}")
    if any(each.outcome is Outcome.MISSING for each in found):
        raise SystemExit(1)

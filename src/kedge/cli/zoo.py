"""`kedge zoo`: take one safeguard at a time out of the control plane, and see that the hunt finds each."""

from __future__ import annotations

import json
import os
from typing import Any

import click


@click.command()
@click.option("--only", "names", multiple=True, metavar="NAME", help="Hunt this entry alone; may be given again.")
@click.option("--seeds", default=2_000, show_default=True, help="Seeds an entry may take to be found.")
@click.option("--clean", default=0, show_default=True, help="Seeds of the unmodified control plane to run beside.")
@click.option("--clean-only", is_flag=True, help="Run the clean seeds, and no entry.")
@click.option(
    "--jobs", type=int, default=lambda: os.cpu_count() or 1, show_default="all cores", help="Processes to use."
)
@click.option("--executor", default="process", show_default=True, help="As for `kedge hunt`.")
@click.option("--shrink-runs", default=60, show_default=True, help="Runs one find may cost to shrink; 0 keeps it.")
@click.option("--list", "only_list", is_flag=True, help="Name the entries and what each takes away, and stop.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def zoo(
    names: tuple[str, ...],
    seeds: int,
    clean: int,
    clean_only: bool,
    jobs: int,
    executor: str,
    shrink_runs: int,
    only_list: bool,
    output: str,
) -> None:
    """Hunt the bug zoo.

    Ends with 0 if every entry was found and the unmodified control plane broke nothing, else with 1.
    """
    from kedge.errors import KedgeError
    from kedge.sim.zoo import all_entries, census, entry_named, table

    try:
        entries = [entry_named(name) for name in names] if names else list(all_entries())
        if only_list:
            for entry in entries:
                click.echo(f"{entry.name:<32} {entry.theme:<10} without: {entry.safeguard} ({entry.source})")
            return
        chosen = [] if clean_only else [entry.name for entry in entries]
        with Progress(len(chosen), clean) as progress:
            found = census(
                chosen,
                seeds=seeds,
                clean=clean,
                jobs=jobs,
                executor=executor,
                shrink_runs=shrink_runs,
                on_progress=progress.show,
            )
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(found.as_json(), indent=1) if output == "json" else table(found))
    raise SystemExit(0 if found.found == len(found.rows) and not found.clean_findings else 1)


class Progress:
    """Two counts in one bar: entries hunted, and clean seeds run. Silent when nobody looks."""

    def __init__(self, entries: int, clean: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._entries = self._bar.add_task("entries", total=entries, note="", visible=entries > 0)
        self._clean = self._bar.add_task("clean seeds", total=clean, note="", visible=clean > 0)
        self._found = self._findings = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, result: Any) -> None:
        from kedge.sim.zoo import Row

        if isinstance(result, Row):
            self._found += result.found
            self._bar.update(self._entries, advance=1, note=f"{self._found} found")
        else:
            self._findings += len(result.findings)
            self._bar.update(self._clean, advance=result.seeds, note=f"{self._findings} findings")

"""`kedge zoo`: take one safeguard at a time out of the control plane, and check that the hunt finds each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from kedge.cli.zoo_mutants import mutant_options, try_mutants


@click.command()
@click.argument("names", nargs=-1, metavar="[ENTRY]...")
@click.option("--seeds", type=click.IntRange(1), default=2_000, show_default=True, help="Seeds per entry.")
@click.option(
    "--clean",
    type=click.IntRange(0),
    show_default="some with the whole zoo, else none",
    help="Seeds of the unmodified control plane to run as well.",
)
@click.option(
    "--compare",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also compare strategies: up to N seeds of each on each entry, more if none finds it.",
)
@click.option("--clean-only", is_flag=True, help="Run clean seeds only, and no entry.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1),
    default=lambda: os.cpu_count() or 1,
    show_default="all cores",
    help="Processes to use.",
)
@click.option("--executor", default="process", show_default=True, help="As for `kedge hunt`.")
@click.option(
    "--shrink-runs",
    type=click.IntRange(0),
    default=60,
    show_default=True,
    help="Runs to shrink one find; 0 does not shrink.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False),
    default="",
    metavar="DIR",
    help="Keep each find in a file of this directory: `kedge replay` runs it again and prints its story.",
)
@mutant_options
@click.option("--list", "only_list", is_flag=True, help="List the entries and their safeguards, and exit.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def zoo(
    names: tuple[str, ...],
    seeds: int,
    clean: int | None,
    compare: int,
    clean_only: bool,
    jobs: int,
    executor: str,
    shrink_runs: int,
    keep: str,
    only_list: bool,
    output: str,
    **mutation: Any,
) -> None:
    """Hunt the bug zoo: all of it, or the entries named. With --mutants, hunt random mutants, or those named.

    Exit code 0 if every entry was found and the unmodified control plane broke no invariant, 1 if not, 2 for a usage
    error. With --mutants, 0 if none survived.
    """
    if mutation["mutants"] is not None:
        try_mutants(names, jobs, executor, output, **mutation)
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.zoo import UnknownZooEntry, all_entries, entry_named, hunt_zoo, table

    try:
        entries = [entry_named(name) for name in dict.fromkeys(names)] if names else list(all_entries())
    except UnknownZooEntry as error:
        raise click.UsageError(str(error)) from error
    beside = clean_by_default(names) if clean is None else clean
    if clean_only and (names or not clean):
        raise click.UsageError("--clean-only runs clean seeds and no entry: give --clean N, and no names")
    if only_list:
        click.echo(_listed(entries, output))
        return
    chosen = [] if clean_only else [entry.name for entry in entries]
    try:
        with known_targets(), ZooProgress(len(chosen), beside, len(chosen) if compare else 0) as progress:
            found = hunt_zoo(
                chosen,
                seeds=seeds,
                clean=beside,
                compare=compare,
                jobs=jobs,
                executor=executor,
                shrink_runs=shrink_runs,
                keep=keep,
                on_progress=progress.show,
                on_wait=progress.hunted,
            )
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(found.as_json(), indent=1) if output == "json" else table(found))
    raise SystemExit(0 if found.passed else 1)


def clean_by_default(names: Sequence[str]) -> int:
    """Ten per world: enough to check that each holds, and to measure a seed of the standard simulation."""
    from kedge.sim.zoo.hunt import CLEAN_BATCH
    from kedge.sim.zoo.worlds import WORLDS

    return 0 if names else CLEAN_BATCH * len(WORLDS)


def _listed(entries: Sequence[Any], output: str) -> str:
    if output == "json":
        fields = ("name", "world", "safeguard", "source", "breaks", "by")
        return json.dumps([{field: getattr(entry, field) for field in fields} for entry in entries], indent=1)
    return "\n".join(f"{each.name:<30} {each.world:<10} {each.safeguard} ({each.source})" for each in entries)


class ZooProgress:
    """A progress bar for each count, and a line for each finished entry, on stderr."""

    def __init__(self, entries: int, clean: int, compared: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._entries = self._bar.add_task("entries", total=entries, note="", visible=entries > 0)
        self._clean = self._bar.add_task("clean seeds", total=clean, note="", visible=clean > 0)
        self._compared = self._bar.add_task("compared", total=compared, note="", visible=compared > 0)
        self._findings = 0

    def __enter__(self) -> ZooProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, result: Any) -> None:
        from kedge.sim.zoo import EntryResult, StrategyComparison, outcome

        if isinstance(result, EntryResult):
            self._bar.console.print(outcome(result), highlight=False, markup=False, soft_wrap=True)
            self._bar.update(self._entries, advance=1)
        elif isinstance(result, StrategyComparison):
            self._bar.update(self._compared, advance=1)
        else:
            for each in result.findings:
                text = f"clean seed {each.seed} of {each.target} ({each.strategy}): {each.invariant}: {each.message}"
                self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
            self._findings += len(result.findings)
            self._bar.update(self._clean, advance=result.seeds, note=f"{self._findings} findings")

    def hunted(self, names: Sequence[str]) -> None:
        self._bar.update(self._entries, note=f"hunting {', '.join(names)}" if names else "")

"""`kedge scenario list` and `kedge scenario run FILE|NAME`: play an incident on a simulated cluster, and tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.sim.scenario import Played, Scenario

_STYLES = {"step": "bold", "fault": "yellow", "refused": "yellow", "violation": "bold red", "held": "green"}


@click.group()
def scenario() -> None:
    """Play incidents written as files: a world, what happens in it, and what must come of it."""


@scenario.command("list")
def list_command() -> None:
    """List the scenarios that ship with kedge, with the safeguards that their weak variants lack.

    Two lines each, so that they fit a narrow terminal: the lesson a scenario comes from is under its name.
    """
    from kedge.sim.scenario import library_names, load_scenario

    found = [load_scenario(name) for name in library_names()]
    width = max(len(each.name) for each in found)
    click.echo(f"{'NAME':<{width}}  {'SEED':<5}  {'STEPS':<5}  WEAK WITHOUT")
    for each in found:
        weak = ", ".join(variant.name for variant in each.weak)
        click.echo(f"{each.name:<{width}}  {each.seed:<5}  {len(each.steps):<5}  {weak}")
        click.echo(f"  {each.lesson}")


@scenario.command("run")
@click.argument("name", metavar="FILE|NAME")
@click.option("--weak", is_flag=True, help="Play the weak variant: the same without the first safeguard that it names.")
@click.option("--without", default="", metavar="SAFEGUARD", help="Play it without this safeguard.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the file's.")
@click.option("--quiet", "-q", is_flag=True, help="Tell the timeline only of a run that fails.")
@click.option("--out", "-o", type=click.Path(file_okay=False), metavar="DIR", help="Keep the run in a folder there.")
def run_command(name: str, weak: bool, without: str, seed: int | None, quiet: bool, out: str | None) -> None:
    """Play a scenario and tell its timeline.

    Ends with 0 if every expectation and every invariant held, with 1 and the timeline if one did not. With --out, the
    file, the outcome, the timeline, every event and every object of the end are kept.
    """
    from pathlib import Path

    from kedge.errors import KedgeError
    from kedge.sim.scenario import keep_run, load_scenario

    try:
        found = load_scenario(name)
        if weak and not without:
            if not found.weak:
                raise click.ClickException(f"{found.name} has no weak variant: name a safeguard with --without")
            without = found.weak[0].name
        played = _play(found, without, seed)
        kept = keep_run(played, Path(out)) if out else None
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    if not (quiet and played.passed):
        _tell(played)
    click.echo(_verdict(played))
    if kept is not None:
        click.echo(f"kept:   {kept}")
    raise SystemExit(0 if played.passed else 1)


def _play(found: Scenario, without: str, seed: int | None) -> Played:
    """Play it, with a bar for whoever looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kedge.sim.scenario import play_scenario

    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(found.steps))
        return play_scenario(
            found,
            without=without,
            seed=seed,
            on_step=lambda number, words: bar.update(task, completed=number, description=words[:60]),
        )


def _tell(played: Played) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True)
    console.print(Text(played.scenario.story))
    console.print()
    table = Table("TIME", "WHAT", "", box=None, pad_edge=False)
    for at, kind, words in played.timeline:
        table.add_row(at, kind, Text(words), style=_STYLES.get(kind, ""))
    console.print(table)
    console.print()


def _verdict(played: Played) -> str:
    run = f"{played.scenario.name}{f' without {played.without}' if played.without else ''}, seed {played.outcome.seed}"
    if played.violation is None:
        return f"passed: {run}; every expectation and every invariant held"
    return f"failed: {run}\nbroken: {played.violation.invariant}\nseen:   {played.violation.message}"

"""`kedge scenario list` and `kedge scenario run FILE|NAME`: run an incident on a simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.sim.scenario import Scenario, ScenarioRun

_STYLES = {
    "step": "bold",
    "note": "bold",
    "fault": "yellow",
    "unknown": "yellow",
    "refused": "yellow",
    "violation": "bold red",
    "held": "green",
}


@click.group()
def scenario() -> None:
    """Run incidents written as YAML files: a cluster, the steps of the incident, and the expected outcome."""


@scenario.command("list")
def list_command() -> None:
    """List the scenarios that ship with kedge, with the safeguards that their weak variants lack.

    Two lines each, to fit a narrow terminal: the lesson of a scenario is under its name.
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
@click.option("--weak", is_flag=True, help="Run the weak variant: the same without the first safeguard that it names.")
@click.option("--without", default="", metavar="SAFEGUARD", help="Run it without this safeguard.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the file's.")
@click.option("--verbose", "-v", is_flag=True, help="Print every line of the timeline, not only the story.")
@click.option("--quiet", "-q", is_flag=True, help="Print the timeline only if the run fails.")
@click.option(
    "--out", "-o", type=click.Path(file_okay=False), metavar="DIR", help="Keep the run in a file of this directory."
)
def run_command(
    name: str, weak: bool, without: str, seed: int | None, verbose: bool, quiet: bool, out: str | None
) -> None:
    """Run a scenario and print its story: what happened, at which revision, and which actor did it.

    Exits with 0 if every expectation and every invariant held, else with 1 and the timeline. --out keeps the run in a
    file, which `kedge replay` runs again and `kedge replay --extract` takes apart.
    """
    from pathlib import Path

    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.scenario import keep_run, load_scenario

    try:
        with known_targets():
            found = load_scenario(name)
            if weak and not without:
                without = found.weak_variant.name
            done = _run(found, without, seed, keep=bool(out))
            kept = keep_run(done, Path(out)) if out else None
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    if not (quiet and done.passed):
        _print_story(done, verbose=verbose)
    click.echo(_verdict(done))
    if kept is not None:
        click.echo(f"kept:   {kept}")
    raise SystemExit(0 if done.passed else 1)


def _run(found: Scenario, without: str, seed: int | None, *, keep: bool) -> ScenarioRun:
    """Run it, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from kedge.sim.scenario import run_scenario

    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(found.steps))
        return run_scenario(
            found,
            without=without,
            seed=seed,
            keep=keep,
            on_step=lambda number, text: bar.update(task, completed=number, description=text[:60]),
        )


def _print_story(done: ScenarioRun, *, verbose: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from kedge.sim.scenario.story import StoryLine, named_story

    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(done.scenario.story))
    console.print()
    for line in named_story(done.recording, begin_s=done.begin_s, names=done.scenario.names, verbose=verbose):
        console.print(Text(str(line), style=_STYLES.get(line.kind, "") if isinstance(line, StoryLine) else ""))
    console.print()


def _verdict(done: ScenarioRun) -> str:
    run = f"{done.scenario.name}{f' without {done.without}' if done.without else ''}, seed {done.outcome.seed}"
    if done.violation is None:
        return f"passed: {run}; every expectation and every invariant held"
    return f"failed: {run}\nbroken: {done.violation.invariant}\nseen:   {done.violation.message}"

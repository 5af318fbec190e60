"""`kedge incident test FILE` and the search of `kedge hunt FILE`: an incident as a test, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.sim.incident.fault_search import AroundReport


@click.command(name="test")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--bad", default="", metavar="CONDITION", help="The bad state, such as 'count: Pod, at least: 4'.")
@click.option("--without", default="", metavar="SAFEGUARD", help="Run components without this safeguard.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("incident-tests"),
    show_default=True,
    help="Folder for the scenario and its test.",
)
def incident_test(file: Path, bad: str, without: str, out: Path) -> None:
    """Write a scenario and a pytest test of the incident in FILE: they fail on this build for the recorded reason, and
    pass once it is fixed. The reason is a broken invariant or expectation, or the state that --bad names.
    """
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.incident.regression import with_bad, write_test
    from kedge.sim.incident.rerun import load_program

    try:
        with known_targets():
            made = write_test(with_bad(load_program(file, without=without), bad), out)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{out}: the test cannot be written there ({error}): give another --out") from error
    click.echo(f"broken: {made.rule}: {made.message}")
    click.echo(f"scenario: {made.scenario}")
    click.echo(f"test:     {made.test}")


def is_recording(target: str) -> bool:
    """Whether it is a file that kedge kept: a recorded run, or an incident."""
    from kedge.kept import SUFFIX

    return target.endswith(SUFFIX) and Path(target).is_file()


def hunt_recording(
    file: Path, *, weak: bool, without: str, bad: str, runs: int, directory: Path, on_run: Callable[[str], None]
) -> tuple[list[str], int]:
    """The lines of the search around a recording, and its exit code.

    Raises:
        KedgeError: the file cannot be used, or --bad is no condition.
    """
    from kedge.sim.incident.fault_search import hunt_around
    from kedge.sim.incident.regression import with_bad
    from kedge.sim.incident.rerun import load_program, nearest

    program = load_program(file, without=without)
    if weak and not without:
        program = load_program(file, without=program.draft.scenario().weak_variant.name)
    program, _, found = nearest(with_bad(program, bad))
    lines = [f"left out: {each}" for each in program.left_out]
    if found.departures:
        lines.append(f"the rebuilt run departs from the recording: {found.departures[0]}")

    def show(number: int, text: str, rule: str) -> None:
        on_run(f"{number}: {text}{f' breaks {rule}' if rule else ''}")

    report = hunt_around(program, runs_max=runs, on_run=show, directory=directory)
    return [*lines, *report_lines(report)], 1 if report.rule or report.misses else 0


def report_lines(report: AroundReport) -> list[str]:
    """The findings of a search, for people."""
    lines: list[str] = []
    if report.rule:
        lines += [
            f"the recorded run is bad: {report.rule}: {report.message}",
            *(f"  it {each}" for each in report.conditions),
        ]
    for each in report.misses:
        lines += [
            f"failure at distance {each.neighbour.distance:.1f}: {each.rule}: {each.message}",
            f"  with {each.neighbour.text}",
            *(f"  it {condition}" for condition in each.conditions),
        ]
        if each.path is not None:
            lines.append(f"  kept: {each.path}; kedge replay runs it again")
    if not report.rule and not report.misses:
        lines.append(f"no neighbour of the recorded run breaks a rule, up to distance {report.distance:.1f}")
    left = f", {report.left} neighbours were not tried: give more --runs" if report.left else ""
    lines.append(f"{report.runs} runs{left}")
    return lines

"""`kedge hunt TARGET --lineage`: lose the messages that good outcomes rest on, instead of random ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from kedge.cli.exhaustive_hunt import SearchProgress, failure_lines

if TYPE_CHECKING:
    from kedge.sim.kernel.lineage_search import LineageSearch


def hunt_lineage(name: str, directory: Path, shrink_runs: int, *, faults: int, runs_max: int) -> NoReturn:
    """Search, print the result, and exit: 0 if every outcome held, 1 if one did not, 2 if plans are left."""
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.kernel import find_target
    from kedge.sim.kernel.lineage_search import search_lineage

    try:
        with known_targets(), SearchProgress() as progress:
            found = search_lineage(
                find_target(name),
                faults=faults,
                plans_max=runs_max,
                on_run=lambda so_far: progress.show(f"{so_far.runs} plans run"),
            )
            lines = failure_lines(found.target, found.failure, directory, shrink_runs)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join([*lines, *lineage_result(found, runs_max)]))
    raise SystemExit(1 if found.failure is not None else 0 if found.finished else 2)


def lineage_result(found: LineageSearch, runs_max: int) -> list[str]:
    """For each outcome: what was cut, and whether it held."""
    losses = f"{found.faults} lost message{'s' if found.faults > 1 else ''}"
    lines = []
    for each in found.outcomes.values():
        held = "held under all of them" if each.finished else "held so far"
        lines.append(
            f"outcome    {each.name}: {each.plans} plans cut every known support, {len(each.cut)} messages were lost in"
            f" some plan, {len(each.supports)} supports found; {held}"
        )
    if found.failure is not None:
        lines.append(f"a plan of at most {losses} breaks an invariant: {found.runs} runs")
    elif found.finished:
        lines.append(f"no failure: every plan of at most {losses} that cuts all supports was run, {found.runs} runs")
    else:
        lines.append(f"stopped at the bound of {runs_max} runs. Lower --faults, or raise --runs-max")
    return lines

"""`kedge hunt TARGET --exhaustive`: every order of the first deliveries of a small world, instead of random seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from kedge.sim.kernel import RunOutcome, SimulationTarget
    from kedge.sim.kernel.exhaustive_search import ExhaustiveSearch

_OPTIONS = (
    click.option(
        "--exhaustive", is_flag=True, help="Run every order of the first deliveries, not seeds: for small worlds."
    ),
    click.option(
        "--lineage",
        is_flag=True,
        help="Lose the messages that good outcomes rest on, not random ones, smallest plans first.",
    ),
    click.option(
        "--deliveries",
        type=click.IntRange(1),
        default=12,
        show_default=True,
        help="With --exhaustive: how many deliveries arrive in every order.",
    ),
    click.option(
        "--faults",
        type=click.IntRange(0),
        show_default="0; 1 with --lineage",
        help="With --exhaustive and --lineage: faults in one run, at most.",
    ),
    click.option(
        "--fault",
        "kinds",
        multiple=True,
        type=click.Choice(["lose", "duplicate", "crash callee"]),
        help="With --exhaustive: a kind of fault that may strike. Repeatable.  [default: lose]",
    ),
    click.option(
        "--overtakes",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="With --exhaustive: how often a timer may fire before a message that is under way.",
    ),
    click.option(
        "--runs-max",
        type=click.IntRange(1),
        default=100_000,
        show_default=True,
        help="With --exhaustive and --lineage: how many runs to make.",
    ),
)


def exhaustive_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of an exhaustive search, and of one by lineage, to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def hunt_exhaustively(
    name: str,
    directory: Path,
    shrink_runs: int,
    *,
    deliveries: int,
    faults: int | None,
    kinds: tuple[str, ...],
    overtakes: int,
    runs_max: int,
) -> NoReturn:
    """Search, print the result, and exit: 0 if every order holds, 1 if one breaks an invariant, 2 if some are left."""
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.kernel import find_target
    from kedge.sim.kernel.exhaustive_search import SearchBounds, search

    bounds = SearchBounds(
        deliveries=deliveries, faults=faults or 0, kinds=kinds or ("lose",), overtakes=overtakes, runs=runs_max
    )
    try:
        with known_targets(), SearchProgress() as progress:
            found = search(
                find_target(name),
                bounds,
                on_run=lambda so_far: progress.show(
                    f"{so_far.runs} orders run, {so_far.equal} equal to an earlier one"
                ),
            )
            lines = failure_lines(found.target, found.failure, directory, shrink_runs)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join([*lines, search_result(found)]))
    raise SystemExit(1 if found.failure is not None else 0 if found.finished else 2)


def search_result(found: ExhaustiveSearch) -> str:
    """The result of the search, and how far it goes, in one sentence."""
    runs = f"{found.runs} orders run, {found.equal} stopped as equal to an earlier one"
    if found.failure is not None:
        return f"an order of {found.bounds} breaks an invariant: {runs}"
    if not found.finished:
        return f"stopped at the bound of {found.bounds.runs} runs: {runs}. Lower --deliveries, or raise --runs-max"
    if found.all_orders:
        return f"no failure in any order: {runs}. No run has more than {found.longest} deliveries"
    return f"no failure in any order of {found.bounds}: {runs}. Later deliveries arrive as they were sent"


def failure_lines(target: SimulationTarget, failure: RunOutcome | None, directory: Path, shrink_runs: int) -> list[str]:
    """The failure, shrunk and kept in a file, as `kedge hunt` shows it."""
    from kedge.sim.kernel import make_artefact, shrink, write_artefact
    from kedge.sim.kernel.failure_report import describe_failure

    if failure is None:
        return []
    shrunk = shrink(target, failure, runs_max=shrink_runs)
    artefact = make_artefact(target, shrunk.outcome, shrunk.conditions)
    return ["=== bug 1", describe_failure(artefact, path=write_artefact(artefact, directory)), ""]


class SearchProgress:
    """A count of runs on stderr. Shown only on a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("")

    def __enter__(self) -> SearchProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, text: str) -> None:
        self._bar.update(self._task, description=text)

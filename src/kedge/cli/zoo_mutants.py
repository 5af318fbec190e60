"""`kedge zoo --mutants`: try random mutants of the control plane, and print those that survive tests and hunt."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

import click

_OPTIONS = (
    click.option(
        "--mutants",
        type=click.IntRange(1),
        metavar="N",
        help="Try N random mutants of the control plane instead of the entries, by tests and by hunt.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="The seed of the draw of mutants."),
    click.option(
        "--cpu-s",
        type=click.FloatRange(0),
        default=60.0,
        show_default=True,
        help="CPU seconds of hunt for each mutant.",
    ),
    click.option(
        "--tests-cpu-s",
        type=click.IntRange(0),
        default=1200,
        show_default=True,
        help="CPU seconds of tests for each mutant; 0 runs none.",
    ),
    click.option(
        "--layer", "layers", multiple=True, metavar="LAYER", help="Draw mutants of this layer only. Repeatable."
    ),
    click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(".kedge/mutants"),
        show_default=True,
        help="Folder of the results of mutants. Mutants with a result are not tried again.",
    ),
    click.option(
        "--coverage",
        is_flag=True,
        help="Hunt mutants by coverage, and not with strategies in turn: compare the CPU time of both.",
    ),
)


def mutant_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of mutants to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def try_mutants(
    names: Collection[str],
    jobs: int,
    executor: str,
    output: str,
    *,
    mutants: int,
    seed: int,
    cpu_s: float,
    tests_cpu_s: int,
    layers: Collection[str],
    state: Path,
    coverage: bool,
) -> NoReturn:
    """Run a campaign, show each result on stderr, print the report, and exit with 1 if a mutant survived."""
    from kedge.cli.named_targets import known_targets
    from kedge.cli.state_folder import command_errors
    from kedge.sim.zoo.mutants import LAYERS, TrialOptions, mutant_outcome, mutant_table, run_campaign

    unknown = sorted(set(layers) - set(LAYERS))
    if unknown:
        raise click.UsageError(f"there is no layer {unknown[0]!r}: give one of {', '.join(LAYERS)}")
    with known_targets(), command_errors(state):
        report = run_campaign(
            mutants,
            seed=seed,
            state=state,
            layers=layers,
            names=names,
            options=TrialOptions(cpu_s, tests_cpu_s, coverage),
            jobs=jobs,
            executor=executor,
            on_progress=lambda row: click.echo(mutant_outcome(row), err=True),
        )
    if names and len(report.rows) < len(set(names)):
        raise click.UsageError("some of these mutants are not in this draw: give the N and --seed that drew them")
    click.echo(json.dumps(report.as_json(), indent=1) if output == "json" else mutant_table(report))
    raise SystemExit(1 if report.survivors else 0)

"""`kedge replay FILE`: run a kept run again, exactly or as a regression test, and print what happened in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from kedge.sim.kernel import Artefact, Replay


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--from", "first", type=click.IntRange(min=1), help="An incident: from decisions at this revision on.")
@click.option("--until", type=click.IntRange(min=1), help="An incident: up to decisions at this revision.")
@click.option("--target", help="Where the program is now, if it has moved: package.module:name or file.py:name.")
@click.option(
    "--regression/--exact",
    default=None,
    help="Force the kind of replay. Without either: exact on the build that made the file, else regression.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only the result.")
@click.option("--verbose", "-v", is_flag=True, help="Print every line of the timeline, not only the story.")
@click.option(
    "--story/--events",
    default=None,
    help="Print the story of the cluster, or the events of the run. Without either: the story of a scenario and"
    " of a find of the zoo, the events of any other program.",
)
@click.option(
    "--extract",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write readable copies of the file's parts to this directory, and run nothing.",
)
def replay(
    file: Path,
    first: int | None,
    until: int | None,
    target: str | None,
    regression: bool | None,
    quiet: bool,
    verbose: bool,
    story: bool | None,
    extract: Path | None,
) -> None:
    """Run the run in FILE again: a failure that `kedge hunt` or `kedge zoo --keep` kept, or a run that
    `kedge scenario run --out` kept. The file of a `kedge incident` is replayed decision by decision: each runs again
    on what its component had received.

    On the build that made it, exits with 0 if the run was the same to the last step, and with 3 and the first
    difference if it was not. On another build it is a regression test: 0 if every invariant holds now, 1 if one is
    still broken.
    """
    from kedge.cli.incidents.incident_file import is_incident
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.kernel import ReplayVerdict, read_artefact
    from kedge.sim.scenario.kept_runs import extract_run

    if is_incident(file):
        _replay_incident(file, first, until)
    if first is not None or until is not None:
        raise click.UsageError("--from and --until are for the file of an incident")
    try:
        with known_targets():
            artefact = read_artefact(file)
            if extract is not None:
                for path in extract_run(artefact, extract):
                    click.echo(str(path))
                return
            again = _run_again(artefact, target, regression)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    if not quiet:
        click.echo(_report_of(artefact, story, verbose=verbose))
        click.echo()
    click.echo(again.summary)
    if again.drift:
        click.echo(again.drift)
    codes = {
        ReplayVerdict.SAME: 0,
        ReplayVerdict.HOLDS: 0,
        ReplayVerdict.STILL_FAILS: 1,
        ReplayVerdict.FAILS_OTHERWISE: 1,
        ReplayVerdict.DIVERGED: 3,
    }
    raise SystemExit(codes[again.verdict])


def _replay_incident(file: Path, first: int | None, until: int | None) -> NoReturn:
    import asyncio

    from kedge.cli.incidents.incident_file import lines_of, summary_of
    from kedge.cli.incidents.replay import replay_incident
    from kedge.errors import KedgeError
    from kedge.observe.readers.recording import read_recording

    try:
        recording = read_recording(file)
        again = asyncio.run(replay_incident(recording, first=first, until=until))
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    summary = summary_of(recording)
    title = lines_of(summary, recording)[:2] if summary is not None else []
    for line in (*title, *again.lines(), *(f"missing: {gap}" for gap in recording.gaps)):
        click.echo(line)
    raise SystemExit(0 if again.same else 3)


def _run_again(artefact: Artefact, target: str | None, regression: bool | None) -> Replay:
    from kedge.sim.kernel import find_target
    from kedge.sim.kernel import replay as run_again
    from kedge.sim.scenario.kept_runs import replay_kept
    from kedge.sim.scenario.kept_scenarios import kept_scenario

    kept = kept_scenario(artefact)
    if kept is not None:
        return replay_kept(artefact, kept, regression=regression)
    return run_again(artefact, target=find_target(target or artefact.target), regression=regression)


def _report_of(artefact: Artefact, story: bool | None, *, verbose: bool) -> str:
    from kedge.sim.kernel.failure_report import describe_failure
    from kedge.sim.scenario.kept_runs import story_of
    from kedge.sim.scenario.kept_scenarios import kept_scenario
    from kedge.sim.zoo.find import zoo_find

    kept, found = kept_scenario(artefact), zoo_find(artefact)
    title = []
    if kept is not None:
        variant = f" without {kept.without}" if kept.without else ""
        title = [f"scenario {kept.name}{variant}, seed {artefact.seed}"]
    elif found is not None:
        title = [f"zoo entry {found.entry}, seed {artefact.seed}, by {found.strategy}", f"without: {found.safeguard}"]
    if not title if story is None else not story:
        return "\n".join([*title, describe_failure(artefact)])
    lines = story_of(artefact, verbose=verbose)
    if not lines:
        raise click.UsageError("the run has no cluster, and so no story: give --events")
    return "\n".join([*title, *lines, *map(str, artefact.gaps)])

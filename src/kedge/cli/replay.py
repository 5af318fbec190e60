"""`kedge replay FILE`: run a kept run again, exactly or as a regression test, and print what happened in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from kedge.cli.recording_option import MOMENT
from kedge.cli.resources.session import command_sentences
from kedge.errors import NotFound

if TYPE_CHECKING:
    from kedge.sim.kernel import Artefact, Replay


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--step", is_flag=True, help="Decision by decision: what it read, decided and wrote; a prompt on a terminal."
)
@click.option("--from", "first", type=MOMENT, help="An incident, or --step: from this revision or time on.")
@click.option("--until", type=MOMENT, help="An incident, or --step: up to this revision or time.")
@click.option("--rerun", is_flag=True, help="Run the whole cluster again in the simulator, and name departures.")
@click.option(
    "--what-if",
    "changes",
    multiple=True,
    metavar="CHANGE",
    help='Rerun with another input, such as "quota/risk.zone-c.cpu=+2" or "limit/NAME=NUMBER"; repeat it for several.',
)
@click.option("--without", default="", metavar="SAFEGUARD", help="Rerun components without this safeguard.")
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
    step: bool,
    first: str | None,
    until: str | None,
    rerun: bool,
    changes: tuple[str, ...],
    without: str,
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
    still broken. With --rerun or --what-if the recorded outside world acts on simulated components: 1 if a rule is
    broken, 3 if the run departs from the recording.
    """
    from kedge.cli.incidents.incident_file import is_incident
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.kernel import read_artefact
    from kedge.sim.scenario.kept_runs import extract_run

    if step:
        _step(file, first, until)
        return
    if rerun or changes or without:
        _rerun(file, changes, without)
    if is_incident(file):
        _replay_incident(file, first, until)
    if first is not None or until is not None:
        raise click.UsageError("--from and --until are for the file of an incident, or go with --step")
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
    raise SystemExit(_exit_code(again))


def _exit_code(again: Replay) -> int:
    from kedge.sim.kernel import ReplayVerdict

    return {
        ReplayVerdict.SAME: 0,
        ReplayVerdict.HOLDS: 0,
        ReplayVerdict.STILL_FAILS: 1,
        ReplayVerdict.FAILS_OTHERWISE: 1,
        ReplayVerdict.DIVERGED: 3,
    }[again.verdict]


def _step(file: Path, first: str | None, until: str | None) -> None:
    import sys

    from kedge.cli.incidents.decision_steps import DecisionSteps
    from kedge.cli.incidents.recording_shell import RecordingShell
    from kedge.observe.readers.moments import chosen_decisions
    from kedge.observe.readers.recording import read_recording

    with command_sentences():
        recording = read_recording(file)
        decisions = chosen_decisions(recording, first, until)
        if not decisions:
            raise NotFound(f"{file} has no decision there: `kedge replay {file} --step` prints all")
        if sys.stdin.isatty() and sys.stdout.isatty():
            prompt = RecordingShell(file, recording, decisions)
            prompt.do_step("")
            prompt.run()
            return
        steps = DecisionSteps(recording, decisions)
        for number in range(1, len(decisions) + 1):
            for line in steps.lines(number):
                click.echo(line)


def _rerun(file: Path, changes: tuple[str, ...], without: str) -> NoReturn:
    from kedge.cli.named_targets import known_targets
    from kedge.cli.reruns import rerun_lines
    from kedge.errors import BadRequest, KedgeError

    try:
        with known_targets():
            lines, code = rerun_lines(file, changes, without)
    except (BadRequest, NotFound) as error:
        raise click.UsageError(str(error)) from error
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    for line in lines:
        click.echo(line)
    raise SystemExit(code)


def _replay_incident(file: Path, first: str | None, until: str | None) -> NoReturn:
    import asyncio

    from kedge.cli.incidents.incident_file import changes_of, lines_of, summary_of
    from kedge.cli.incidents.replay import replay_incident
    from kedge.errors import KedgeError
    from kedge.observe.readers.recording import read_recording

    try:
        recording = read_recording(file)
        again = asyncio.run(replay_incident(recording, first=first, until=until))
        again = again._replace(changes=tuple(changes_of(file)))
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

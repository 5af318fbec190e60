"""`kedge replay FILE`: run a recorded failure again, exactly or as a regression test, and tell its story."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", help="Where the program is now, if it has moved: package.module:name or file.py:name.")
@click.option(
    "--regression/--exact",
    default=None,
    help="Force the kind of replay. Without either: exact on the build that made the file, else regression.",
)
@click.option("--quiet", "-q", is_flag=True, help="Say only what came of it.")
def replay(file: Path, target: str | None, regression: bool | None, quiet: bool) -> None:
    """Run the failure in FILE again.

    On the build that made it, ends with 0 if the run was the same to the last step, and with 3 and the first difference
    if it was not. On another build it is a regression test: 0 if every invariant holds now, 1 if one is still broken.
    """
    from kedge.errors import KedgeError
    from kedge.sim.kernel import find_target, read_artefact
    from kedge.sim.kernel import replay as run_again
    from kedge.sim.kernel.failure_report import tell
    from kedge.sim.kernel.replay import ReplayVerdict

    try:
        artefact = read_artefact(file)
        found = find_target(target or artefact.target)
        again = run_again(artefact, target=found, regression=regression)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    if not quiet:
        click.echo(tell(artefact))
        click.echo()
    click.echo(again.words)
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

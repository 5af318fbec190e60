"""`kedge demo`: a controller mishandles a lost reply. The hunt finds the duplicate pod, shrinks the run and replays it.

Another controller, with the same seeds, has no failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.sim.kernel import Hunt

PROGRAMS = "kedge.sim.examples.lost_reply"
INTRODUCTION = """\
A ReplicaSet wants 3 pods. Its controller, the API server and the store are kedge's own; the network between them
may lose or delay messages or be partitioned, and time is virtual. The first controller treats a timeout as a failure.
"""


@click.command()
@click.option("--seeds", "-n", default=300, show_default=True, help="How many seeds to run.")
@click.option("--jobs", "-j", default=2, show_default=True, help="Workers at once.")
@click.option(
    "--directory",
    "-d",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kedge/failures"),
    show_default=True,
    help="Directory for the failure.",
)
def demo(seeds: int, jobs: int, directory: Path) -> None:
    """Find a duplicate pod that is created because a reply was lost after its commit, replay the run exactly, and run a
    controller without the bug.
    """
    from kedge.cli.hunt import report
    from kedge.sim.kernel import ReplayVerdict, read_artefact, replay

    click.echo(INTRODUCTION)
    careless = _hunt("careless", seeds, jobs, directory)
    click.echo(report(careless, f"kedge hunt {PROGRAMS}:careless") + "\n")
    path = next((group.path for group in careless.groups.values()), None)
    if path is None:
        raise click.ClickException(f"no failure in {seeds} seeds: try more with --seeds")

    again = replay(read_artefact(path))
    click.echo(f"run again from {path}: {again.verdict.value}\n")

    careful = _hunt("careful", seeds, jobs, directory)
    click.echo(
        f"a controller that ensures a pod per slot, with the same {careful.done} seeds: {careful.failures} failures"
    )
    raise SystemExit(0 if again.verdict is ReplayVerdict.SAME and not careful.failures else 1)


def _hunt(name: str, seeds: int, jobs: int, directory: Path) -> Hunt:
    from kedge.cli.hunt import SeedProgress
    from kedge.sim.kernel import find_target, hunt

    with SeedProgress(seeds) as progress:
        return hunt(
            find_target(f"{PROGRAMS}:{name}"),
            range(seeds),
            jobs=jobs,
            directory=directory,
            on_progress=progress.show,
        )

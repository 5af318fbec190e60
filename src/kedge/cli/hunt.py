"""`kedge hunt TARGET`: run many seeds, show progress, and report each bug once: shrunk and in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kedge.sim.kernel import Hunt
    from kedge.sim.kernel.policies import SchedulePolicy


@click.command()
@click.argument("target")
@click.option("--seeds", "-n", default=1_000, show_default=True, help="How many seeds to run.")
@click.option("--start", default=0, show_default=True, help="The first seed.")
@click.option("--jobs", "-j", default=os.cpu_count() or 1, show_default="one a core", help="Workers at once.")
@click.option(
    "--executor",
    default="process",
    show_default=True,
    help="process, thread, inline, or package.module:callable that takes the number of jobs and returns an Executor.",
)
@click.option(
    "--policy",
    type=click.Choice(["program", "mixed", "uniform", "fifo", "pct"]),
    default="program",
    show_default=True,
    help="How hosts are scheduled; `program` is the policy of the target.",
)
@click.option("--depth", default=3, show_default=True, help="Depth of the pct policy.")
@click.option(
    "--directory",
    "-d",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kedge/failures"),
    show_default=True,
    help="Directory for failures.",
)
@click.option("--shrink-runs", default=600, show_default=True, help="Runs to shrink one failure; 0 does not shrink.")
def hunt(
    target: str,
    seeds: int,
    start: int,
    jobs: int,
    executor: str,
    policy: str,
    depth: int,
    directory: Path,
    shrink_runs: int,
) -> None:
    """Hunt for bugs in TARGET: package.module:name or file.py:name, an async function that takes a Simulation.

    Exit code 0 if every invariant held, 1 if one was broken, 2 if seeds were lost or a mark was never reached.
    """
    from kedge.errors import KedgeError
    from kedge.sim.kernel import find_target
    from kedge.sim.kernel import hunt as run_hunt

    try:
        with SeedProgress(seeds) as progress:
            found = run_hunt(
                find_target(target),
                range(start, start + seeds),
                executor=executor,
                jobs=jobs,
                policy=_policy(policy, depth),
                directory=directory,
                shrink_runs_max=shrink_runs,
                on_progress=progress.show,
            )
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(report(found))
    raise SystemExit(1 if found.groups else 2 if found.lost or found.broken or found.marks_missed() else 0)


def _policy(name: str, depth: int) -> SchedulePolicy | None:
    from kedge.sim.kernel import Fifo, Mixed, Pct, Uniform

    policies: dict[str, SchedulePolicy | None] = {
        "program": None,
        "mixed": Mixed(),
        "uniform": Uniform(),
        "fifo": Fifo(),
        "pct": Pct(depth=depth),
    }
    return policies[name]


def report(found: Hunt) -> str:
    """The findings of a hunt, as text."""
    from kedge.sim.kernel.failure_report import describe_failure

    lines: list[str] = []
    for number, group in enumerate(found.groups.values(), 1):
        lines += [f"=== bug {number}: {len(group.seeds)} of {found.done} seeds, first {min(group.seeds)}"]
        if group.artefact is not None:
            lines.append(describe_failure(group.artefact, path=group.path))
        if group.shrunk is not None and group.shrunk.exhausted:
            lines.append(f"(shrinking stopped after {group.shrunk.runs} runs: there may be a shorter one)")
        lines.append("")
    per_s = found.done / found.cpu_s if found.cpu_s else 0.0
    lines.append(
        f"{found.done} of {found.total} seeds, {found.failures} failures in {len(found.groups)} groups,"
        f" {found.steps} steps, {per_s:.0f} seeds per CPU-second"
    )
    lines += [f"mark       {name}: {count} seeds" for name, count in sorted(found.marks.items())]
    lines += [
        f"never      {name}: no seed reached it, so this hunt proves nothing about it" for name in found.marks_missed()
    ]
    lines += [f"lost       seed {seed}: its worker died" for seed in found.lost]
    lines += [f"broken     seed {seed}: {why}" for seed, why in found.broken]
    if found.interrupted:
        lines.append("interrupted: failures found so far are kept, not shrunk")
    return "\n".join(lines)


class SeedProgress:
    """A progress bar with seeds per second, failures and marks. Shown only on a terminal."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("seeds"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} seeds/s"),
            TextColumn("{task.fields[failures]} failures"),
            TextColumn("{task.fields[marks]} marks"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("hunt", total=total, rate="-", failures=0, marks=0)

    def __enter__(self) -> SeedProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def show(self, found: Hunt) -> None:
        task = self._bar.tasks[0]
        rate = f"{found.done / task.elapsed:.0f}" if task.elapsed else "-"
        self._bar.update(self._task, completed=found.done, rate=rate, failures=found.failures, marks=len(found.marks))

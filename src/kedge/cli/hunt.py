"""`kedge hunt TARGET`: run many seeds, show progress, and report each bug once: shrunk and in a file."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.coverage_hunt import coverage_options, hunt_coverage
from kedge.cli.exhaustive_hunt import exhaustive_options, hunt_exhaustively
from kedge.cli.lineage_hunt import hunt_lineage

if TYPE_CHECKING:
    from kedge.sim.kernel import Hunt, SimulationTarget
    from kedge.sim.kernel.policies import SchedulePolicy

SHRINK_RUNS = 600


@click.command()
@click.argument("target")
@click.option("--seeds", "-n", type=click.IntRange(1), default=1_000, show_default=True, help="How many seeds to run.")
@click.option(
    "--start",
    "--first-seed",
    type=click.IntRange(min=0),
    show_default="0, or the seed of the scenario",
    help="The first seed.",
)
@click.option("--weak", is_flag=True, help="Hunt the weak variant of a scenario, as `kedge scenario run --weak`.")
@click.option("--without", default="", metavar="SAFEGUARD", help="Hunt a scenario without this safeguard.")
@click.option(
    "--invariant",
    "invariants",
    multiple=True,
    metavar="MODULE:FUNCTION",
    help="Check this invariant too, at every commit of a scenario. Repeat it for more.",
)
@click.option("--bad", default="", metavar="CONDITION", help="With a recording: a bad state, as an expectation.")
@click.option(
    "--runs", type=click.IntRange(2), default=100, show_default=True, help="With a recording: how many runs to make."
)
@exhaustive_options
@coverage_options
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="one a core",
    help="Workers at once.",
)
@click.option(
    "--executor",
    default="process",
    show_default=True,
    help="process, thread, inline, dask://HOST:PORT of a Dask scheduler, or package.module:callable that takes the"
    " number of jobs and returns an Executor.",
)
@click.option(
    "--policy",
    type=click.Choice(["program", "mixed", "uniform", "fifo", "pct"]),
    default="program",
    show_default=True,
    help="How hosts are scheduled; `program` is the policy of the target.",
)
@click.option("--depth", type=click.IntRange(1), default=3, show_default=True, help="Depth of the pct policy.")
@click.option(
    "--directory",
    "-d",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".kedge/failures"),
    show_default=True,
    help="Directory for failures.",
)
@click.option(
    "--shrink-runs",
    type=click.IntRange(min=0),
    show_default="600, or 60 for a scenario",
    help="Runs to shrink one failure; 0 does not shrink.",
)
def hunt(
    target: str,
    seeds: int,
    start: int | None,
    weak: bool,
    without: str,
    invariants: tuple[str, ...],
    bad: str,
    runs: int,
    policy: str,
    depth: int,
    directory: Path,
    shrink_runs: int | None,
    **search: Any,
) -> None:
    """Hunt for bugs in TARGET: package.module:name or file.py:name, an async function that takes a Simulation; or a
    scenario, FILE.yaml or a name of `kedge scenario list`.

    The steps of a scenario stay, and each seed adds the faults of a swarm. Every invariant and every `always` must hold
    at each commit; its expectations must hold once faults have stopped.

    With a FILE.kedge, a recorded run or an incident, the search is around it: one further fault at a time, by growing
    distance. For a run that is bad itself, the report has the conditions that it needs.

    With --exhaustive a small world runs in every order of its first deliveries. With --lineage the messages are lost
    that a good outcome rests on, smallest plans first. With --coverage tapes that reach something new are mutated, and
    the strategies that still find something get more runs; TARGET may then be `zoo`, or `zoo:WORLD`.

    Exit code 0 if every invariant held, 1 if one was broken, 2 if seeds were lost or a mark was never reached.
    """
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.kernel import hunt as run_hunt

    workers = {name: search.pop(name) for name in ("jobs", "executor")}
    coverage = {name: search.pop(name) for name in ("coverage", "cpu_s", "output")}
    _search(target, directory, SHRINK_RUNS if shrink_runs is None else shrink_runs, coverage["coverage"], **search)
    _hunt_recording(target, weak, without, bad, runs, directory)
    aims = partial(_aim, target, weak, without, invariants)
    hunt_coverage(target, aims, directory, shrink_runs, seeds=seeds, start=start, policy=policy, **workers, **coverage)
    try:
        with known_targets():
            aim, first, shrinks, flags = aims()
        start = first if start is None else start
        with known_targets(), SeedProgress(seeds) as progress:
            found = run_hunt(
                aim,
                range(start, start + seeds),
                **workers,
                policy=_policy(policy, depth),
                directory=directory,
                shrink_runs_max=shrinks if shrink_runs is None else shrink_runs,
                by_seed=is_scenario(target),  # the seed that the report names is the one in the file
                on_progress=progress.show,
            )
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(report(found, shlex.join(["kedge", "hunt", target, *flags, *_policy_flags(policy, depth)])))
    raise SystemExit(1 if found.groups else 2 if found.lost or found.broken or found.marks_missed() else 0)


def _search(
    target: str, directory: Path, shrink_runs: int, coverage: bool, exhaustive: bool, lineage: bool, **bounds: Any
) -> None:
    """Search systematically and exit; return if seeds are wanted."""
    if exhaustive + lineage + coverage > 1:
        raise click.UsageError("--exhaustive, --lineage and --coverage are different searches: give one")
    if exhaustive:
        hunt_exhaustively(target, directory, shrink_runs, **bounds)
    if lineage:
        hunt_lineage(target, directory, shrink_runs, faults=bounds["faults"] or 1, runs_max=bounds["runs_max"])


def _hunt_recording(target: str, weak: bool, without: str, bad: str, runs: int, directory: Path) -> None:
    """Search around a recording and exit; return if the target is none."""
    from kedge.cli.incident_around import hunt_recording, is_recording
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError

    if not is_recording(target):
        if bad:
            raise click.UsageError("--bad is for a recording: give the FILE.kedge of a run or an incident")
        return
    try:
        with known_targets():
            lines, code = hunt_recording(
                Path(target),
                weak=weak,
                without=without,
                bad=bad,
                runs=runs,
                directory=directory,
                on_run=lambda text: click.echo(text, err=True),
            )
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join(lines))
    raise SystemExit(code)


def is_scenario(target: str) -> bool:
    """Whether it is a scenario file, or the name of a scenario that ships with kedge."""
    from kedge.sim.scenario import library_names

    return target.endswith((".yaml", ".yml")) or target in library_names()


def _aim(
    target: str, weak: bool, without: str, invariants: tuple[str, ...]
) -> tuple[SimulationTarget, int, int, list[str]]:
    """The target, its first seed, the runs to shrink a failure, and the flags that name the variant."""
    from kedge.sim.kernel import find_target

    if is_scenario(target):
        return _scenario(target, weak, without, invariants)
    if weak or without or invariants:
        raise click.UsageError("--weak, --without and --invariant are for scenarios: give FILE.yaml or a name")
    return find_target(target), 0, SHRINK_RUNS, []


def _scenario(
    name: str, weak: bool, without: str, invariants: tuple[str, ...]
) -> tuple[SimulationTarget, int, int, list[str]]:
    from kedge.sim.scenario import load_scenario
    from kedge.sim.scenario.hunt_targets import SHRINK_RUNS as FEW
    from kedge.sim.scenario.hunt_targets import hunt_target

    found = load_scenario(name)
    if weak and not without:
        without = found.weak_variant.name
    flags = ["--weak"] if weak else ["--without", without] if without else []
    for each in invariants:
        flags += ["--invariant", each]
    return hunt_target(name, without=without, invariants=invariants), found.seed, FEW, flags


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


def _policy_flags(name: str, depth: int) -> list[str]:
    """The flags that name the policy again."""
    depths = ["--depth", str(depth)] if name == "pct" else []
    return [] if name == "program" else ["--policy", name, *depths]


def report(found: Hunt, command: str) -> str:
    """The findings of a hunt, as text. `command` is the hunt without its seeds."""
    from kedge.sim.kernel.failure_report import describe_failure

    lines: list[str] = []
    for number, group in enumerate(found.groups.values(), 1):
        lines += [f"=== bug {number}: {len(group.seeds)} of {found.done} seeds, first {min(group.seeds)}"]
        if group.artefact is not None:
            lines.append(describe_failure(group.artefact, path=group.path))
        first = min(group.seeds)
        lines.append(f"seed {first} recreates it: {command} --start {first} --seeds 1")
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

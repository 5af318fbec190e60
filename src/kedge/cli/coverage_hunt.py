"""`kedge hunt TARGET --coverage`: mutate tapes that reach something new, and show what was reached and what was not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kedge.cli.exhaustive_hunt import SearchProgress

if TYPE_CHECKING:
    from kedge.sim.kernel import SimulationTarget
    from kedge.sim.kernel.coverage_search import CoverageFind, CoverageSearch, SearchArm

ZOO = "zoo"
ZOO_SHRINK_RUNS = 60

_OPTIONS = (
    click.option(
        "--coverage",
        is_flag=True,
        help="Make --seeds runs: mutate those that reach something new, and prefer strategies that still find.",
    ),
    click.option(
        "--cpu-s", type=click.FloatRange(min=0, min_open=True), help="With --coverage: stop after so much CPU time too."
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="With --coverage: the form of the report.",
    ),
)

Aims = Callable[[], "tuple[SimulationTarget, int, int, list[str]]"]
"""The target, its first seed, the runs to shrink a failure, and flags."""


def coverage_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a search by coverage to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def hunt_coverage(
    name: str,
    aims: Aims,
    directory: Path,
    shrink_runs: int | None,
    *,
    coverage: bool,
    seeds: int,
    start: int | None,
    policy: str,
    cpu_s: float | None,
    output: str,
    **workers: Any,
) -> None:
    """Search, print the result, and exit: 0, 1 if an invariant was broken, 2 if a run was lost or a mark never reached.

    Returns if no search by coverage is wanted.
    """
    from kedge.cli.named_targets import known_targets
    from kedge.errors import KedgeError
    from kedge.sim.kernel.coverage_search import keep_finds, search_coverage

    if not coverage:
        if cpu_s is not None or output != "text":
            raise click.UsageError("--cpu-s and --output are for --coverage")
        return
    if policy != "program":
        raise click.UsageError("--coverage chooses schedules itself: leave --policy out")
    try:
        with known_targets():
            arms, first, shrinks = _arms(name, aims)
        with known_targets(), SearchProgress() as progress:
            found = search_coverage(
                arms,
                seed=first if start is None else start,
                runs_max=seeds,
                cpu_s_max=float("inf") if cpu_s is None else cpu_s,
                on_run=lambda so_far: progress.show(_progress(so_far)),
                **workers,
            )
            keep_finds(found, directory, shrinks if shrink_runs is None else shrink_runs)
    except KedgeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(coverage_json(found), indent=1) if output == "json" else coverage_report(found))
    raise SystemExit(1 if found.finds else 2 if found.broken or found.marks_missed() else 0)


def _arms(name: str, aims: Aims) -> tuple[tuple[SearchArm, ...], int, int]:
    """The strategies, the first seed, and the runs to shrink a failure."""
    from kedge.sim.kernel.coverage_search import schedule_arms
    from kedge.sim.zoo.coverage import world_arms
    from kedge.sim.zoo.entry import UnknownZooEntry

    zoo, _, world = name.partition(":")
    if zoo == ZOO:
        try:
            return world_arms([world] if world else []), 0, ZOO_SHRINK_RUNS
        except UnknownZooEntry as error:
            raise click.UsageError(str(error)) from error
    target, first, shrinks, _ = aims()
    return schedule_arms(target), first, shrinks


def _progress(found: CoverageSearch) -> str:
    reached = sum(sum(corpus.reached.values()) for corpus in found.worlds.values())
    tapes = sum(len(corpus.entries) for corpus in found.worlds.values())
    return f"{found.done} runs, {reached} features, {tapes} tapes, {found.steps} steps, {len(found.finds)} bugs"


def coverage_report(found: CoverageSearch) -> str:
    """The findings, the features and marks reached and missed, and the share of each arm, as text."""
    lines: list[str] = []
    for number, find in enumerate(found.finds.values(), 1):
        lines += [*_find_lines(number, find, found.done), ""]
    lines.append(
        f"{found.done} runs, {sum(len(each.group.seeds) for each in found.finds.values())} failures in"
        f" {len(found.finds)} groups, {found.steps} steps, {found.cpu_s:.1f} s of CPU"
    )
    for world, corpus in found.worlds.items():
        counts = ", ".join(f"{count} {sort}" for sort, count in corpus.reached.items())
        lines.append(f"reached    {world}: {counts}; {len(corpus.entries)} tapes, {corpus.bytes // 1024} KiB")
    lines += [f"mark       {world}: {mark}: {runs} runs" for (world, mark), runs in sorted(found.marks.items())]
    lines += [f"never      {world}: {mark}: no run reached it" for world, mark in found.marks_missed()]
    lines += [f"broken     run {each.number}, {found.bandit.arms[each.arm].name}: {each.why}" for each in found.broken]
    rows: list[tuple[str, ...]] = [("arm", "runs", "steps", "new", "finds")]
    rows += [
        (arm.name, *map(str, (arm.runs, arm.steps, arm.new, arm.finds)))
        for arm in sorted(found.bandit.arms, key=lambda arm: -arm.steps)
    ]
    width = max(len(row[0]) for row in rows)
    lines += ["", *(row[0].ljust(width) + "".join(cell.rjust(10) for cell in row[1:]) for row in rows)]
    if found.interrupted:
        lines.append("interrupted: failures found so far are kept, not shrunk")
    return "\n".join(lines)


def _find_lines(number: int, find: CoverageFind, runs: int) -> list[str]:
    from kedge.sim.kernel.failure_report import describe_failure

    group = find.group
    lines = [f"=== bug {number}: {len(group.seeds)} of {runs} runs, first {find.run}, by {find.arm}"]
    if group.artefact is not None:
        lines.append(describe_failure(group.artefact, path=group.path))
    lines.append(f"found after {find.steps} steps and {find.cpu_s:.1f} s of CPU")
    if group.shrunk is not None and group.shrunk.exhausted:
        lines.append(f"(shrinking stopped after {group.shrunk.runs} runs: there may be a shorter one)")
    return lines


def coverage_json(found: CoverageSearch) -> dict[str, Any]:
    """The same as plain data."""
    missed = found.marks_missed()
    return {
        "seed": found.seed,
        "runs": found.done,
        "steps": found.steps,
        "cpu_s": round(found.cpu_s, 2),
        "interrupted": found.interrupted,
        "worlds": [
            {
                "world": world,
                "features": corpus.reached,
                "tapes": len(corpus.entries),
                "tape_bytes": corpus.bytes,
                "marks": {mark: runs for (its, mark), runs in sorted(found.marks.items()) if its == world},
                "never": [mark for its, mark in missed if its == world],
            }
            for world, corpus in found.worlds.items()
        ],
        "arms": [
            {"arm": arm.name, "runs": arm.runs, "steps": arm.steps, "new": arm.new, "finds": arm.finds}
            for arm in found.bandit.arms
        ],
        "finds": [_find_json(find) for find in found.finds.values()],
        "broken": [
            {"run": each.number, "arm": found.bandit.arms[each.arm].name, "why": each.why} for each in found.broken
        ],
    }


def _find_json(find: CoverageFind) -> dict[str, Any]:
    violation = find.group.violation
    return {
        "world": find.world,
        "arm": find.arm,
        "invariant": violation.invariant,
        "cause": violation.cause,
        "message": violation.message,
        "failures": len(find.group.seeds),
        "run": find.run,
        "steps": find.steps,
        "cpu_s": round(find.cpu_s, 2),
        "file": None if find.group.path is None else str(find.group.path),
    }

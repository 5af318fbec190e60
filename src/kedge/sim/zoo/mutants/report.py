"""The results of a campaign as text."""

from __future__ import annotations

from statistics import median

from kedge.sim.zoo.mutants.campaign import MutantReport
from kedge.sim.zoo.mutants.trials import MutantResult

WITHOUT_TESTS = "no checkout with pytest here: only the hunt was run"


def mutant_outcome(row: MutantResult) -> str:
    """One result as a sentence."""
    ways = []
    if row.killed_by_tests:
        ways.append(f"by {row.test}")
    if row.killed_by_hunt:
        where = f" in {row.world} seed {row.seed} ({row.strategy})" if row.world else ""
        ways.append(f"by the hunt{where}: {row.invariant}")
    killed = f"killed {', and '.join(ways)}" if ways else f"SURVIVED {row.seeds} seeds, {row.cpu_s:.0f} s of CPU"
    return f"{row.name} ({row.layer}, {row.operator}): {killed}"


def mutant_table(report: MutantReport) -> str:
    """A line for each mutant, the diff of each survivor, and the totals."""
    lines = [mutant_outcome(row) for row in report.rows]
    for row in report.survivors:
        lines += ["", f"{row.name}, reached by {', '.join(row.worlds)}", row.diff]
    total, both = len(report.rows), report.killed_by_both
    counted = (
        f"{total} mutants of {report.lines} lines that clean worlds execute:"
        f" {report.killed_by_tests - both} killed by tests, {report.killed_by_hunt - both} by the hunt, {both} by both,"
        f" {len(report.survivors)} by neither"
    )
    killed = [row.cpu_s for row in report.rows if row.killed_by_hunt]
    if killed:
        counted += f"; the hunt killed after {median(killed):.1f} s of CPU in the median, {sum(killed):.0f} s in all"
    return "\n".join([*lines, "", counted, *([] if report.tested else [WITHOUT_TESTS])])

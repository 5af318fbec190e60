"""The results of a hunt of the zoo as text tables. `hunt` produces them."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.sim.zoo.comparison import StrategySummary, all_summaries, best_of, targeted_summary
from kedge.sim.zoo.hunt import EntryResult, ZooReport

_HEADINGS = ("entry", "world", "found", "seeds", "cpu s", "shrunk to", "by", "invariant")
_COMPARED = ("best", "its finds")
_STRATEGIES = ("strategy", "entries", "found", "best", "alone", "sooner")


def table(found: ZooReport) -> str:
    """One line per entry, then one per strategy if they were compared, then the totals."""
    parts = []
    if found.rows:
        compared = bool(found.compared)
        headings = (*_HEADINGS, *_COMPARED) if compared else _HEADINGS
        parts.append(_columns([headings, *((*_cells(row), *(_best(row) if compared else ())) for row in found.rows)]))
    if found.compared:
        ways = all_summaries(found.compared)
        parts.append(_columns([_STRATEGIES, *(_standing_cells(each) for each in ways)]))
    return "\n\n".join([*parts, summary(found)])


def _columns(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def summary(found: ZooReport) -> str:
    lines = []
    if found.rows:
        lines.append(f"{found.found} of {len(found.rows)} entries found, the median after {found.median_seeds:g} seeds")
    if found.clean_seeds:
        cpu_s = sum(sum(each.cpu_s) for each in found.cleans)
        lines.append(
            f"{len(found.clean_findings)} findings in {found.clean_seeds} seeds of the unmodified control plane"
            f" ({1000 * cpu_s / found.clean_seeds:.0f} ms of CPU each)"
        )
    if found.compared:
        lines.append(_claim(found))
    if found.seed_cpu_ms is not None:
        lines.append(f"a seed of the standard simulation costs {found.seed_cpu_ms:.0f} ms of CPU")
    lines += [f"kept: {row.file}" for row in found.rows if row.file]
    for each in found.clean_findings:
        lines.append(f"  {each.target} seed {each.seed} ({each.strategy}): {each.invariant}: {each.message}")
    return "\n".join(lines)


def outcome(row: EntryResult) -> str:
    """One result as a sentence, for progress output."""
    if row.found:
        return f"{row.name}: found after {row.seeds} seeds and {row.cpu_s:.1f} s of CPU, by {row.strategy}"
    others = f"; other invariants broken: {', '.join(row.others)}" if row.others else ""
    return f"{row.name}: NOT found in {row.seeds} seeds and {row.cpu_s:.1f} s of CPU{others}"


def _cells(row: EntryResult) -> tuple[str, ...]:
    size = f"{row.faults} faults, {row.steps} steps" if row.faults >= 0 else f"{row.steps} steps" if row.steps else "-"
    return (
        row.name,
        row.world,
        "yes" if row.found else "NO",
        str(row.seeds),
        f"{row.cpu_s:.1f}",
        size,
        row.strategy or "-",
        row.invariant or (f"(others: {', '.join(row.others)})" if row.others else "-"),
    )


def _best(row: EntryResult) -> tuple[str, str]:
    best = row.best
    return (best.strategy, f"{best.finds} in {best.seeds} seeds") if best is not None else ("-", "-")


def _standing_cells(way: StrategySummary) -> tuple[str, ...]:
    sooner = "-" if way.sooner is None else f"{way.sooner:.1f}x"
    return (way.strategy, *map(str, (way.entries, way.found, way.best, way.alone)), sooner)


def _claim(found: ZooReport) -> str:
    """How targeted plans compare with plain random, as a sentence."""
    aimed = targeted_summary(found.compared)
    known = sum(best_of(trials) is not None for trials in found.compared)
    sooner = (
        "" if aimed.sooner is None else f"; used in turn they find {aimed.sooner:.1f} times as soon as plain random"
    )
    return (
        f"a targeted plan is the best for {aimed.best} of the {known} entries that a strategy found, and alone finds"
        f" {aimed.alone} that plain random does not{sooner}"
    )

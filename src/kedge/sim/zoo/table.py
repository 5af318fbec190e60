"""What a hunt of the zoo found, as a table for people. `hunting` makes what is shown."""

from __future__ import annotations

from kedge.sim.zoo.hunting import Census, Row

_HEADINGS = ("entry", "theme", "found", "seeds", "cpu s", "shrunk to", "by", "invariant")


def table(found: Census) -> str:
    """A line an entry, then the figures of the whole."""
    if not found.rows:
        return summary(found)
    lines = [_HEADINGS, *(_cells(row) for row in found.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*text, "", summary(found)])


def summary(found: Census) -> str:
    lines = []
    if found.rows:
        lines.append(f"{found.found} of {len(found.rows)} entries found, the median after {found.median_seeds:g} seeds")
    if found.clean_seeds:
        cpu_s = sum(sum(each.cpu_s) for each in found.cleans)
        lines.append(
            f"{len(found.clean_findings)} findings in {found.clean_seeds} seeds of the unmodified control plane"
            f" ({1000 * cpu_s / found.clean_seeds:.0f} ms of CPU each)"
        )
    if found.seed_cpu_ms:
        lines.append(f"a seed of the standard scenario costs {found.seed_cpu_ms:.0f} ms of CPU")
    for each in found.clean_findings:
        lines.append(f"  {each.target} seed {each.seed} ({each.strategy}): {each.invariant}: {each.message}")
    return "\n".join(lines)


def outcome(row: Row) -> str:
    """One row in words, for whoever watches."""
    if row.found:
        return f"{row.name}: found after {row.seeds} seeds and {row.cpu_s:.1f} s of CPU, by {row.strategy}"
    others = f"; broken on the way: {', '.join(row.others)}" if row.others else ""
    return f"{row.name}: NOT found in {row.seeds} seeds and {row.cpu_s:.1f} s of CPU{others}"


def _cells(row: Row) -> tuple[str, ...]:
    size = f"{row.faults} faults, {row.steps} steps" if row.faults >= 0 else f"{row.steps} steps" if row.steps else "-"
    return (
        row.name,
        row.theme,
        "yes" if row.found else "NO",
        str(row.seeds),
        f"{row.cpu_s:.1f}",
        size,
        row.strategy or "-",
        row.invariant or (f"(others: {', '.join(row.others)})" if row.others else "-"),
    )

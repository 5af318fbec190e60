"""The coverage of a view of the records: its window, and the decisions that were kept or only counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kedge.observe.readers.recording import Recording
from kedge.observe.records import CUT_OFF, CoverageRecord, Decision, KeptTotals


def coverage_text(
    decisions: Sequence[Decision], coverages: Sequence[CoverageRecord], totals: KeptTotals | None = None
) -> str:
    """One sentence for the kept decisions, and one for those that were counted and not kept. Reports are neither.

    `totals` has all that were kept, where `decisions` are a part of them.
    """
    kept = totals_of(decisions) if totals is None else totals
    if kept.first is None or kept.last is None:
        return f"no decision was kept; {_not_kept(coverages)}"
    by_rule = ", ".join(
        f"{count} {CUT_OFF}" if rule == CUT_OFF else f"{count} by {rule or 'no rule recorded'}"
        for rule, count in sorted(kept.rules.items(), key=lambda item: (-item[1], item[0]))
    )
    return (
        f"{sum(kept.rules.values())} decisions kept from {kept.first:%Y-%m-%d %H:%M:%S} to {kept.last:%H:%M:%S}:"
        f" {by_rule}; {_not_kept(coverages)}"
    )


def totals_of(decisions: Sequence[Decision]) -> KeptTotals:
    """The number of decisions by rule, without reports."""
    kept = [each for each in decisions if not each.part_of]
    began = [each.began for each in kept]
    rules = Counter(each.kept.partition(":")[0] for each in kept)
    return KeptTotals(dict(rules), min(began, default=None), max(began, default=None))


def _not_kept(coverages: Sequence[CoverageRecord]) -> str:
    last = {each.process: each for each in coverages}
    if not last:
        return "the records do not have the number of those that were not kept"
    seen = sum(each.seen for each in last.values())
    kept = sum(sum(each.kept.values()) for each in last.values())
    rates = " or ".join(str(every) for every in sorted({each.sample_every for each in last.values()}))
    since = min(each.since for each in last.values())
    return (
        f"of {seen} that ended since {since:%Y-%m-%d %H:%M:%S}, {seen - kept} were counted and not kept;"
        f" 1 in {rates} of those that no other rule keeps is a sample"
    )


def with_audit(kept: str, audit: str) -> str:
    """The coverage of decisions with that of the audit log, where a view has one."""
    return f"{kept}; {audit}" if audit else kept


def coverage_lines_of(recording: Recording) -> Iterator[str]:
    """For a view of a whole recording: its coverage, and each gap."""
    kept = coverage_text(recording.decisions, recording.coverages, recording.totals)
    yield f"coverage: {with_audit(kept, recording.audit_coverage)}"
    for gap in recording.gaps:
        if gap.bytes:
            yield f"missing: a part of the file cannot be read: {gap.why}"
    for each in recording.undecoded:
        yield f"missing: {each}"

"""The coverage of a view of the records: its window, and the decisions that were kept or only counted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kedge.observe.readers.recording import Recording
from kedge.observe.records import CoverageRecord, Decision


def coverage_text(decisions: Sequence[Decision], coverages: Sequence[CoverageRecord]) -> str:
    """One sentence for the kept decisions, and one for those that were counted and not kept."""
    if not decisions:
        return f"no decision was kept; {_not_kept(coverages)}"
    began = [each.began for each in decisions]
    rules = Counter((each.kept.partition(":")[0] or "no rule recorded") for each in decisions)
    by_rule = ", ".join(
        f"{count} by {rule}" for rule, count in sorted(rules.items(), key=lambda item: (-item[1], item[0]))
    )
    return (
        f"{len(decisions)} decisions kept from {min(began):%Y-%m-%d %H:%M:%S} to {max(began):%H:%M:%S}: {by_rule};"
        f" {_not_kept(coverages)}"
    )


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


def coverage_lines_of(recording: Recording) -> Iterator[str]:
    """For a view of a whole recording: its coverage, and each gap."""
    yield f"coverage: {coverage_text(recording.decisions, recording.coverages)}"
    for gap in recording.gaps:
        if gap.bytes:
            yield f"missing: a part of the file cannot be read: {gap.why}"
    for each in recording.undecoded:
        yield f"missing: {each}"

"""A recording: every record of a kept file, decoded, for the readers beside this one.

It states what is missing: `gaps` are damaged or cut parts of the file, `undecoded` are sound sections that this build
cannot decode. Everything else is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kedge.api.kinds import KINDS, Registry
from kedge.kept import Gap, Section, read_kept
from kedge.observe.readers.audited_requests import AuditedRequest
from kedge.observe.records import (
    BadRecord,
    CommitRecord,
    CountsRecord,
    CoverageRecord,
    Decision,
    KeptTotals,
    OutsideEvent,
    ReceivedPart,
    RecordReader,
    StoreState,
)


@dataclass(slots=True)
class Recording:
    """The records of one cluster, live or simulated. Each list is in the order in which it was written."""

    states: list[StoreState] = field(default_factory=list)
    commits: list[CommitRecord] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    received: list[ReceivedPart] = field(default_factory=list)
    outside: list[OutsideEvent] = field(default_factory=list)
    coverages: list[CoverageRecord] = field(default_factory=list)
    counts: list[CountsRecord] = field(default_factory=list)
    others: list[Section] = field(default_factory=list)
    """Sections of other layers."""
    gaps: list[Gap] = field(default_factory=list)
    undecoded: list[str] = field(default_factory=list)
    totals: KeptTotals | None = None
    """All decisions that were kept, where `decisions` are a part of them."""
    audited: Sequence[AuditedRequest] = ()
    """Requests of the audit log about the objects in question, where a cluster has one."""
    audit_coverage: str = ""
    """The window of the audit log, or that there is none; empty for a file, which has no requests."""

    def add(self, record: object) -> None:
        match record:
            case Decision():
                self.decisions.append(record)
            case StoreState():
                self.states.append(record)
            case CommitRecord():
                self.commits.append(record)
            case ReceivedPart():
                self.received.append(record)
            case OutsideEvent():
                self.outside.append(record)
            case CoverageRecord():
                self.coverages.append(record)
            case CountsRecord():
                self.counts.append(record)


def read_recording(path: Path, kinds: Registry = KINDS) -> Recording:
    """Read a kept file.

    Raises:
        BadKeptFile: it is not a kept file, or of another version. Damage inside it is in `gaps`.
    """
    return decode_recording(read_kept(path), kinds)


def decode_recording(sections: Iterable[Section | Gap], kinds: Registry = KINDS) -> Recording:
    found, reader = Recording(), RecordReader(kinds)
    for each in sections:
        if isinstance(each, Gap):
            found.gaps.append(each)
            continue
        try:
            record = reader.read(each)
        except BadRecord as error:
            found.undecoded.append(str(error))
            continue
        if record is not None:
            found.add(record)
        elif not reader.knows(each):
            found.others.append(each)
    return found

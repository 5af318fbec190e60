"""The one file of an incident: the parts of every process, decoded and merged, with a statement of what is missing.

A part has versions and numbers of its own, so parts are decoded one by one and encoded again as one stream: a version
that ten processes saw is in the file once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from kedge.kept import BadKeptFile, Section, parse_section, read_kept
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.observe.records import CommitRecord, Decision, RecordEncoder, StoreState

INCIDENT: Final = "incident"
"""The name of the section that only the file of an incident has."""
INCIDENT_VERSION: Final = 1


class IncidentProcess(msgspec.Struct, frozen=True):
    """One process in the file."""

    name: str
    done: bool
    """It sent everything that it had."""
    decisions: int
    bytes: int


class IncidentSummary(msgspec.Struct, frozen=True):
    """The head of the file of an incident."""

    name: str
    since: datetime
    until: datetime
    kedge: str
    """The version of the kedge that made the file."""
    processes: tuple[IncidentProcess, ...]
    gaps: tuple[str, ...]
    """Missing parts, one sentence each."""


@dataclass(slots=True)
class IncidentParts:
    """The files that one process sent."""

    process: str
    done: bool
    files: list[Path] = field(default_factory=list)


def merge_parts(
    name: str, since: datetime, until: datetime, parts: Sequence[IncidentParts], *, kedge: str
) -> tuple[IncidentSummary, Recording]:
    """Everything that the parts have about the time from `since` to `until`."""
    merged, gaps = Recording(), []
    decisions: dict[str, Decision] = {}
    processes: list[IncidentProcess] = []
    histories: list[Recording] = []
    for each in parts:
        found = [decode_recording(read_kept(path)) for path in each.files]
        own = {one.id: one for part in found for one in part.decisions if since <= one.began <= until}
        size = sum(path.stat().st_size for path in each.files)
        processes.append(IncidentProcess(each.process, each.done, len(own), size))
        decisions.update(own)
        if not each.done:
            gaps.append(f"{each.process} did not send everything: it was killed or cut off, or is still sending")
        for part in found:
            gaps += [f"{each.process}: {gap}" for gap in part.gaps if not gap.tail]
            gaps += [f"{each.process}: {text}" for text in part.undecoded]
            gaps += [event.text for event in part.outside if event.kind == "gap"]
            if part.states:
                histories.append(part)
            else:
                _add(merged, part)
    merged.decisions = sorted(decisions.values(), key=lambda one: one.began)
    merged.states, merged.commits = _history(histories)
    gaps += _missing(merged, since)
    return IncidentSummary(name, since, until, kedge, tuple(processes), tuple(dict.fromkeys(gaps))), merged


def _add(merged: Recording, part: Recording) -> None:
    merged.received += part.received
    merged.outside += [event for event in part.outside if event not in merged.outside]
    merged.coverages += part.coverages
    merged.counts += part.counts


def _history(histories: Iterable[Recording]) -> tuple[list[StoreState], list[CommitRecord]]:
    """The earliest state, and every commit after it, from as many servers as recorded them."""
    found = sorted(histories, key=lambda each: each.states[0].revision)
    if not found:
        return [], []
    commits: dict[int, CommitRecord] = {}
    for each in found:
        for commit in each.commits:
            commits.setdefault(commit.revision, commit)
    return [found[0].states[0]], [commits[revision] for revision in sorted(commits)]


def _missing(merged: Recording, since: datetime) -> Iterator[str]:
    if not merged.states:
        yield "no server recorded the history of the store"
    elif merged.states[0].at > since:
        late_s = (merged.states[0].at - since).total_seconds()
        if late_s >= 1:
            yield f"the history of the store begins {late_s:.0f} s after the begin of the incident"
    lost = Counter(
        each.process for each in merged.decisions if each.scheduling is not None and each.scheduling.local_lost
    )
    for process, count in lost.items():
        yield f"{count} attempts of {process} lack the scheduler's own assumptions"


def write_sections(summary: IncidentSummary, recording: Recording) -> Iterator[Section]:
    """The file, section by section."""
    yield Section(INCIDENT, INCIDENT_VERSION, msgspec.json.encode(summary))
    encoder = RecordEncoder()
    streams: tuple[Iterator[list[bytes]], ...] = (
        (encoder.state(each) for each in recording.states),
        (encoder.commit(each) for each in recording.commits),
        (encoder.received(each) for each in recording.received),
        (encoder.decision(each) or [] for each in recording.decisions),
        (encoder.outside(each) for each in recording.outside),
        (encoder.coverage(each) for each in recording.coverages),
        (encoder.counts(each) for each in recording.counts),
    )
    for stream in streams:
        for sections in stream:
            for each in sections:
                yield parse_section(each)


def is_incident(path: Path) -> bool:
    """Whether a kept file is that of an incident. A file that cannot be read is none."""
    try:
        first = next(iter(read_kept(path)), None)
    except BadKeptFile:
        return False
    return isinstance(first, Section) and first.name == INCIDENT


def summary_of(recording: Recording) -> IncidentSummary | None:
    """The head of an incident's file; None for another recording."""
    for each in recording.others:
        if each.name == INCIDENT and each.version == INCIDENT_VERSION:
            return msgspec.json.decode(each.body, type=IncidentSummary)
    return None


def lines_of(summary: IncidentSummary, recording: Recording) -> list[str]:
    """The summary for people."""
    lasted_s = (summary.until - summary.since).total_seconds()
    outcomes: Mapping[str, int] = Counter(each.controller for each in recording.decisions)
    lines = [
        f"incident {summary.name}: {lasted_s:.0f} s from {summary.since:%Y-%m-%d %H:%M:%S} UTC, kedge {summary.kedge}",
        f"{len(recording.decisions)} decisions, {len(recording.commits)} commits"
        + (f" after revision {recording.states[0].revision}" if recording.states else "")
        + f", {len(recording.states[0].objects) if recording.states else 0} objects at the begin",
        "",
    ]
    lines += [
        f"  {each.name}: {each.decisions} decisions, {each.bytes} bytes" + ("" if each.done else ", NOT COMPLETE")
        for each in summary.processes
    ]
    lines += ["", *(f"  {name}: {count}" for name, count in sorted(outcomes.items()))]
    lines += ["", *(f"missing: {each}" for each in summary.gaps)] if summary.gaps else []
    return lines

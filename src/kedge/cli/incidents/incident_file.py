"""The one file of an incident: the parts of every process, decoded and merged, with a statement of what is missing.

A part has versions and numbers of its own, so parts are decoded one by one and encoded again as one stream: a version
that ten processes saw is in the file once.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from kedge.cli.incidents.merged_history import merge_histories
from kedge.kept import BadKeptFile, Section, parse_section, read_kept
from kedge.observe.readers.history_check import RevisionGap
from kedge.observe.readers.recording import Recording, decode_recording
from kedge.observe.recording.rules import KeepReason
from kedge.observe.records import Decision, RecordEncoder, RedactedField

INCIDENT: Final = "incident"
"""The name of the section that only the file of an incident has."""
INCIDENT_VERSION: Final = 1
DIGEST: Final = "digest"
"""The name of the last section: a hash of all before it, so that a change of any of them is noticed."""


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
    history_gaps: tuple[RevisionGap, ...] = ()
    """Revisions that the history may lack. Files of before have none."""


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
        found = []
        for path in each.files:
            try:
                found.append(decode_recording(read_kept(path)))
            except BadKeptFile as error:
                gaps.append(f"{each.process}: part {path.name} cannot be read: {error}")
        logged = [one for part in found for one in part.decisions]
        own = {one.id: one for one in _of_incident(name, since, until, logged)}
        size = sum(path.stat().st_size for path in each.files)
        processes.append(IncidentProcess(each.process, each.done, len(own), size))
        decisions.update(own)
        if not each.done:
            gaps.append(f"{each.process} did not send everything: it was killed or cut off, or is still sending")
        for part in found:
            gaps += [f"{each.process}: {gap}" for gap in part.gaps if not gap.tail]
            gaps += [f"{each.process}: {text}" for text in part.undecoded]
            gaps += [f"{each.process}: {event.text}" for event in part.outside if event.kind == "gap"]
            if part.states:
                histories.append(part)
            else:
                _add(merged, part)
    merged.decisions = sorted(decisions.values(), key=lambda one: one.began)
    merged.states, merged.commits, lost = merge_histories(histories)
    gaps += _missing(merged, since)
    gaps += [
        f"commits between revisions {gap.after} and {gap.until} are missing: no server recorded them" for gap in lost
    ]
    return IncidentSummary(name, since, until, kedge, tuple(processes), tuple(dict.fromkeys(gaps)), lost), merged


def _of_incident(name: str, since: datetime, until: datetime, decisions: Sequence[Decision]) -> Iterator[Decision]:
    """The decisions of the incident, from those of one log in its order: those of its time, by the clock of their
    process.

    That clock may be wrong, or be stepped meanwhile. Decisions that the window of the incident kept belong to it
    whatever their time is, and so does everything between them in the log, except decisions from before the incident
    that were logged late, because others had read what they wrote.
    """
    places: dict[str, tuple[int, int]] = {}
    """By process: where its first and its last decision are that the window kept."""
    for place, each in enumerate(decisions):
        if each.kept == f"{KeepReason.WINDOW}: {name}":
            first, _ = places.get(each.process, (place, place))
            places[each.process] = first, place
    for place, each in enumerate(decisions):
        first, last = places.get(each.process, (0, -1))
        logged_late = each.kept.partition(":")[0] == KeepReason.INPUT
        if since <= each.began <= until or (first <= place <= last and not logged_late):
            yield each


def _add(merged: Recording, part: Recording) -> None:
    merged.received += part.received
    merged.outside += [event for event in part.outside if event not in merged.outside]
    merged.coverages += part.coverages
    merged.counts += part.counts


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
    known = {each.id for each in merged.decisions}
    written = (each for commit in merged.commits if commit.at >= since for each in commit.written)
    unsent = Counter(
        _decider(each.origin.decision) for each in written if each.origin.decision and each.origin.decision not in known
    )
    for decider, count in sorted(unsent.items()):
        yield f"{count} versions were written by decisions of {decider} that no process sent"


def _decider(decision: str) -> str:
    """The controller, and the run of its process, in the id of a decision."""
    return decision.rpartition(":")[0] or decision


def write_sections(
    summary: IncidentSummary, recording: Recording, *, redact: Sequence[RedactedField] = ()
) -> Iterator[Section]:
    """The file, section by section, without the values of the fields in `redact`."""
    digest = _Digest()
    for each in _sections(summary, recording, RecordEncoder(hiding_key=os.urandom(32), redact=redact)):
        digest.add(each)
        yield each
    yield digest.section()


class _Digest:
    """A hash of sections in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, section: Section) -> None:
        self._hash.update(f"{section.name} {section.version} {len(section.body)}\n".encode())
        self._hash.update(section.body)

    def section(self) -> Section:
        return Section(DIGEST, INCIDENT_VERSION, self._hash.hexdigest().encode())


def changes_of(path: Path) -> list[str]:
    """How a file differs from what `kedge incident stop` wrote, as sentences.

    Raises:
        BadKeptFile: it is not a kept file.
    """
    digest, written = _Digest(), None
    for each in read_kept(path):
        if not isinstance(each, Section):
            return [f"the file is damaged: {each}"]
        if written is not None:
            return [f"section {each.name} was added to the file"]
        if each.name == DIGEST:
            written = each
        else:
            digest.add(each)
    if written is None:
        return ["the file has no digest: its end is missing, or an older kedge wrote it"]
    return (
        []
        if written.body == digest.section().body
        else ["the file was changed after it was written: its digest differs"]
    )


def _sections(summary: IncidentSummary, recording: Recording, encoder: RecordEncoder) -> Iterator[Section]:
    yield Section(INCIDENT, INCIDENT_VERSION, msgspec.json.encode(summary))
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

"""The timeline of one object and of all that it owns: lanes, causes, folded retries, the window and its coverage. Pure.

`timeline` makes the lines of a recording; this module selects those about one object, puts them in order of revision,
and links each to the write that caused it. `cli.timeline` and `trace_events` show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from kedge.api.objects import Object
from kedge.api.timestamps import format_micro_time
from kedge.api.views import PodView
from kedge.api.wellknown import KEDGE_API_VERSION, NODE_KIND, POD_KIND
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.readers.audited_requests import AuditedRequest, unshown
from kedge.observe.readers.coverage import coverage_lines_of
from kedge.observe.readers.object_history import is_about, with_dependents
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.timeline import COMMITTED, REFUSED, REQUESTED, UNSCHEDULABLE, TimelineEntry, timeline
from kedge.observe.readers.why.evidence import RecordedWrite, recorded_writes
from kedge.observe.recording.process_events import PROCESS_KINDS, START, is_process_event
from kedge.observe.records import CommitRecord, Decision, OutsideEvent, StoreState

TIMELINE_KIND: Final = "Timeline"
PEOPLE, FAULTS, OUTSIDE = "people", "faults", "outside"
"""Lanes of events that no component recorded."""
_OUTSIDE_LANES: Final = {
    **dict.fromkeys(("step", "admission"), PEOPLE),
    **dict.fromkeys(("fault", "crash", "restart", "machine", "partition", *PROCESS_KINDS), FAULTS),
}
_VERDICTS: Final = frozenset({"held", "view", "phase", START})
"""Kinds of outside events that change nothing: verdicts, views and phases of a scenario, and its start."""
_NO_ACTIONS: Final = ("expect ", "view ", "note ")
"""The steps of a scenario that only look."""
_RETRIES: Final = frozenset({REFUSED, UNSCHEDULABLE})


class EntryMark(StrEnum):
    """The entries that a reader looks for first."""

    NONE = ""
    PERSON = "person"
    FAULT = "fault"


class CauseLink(NamedTuple):
    """The write behind a decision."""

    key: Key
    revision: Revision
    """0 if the records do not have it."""
    writer: str
    written: datetime | None
    """None if the time of the write is not known."""
    seen_s: float | None
    """From the write until the decision began."""
    decision: str = ""
    """The decision behind the write; empty if it is not known, or if a user wrote."""

    def __str__(self) -> str:
        by = f" by {self.writer}" if self.writer else ""
        text = f"{self.key.kind.partition('.')[0]} {self.key.name}{by}"
        if self.revision:
            text += f", written at rv {self.revision}"
        return f"{text}, seen {self.seen_s:.1f} s later" if self.seen_s is not None else text


@dataclass(frozen=True, slots=True)
class LaneEntry:
    """One line of an object's timeline."""

    at: datetime
    lane: str
    """The controller, scheduler, agent or user behind it; `people`, `faults` or `outside` for other events."""
    kind: str
    text: str
    revision: Revision = NO_REVISION
    decision: str = ""
    cause: CauseLink | None = None
    mark: EntryMark = EntryMark.NONE
    count: int = 1
    """How many attempts with the same outcome it stands for."""
    is_condition: bool = False
    """It is a change of a condition."""

    def document(self) -> dict[str, Any]:
        cause = self.cause
        return {
            "at": format_micro_time(self.at),
            "lane": self.lane,
            "kind": self.kind,
            "text": self.text,
            "revision": self.revision or None,
            "decision": self.decision,
            "mark": self.mark.value,
            "count": self.count,
            "cause": None
            if cause is None
            else {
                "object": str(cause.key),
                "revision": cause.revision or None,
                "writer": cause.writer,
                "seenSeconds": None if cause.seen_s is None else round(cause.seen_s, 6),
            },
        }


@dataclass(frozen=True, slots=True)
class ObjectTimeline:
    """Every line about one object in a window."""

    about: str
    generation: int | None
    entries: tuple[LaneEntry, ...]
    decisions: tuple[Decision, ...]
    """The decisions about the object and what it owns in the window, in the order in which they began."""
    causes: Mapping[str, CauseLink]
    """By decision id."""
    coverage: tuple[str, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """In the order of their first entry."""
        return tuple(dict.fromkeys(each.lane for each in self.entries))

    def lines(self) -> Iterator[str]:
        """For people: time, revision, lane, mark and change, with the cause under the first line of each decision."""
        width = max((len(each.lane) for each in self.entries), default=0)
        shown: set[str] = set()
        for each in self.entries:
            mark = {EntryMark.PERSON: "* ", EntryMark.FAULT: "! "}.get(each.mark, "  ")
            times = f"  ({each.count} times)" if each.count > 1 else ""
            at = f"{each.at:%H:%M:%S}.{each.at.microsecond // 1000:03d}"
            yield f"{at}  {each.revision or '':>6}  {mark}{each.lane:{width}}  {each.text}{times}"
            if each.cause is not None and each.decision not in shown:
                shown.add(each.decision)
                yield f"{'':24}{'':{width}}    because of {each.cause}"
        yield ""
        yield "* a person's action   ! a fault, or the start or end of a process or of a leader's term"
        yield from self.coverage

    def document(self) -> dict[str, Any]:
        """For programs: `docs/observability.md` has the schema. Members may be added; those of today stay."""
        return {
            "apiVersion": KEDGE_API_VERSION,
            "kind": TIMELINE_KIND,
            "about": self.about,
            "generation": self.generation,
            "lanes": list(self.lanes),
            "entries": [each.document() for each in self.entries],
            "coverage": list(self.coverage),
        }


def object_timeline(
    key: Key, recording: Recording, *, generation: int | None = None, since: datetime | None = None
) -> ObjectTimeline:
    """The timeline of `key` and of everything it owns; without entries if the recording has nothing about it."""
    part = about_object(key, recording)
    window = _window(key, part, generation, since)
    writes = recorded_writes(recording)
    causes = {each.id: cause for each in recording.decisions if (cause := cause_of(each, writes)) is not None}
    known = any(each.written or each.deleted for each in part.commits) or bool(part.decisions) or bool(part.audited)
    everything = [*timeline(part), *map(_requested, part.audited)]
    lines = [each for each in everything if not each.is_repeated and window.has(each.at, each.revision)]
    if window.begin is None:
        lines = _since_the_object(lines)
    nodes = _nodes(part)
    entries = [_lane_entry(each, causes, nodes) for each in _by_revision(lines)] if known else []
    return ObjectTimeline(
        str(key),
        generation,
        tuple(_folded(entries)),
        tuple(sorted((each for each in part.decisions if window.has(each.began)), key=lambda each: each.began)),
        causes,
        (window.text(), *coverage_lines_of(recording)),
    )


def _since_the_object(lines: Sequence[TimelineEntry]) -> list[TimelineEntry]:
    """Without starts, ends and terms before the first other line: a log may begin long before the object."""
    begin = min((each.at for each in lines if not _is_of_process(each)), default=None)
    return [each for each in lines if begin is None or each.at >= begin or not _is_of_process(each)]


def _is_of_process(line: TimelineEntry) -> bool:
    return line.kind in PROCESS_KINDS and not line.controller and not line.actor


def lane_entries(recording: Recording) -> list[LaneEntry]:
    """Every line of a whole recording, in order of revision; decisions that their own commits show are left out."""
    outside = [each for each in recording.outside if not _only_looks(each)]
    lines = [each for each in timeline(replace(recording, outside=outside)) if not each.is_repeated]
    nodes = _nodes(recording)
    return _folded([_lane_entry(each, {}, nodes) for each in _by_revision(lines)])


def _only_looks(event: OutsideEvent) -> bool:
    return not is_process_event(event) and (event.kind in _VERDICTS or event.text.startswith(_NO_ACTIONS))


def about_object(key: Key, recording: Recording) -> Recording:
    """The part of a recording about one object and everything it owns, with every event from outside."""
    versions: list[Object] = [each for state in recording.states for each in state.objects]
    versions += [each for commit in recording.commits for each in commit.written]
    wanted = with_dependents({key}, versions)
    commits = []
    for commit in recording.commits:
        written = tuple(each for each in commit.written if each.key in wanted)
        deleted = tuple(each for each in commit.deleted if each in wanted)
        if written or deleted:
            commits.append(CommitRecord(commit.revision, commit.at, written, deleted))
    states = [
        StoreState(each.revision, each.at, tuple(found for found in each.objects if found.key in wanted))
        for each in recording.states
    ]
    uids = {each.uid for each in versions if each.key in wanted}
    decisions = [each for each in recording.decisions if is_about(each, wanted, uids)]
    outside = [each for each in recording.outside if not _only_looks(each)]
    shown = {each.revision for each in commits}
    audited = tuple(unshown(recording.audited, wanted, shown, decisions))
    return Recording(states=states, commits=commits, decisions=decisions, outside=outside, audited=audited)


def _requested(request: AuditedRequest) -> TimelineEntry:
    """The line of a request in the audit log that no version and no decision shows."""
    return TimelineEntry(
        request.at,
        REFUSED if request.is_refused else REQUESTED,
        request.text(),
        actor=request.actor,
        decision=request.decision,
        revision=request.revision,
        by_person=request.is_by_person,
    )


def _nodes(part: Recording) -> frozenset[str]:
    """The nodes of the pods in it, whose agents write without decisions."""
    versions = [each for state in part.states for each in state.objects]
    versions += [each for commit in part.commits for each in commit.written]
    return frozenset(each.as_view(PodView).spec.node_name for each in versions if each.key.kind == POD_KIND) | {
        each.key.name for each in versions if each.key.kind == NODE_KIND
    }


# -- the window ------------------------------------------------------------------------------------


class _Window(NamedTuple):
    """A stretch of the history, by time and by revision."""

    begin: datetime | None
    end: datetime | None
    begin_revision: Revision
    end_revision: Revision | None
    name: str

    def has(self, at: datetime, revision: Revision = NO_REVISION) -> bool:
        if revision:
            return self.begin_revision <= revision and (self.end_revision is None or revision < self.end_revision)
        return (self.begin is None or at >= self.begin) and (self.end is None or at < self.end)

    def text(self) -> str:
        begin = "the beginning of the records" if self.begin is None else f"{self.begin:%Y-%m-%d %H:%M:%S}"
        end = "their end" if self.end is None else f"{self.end:%H:%M:%S}"
        return f"window: {self.name} from {begin} to {end}"


def _window(key: Key, part: Recording, generation: int | None, since: datetime | None) -> _Window:
    if generation is None and since is None:
        return _Window(None, None, NO_REVISION, None, "everything")
    begin_revision, end_revision = NO_REVISION, None
    begin: datetime | None = None
    end: datetime | None = None
    for commit in part.commits:
        if since is not None and commit.at < since:
            begin_revision = commit.revision + 1
        for each in commit.written:
            if generation is None or each.key != key:
                continue
            if each.metadata.generation == generation and begin is None:
                begin, begin_revision = commit.at, max(begin_revision, commit.revision)
            elif each.metadata.generation > generation and end is None:
                end, end_revision = commit.at, commit.revision
    if (
        generation is not None
        and begin is None
        and not any(
            each.key == key and each.metadata.generation == generation
            for state in part.states
            for each in state.objects
        )
    ):
        never = datetime.max.replace(tzinfo=UTC)
        return _Window(never, never, 1 << 62, None, f"generation {generation}, which the records do not have,")
    begin = max(filter(None, (begin, since)), default=None)
    name = "everything" if generation is None else f"generation {generation}"
    return _Window(begin, end, begin_revision, end_revision, name)


# -- causes ----------------------------------------------------------------------------------------


def cause_of(decision: Decision, writes: Mapping[Key, Sequence[RecordedWrite]]) -> CauseLink | None:
    """The write that woke a decision; None if it has none that can be named."""
    attempt = decision.scheduling
    if attempt is not None:
        cause = attempt.cause
        if cause is None:
            return None
        found = next((each for each in writes.get(cause.key, ()) if each.revision == cause.revision), None)
        return _link(cause.key, cause.revision, cause.writer, found, decision)
    for what, writer in decision.wakes:
        if "/" not in what or " " in what:
            continue  # a retry, a requeue or a resync
        key = Key.parse(what)
        reached = next((mark.revision for mark in decision.marks if mark.cache.partition("[")[0] == key.kind), 0)
        seen = [each for each in writes.get(key, ()) if each.revision <= reached]
        return _link(key, seen[-1].revision if seen else NO_REVISION, writer, seen[-1] if seen else None, decision)
    return None


def _link(key: Key, revision: Revision, writer: str, found: RecordedWrite | None, decision: Decision) -> CauseLink:
    if found is None:
        return CauseLink(key, revision, writer, None, None)
    seen_s = max(0.0, (decision.began - found.at).total_seconds())
    return CauseLink(key, revision, writer or found.origin.writer, found.at, seen_s, found.origin.decision)


# -- entries ---------------------------------------------------------------------------------------


def _lane_entry(line: TimelineEntry, causes: Mapping[str, CauseLink], nodes: frozenset[str]) -> LaneEntry:
    from_outside = not line.controller and not line.actor and line.kind != COMMITTED
    lane = _OUTSIDE_LANES.get(line.kind, OUTSIDE) if from_outside else line.actor or OUTSIDE
    by_person = (
        line.by_person
        or (from_outside and lane == PEOPLE)
        or (line.kind == COMMITTED and not line.controller and line.actor not in nodes and _is_person(line.actor))
    )
    mark = EntryMark.PERSON if by_person else EntryMark.FAULT if lane == FAULTS else EntryMark.NONE
    text = line.text.removeprefix(f"{line.controller}: ") if line.controller else line.text
    return LaneEntry(
        line.at,
        lane,
        line.kind,
        text + line.more,
        line.revision,
        line.decision,
        causes.get(line.decision),
        mark,
        line.count,
        line.is_condition,
    )


def _is_person(actor: str) -> bool:
    """Whether a version without a decision is from a user: components authenticate with names of the system."""
    return actor == "user" or (bool(actor) and not actor.startswith("system:"))


def _by_revision(lines: Iterable[TimelineEntry]) -> list[TimelineEntry]:
    """Versions in order of revision; lines without one between them, by time.

    Clocks of processes differ, and a version is dated by the first record that has it: the revision is the order.
    """
    everything = list(lines)
    ordered = sorted((each for each in everything if each.revision), key=lambda each: each.revision)
    others = sorted((each for each in everything if not each.revision), key=lambda each: each.at)
    merged: list[TimelineEntry] = []
    latest: datetime | None = None
    waiting = iter(others)
    other = next(waiting, None)
    for each in ordered:
        latest = each.at if latest is None else max(latest, each.at)
        while other is not None and other.at < latest:
            merged.append(other)
            other = next(waiting, None)
        merged.append(each)
    while other is not None:
        merged.append(other)
        other = next(waiting, None)
    return merged


def _folded(entries: Iterable[LaneEntry]) -> list[LaneEntry]:
    """One line for retries with one outcome, although retries of other objects stand between them."""
    made: list[LaneEntry] = []
    runs: dict[str, dict[str, int]] = {}
    for each in entries:
        run = runs.setdefault(each.lane, {})
        if each.kind not in _RETRIES:
            if each.decision:
                run.clear()  # the lane did something else: later retries are another run
            made.append(each)
            continue
        place = run.get(each.text)
        if place is None:
            run[each.text] = len(made)
            made.append(each)
        else:
            made[place] = replace(made[place], count=made[place].count + each.count)
    return made

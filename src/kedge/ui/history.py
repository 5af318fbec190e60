"""The history of a recording, indexed: every version of every object, points in it, decisions with causes and effects.

`documents` and its neighbours read it. It is built once for a recording and never changes. Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from kedge.api.objects import Object
from kedge.errors import BadRequest, NotFound
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.readers.object_timeline import CauseLink, LaneEntry, cause_of, lane_entries
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why.evidence import RecordedWrite, recorded_writes
from kedge.observe.records import Decision

_MICROSECOND = timedelta(microseconds=1)


class Point(NamedTuple):
    """A moment of a history: the newest revision, and the time."""

    t: int
    """Microseconds since the beginning of the history."""
    revision: Revision
    at: datetime


@dataclass(slots=True)
class ObjectVersions:
    """Every recorded version of one object, oldest first. A deletion is a version without an object."""

    revisions: list[Revision] = field(default_factory=list)
    versions: list[Object | None] = field(default_factory=list)

    def add(self, revision: Revision, version: Object | None) -> None:
        self.revisions.append(revision)
        self.versions.append(version)

    def at(self, revision: Revision) -> Object | None:
        """The newest version at a revision; None if there was none, or if it was deleted."""
        place = bisect_right(self.revisions, revision)
        return self.versions[place - 1] if place else None

    def first_after(self, revision: Revision, until: Revision) -> tuple[Revision, Object | None] | None:
        """The oldest version after one revision and not after another."""
        place = bisect_right(self.revisions, revision)
        if place == len(self.revisions) or self.revisions[place] > until:
            return None
        return self.revisions[place], self.versions[place]


class RecordedHistory:
    """One recording, as the page reads it."""

    def __init__(self, recording: Recording, title: str = "") -> None:
        self.recording = recording
        self.title = title
        self.decisions: Sequence[Decision] = sorted(recording.decisions, key=lambda each: each.began)
        self.by_id = {each.id: each for each in self.decisions}
        self.commits = sorted(recording.commits, key=lambda each: each.revision)
        self.revisions = [each.revision for each in self.commits]
        self._kinds: dict[str, dict[Key, ObjectVersions]] = {}
        for state in recording.states:
            for each in state.objects:
                self._versions(each.key).add(state.revision, each)
        for commit in self.commits:
            for each in commit.written:
                self._versions(each.key).add(commit.revision, each)
            for key in commit.deleted:
                self._versions(key).add(commit.revision, None)
        times = [
            *(each.at for each in recording.states),
            *(each.at for each in self.commits),
            *(each.at for each in recording.outside),
            *(each.began for each in self.decisions),
        ]
        self.start = min(times, default=datetime.fromtimestamp(0, UTC))
        self.end = max(times, default=self.start)
        self._commit_times = _never_back([self.t_of(each.at) for each in self.commits])

    def _versions(self, key: Key) -> ObjectVersions:
        by_key = self._kinds.setdefault(key.kind, {})
        found = by_key.get(key)
        if found is None:
            found = by_key[key] = ObjectVersions()
        return found

    # -- points ------------------------------------------------------------------------------------

    def t_of(self, at: datetime) -> int:
        return max(0, (at - self.start) // _MICROSECOND)

    @property
    def duration(self) -> int:
        return self.t_of(self.end)

    def commit_columns(self) -> dict[str, list[int]]:
        return {"revision": self.revisions, "t": self._commit_times}

    def point(self, *, revision: Revision | None = None, t: int | None = None) -> Point:
        """The moment of a commit, of a time, or the end.

        A revision between two commits means the one before it. A time may go with a revision: several commits may have
        one time.
        """
        if revision is not None:
            place = bisect_right(self.revisions, revision)
            when = self._commit_times[place - 1] if place else 0
            moment = when if t is None else max(t, when)
            return Point(moment, self.revisions[place - 1] if place else self._first(moment), self._at(moment))
        moment = self.duration if t is None else min(max(t, 0), self.duration)
        place = bisect_right(self._commit_times, moment)
        return Point(moment, self.revisions[place - 1] if place else self._first(moment), self._at(moment))

    def _at(self, t: int) -> datetime:
        return self.start + t * _MICROSECOND

    def _first(self, t: int) -> Revision:
        """The state before the first commit. Before it decisions may be known, but no objects."""
        known = [each.revision for each in self.recording.states if self.t_of(each.at) <= t]
        return max(known, default=NO_REVISION)

    def time_of(self, revision: Revision) -> int:
        """The time of a commit; 0 for a revision before the first."""
        place = bisect_left(self.revisions, revision)
        if place == len(self.revisions):
            return self.duration
        return self._commit_times[place] if self.revisions[place] == revision else self.point(revision=revision).t

    # -- objects -----------------------------------------------------------------------------------

    def versions_of(self, key: Key) -> ObjectVersions | None:
        return self._kinds.get(key.kind, {}).get(key)

    def of_kind(self, kind: str, revision: Revision) -> Iterator[Object]:
        """The objects of a kind at a revision, in the order of their keys."""
        found = self._kinds.get(kind, {})
        for key in sorted(found):
            if (version := found[key].at(revision)) is not None:
                yield version

    def keys_of_kind(self, kind: str) -> Mapping[Key, ObjectVersions]:
        return self._kinds.get(kind, {})

    def changed_between(self, low: Revision, high: Revision) -> Iterator[Key]:
        """Objects with a version after `low` and not after `high`."""
        seen: set[Key] = set()
        begin, end = bisect_right(self.revisions, low), bisect_right(self.revisions, high)
        for commit in self.commits[begin:end]:
            for key in (*(each.key for each in commit.written), *commit.deleted):
                if key not in seen:
                    seen.add(key)
                    yield key

    # -- decisions ---------------------------------------------------------------------------------

    def decision(self, name: str) -> Decision:
        """Raises:
        NotFound: it was not kept.
        """
        found = self.by_id.get(name)
        if found is None:
            raise NotFound(f"decision {name} has no record here: choose one of the list")
        return found

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each decision in `decisions`, by its id."""
        return {each.id: place for place, each in enumerate(self.decisions)}

    @cached_property
    def writes(self) -> Mapping[Key, Sequence[RecordedWrite]]:
        return recorded_writes(self.recording)

    @cached_property
    def causes(self) -> Mapping[str, CauseLink]:
        """The write that woke each decision, by the decision's id."""
        return {each.id: cause for each in self.decisions if (cause := cause_of(each, self.writes)) is not None}

    @cached_property
    def effects(self) -> Mapping[str, Sequence[str]]:
        """The decisions that a write of each decision woke, oldest first."""
        found: dict[str, list[str]] = {}
        for each in self.decisions:
            cause = self.causes.get(each.id)
            if cause is not None and cause.decision and cause.decision != each.id:
                found.setdefault(cause.decision, []).append(each.id)
        return found

    @cached_property
    def story(self) -> Sequence[LaneEntry]:
        """Every line of the timeline."""
        return lane_entries(self.recording)

    @cached_property
    def written(self) -> Mapping[str, Revision]:
        """The first revision that each decision wrote, by its id."""
        found: dict[str, Revision] = {}
        for commit in self.commits:
            for each in commit.written:
                if each.origin.decision:
                    found.setdefault(each.origin.decision, commit.revision)
        return found


def _never_back(times: list[int]) -> list[int]:
    """Times that never fall: a clock may be set back, and points are searched by time."""
    newest = 0
    for place, each in enumerate(times):
        newest = times[place] = max(newest, each)
    return times


def parse_count(text: str | None, name: str, *, most: int = 1 << 62) -> int | None:
    """A parameter that is a number from 0 on; None without one.

    Raises:
        BadRequest: it is something else.
    """
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > most:
        raise BadRequest(f"{name}={text[:40]}: it must be a whole number from 0 to {most}")
    return int(text)

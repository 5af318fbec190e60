"""Moments of a recording: the part of it that there was at a revision or at a time. Pure.

Readers take a recording as if it ended at the moment. `kedge --at`, `kedge replay --from` and `kedge shell` use it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from operator import ge, le
from typing import Final, NamedTuple

from kedge.api.objects import Object
from kedge.errors import BadRequest, NotFound
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.readers.recording import Recording
from kedge.observe.records import Decision

_TIME_OF_DAY: Final = re.compile(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?")


class Moment(NamedTuple):
    """A point in a recording: everything up to the revision and the time has happened."""

    revision: Revision
    at: datetime

    def __str__(self) -> str:
        return f"revision {self.revision}, {clock_text(self.at)}"


def clock_text(at: datetime) -> str:
    """The time of day in UTC, in milliseconds."""
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def parse_moment(text: str) -> Revision | datetime | time:
    """A revision, a time, or a time of day in UTC.

    Raises:
        BadRequest: it is none of these.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        if _TIME_OF_DAY.fullmatch(text):
            return time.fromisoformat(text)
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(
            f"{text!r} is neither a revision nor a time: write it like 918, 14:03:22 or 2026-01-31T14:03:22Z"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def first_moment(recording: Recording) -> Moment:
    """The begin of the history.

    Raises:
        NotFound: the recording has no history of the store.
    """
    if not recording.states:
        raise NotFound(
            "the file has no history of the store: use that of a `kedge incident` or of `kedge scenario run --out`"
        )
    return Moment(recording.states[0].revision, recording.states[0].at)


def last_moment(recording: Recording) -> Moment:
    """The last thing that the recording has. Raises what `first_moment` does."""
    revision, at = first_moment(recording)
    last = recording.commits[-1] if recording.commits else None
    times = [at, *(each.began for each in recording.decisions), *(each.at for each in recording.outside)]
    return Moment(last.revision if last else revision, max([*times, last.at] if last else times))


def find_moment(recording: Recording, text: str) -> Moment:
    """The moment that a revision or a time names. One after the end is the end.

    Raises:
        BadRequest: the text is neither.
        NotFound: it is before the begin of the recording, or there is no history.
    """
    wanted = parse_moment(text)
    begin, end = first_moment(recording), last_moment(recording)
    if isinstance(wanted, time):
        wanted = _on_its_day(recording, wanted)
    if isinstance(wanted, datetime):
        if wanted < begin.at:
            raise NotFound(f"the recording begins at {begin.at:%Y-%m-%d} {clock_text(begin.at)} UTC: use a later time")
        reached = max((each.revision for each in recording.commits if each.at <= wanted), default=begin.revision)
        return Moment(reached, min(wanted, end.at))
    if wanted < begin.revision:
        raise NotFound(f"the recording begins at revision {begin.revision}: use a later one")
    if wanted >= end.revision:
        return end
    at = max((each.at for each in recording.commits if each.revision <= wanted), default=begin.at)
    return Moment(wanted, at)


def _on_its_day(recording: Recording, wanted: time) -> datetime:
    """The moment with this time of day: on the first day, or on the next of a recording that crosses midnight."""
    begin, end = first_moment(recording), last_moment(recording)
    found = datetime.combine(begin.at.date(), wanted, UTC)
    if begin.at.replace(microsecond=0) <= found < begin.at:
        return begin.at  # people leave out the fraction
    later = found + timedelta(days=1)
    return later if found < begin.at and later <= end.at else found


def recording_at(recording: Recording, moment: Moment) -> Recording:
    """The recording as if it ended there. Contents of caches stay whole, because decisions refer to places in them, and
    so do the statements of how many decisions were kept."""
    return replace(
        recording,
        commits=[each for each in recording.commits if each.revision <= moment.revision],
        decisions=[each for each in recording.decisions if each.began <= moment.at],
        outside=[each for each in recording.outside if each.at <= moment.at],
        counts=[each for each in recording.counts if each.until <= moment.at],
    )


def objects_at(recording: Recording, revision: Revision | None = None) -> dict[Key, Object]:
    """Every object of the store at a revision, or at the end."""
    found: dict[Key, Object] = {}
    for state in recording.states:
        found.update((each.key, each) for each in state.objects)
    for commit in recording.commits:
        if revision is None or commit.revision <= revision:
            found.update((each.key, each) for each in commit.written)
            for key in commit.deleted:
                found.pop(key, None)
    return found


def decided_on(decision: Decision) -> Revision | None:
    """The newest revision that the caches of a decision had reached; None if it had none."""
    return max((mark.revision for mark in decision.marks), default=None)


def chosen_decisions(recording: Recording, first: str | None, until: str | None) -> list[Decision]:
    """The decisions between two points, in order: by the revision that they were decided on, or by their begin.

    The revision of a decision without a cache is that of the store when it began.

    Raises:
        BadRequest: a point is neither a revision nor a time.
        NotFound: a time of day is given, and there is no history that begins on some day.
    """
    bounds = [(_bound(recording, first), ge), (_bound(recording, until), le)]
    commits = [each.at for each in recording.commits]

    def place(decision: Decision, bound: Revision | datetime) -> Revision | datetime:
        if isinstance(bound, datetime):
            return decision.began
        found = decided_on(decision)
        if found is None and (before := bisect_right(commits, decision.began)):
            return recording.commits[before - 1].revision
        return found or NO_REVISION

    def within(decision: Decision) -> bool:
        return all(holds(place(decision, bound), bound) for bound, holds in bounds if bound is not None)

    return sorted(filter(within, recording.decisions), key=lambda each: each.began)


def _bound(recording: Recording, text: str | None) -> Revision | datetime | None:
    if text is None:
        return None
    wanted = parse_moment(text)
    return _on_its_day(recording, wanted) if isinstance(wanted, time) else wanted

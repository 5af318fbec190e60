"""Watches that were late, found by the marks of decisions, as `delay watch` steps.

A commit that a later decision did not have yet was late by at least the time between them (decision 66). The step holds
the watch back for that long and no longer: any delivery before the next decision gives the same reads. An object whose
first decision entered the queue long after its creation was received late too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from kedge.api.wellknown import EVENT_KIND, LEASE_KIND
from kedge.keys import Key
from kedge.observe.readers.recording import Recording
from kedge.sim.incident.draft import duration

LATE_S: Final = 0.25
"""A delivery within this time is not late: links, queues and clocks of processes differ by as much."""
_MARGIN_S: Final = 0.002
"""How much a watch is held back before the commit, and after the last decision that lacked it."""


_Window: TypeAlias = tuple[datetime, datetime]


class _Mark(NamedTuple):
    at: datetime
    revision: int


class _Commit(NamedTuple):
    revision: int
    at: datetime


def late_watches(recording: Recording, components: Mapping[str, str], begin: datetime) -> Iterator[dict[str, Any]]:
    """The steps. `components` has the component of each run of a process in decisions."""
    commits = _commits(recording)
    woken = _late_wakes(recording, components)
    for (component, kind), marks in _marks(recording, components).items():
        windows = [*_windows(commits.get(kind, ()), marks), *woken.get((component, kind), ())]
        for since, until in _joined(windows):
            if until <= begin:
                continue
            from_s = max(0.0, (since - begin).total_seconds() - _MARGIN_S)
            lasts_s = (until - begin).total_seconds() + _MARGIN_S - from_s
            late = {"of": kind.partition(".")[0], "by": duration(lasts_s), "to": component}
            yield {"at": duration(from_s), "delay watch": late}


def _commits(recording: Recording) -> dict[str, list[_Commit]]:
    found: dict[str, list[_Commit]] = defaultdict(list)
    for commit in recording.commits:
        for kind in {*(each.key.kind for each in commit.written), *(key.kind for key in commit.deleted)}:
            found[kind].append(_Commit(commit.revision, commit.at))
    return found


def _marks(recording: Recording, components: Mapping[str, str]) -> dict[tuple[str, str], list[list[_Mark]]]:
    """By component and kind: the marks of each of its runs, in time."""
    found: dict[tuple[str, str], dict[str, list[_Mark]]] = defaultdict(lambda: defaultdict(list))
    for decision in sorted(recording.decisions, key=lambda each: each.began):
        component = components.get(decision.process)
        if component is None:
            continue
        for mark in decision.marks:
            if "[" in mark.cache or mark.cache in (LEASE_KIND, EVENT_KIND) or not mark.revision:
                continue
            found[component, mark.cache][decision.process].append(_Mark(decision.began, mark.revision))
    return {place: list(runs.values()) for place, runs in found.items()}


def _late_wakes(recording: Recording, components: Mapping[str, str]) -> dict[tuple[str, str], list[_Window]]:
    """By component and kind: from the creation of an object to the moment at which its first decision was queued."""
    created = {
        each.key: commit.at for commit in recording.commits for each in commit.written if each.created == each.revision
    }
    found: dict[tuple[str, str], list[_Window]] = defaultdict(list)
    seen: set[tuple[str, Key]] = set()
    began: dict[str, datetime] = {}
    for decision in sorted(recording.decisions, key=lambda each: each.began):
        component, at = components.get(decision.process), created.get(decision.key)
        first = began.setdefault(decision.process, decision.began)
        if component is None or (decision.controller, decision.key) in seen:
            continue
        seen.add((decision.controller, decision.key))
        queued = decision.began - timedelta(seconds=decision.waited_s + decision.delayed_s)
        # A process that had not decided anything before the creation may have been down.
        if at is not None and first < at and (queued - at).total_seconds() > LATE_S:
            found[component, decision.key.kind].append((at, queued))
    return found


def _windows(commits: Sequence[_Commit], runs: Sequence[Sequence[_Mark]]) -> list[_Window]:
    """From the first commit that was late to a decision that lacked it."""
    revisions = [each.revision for each in commits]
    found: list[_Window] = []
    for marks in runs:
        for mark in marks:
            place = bisect_right(revisions, mark.revision)
            if place < len(commits) and (mark.at - commits[place].at).total_seconds() > LATE_S:
                found.append((commits[place].at, mark.at))
    return found


def _joined(windows: Sequence[_Window]) -> list[_Window]:
    """The windows in time, joined where they overlap."""
    joined: list[_Window] = []
    for since, until in sorted(windows):
        if joined and since <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(until, joined[-1][1]))
        else:
            joined.append((since, until))
    return joined

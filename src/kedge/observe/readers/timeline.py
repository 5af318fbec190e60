"""The timeline of a recording: commits, refusals and failed attempts between the events from outside. Pure.

It reads commits, decisions and outside events, and nothing else: a live cluster and a simulation give the same lines.
Commits carry the time of the store; a decision carries the time of its own process, whose clock may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kedge.api.objects import Object
from kedge.api.wellknown import EVENT_KIND, FENCE_KIND, OPERATION_KIND
from kedge.keys import NO_REVISION, Key, Revision
from kedge.observe.readers.object_changes import describe_change
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CommitRecord, Decision, StoreState

COMMITTED, REFUSED, UNSCHEDULABLE = "committed", "refused", "pending"
"""Kinds of lines that come from records. A line of an outside event has the kind of the event."""
_FOLDED = frozenset({REFUSED, UNSCHEDULABLE})
_JUDGED = frozenset({"held", "violation"})
"""Outside events about the state after the commits of the same moment."""
_NOT_SHOWN = frozenset({FENCE_KIND, OPERATION_KIND, EVENT_KIND})
_REFUSALS = frozenset({"Refused", "OutcomeUnknown"})


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line."""

    at: datetime
    kind: str
    text: str
    controller: str = ""
    """The controller or scheduler behind it; empty for the outside world and for writers that keep no records."""
    decision: str = ""
    revision: Revision = NO_REVISION
    count: int = 1
    """How many equal lines in a row it stands for: retries with the same outcome."""


def timeline(recording: Recording, *, since: datetime | None = None) -> list[TimelineEntry]:
    """Every line from `since` on, in order of time."""
    lines = [
        *(TimelineEntry(each.at, each.kind, each.text) for each in recording.outside),
        *_committed(recording.states, recording.commits),
        *_decided(recording.decisions),
    ]
    lines.sort(key=lambda each: (each.at, each.kind in _JUDGED))
    return list(_folded(each for each in lines if since is None or each.at >= since))


def _committed(states: Iterable[StoreState], commits: Iterable[CommitRecord]) -> Iterator[TimelineEntry]:
    known: dict[Key, Object] = {}
    for state in states:
        known.update((each.key, each) for each in state.objects)
    for commit in commits:
        for new in commit.written:
            if new.key.kind in _NOT_SHOWN:
                continue
            old = known.get(new.key)
            known[new.key] = new
            yield from _lines(commit, new.key, old, new)
        for key in commit.deleted:
            if (old := known.pop(key, None)) is not None:
                yield from _lines(commit, key, old, None)


def _lines(commit: CommitRecord, key: Key, old: Object | None, new: Object | None) -> Iterator[TimelineEntry]:
    decision = new.origin.decision if new is not None else ""
    for text in describe_change(key, old, new):
        yield TimelineEntry(commit.at, COMMITTED, text, controller_of(decision), decision, commit.revision)


def controller_of(decision: str) -> str:
    """The controller that made a decision: a decision id begins with its name."""
    return decision.partition(":")[0]


def _decided(decisions: Iterable[Decision]) -> Iterator[TimelineEntry]:
    for decision in decisions:
        for call in decision.calls:
            if call.outcome in _REFUSALS:
                message = (call.error or {}).get("message", call.outcome)
                about = call.key or decision.key
                text = f"{decision.controller}: {call.verb} {about}: {message}"
                at = decision.began + timedelta(seconds=call.began_s + call.took_s)
                yield TimelineEntry(at, REFUSED, text, decision.controller, decision.id)
        attempt = decision.scheduling
        if attempt is not None and attempt.choice is not None and attempt.choice.node is None:
            text = f"{decision.controller}: no node for {decision.key}: {decision.reason}"
            yield TimelineEntry(decision.began, UNSCHEDULABLE, text, decision.controller, decision.id)


def _folded(lines: Iterable[TimelineEntry]) -> Iterator[TimelineEntry]:
    """One line for a run of equal ones, at the time of the first."""
    last: TimelineEntry | None = None
    for each in lines:
        if last is not None and (each.kind, each.text) == (last.kind, last.text) and each.kind in _FOLDED:
            last = replace(last, count=last.count + 1)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last

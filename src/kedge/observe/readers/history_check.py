"""Compares the records of components with the history of the store: every version that was read, and every write.

Several processes recorded the same versions independently, so a record that was changed, or a store that answered two
things, shows as a difference. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kedge.api.objects import Object
from kedge.api.wellknown import EVENT_KIND, SECRET_KIND
from kedge.keys import Key, Revision
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CacheRead, Call, Decision

_UNCOMPARED = frozenset({SECRET_KIND, EVENT_KIND})
"""The values of Secrets are hidden by each process with a key of its own; Events are in no history."""


@dataclass(slots=True)
class HistoryCheck:
    """The outcome of a comparison."""

    versions: int = 0
    """Versions in the records that the history has too."""
    writes: int = 0
    """Calls whose commit the history has."""
    by_decisions: int = 0
    """Versions in the history that a decision of the recording wrote."""
    by_others: int = 0
    """Versions in the history that people, foreign clients and the server itself wrote."""
    unrecorded: int = 0
    """Versions in the history that name a decision which the recording lacks."""
    differences: list[str] = field(default_factory=list)


def check_history(recording: Recording) -> HistoryCheck:
    """Compare; everything agrees if there are no `differences`."""
    found = HistoryCheck()
    if not recording.states:
        return found
    versions = _versions(recording, found)
    first = recording.states[0].revision
    last = recording.commits[-1].revision if recording.commits else first
    decisions = {each.id for each in recording.decisions}
    for commit in recording.commits:
        for each in commit.written:
            if not each.origin.decision:
                found.by_others += 1
            elif each.origin.decision in decisions:
                found.by_decisions += 1
            else:
                found.unrecorded += 1
    for where, each in _seen(recording):
        known = versions.get((each.key, each.revision))
        if known is not None:
            found.versions += 1
            if known.value != each.value:
                found.differences.append(
                    f"{where} has {each.key} at revision {each.revision} with another content than the history"
                )
        elif first < each.revision <= last and each.key.kind not in _UNCOMPARED:
            found.differences.append(
                f"{where} has {each.key} at revision {each.revision}, which the history does not have"
            )
    for decision in recording.decisions:
        found.differences += _check_writes(decision, versions, first, last, found)
    return found


def _versions(recording: Recording, found: HistoryCheck) -> dict[tuple[Key, Revision], Object]:
    versions = {(each.key, each.revision): each for each in recording.states[0].objects}
    reached = recording.states[0].revision
    for commit in recording.commits:
        if commit.revision <= reached:
            found.differences.append(f"commit {commit.revision} is not after commit {reached}")
        reached = commit.revision
        for each in commit.written:
            if each.revision != commit.revision:
                found.differences.append(f"commit {commit.revision} has {each.key} at revision {each.revision}")
            versions[each.key, each.revision] = each
    return {place: each for place, each in versions.items() if place[0].kind not in _UNCOMPARED}


def _seen(recording: Recording) -> Iterator[tuple[str, Object]]:
    """Every version in the records of components, and where it is."""
    for decision in recording.decisions:
        for step in decision.steps:
            if isinstance(step, CacheRead):
                for each in step.objects:
                    yield f"decision {decision.id}, which read {step.cache},", each
            elif isinstance(step, Call) and step.outcome != "removed":
                for each in step.reply:
                    yield f"decision {decision.id}, in the reply to {step.verb},", each
    for part in recording.received:
        for each in part.base:
            yield f"cache {part.cache} of {part.process}", each
        for entry in part.entries:
            for change in entry.changes:
                if change.new is not None:
                    yield f"cache {part.cache} of {part.process} at place {entry.place}", change.new


def _check_writes(
    decision: Decision,
    versions: dict[tuple[Key, Revision], Object],
    first: Revision,
    last: Revision,
    found: HistoryCheck,
) -> Iterator[str]:
    """Each write of a decision is a commit of the history that names the decision."""
    for call in decision.calls:
        if call.outcome != "done" or not first < call.revision <= last or not call.reply:
            continue
        key = call.reply[0].key
        if key.kind in _UNCOMPARED:
            continue
        known = versions.get((key, call.revision))
        if known is None:
            yield f"decision {decision.id} wrote {key} at revision {call.revision}, which the history does not have"
        elif known.origin.decision != (decision.part_of or decision.id):
            yield (
                f"decision {decision.id} wrote {key} at revision {call.revision},"
                f" and the history names {known.origin.decision or 'no decision'}"
            )
        else:
            found.writes += 1

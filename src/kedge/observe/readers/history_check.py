"""Compares the records of components with the history of the store: every version that was read, and every write.

Several processes recorded the same versions independently, so a record that was changed, or a store that answered two
things, shows as a difference. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kedge.api.objects import Object
from kedge.api.wellknown import EVENT_KIND, SECRET_KIND
from kedge.keys import Key, Revision
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CacheRead, Call, Decision, PodSync

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
    unknown: int = 0
    """Versions and writes in gaps of the history, which were not compared."""
    replaced: int = 0
    """Versions of leases that the history lacks: the store drops one as soon as the next is written."""
    unrecorded: int = 0
    """Versions in the history that name a decision which the recording lacks."""
    differences: list[str] = field(default_factory=list)


class RevisionGap(NamedTuple):
    """Commits after `after`, up to `until`, may be missing in a history."""

    after: Revision
    until: Revision

    def __contains__(self, revision: object) -> bool:
        return isinstance(revision, int) and self.after < revision <= self.until


def check_history(recording: Recording, gaps: Sequence[RevisionGap] = ()) -> HistoryCheck:
    """Compare; everything agrees if there are no `differences`. A version in one of `gaps` may be missing."""
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
        elif any(each.revision in gap for gap in gaps):
            found.unknown += 1
        elif each.kind.latest_only:
            found.replaced += first < each.revision <= last
        elif first < each.revision <= last and each.key.kind not in _UNCOMPARED:
            found.differences.append(
                f"{where} has {each.key} at revision {each.revision}, which the history does not have"
            )
    writers = _Writers(versions)
    for decision in recording.decisions:
        found.differences += _check_writes(decision, versions, writers, first, last, found, gaps)
    return found


class _Writers:
    """The first version of each key that each decision wrote."""

    def __init__(self, versions: Mapping[tuple[Key, Revision], Object]) -> None:
        self._first: dict[tuple[Key, str], Revision] = {}
        for (key, revision), each in versions.items():
            place = (key, each.origin.decision)
            self._first[place] = min(revision, self._first.get(place, revision))

    def wrote(self, decision: str, key: Key, until: Revision) -> bool:
        """Whether a decision wrote a version of the key, at the latest at that revision."""
        return self._first.get((key, decision), until + 1) <= until


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
            elif isinstance(step, PodSync):
                for each in step.objects:
                    yield f"decision {decision.id}, which saw the pod,", each
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
    writers: _Writers,
    first: Revision,
    last: Revision,
    found: HistoryCheck,
    gaps: Sequence[RevisionGap],
) -> Iterator[str]:
    """Each write of a decision is a commit of the history that names the decision.

    If the reply to a write was lost, the client read the object: the version in the record may be a later one, of
    another writer. Then an earlier version must name the decision.
    """
    for call in decision.calls:
        if call.outcome != "done" or not first < call.revision <= last or not call.reply:
            continue
        key = call.reply[0].key
        if key.kind in _UNCOMPARED:
            continue
        known = versions.get((key, call.revision))
        if known is None and any(call.revision in gap for gap in gaps):
            found.unknown += 1
        elif known is None and call.reply[0].kind.latest_only:
            found.replaced += 1
        elif known is None:
            yield f"decision {decision.id} wrote {key} at revision {call.revision}, which the history does not have"
        elif known.origin.decision == (own := decision.part_of or decision.id) or (
            call.unanswered_s and writers.wrote(own, key, call.revision)
        ):
            found.writes += 1
        else:
            yield (
                f"decision {decision.id} wrote {key} at revision {call.revision},"
                f" and the history names {known.origin.decision or 'no decision'}"
            )

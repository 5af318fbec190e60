"""The history of one object and of everything it owns, gathered from decision records: input of `timeline`. Pure.

A live cluster keeps no commits, but each decision keeps the versions that it read and wrote. A version is dated by the
first decision that had it, so its time is exact for writes of controllers and a little late for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from kedge.api.objects import Object
from kedge.keys import Key, Revision
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CacheRead, Call, CommitRecord, Decision, call_ended

_REMOVED = "removed"


def history_of(keys: Iterable[Key], decisions: Iterable[Decision]) -> Recording:
    """Versions of the objects `keys` and of their dependents, and the decisions about any of them."""
    everything = list(decisions)
    seen: dict[tuple[Key, Revision], tuple[datetime, Object]] = {}
    removed: dict[tuple[Key, Revision], datetime] = {}
    for decision in everything:
        for at, found in _versions(decision):
            place = (found.key, found.revision)
            if place not in seen or at < seen[place][0]:
                seen[place] = (at, found)
        for call in decision.calls:
            if call.outcome == _REMOVED and call.key is not None:
                removed[call.key, call.revision] = call_ended(decision, call)
    wanted = with_dependents(set(keys), [found for _, found in seen.values()])
    commits = [
        *(CommitRecord(revision, at, (found,)) for (key, revision), (at, found) in seen.items() if key in wanted),
        *(CommitRecord(revision, at, (), (key,)) for (key, revision), at in removed.items() if key in wanted),
    ]
    commits.sort(key=lambda each: (each.revision, bool(each.deleted)))
    uids = {found.uid for (key, _), (_, found) in seen.items() if key in wanted}
    return Recording(commits=commits, decisions=[each for each in everything if is_about(each, wanted, uids)])


def is_about(decision: Decision, keys: set[Key], uids: set[str]) -> bool:
    """Whether a decision is about one of the objects, or refused an object that they would have owned."""
    return decision.key in keys or (decision.admission is not None and decision.admission.owner_uid in uids)


def versions_in(decision: Decision) -> Iterator[Object]:
    """Every version that a decision read or wrote."""
    return (found for _, found in _versions(decision))


def _versions(decision: Decision) -> Iterator[tuple[datetime, Object]]:
    for step in decision.steps:
        if isinstance(step, CacheRead):
            for found in step.objects:
                yield decision.began, found
        elif isinstance(step, Call):
            for found in step.reply:
                yield call_ended(decision, step), found


def with_dependents(keys: set[Key], versions: Iterable[Object]) -> set[Key]:
    """The keys, and those of objects that they own, directly or through others."""
    everything = list(versions)
    owners = {each.uid for each in everything if each.key in keys}
    while True:
        more = {
            each.key
            for each in everything
            if each.key not in keys and any(owner.uid in owners for owner in each.metadata.owner_references)
        }
        if not more:
            return keys
        keys |= more
        owners |= {each.uid for each in everything if each.key in more}

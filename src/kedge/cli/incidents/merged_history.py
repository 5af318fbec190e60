"""One history of the store from those that several runs of servers recorded, with the revisions that none of them has.

A server that restarts begins its history again: at a past revision if the store and its marks reach back, else later.
The versions that are there by then are added, so that the state is right from then on. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from kedge.keys import Key, Revision
from kedge.observe.readers.history_check import RevisionGap
from kedge.observe.readers.recording import Recording
from kedge.observe.records import CommitRecord, StoreState


class MergedHistory(NamedTuple):
    states: list[StoreState]
    """The first, or none."""
    commits: list[CommitRecord]
    gaps: tuple[RevisionGap, ...]


def merge_histories(histories: Iterable[Recording]) -> MergedHistory:
    """The earliest state, and every commit after it."""
    found = sorted(histories, key=lambda each: each.states[0].revision)
    if not found:
        return MergedHistory([], [], ())
    known: dict[Revision, CommitRecord] = {}
    for each in found:
        for commit in each.commits:
            known.setdefault(commit.revision, commit)
    gaps: list[RevisionGap] = []
    reached = found[0].states[0].revision
    for each, later in pairwise(found):
        reached = max([reached, *(commit.revision for commit in each.commits)])
        state = later.states[0]
        if reached < state.revision and (missing := _missing(found[0].states[0], known, state)):
            gaps.append(RevisionGap(reached, state.revision))
            for commit in missing:
                known.setdefault(commit.revision, commit)
    return MergedHistory([found[0].states[0]], [known[revision] for revision in sorted(known)], tuple(gaps))


def _missing(first: StoreState, known: dict[Revision, CommitRecord], state: StoreState) -> list[CommitRecord]:
    """The commits that lead to `state`, as far as it shows them: the newest version of each object, and deletions."""
    objects: dict[Key, Revision] = {each.key: each.revision for each in first.objects}
    for revision in sorted(each for each in known if each <= state.revision):
        objects.update((each.key, each.revision) for each in known[revision].written)
        for key in known[revision].deleted:
            objects.pop(key, None)
    made: dict[Revision, CommitRecord] = {}
    for each in state.objects:
        if objects.pop(each.key, None) != each.revision:
            before = made.get(each.revision, CommitRecord(each.revision, state.at, ()))
            made[each.revision] = before._replace(written=(*before.written, each))
    if objects:
        last = made.get(state.revision, CommitRecord(state.revision, state.at, ()))
        made[state.revision] = last._replace(deleted=tuple(objects))
    return list(made.values())

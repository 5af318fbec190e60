"""The commit invariants on a recorded history: of a real cluster, whose commits nothing could stop.

A history has no fences, and no origin for an object that only vanished: rules about leaders are silent there. Process
starts are not in it either; tests of real processes look at the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kedge.keys import NO_ORIGIN, Key, Origin, Revision
from kedge.limits import Limits
from kedge.observe.records import CommitRecord, StoreState
from kedge.sim.judges.facts import ClusterFacts, Step
from kedge.sim.judges.invariants import SAFETY
from kedge.store import Entry


class RecordedViolation(NamedTuple):
    """A rule that a recorded commit broke."""

    invariant: str
    revision: Revision
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message} (revision {self.revision})"


class RecordedState:
    """The newest version of each object at one point of a history."""

    def __init__(self, start: StoreState) -> None:
        self.revision = start.revision
        self._entries = {
            each.key: Entry(each.key, each.value, each.created, each.revision, each.origin) for each in start.objects
        }

    def entries(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def newest(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def apply(self, commit: CommitRecord) -> tuple[tuple[Key, ...], Origin]:
        """Advance by one commit. Returns the keys that it changed and where it came from."""
        origin = NO_ORIGIN
        for each in commit.written:
            self._entries[each.key] = Entry(each.key, each.value, each.created, each.revision, each.origin)
            origin = each.origin
        for key in commit.deleted:
            self._entries.pop(key, None)
        self.revision = commit.revision
        return (*(each.key for each in commit.written), *commit.deleted), origin


def judge_history(
    start: StoreState, commits: Iterable[CommitRecord], limits: Limits | None = None
) -> list[RecordedViolation]:
    """Check every commit invariant at every commit, in order."""
    state = RecordedState(start)
    now_s = 0.0
    facts = ClusterFacts(state, lambda: now_s, limits or Limits(), {})
    found: list[RecordedViolation] = []
    for commit in commits:
        now_s = max(now_s, (commit.at - start.at).total_seconds())
        keys, origin = state.apply(commit)
        step = facts.step_of(keys, commit.revision, origin, None)
        found.extend(_broken(step))
    return found


def _broken(step: Step) -> Iterator[RecordedViolation]:
    kinds = {each.key.kind for each in step.changes}
    for each in SAFETY:
        if not each.kinds or each.kinds & kinds:
            for _, message in each.rule(step) or ():
                yield RecordedViolation(each.name, step.revision, message)

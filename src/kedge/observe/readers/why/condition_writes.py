"""The write behind a condition: the version that gave it its content, and the decision or caller of that version. Pure.

A recording has every version. A running cluster answers from its history (`GET /kedge/origins`); where that is
compacted, the versions in kept decisions are used, and the answer states that the write may be older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kedge.api.objects import Object
from kedge.keys import Key, Origin, Revision
from kedge.observe.records import CacheRead, Call, CommitRecord, Decision, StoreState


@dataclass(frozen=True, slots=True)
class ConditionWrite:
    """The version that a condition has its content from."""

    revision: Revision
    origin: Origin
    exact: bool = True
    """False if it is only the oldest version that the records have: an earlier one may have written it."""

    def __str__(self) -> str:
        since = "written at" if self.exact else "there at the latest since"
        text = f"{since} revision {self.revision}"
        if self.origin.writer:
            text += f" by {self.origin.writer}"
        return f"{text}, decision {self.origin.decision}" if self.origin.decision else text


ConditionLookup: TypeAlias = Callable[[Object, str], ConditionWrite | None]
"""From an object and the type of a condition; None if nothing is known of its write."""


def write_in_history(
    found: Object, name: str, states: Iterable[StoreState], commits: Iterable[CommitRecord]
) -> ConditionWrite | None:
    """The write in a whole history."""
    kept = [each for state in states for each in state.objects if each.key == found.key]
    first = {each.revision for each in kept}
    kept += [each for commit in commits for each in commit.written if each.key == found.key]
    return _oldest_alike(found, name, kept, lambda each: each.revision not in first)


def write_in_decisions(found: Object, name: str, decisions: Iterable[Decision]) -> ConditionWrite | None:
    """The oldest version in kept decisions since which the condition is as it is."""
    kept: list[Object] = []
    for decision in decisions:
        for step in decision.steps:
            if isinstance(step, CacheRead):
                kept += [each for each in step.objects if each.key == found.key]
            elif isinstance(step, Call):
                kept += [each for each in step.reply if each.key == found.key]
    return _oldest_alike(found, name, kept, lambda _: False)


def _oldest_alike(
    found: Object, name: str, versions: Iterable[Object], is_exact: Callable[[Object], bool]
) -> ConditionWrite | None:
    wanted = _condition(found, name)
    if wanted is None:
        return None
    oldest = found
    newer = {each.revision: each for each in versions if each.revision <= found.revision and each.uid == found.uid}
    for each in sorted(newer.values(), key=lambda each: each.revision, reverse=True):
        if _condition(each, name) != wanted:
            break
        oldest = each
    return ConditionWrite(oldest.revision, oldest.origin, is_exact(oldest))


def _condition(found: Object, name: str) -> dict[str, Any] | None:
    status = found.edit().get("status")
    listed = status.get("conditions") if isinstance(status, dict) else None
    for each in listed or ():
        if isinstance(each, dict) and each.get("type") == name:
            return each
    return None


def asking(asked: list[tuple[Key, str]]) -> ConditionLookup:
    """A lookup that knows nothing, and notes what it was asked: for a first answer, before the cluster is asked."""

    def lookup(found: Object, name: str) -> None:
        asked.append((found.key, name))

    return lookup

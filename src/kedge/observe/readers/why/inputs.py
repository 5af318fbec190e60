"""The inputs of a decision: each cache with its revision and age, and the writes that it did not have. Pure.

A decision on an old cache is right by its inputs and wrong by the store. These lines show the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kedge.api.wellknown import NODE_KIND, SCHEDULING_POLICY_KIND, ZONE_QUOTA_KIND
from kedge.keys import Key, Origin, Revision
from kedge.observe.readers.why.answer import EvidenceLine
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.records import CacheMark, Decision

KIND_OF_REASON: Final = {"ZoneQuota": ZONE_QUOTA_KIND, "SchedulingPolicy": SCHEDULING_POLICY_KIND}
"""The kind that a blocker is about, by its reason code. Other blockers are about nodes."""
_UNNAMED: Final = "a writer without a name"


@dataclass(frozen=True, slots=True)
class StaleInput:
    """A cache that lacked a write which is about the blocker of a decision."""

    mark: CacheMark
    key: Key
    revision: Revision
    writer: str
    existed: bool
    """It was committed before the decision; otherwise after it, and no decision has used it yet."""

    def __str__(self) -> str:
        name = f"{self.key.kind.partition('.')[0]} {self.key.name}"
        if self.existed:
            return (
                f"this was decided on an old cache: {name} was already at revision {self.revision}, by {self.writer},"
                f" and the cache was at {self.mark.revision}"
            )
        return (
            f"{name} has changed since, at revision {self.revision}, by {self.writer}, and the scheduler, whose cache"
            f" was at {self.mark.revision}, has not decided again"
        )


def input_lines(decision: Decision, evidence: ClusterEvidence, *, later: bool = True) -> Iterator[EvidenceLine]:
    """One line for each cache, the stale ones with the write that they lacked.

    `later` adds changes of after the decision, which matter while it is to be repeated.
    """
    reached = evidence.revision_at(decision)
    for mark in decision.marks:
        text = f"{mark.cache} at revision {mark.revision}, {mark.age_s:.1f} s old"
        missed = evidence.newer_than(mark, decision.began, reached)
        if missed is not None:
            text += f"; {missed.key.name} was at {missed.revision} then, written by {_writer(missed.origin)}"
        elif later and (changed := evidence.changed_since(mark)) is not None:
            writer = _writer(changed.origin)
            text += f"; {changed.key.name} has changed since, at {changed.revision}, by {writer}"
        yield EvidenceLine("inputs", text)


def stale_input(decision: Decision, reason: str, evidence: ClusterEvidence) -> StaleInput | None:
    """The newest write about a blocker of this code that the decision lacked; None if it had all of them.

    Nodes change for many reasons, so a change of one after the decision is no explanation.
    """
    kind = KIND_OF_REASON.get(reason, NODE_KIND)
    for mark in decision.marks:
        if mark.cache.partition("[")[0] != kind:
            continue
        missed = evidence.newer_than(mark, decision.began, evidence.revision_at(decision))
        if missed is not None:
            return StaleInput(mark, missed.key, missed.revision, _writer(missed.origin), existed=True)
        changed = evidence.changed_since(mark)
        if changed is not None and kind != NODE_KIND:
            writer = _writer(changed.origin)
            return StaleInput(mark, changed.key, changed.revision, writer, existed=False)
    return None


def _writer(origin: Origin) -> str:
    return origin.writer or _UNNAMED

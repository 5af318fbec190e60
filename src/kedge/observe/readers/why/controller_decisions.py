"""The last decisions of controllers about an object: what each knew, what was refused, and what starts the next. Pure.

Attempts to place a pod have more, which `pod` and `placement` show; admission and agents have lines of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

from kedge.keys import Key
from kedge.observe.readers.why.answer import EvidenceLine
from kedge.observe.readers.why.evidence import ClusterEvidence
from kedge.observe.readers.why.inputs import input_lines
from kedge.observe.records import Decision

_NEXT: Final = {
    "await change": "a change of an object that its controller watches",
    "requeue": "a change of an object that its controller watches, or the end of a delay of {delay_s:.1f} s",
    "failed": "a retry after a delay",
    "terminal": "a change of the object: its controller does not try the same again",
    "cancelled": "the next start of its controller",
}
"""The start of the next decision, by the result of the last one."""


def controller_lines(
    key: Key, evidence: ClusterEvidence, *, parts: Collection[Key] = (), uid: str = ""
) -> Iterator[EvidenceLine]:
    """The last decision of each controller about an object or `parts` of it; the first has its inputs and wake-ups.

    A decision that failed comes first, since it can hold the object back; then controllers that write the object.
    """
    found = [each for each in evidence.about(key, uid) if _is_of_controller(each)]
    found += [each for part in parts for each in evidence.about(part) if _is_of_controller(each)]
    if not found:
        return
    writers = {each.controller for each in found if any(call.outcome == "done" for call in each.calls)}
    last = {each.controller: each for each in sorted(found, key=lambda each: each.began)}
    ordered = sorted(
        last.values(), key=lambda each: (bool(each.error), each.controller in writers, each.began), reverse=True
    )
    for each in ordered:
        text = decision_text(each, about="" if each.key == key else f" about {each.key}")
        outcome = each.error or each.reason
        yield EvidenceLine("decision", f"{text}: {outcome}" if outcome else text)
    yield from refused_lines(ordered[0])
    yield from input_lines(ordered[0], evidence, later=False)
    yield from _wake_lines(ordered[0])


def decision_text(decision: Decision, *, about: str = "") -> str:
    """Id, controller, time, attempt and time in the queue."""
    return (
        f"{decision.id} of {decision.controller}{about} at {decision.began:%H:%M:%S}, attempt {decision.attempt},"
        f" after {decision.waited_s:.1f} s in the queue"
        + (f"; cut off: {decision.cut_off}" if decision.cut_off else "")
    )


def refused_lines(decision: Decision) -> Iterator[EvidenceLine]:
    """The requests of a decision that were refused."""
    for call in decision.calls:
        if call.error is not None:
            yield EvidenceLine("refused", str(call.error.get("message", call.outcome)))


def age_text(now: datetime, created: datetime | None) -> str:
    """The age of an object; empty if it is not known."""
    return "" if created is None else f"created {max(0.0, (now - created).total_seconds()):.0f} s before"


def _is_of_controller(decision: Decision) -> bool:
    """Whether it is a reconcile, and no attempt, report, write that admission saw, or sync of an agent."""
    other = decision.scheduling, decision.admission, decision.pod_run
    return not decision.part_of and all(part is None for part in other)


def _wake_lines(decision: Decision) -> Iterator[EvidenceLine]:
    for what, writer in decision.wakes:
        yield EvidenceLine("woken by", f"{what}{f', by {writer}' if writer else ''}")
    if decision.result in _NEXT:
        yield EvidenceLine("tried again on", _NEXT[decision.result].format(delay_s=decision.delay_s or 0.0))

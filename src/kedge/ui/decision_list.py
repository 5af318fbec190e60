"""Decisions as rows of lanes, in pages: outcome, cause, effects and a short text for each. Pure."""

from __future__ import annotations

from typing import Any, Final

from kedge.keys import Revision
from kedge.observe.records import AdmissionAct, Decision, NotStarted, PodAct
from kedge.ui.history import RecordedHistory

DECISIONS_KIND: Final = "DecisionList"
PAGE_MAX: Final = 5_000
TEXT_CHARS_MAX: Final = 200
WROTE, ACTED, NOTHING, PENDING, REFUSED, FAILED, CUT = (
    "wrote",
    "acted",
    "nothing",
    "pending",
    "refused",
    "failed",
    "cut off",
)
OUTCOMES: Final = (WROTE, ACTED, NOTHING, PENDING, REFUSED, FAILED, CUT)
_REFUSALS: Final = frozenset({"Refused", "Conflict", "Fenced", "Forbidden", "Invalid", "AlreadyExists"})
_CHANGES: Final = frozenset({"done", "removed"})
_QUIET: Final = frozenset({"done", "removed", "unchanged", "read", "absent"})


def decisions_document(history: RecordedHistory, after: int, limit: int) -> dict[str, Any]:
    """Rows `after` and following, in the order in which decisions began. A cause is the place of its row."""
    rows = history.decisions[after : after + min(limit, PAGE_MAX)]
    end = after + len(rows)
    return {
        "total": len(history.decisions),
        "after": after,
        "next": end if end < len(history.decisions) else None,
        "outcomes": list(OUTCOMES),
        "rows": [_row(history, each) for each in rows],
    }


def _row(history: RecordedHistory, decision: Decision) -> dict[str, Any]:
    cause = history.causes.get(decision.id)
    return {
        "id": decision.id,
        "lane": decision.controller,
        "key": str(decision.key),
        "t": history.t_of(decision.began),
        "took": round(decision.took_s * 1e6),
        "outcome": OUTCOMES.index(outcome_of(decision)),
        "text": summary_of(decision),
        "cause": -1 if cause is None else history.places.get(cause.decision, -1),
        "causeRevision": None if cause is None else cause.revision or None,
        "revision": history.written.get(decision.id),
        "effects": len(history.effects.get(decision.id, ())),
    }


def outcome_of(decision: Decision) -> str:
    """One word for what a decision led to."""
    calls = [each.outcome for each in decision.calls]
    attempt = decision.scheduling
    if decision.cut_off:
        return CUT
    if attempt is not None and attempt.choice is not None and attempt.choice.node is None:
        return PENDING
    if any(each in _REFUSALS for each in calls) or (decision.admission is not None and decision.error):
        return REFUSED
    if decision.error or any(each not in _QUIET for each in calls):
        return FAILED
    if any(each in _CHANGES for each in calls):
        return WROTE
    if any(isinstance(each, PodAct | AdmissionAct) for each in decision.steps):
        return ACTED
    return NOTHING


def summary_of(decision: Decision) -> str:
    """A short text: the reason or error, else its acts and requests."""
    parts: list[str] = []
    if decision.scheduling is not None and decision.scheduling.node:
        parts.append(f"chose {decision.scheduling.node}")
    if decision.reason or decision.error:
        parts.append(decision.reason or decision.error)
    for step in decision.steps:
        if isinstance(step, PodAct | AdmissionAct):
            parts.append(str(step))
        elif isinstance(step, NotStarted):
            parts.append(step.error)
    for call in decision.calls:
        at = f" at {call.revision}" if _is_change(call.outcome, call.revision) else ""
        parts.append(f"{call.verb} {call.key or decision.key}: {call.outcome}{at}")
    text = "; ".join(parts) or decision.result or "nothing to do"
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 3]}..."


def _is_change(outcome: str, revision: Revision) -> bool:
    return outcome in _CHANGES and bool(revision)

"""The log line of a decision that has ended. Its fields have the names that records, spans and metrics use.

Failures that a retry passes are no warnings: conflicts are how concurrent writers proceed. A failure that persists, or
that ends the work on its key, is one.
"""

from __future__ import annotations

from typing import Any, Final

from kedge.logs import DEBUG, INFO, WARNING, Log
from kedge.observe.recording.rules import WROTE
from kedge.observe.records import Call, Decision, DecisionStep, PodAct

PERSISTENT: Final = 5
"""Attempts in a row after which a failure is a warning."""


def log_decision(log: Log, decision: Decision) -> None:
    """Write one line: `warning` for a lasting failure, `info` for writes, acts and other failures, else `debug`."""
    if decision.result == "terminal" or (decision.error and decision.attempt >= PERSISTENT):
        level = WARNING
    elif not log.enabled(INFO):
        return
    elif decision.error or any(map(_has_effect, decision.steps)):
        level = INFO
    else:
        level = DEBUG
    if log.enabled(level):
        log.write(level, "decision", line_fields(decision))


def _has_effect(step: DecisionStep) -> bool:
    return type(step) is PodAct or (type(step) is Call and step.outcome in WROTE)


def line_fields(decision: Decision) -> dict[str, Any]:
    calls = [step for step in decision.steps if type(step) is Call]
    fields: dict[str, Any] = {
        "controller": decision.controller,
        "key": str(decision.key),
        "decision": decision.id,
        "outcome": decision.result,
        "reason": decision.reason,
        "error": decision.error,
        "attempt": decision.attempt,
        "waited_s": round(decision.waited_s, 6),
        "took_s": round(decision.took_s, 6),
        "writes": sum(call.outcome in WROTE for call in calls),
        "revision": max((call.revision for call in calls if call.outcome in WROTE), default=0),
    }
    if decision.scheduling is not None:
        fields["node"] = decision.scheduling.node
    return fields

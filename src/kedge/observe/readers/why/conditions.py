"""Conditions, holds and the coverage of an answer as lines of evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from kedge.api.holds import active_holds
from kedge.api.objects import Object
from kedge.api.views import Condition
from kedge.observe.readers.why.answer import EvidenceLine
from kedge.observe.readers.why.evidence import ClusterEvidence

NO_RECORD: Final = " (no record here: it was cut off or not kept)"
"""After the id of a decision whose process ended first, or that no rule kept. The version names it all the same."""


def condition_lines(found: Object, evidence: ClusterEvidence, label: str = "conditions") -> Iterator[EvidenceLine]:
    """One line a condition, with the decision that wrote it; one about an earlier generation states both."""
    desired = found.metadata.generation
    for each in conditions_of(found):
        text = f"{each.type}={each.status}"
        if each.reason:
            text += f" ({each.reason}{f': {each.message}' if each.message else ''})"
        if each.observed_generation:
            text += f", generation {each.observed_generation}"
            if each.observed_generation != desired:
                text += f" of {desired}: it is about an earlier declaration"
        write = evidence.condition_write(found, each.type)
        if write is not None:
            text += f"; {write}"
            if write.origin.decision and not evidence.is_recorded(write.origin.decision):
                text += NO_RECORD
        yield EvidenceLine(label, text)


def conditions_of(found: Object) -> Sequence[Condition]:
    status: Any = getattr(found.view, "status", None)
    conditions: Sequence[Condition] = getattr(status, "conditions", ())
    return conditions


def hold_lines(found: Object, now: datetime) -> Iterator[EvidenceLine]:
    for hold in active_holds(found.metadata, now):
        yield EvidenceLine("hold", str(hold))


def coverage_lines(evidence: ClusterEvidence) -> Iterator[EvidenceLine]:
    """The window of the records, and what is missing. Every answer ends with it."""
    yield EvidenceLine("coverage", evidence.coverage())
    for each in evidence.missing:
        yield EvidenceLine("missing", each)

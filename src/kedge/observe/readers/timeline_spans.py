"""The spans of a timeline: those of its decisions, linked by the causes that the timeline has found. Pure."""

from __future__ import annotations

from kedge.keys import Key, Revision
from kedge.observe.readers.object_timeline import ObjectTimeline
from kedge.observe.readers.spans import Span, spans_of


def timeline_spans(timeline: ObjectTimeline) -> list[Span]:
    """In the order in which the decisions began."""
    writers: dict[tuple[Key, Revision], str] = {
        (each.key, each.revision): decision.id
        for decision in timeline.decisions
        for call in decision.calls
        for each in call.reply
        if each.origin.decision == decision.id
    }
    writers |= {(each.key, each.revision): each.decision for each in timeline.causes.values() if each.decision}
    made: list[Span] = []
    for decision in timeline.decisions:
        cause = timeline.causes.get(decision.id)
        made += spans_of(
            decision,
            lambda key, revision: writers.get((key, revision)),
            None if cause is None else (cause.key, cause.revision),
        )
    return made

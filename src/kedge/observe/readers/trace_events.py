"""A timeline in the Trace Event format, which Perfetto and chrome://tracing open: a thread per lane. Pure.

Decisions are slices with their duration, commits and events from outside are instants, and causes are flows from a
write to the decision that it woke.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from kedge.observe.readers.object_timeline import LaneEntry, ObjectTimeline
from kedge.observe.records import Decision

_PROCESS: Final = 1


def trace_document(timeline: ObjectTimeline) -> dict[str, Any]:
    """The document. Times are in microseconds since the epoch."""
    lanes = dict.fromkeys(timeline.lanes)
    lanes.update(dict.fromkeys(each.controller for each in timeline.decisions))
    lanes.update(dict.fromkeys(each.writer or "outside" for each in timeline.causes.values() if each.written))
    threads = {lane: number for number, lane in enumerate(lanes, 1)}
    events = [
        _event("M", 0, name="process_name", args={"name": timeline.about}),
        *(_event("M", number, name="thread_name", args={"name": lane}) for lane, number in threads.items()),
        *(_slice(each, threads[each.controller]) for each in timeline.decisions),
        *(_instant(each, threads[each.lane]) for each in timeline.entries),
        *_flows(timeline, threads),
    ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"about": timeline.about, "coverage": list(timeline.coverage)},
    }


def _event(phase: str, thread: int, **members: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": _PROCESS, "tid": thread, **members}


def _slice(decision: Decision, thread: int) -> dict[str, Any]:
    duration_us = max(1, round(decision.took_s * 1e6))
    args = {
        "decision": decision.id,
        "key": str(decision.key),
        "result": decision.result,
        "reason": decision.reason or decision.error,
        "attempt": decision.attempt,
        "waitedSeconds": round(decision.waited_s, 6),
    }
    name = f"{decision.key.kind.partition('.')[0]} {decision.key.name}"
    return _event("X", thread, name=name, cat="decision", ts=_us(decision.began), dur=duration_us, args=args)


def _instant(entry: LaneEntry, thread: int) -> dict[str, Any]:
    category = entry.mark.value or entry.kind
    args = {"revision": entry.revision or None, "decision": entry.decision, "count": entry.count}
    return _event("i", thread, name=entry.text, cat=category, ts=_us(entry.at), s="t", args=args)


def _flows(timeline: ObjectTimeline, threads: dict[str, int]) -> Iterator[dict[str, Any]]:
    for number, decision in enumerate(timeline.decisions, 1):
        cause = timeline.causes.get(decision.id)
        if cause is None or cause.written is None:
            continue
        writer, name = threads[cause.writer or "outside"], f"rv {cause.revision}"
        at = min(cause.written, decision.began)
        # A flow begins and ends inside a slice, so the write is a short one.
        yield _event("X", writer, name=f"write of {cause.key.name}, {name}", cat="write", ts=_us(at), dur=1, args={})
        yield _event("s", writer, name=name, cat="cause", id=number, ts=_us(at))
        woken, began = threads[decision.controller], _us(decision.began)
        yield _event("f", woken, name=name, cat="cause", id=number, ts=began, bp="e")


def _us(at: datetime) -> int:
    return round(at.timestamp() * 1e6)

"""The first event, clock jump or step at which the traces of two runs differ, as text.

Used by `replay` (recorded against repeated) and by `determinism` (one process against another).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kedge.sim.kernel.trace import CLOCK_JUMP, Event, Trace


@dataclass(frozen=True, slots=True)
class TraceDifference:
    """The first place at which two traces differ."""

    step: int
    one: str
    other: str
    after: str
    """The last event that both share."""

    def __str__(self) -> str:
        return f"at step {self.step}, after [{self.after}]: one has [{self.one}], the other [{self.other}]"


def first_difference(
    one: Trace,
    other: Trace,
    *,
    one_strands: Mapping[int, str] | None = None,
    other_strands: Mapping[int, str] | None = None,
) -> TraceDifference | None:
    """None if the traces are the same."""
    event = _first_event(one.events, other.events)
    step = _first_step(one, other)
    if event is None and step is None:
        return None
    event_step = min(e.step for e in _pair(one.events, other.events, event)) if event is not None else None
    shared = _last_shared(one.events, event)
    if step is None or (event_step is not None and event_step <= step):
        assert event is not None
        assert event_step is not None
        return TraceDifference(event_step, _event_text(one.events, event), _event_text(other.events, event), shared)
    before = [e for e in one.events[: event if event is not None else len(one.events)] if e.step <= step]
    return TraceDifference(
        step,
        _step_text(one, step, one_strands or {}),
        _step_text(other, step, other_strands or {}),
        _line(before[-1]) if before else "the beginning",
    )


def _first_event(one: list[Event], other: list[Event]) -> int | None:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other)) if len(one) != len(other) else None


def _first_step(one: Trace, other: Trace) -> int | None:
    if one.steps == other.steps:
        return _first_jump(one, other)
    for index, (left, right) in enumerate(zip(one.steps, other.steps, strict=False)):
        if left != right:
            return index
    return min(len(one.steps), len(other.steps))


def _first_jump(one: Trace, other: Trace) -> int | None:
    if one.times == other.times:
        return None
    place = next(index for index, (a, b) in enumerate(zip(one.times, other.times, strict=False)) if a != b)
    jumps = [index for index, step in enumerate(one.steps) if step == CLOCK_JUMP]
    return jumps[place]


def _pair(one: list[Event], other: list[Event], index: int) -> list[Event]:
    return [events[index] for events in (one, other) if index < len(events)]


def _last_shared(one: list[Event], index: int | None) -> str:
    end = len(one) if index is None else index
    return _line(one[end - 1]) if end else "the beginning"


def _event_text(events: list[Event], index: int) -> str:
    return _line(events[index]) if index < len(events) else "the end"


def _line(event: Event) -> str:
    return " ".join(str(event).split())


def _step_text(trace: Trace, step: int, strands: Mapping[int, str]) -> str:
    if step >= len(trace.steps):
        return "the end"
    number = trace.steps[step]
    if number == CLOCK_JUMP:
        jump = sum(1 for earlier in trace.steps[:step] if earlier == CLOCK_JUMP)
        return f"the clock jumps to {trace.times[jump]!r}s"
    return f"a step of {strands.get(number, f'strand {number}')}"

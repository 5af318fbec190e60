"""Holds: an operator stops one component, or all, from changing one object for a while.

`hold.kedge.dev/<name>` (or `/all`) on the object reads `owner=ada until=2030-01-01T00:00:00Z reason=why`. The name is a
controller's, a scheduler's, or `agent`. A hold expires by itself. One that lacks any of the three has no effect, and
its condition reports that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kedge.api.conditions import condition, find_condition
from kedge.api.timestamps import format_time, parse_time
from kedge.api.views import Condition, ObjectMeta, View
from kedge.api.wellknown import HOLD_PREFIX

ALL = "all"
HELD = "Held"
"""The condition that shows a hold in the object's status."""
_FORM = re.compile(r"\s*owner=(?P<owner>\S+)\s+until=(?P<until>\S+)\s+reason=(?P<reason>.*\S)\s*", re.DOTALL)
_EXAMPLE = "owner=ada until=2030-01-01T00:00:00Z reason=looking into the leak"


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold: a component must not change an object until a time."""

    controller: str
    """The component that is held, or `ALL`."""
    owner: str
    reason: str
    until: datetime

    def __str__(self) -> str:
        return f"{self.owner} holds {self.controller} until {format_time(self.until)}: {self.reason}"

    def annotation(self) -> tuple[str, str]:
        """The annotation of this hold, as name and value."""
        return f"{HOLD_PREFIX}{self.controller}", (
            f"owner={self.owner} until={format_time(self.until)} reason={self.reason}"
        )


def parse_hold(controller: str, text: str) -> Hold:
    """Parse one hold.

    Raises:
        ValueError: it lacks an owner, an end or a reason; the message has an example.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"the hold {text!r} is incomplete: write it like {_EXAMPLE!r}")
    return Hold(controller, found["owner"], found["reason"], parse_time(found["until"]))


def active_hold(held: View | ObjectMeta, controller: str, now: datetime) -> Hold | None:
    """The hold that now applies to `controller` on this object; of several, the one that lasts longest."""
    active = [hold for hold in _readable(held, controller) if hold.until > now]
    return max(active, key=lambda hold: (hold.until, hold.controller), default=None)


def hold_problems(held: View | ObjectMeta) -> tuple[str, ...]:
    """The problems of malformed holds, which have no effect."""
    problems = []
    for name, text in sorted(_annotations(held).items()):
        if name.startswith(HOLD_PREFIX):
            try:
                parse_hold(name.removeprefix(HOLD_PREFIX), text)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    return tuple(problems)


def active_holds(held: View | ObjectMeta, now: datetime) -> tuple[Hold, ...]:
    """Every hold on this object, for any component, in order of their ends."""
    names = [name.removeprefix(HOLD_PREFIX) for name in _annotations(held) if name.startswith(HOLD_PREFIX)]
    found = [hold for name in sorted(names) for hold in _read(held, name) if hold.until > now]
    return tuple(sorted(found, key=lambda hold: (hold.until, hold.controller)))


def hold_condition(held: View, now: datetime) -> dict[str, Any] | None:
    """The `Held` condition of an object, for all its holds; None if it has none, valid or not."""
    holds = active_holds(held, now)
    if holds:
        message = "; ".join(map(str, holds))
        return condition(HELD, status=True, reason="HeldByPerson", message=message, observed_generation=held.generation)
    problems = hold_problems(held)
    if problems:
        return condition(
            HELD,
            status=False,
            reason="HoldUnreadable",
            message="; ".join(problems),
            observed_generation=held.generation,
        )
    return None


def hold_conditions(held: View, conditions: Sequence[Condition], now: datetime) -> list[dict[str, Any]]:
    """The `Held` condition, if there is or was a hold."""
    shown = hold_condition(held, now)
    if shown is not None:
        return [shown]
    if find_condition(conditions, HELD) is None:
        return []
    return [condition(HELD, status=False, reason="NotHeld")]


def next_hold_end(held: View | ObjectMeta, now: datetime) -> datetime | None:
    """When the condition next changes by time alone."""
    return next((hold.until for hold in active_holds(held, now)), None)


def _readable(held: View | ObjectMeta, controller: str) -> Iterator[Hold]:
    for name in (controller, ALL):
        yield from _read(held, name)


def _read(held: View | ObjectMeta, name: str) -> Iterator[Hold]:
    text = _annotations(held).get(f"{HOLD_PREFIX}{name}")
    if text is not None:
        with suppress(ValueError):  # reported by `hold_problems`
            yield parse_hold(name, text)


def _annotations(held: View | ObjectMeta) -> Mapping[str, str]:
    return held.metadata.annotations if isinstance(held, View) else held.annotations

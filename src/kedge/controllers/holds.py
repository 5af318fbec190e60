"""Holds: how a person makes one controller, or all of them, keep their hands off one object for a while.

`hold.kedge.dev/<controller>` (or `/all`) on the object reads `owner=ada until=2030-01-01T00:00:00Z reason=why`. A hold
has an owner, a reason and an end, and ends by itself; one that lacks any of them holds nothing, and is said to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kedge.api.conditions import condition
from kedge.api.marks import HOLD_PREFIX
from kedge.api.timestamps import format_time, parse_time
from kedge.api.views import ObjectMeta, View

ALL = "all"
HELD = "Held"
"""The condition that shows a hold in the status of what it holds."""
_FORM = re.compile(r"\s*owner=(?P<owner>\S+)\s+until=(?P<until>\S+)\s+reason=(?P<reason>.*\S)\s*", re.DOTALL)
_EXAMPLE = "owner=ada until=2030-01-01T00:00:00Z reason=looking into the leak"


@dataclass(frozen=True, slots=True)
class Hold:
    """One person's word that a controller is to leave an object alone, until a time."""

    controller: str
    """The controller that is held, or `ALL`."""
    owner: str
    reason: str
    until: datetime

    def __str__(self) -> str:
        return f"{self.owner} holds {self.controller} until {format_time(self.until)}: {self.reason}"

    def annotation(self) -> tuple[str, str]:
        """The annotation that says this, as name and text."""
        return f"{HOLD_PREFIX}{self.controller}", (
            f"owner={self.owner} until={format_time(self.until)} reason={self.reason}"
        )


def parse_hold(controller: str, text: str) -> Hold:
    """Read one hold.

    Raises:
        ValueError: it lacks an owner, an end or a reason; the message shows one that does not.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"the hold {text!r} must read like {_EXAMPLE!r}")
    return Hold(controller, found["owner"], found["reason"], parse_time(found["until"]))


def active_hold(held: View | ObjectMeta, controller: str, now: datetime) -> Hold | None:
    """The hold that keeps `controller` off this object now; of several the one that lasts longest."""
    active = [hold for hold in _readable(held, controller) if hold.until > now]
    return max(active, key=lambda hold: (hold.until, hold.controller), default=None)


def hold_problems(held: View | ObjectMeta) -> tuple[str, ...]:
    """What is wrong with holds that cannot be read, and therefore hold nothing."""
    problems = []
    for name, text in sorted(_annotations(held).items()):
        if name.startswith(HOLD_PREFIX):
            try:
                parse_hold(name.removeprefix(HOLD_PREFIX), text)
            except ValueError as error:
                problems.append(f"{name}: {error}")
    return tuple(problems)


def hold_condition(held: View, controller: str, now: datetime) -> dict[str, Any] | None:
    """The `Held` condition to show for an object; None if nobody holds it or tried to."""
    hold = active_hold(held, controller, now)
    if hold is not None:
        return condition(
            HELD, status=True, reason="HeldByPerson", message=str(hold), observed_generation=held.generation
        )
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


def _readable(held: View | ObjectMeta, controller: str) -> Iterator[Hold]:
    annotations = _annotations(held)
    for name in (controller, ALL):
        text = annotations.get(f"{HOLD_PREFIX}{name}")
        if text is not None:
            try:
                yield parse_hold(name, text)
            except ValueError:
                continue  # said by `hold_problems`


def _annotations(held: View | ObjectMeta) -> dict[str, str]:
    return held.metadata.annotations if isinstance(held, View) else held.annotations

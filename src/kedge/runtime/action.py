"""What a reconcile asks for next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Next(StrEnum):
    """When the key is looked at again, if nothing wakes it before."""

    AWAIT_CHANGE = "await change"
    REQUEUE = "requeue"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class Action:
    """What is to happen next, and why. `condition` and `reason` go to the decision record."""

    next: Next
    delay_s: float | None = None
    condition: str = ""
    reason: str = ""

    @classmethod
    def await_change(cls, *, condition: str = "", reason: str = "") -> Action:
        """Only when something it watches changes."""
        if not condition and not reason:
            return _AWAIT_CHANGE
        return cls(Next.AWAIT_CHANGE, None, condition, reason)

    @classmethod
    def requeue(cls, *, delay_s: float, condition: str = "", reason: str = "") -> Action:
        """After a pause, change or no change."""
        return cls(Next.REQUEUE, delay_s, condition, reason)

    @classmethod
    def terminal(cls, *, reason: str, condition: str = "") -> Action:
        """It cannot succeed as things stand: no retry until something changes. The reason stays visible."""
        return cls(Next.TERMINAL, None, condition, reason)


_AWAIT_CHANGE = Action(Next.AWAIT_CHANGE)

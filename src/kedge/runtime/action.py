"""The result of a reconcile: when its key runs next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kedge.errors import InvariantBroken
from kedge.observe.records import Decision


class Next(StrEnum):
    """When the key runs again, if nothing wakes it before."""

    AWAIT_CHANGE = "await change"
    REQUEUE = "requeue"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class Action:
    """When the key runs next, and why. `condition` and `reason` go to the decision record."""

    next: Next
    delay_s: float | None = None
    condition: str = ""
    reason: str = ""

    @classmethod
    def await_change(cls, *, condition: str = "", reason: str = "") -> Action:
        """Run again only when a watched object changes."""
        if not condition and not reason:
            return _AWAIT_CHANGE
        return cls(Next.AWAIT_CHANGE, None, condition, reason)

    @classmethod
    def requeue(cls, *, delay_s: float, condition: str = "", reason: str = "") -> Action:
        """Run again after a delay, with or without a change."""
        return cls(Next.REQUEUE, delay_s, condition, reason)

    @classmethod
    def terminal(cls, *, reason: str, condition: str = "") -> Action:
        """It cannot succeed in the current state: no retry until something changes. The reason stays visible."""
        return cls(Next.TERMINAL, None, condition, reason)


_AWAIT_CHANGE = Action(Next.AWAIT_CHANGE)


def check_action(decision: Decision, action: object) -> None:
    """Check that a reconciler returned an `Action`."""
    if not isinstance(action, Action):
        raise InvariantBroken(f"{decision.controller} returned {action!r} for {decision.key}: return an Action")

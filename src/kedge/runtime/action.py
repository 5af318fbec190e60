"""What a reconcile asks for next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """When to look at the key again, if nothing wakes it before."""

    delay_s: float | None = None

    @classmethod
    def await_change(cls) -> Action:
        """Only when something it watches changes."""
        return cls()

    @classmethod
    def requeue(cls, *, delay_s: float) -> Action:
        """After a pause, change or no change."""
        return cls(delay_s)

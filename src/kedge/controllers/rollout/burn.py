"""The burn gate of a rollout: how fast the pods with the change use up the error budget of an objective. Pure.

It is computed from the times in committed pods, which the rollout reads anyway, so the record of a decision has every
input of it. An event is a pod whose outcome is known: it reached the stage in time, or its time is up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from kedge.api.conditions import TRUE, find_condition
from kedge.api.views import PodView
from kedge.api.views.kedge_dev import RolloutBurn
from kedge.controllers.shared.pods import ready_since
from kedge.slo import burn_rate

TIME_TO_BOUND, TIME_TO_READY = "TimeToBound", "TimeToReady"
_SHORT_PART = 12
"""The short window is this part of the long one, as five minutes are of an hour: it shows that a burn goes on."""


@dataclass(frozen=True, slots=True)
class MeasuredBurn:
    """The burn rates of both windows; None for a window without events."""

    window: float | None
    short_window: float | None
    bad: int
    events: int


@dataclass(frozen=True, slots=True)
class _PodEvent:
    at: datetime
    good: bool


def measure_burn(rules: RolloutBurn, pods: Iterable[PodView], now: datetime) -> MeasuredBurn:
    """The burn rates of these pods: in the last `windowSeconds`, and in the last twelfth of them."""
    found = [event for pod in pods if (event := _event(rules, pod, now)) is not None]
    window = timedelta(seconds=rules.window_seconds)
    events = [each for each in found if now - window < each.at]
    short = [each for each in events if now - window / _SHORT_PART < each.at]
    bad = sum(not each.good for each in events)
    return MeasuredBurn(_rate(rules, events), _rate(rules, short), bad, len(events))


def _rate(rules: RolloutBurn, events: list[_PodEvent]) -> float | None:
    bad = sum(not each.good for each in events)
    return burn_rate(len(events) - bad, bad, rules.objective_percent / 100)


def _event(rules: RolloutBurn, pod: PodView, now: datetime) -> _PodEvent | None:
    """None for a pod whose outcome is not known yet."""
    created = pod.metadata.creation_timestamp
    if created is None:
        return None
    deadline = created + timedelta(seconds=rules.within_seconds)
    reached = _bound_at(pod) if rules.slo == TIME_TO_BOUND else ready_since(pod)
    if reached is not None and reached <= deadline:
        return _PodEvent(reached, good=True)
    if pod.status.phase == "Succeeded":
        return None  # it has ended, and its times do not show when it was ready
    # Only the last change of a condition has a time: a pod that was ready in time, and is not since, counts as late.
    return _PodEvent(deadline, good=False) if deadline <= now else None


def _bound_at(pod: PodView) -> datetime | None:
    found = find_condition(pod.status.conditions, "PodScheduled")
    return found.last_transition_time if found is not None and found.status == TRUE else None

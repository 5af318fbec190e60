"""Service level objectives: good and bad events, and how fast they use up the error budget.

A burn rate of 1 uses exactly the budget that the objective allows; 14.4 uses a month's in two days. The events are kept
in slices of time in memory, so a process that starts has no past. `docs/metrics.md` lists the objectives.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial

from kedge.env import Env
from kedge.errors import check

SLICE_S = 30.0
"""The resolution of the windows."""
WINDOWS_S = {"5m": 300.0, "30m": 1_800.0, "1h": 3_600.0, "6h": 21_600.0}
"""The windows of `kedge_slo_burn_ratio`: a short and a long one for a fast burn, and for a slow one."""
ALERT_BURNS = (("1h", "5m", 14.4), ("6h", "30m", 6.0))
"""Long window, short window, and the burn rate in both past which `deploy/prometheus/alerts.yaml` raises an alert."""
BAD_EVENTS_MIN = 5
"""Bad events in the short window from which on a burn counts: a process that has just started has few events."""
TIME_TO_BOUND, TIME_TO_READY, API_AVAILABILITY = "time-to-bound", "time-to-ready", "api-availability"


def burn_rate(good: int, bad: int, objective: float) -> float | None:
    """The share of bad events, divided by the share that the objective allows; None without events."""
    check(0.0 < objective < 1.0, "an objective of all or no events has no error budget")
    return bad / (good + bad) / (1.0 - objective) if good + bad else None


class SloEvents:
    """The events of one objective in the last hours, as metrics."""

    def __init__(self, env: Env, slo: str, objective: float) -> None:
        self._env = env
        self._objective = objective
        self._slices: deque[list[int]] = deque(maxlen=int(max(WINDOWS_S.values()) / SLICE_S) + 1)
        """Number of the slice, good events, bad events."""
        self._slice = [0, 0, 0]
        self._slice_end_s = -math.inf
        events = env.metrics.counter(
            "kedge_slo_events_total", "Events that an objective counts, by outcome", ("slo", "outcome")
        )
        self._good, self._bad = events.labels(slo, "good"), events.labels(slo, "bad")
        env.metrics.gauge(
            "kedge_slo_objective_ratio", "Share of good events that an objective asks for", ("slo",)
        ).labels(slo).set(objective)
        burn = env.metrics.gauge(
            "kedge_slo_burn_ratio",
            "Share of bad events in a window, divided by the share that the objective allows",
            ("slo", "window"),
        )
        for name, window_s in WINDOWS_S.items():
            burn.labels(slo, name).set_function(partial(self._shown, window_s))

    def count(self, now_s: float, *, good: bool, decision: str = "") -> None:
        """Count one event at `now_s` of the monotonic clock; a bad one with the decision behind it."""
        if now_s >= self._slice_end_s:
            self._begin_slice(now_s)
        if good:
            self._good.inc()
            self._slice[1] += 1
        else:
            self._bad.inc_by(decision)
            self._slice[2] += 1

    def _begin_slice(self, now_s: float) -> None:
        number = int(now_s / SLICE_S)
        self._slice = [number, 0, 0]
        self._slice_end_s = (number + 1) * SLICE_S
        self._slices.append(self._slice)

    def burn(self, window_s: float) -> float | None:
        """The burn rate of the last `window_s` seconds, up to one slice more; None if they had no events."""
        recent = self._recent(window_s)
        return burn_rate(sum(each[1] for each in recent), sum(each[2] for each in recent), self._objective)

    def is_past_alert(self) -> bool:
        """Whether both windows of an alert burn faster than its bound, by more than a few events."""
        return any(
            self._bad_events(WINDOWS_S[short]) >= BAD_EVENTS_MIN
            and all((self.burn(WINDOWS_S[each]) or 0.0) > most for each in (long, short))
            for long, short, most in ALERT_BURNS
        )

    def _bad_events(self, window_s: float) -> int:
        return sum(each[2] for each in self._recent(window_s))

    def _recent(self, window_s: float) -> list[list[int]]:
        first = int((self._env.monotonic() - window_s) / SLICE_S)
        return [each for each in self._slices if each[0] >= first]

    def _shown(self, window_s: float) -> float:
        found = self.burn(window_s)
        return math.nan if found is None else found

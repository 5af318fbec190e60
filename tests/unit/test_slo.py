"""Burn rates: the share of bad events in a window, over the share that the objective allows."""

from __future__ import annotations

import math

import pytest
from tests.kit.moved_clock import MovedClock

from kedge.errors import InvariantBroken
from kedge.slo import ALERT_BURNS, SLICE_S, WINDOWS_S, SloEvents, burn_rate


def test_a_rate_of_one_uses_exactly_the_budget() -> None:
    assert burn_rate(good=99, bad=1, objective=0.99) == pytest.approx(1.0)
    assert burn_rate(good=0, bad=1, objective=0.99) == pytest.approx(100.0)
    assert burn_rate(good=1, bad=0, objective=0.99) == 0.0


def test_without_events_there_is_no_rate() -> None:
    assert burn_rate(good=0, bad=0, objective=0.99) is None


@pytest.mark.parametrize("objective", [0.0, 1.0, 1.5])
def test_an_objective_leaves_a_budget(objective: float) -> None:
    with pytest.raises(InvariantBroken, match="error budget"):
        burn_rate(1, 1, objective)


def test_each_window_forgets_what_is_older() -> None:
    clock = MovedClock()
    events = SloEvents(clock.env, "time-to-bound", 0.9)

    def rates() -> dict[str, float]:
        shown = {name: clock.metric("kedge_slo_burn_ratio", slo="time-to-bound", window=name) for name in WINDOWS_S}
        return {name: round(rate, 6) for name, rate in shown.items() if rate is not None and not math.isnan(rate)}

    assert rates() == {}
    events.count(clock.env.monotonic(), good=False)
    events.count(clock.env.monotonic(), good=True)
    assert rates() == dict.fromkeys(WINDOWS_S, 5.0)
    clock.pass_s(WINDOWS_S["5m"] + 2 * SLICE_S)
    assert rates() == {"30m": 5.0, "1h": 5.0, "6h": 5.0}
    events.count(clock.env.monotonic(), good=True)
    events.count(clock.env.monotonic(), good=True)
    assert rates() == {"5m": 0.0, "30m": 2.5, "1h": 2.5, "6h": 2.5}
    clock.pass_s(WINDOWS_S["6h"] + 2 * SLICE_S)
    assert rates() == {}
    assert clock.metric("kedge_slo_events_total", slo="time-to-bound", outcome="bad") == 1
    assert clock.metric("kedge_slo_events_total", slo="time-to-bound", outcome="good") == 3


def test_memory_is_bounded_by_the_longest_window() -> None:
    clock = MovedClock()
    events = SloEvents(clock.env, "api-availability", 0.9)
    for _ in range(2_000):
        events.count(clock.env.monotonic(), good=False)
        clock.pass_s(SLICE_S)
    assert len(events._slices) == WINDOWS_S["6h"] / SLICE_S + 1
    assert events.burn(WINDOWS_S["6h"]) == pytest.approx(10.0)


def test_an_objective_is_past_its_alert_while_a_long_window_and_its_short_one_burn_too_fast() -> None:
    clock = MovedClock()
    events = SloEvents(clock.env, "time-to-bound", 0.99)
    assert not events.is_past_alert(), "no events are no burn"
    for number in range(20):
        events.count(clock.env.monotonic(), good=number % 5 > 0)  # a fifth of the events: a burn rate of 20
        assert not events.is_past_alert(), "a few bad events are no burn: a new process has few events"
    events.count(clock.env.monotonic(), good=False)
    assert events.is_past_alert()
    clock.pass_s(WINDOWS_S["30m"] + 2 * SLICE_S)
    assert not events.is_past_alert(), "the burn is over: the short windows have no events"
    for number in range(50):
        events.count(clock.env.monotonic(), good=number % 10 > 0)
    assert events.burn(WINDOWS_S["5m"]) == pytest.approx(10.0)
    assert events.is_past_alert(), "a slow burn, of the longer windows"
    assert [most for _, _, most in ALERT_BURNS] == [14.4, 6.0]

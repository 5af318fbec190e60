"""Backoff: pauses double up to their bound, and each takes one draw of randomness."""

from __future__ import annotations

import random

from kedge.backoff import Backoff, jittered


def test_the_ceiling_doubles_with_each_failure_up_to_its_bound() -> None:
    backoff = Backoff(0.1, 1.0)
    assert [backoff.ceiling_s(failures) for failures in range(6)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert backoff.ceiling_s(10_000) == 1.0


def test_a_pause_is_the_ceiling_times_a_factor_within_the_jitter() -> None:
    backoff, source = Backoff(1.0, 8.0, jitter=(0.5, 1.0)), random.Random(1)
    pauses = [backoff.pause_s(3, source) for _ in range(100)]
    assert all(2.0 <= pause_s <= 4.0 for pause_s in pauses)
    assert len(set(pauses)) > 90


def test_a_pause_takes_one_draw() -> None:
    one, other = random.Random(7), random.Random(7)
    Backoff(1.0, 8.0).pause_s(0, one)
    jittered(1.0, one)
    other.random()
    other.random()
    assert one.random() == other.random()

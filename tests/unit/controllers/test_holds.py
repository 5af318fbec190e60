"""Holds: annotations that stop a controller from changing an object."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, a_pod, ago

from kedge.api.holds import (
    ALL,
    Hold,
    active_hold,
    hold_condition,
    hold_conditions,
    hold_problems,
    next_hold_end,
    parse_hold,
)
from kedge.api.views import Condition

SOON = NOW + timedelta(minutes=5)


def test_a_hold_stops_the_controller_it_names_and_no_other() -> None:
    held = a_pod(annotations=dict([Hold("replicaset", "ada", "a leak", SOON).annotation()]))
    hold = active_hold(held, "replicaset", NOW)
    assert hold is not None
    assert (hold.owner, hold.reason, hold.until) == ("ada", "a leak", SOON)
    assert active_hold(held, "deployment", NOW) is None


def test_a_hold_on_all_stops_every_controller() -> None:
    held = a_pod(annotations=dict([Hold(ALL, "ada", "a leak", SOON).annotation()]))
    assert active_hold(held, "replicaset", NOW) is not None


def test_a_hold_ends_by_itself() -> None:
    held = a_pod(annotations=dict([Hold("replicaset", "ada", "a leak", SOON).annotation()]))
    assert active_hold(held, "replicaset", SOON - timedelta(seconds=1)) is not None
    assert active_hold(held, "replicaset", SOON) is None


def test_the_longer_of_two_holds_counts() -> None:
    annotations = dict(
        [
            Hold("replicaset", "ada", "a leak", SOON).annotation(),
            Hold(ALL, "bob", "an audit", SOON + timedelta(hours=1)).annotation(),
        ]
    )
    hold = active_hold(a_pod(annotations=annotations), "replicaset", NOW)
    assert hold is not None
    assert hold.owner == "bob"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "owner=ada reason=no end until",
        "owner=ada until=tomorrow reason=not a time",
        "until=2030-01-01T00:00:00Z reason=none",
        "owner=ada until=2030-01-01T00:00:00Z reason= ",
        "true",
    ],
)
def test_a_hold_without_owner_end_or_reason_has_no_effect_and_is_reported(text: str) -> None:
    held = a_pod(annotations={"hold.kedge.dev/all": text})
    assert active_hold(held, "replicaset", ago(3600 * 24 * 365)) is None
    assert "hold.kedge.dev/all" in hold_problems(held)[0]
    shown = hold_condition(held, NOW)
    assert shown is not None
    assert (shown["status"], shown["reason"]) == ("False", "HoldUnreadable")


def test_a_hold_is_shown_with_its_owner_and_reason() -> None:
    held = a_pod(annotations=dict([Hold("job", "ada", "a leak", SOON).annotation()]))
    shown = hold_condition(held, NOW)
    assert shown is not None
    assert shown["status"] == "True"
    assert shown["message"] == "ada holds job until 2030-01-01T00:05:00Z: a leak"
    assert hold_condition(a_pod(), NOW) is None


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Z", "C")), min_size=1)


@given(WORDS, st.lists(WORDS, min_size=1).map(" ".join), st.datetimes(timezones=st.just(NOW.tzinfo)))
def test_a_hold_survives_a_round_trip(owner: str, reason: str, until: object) -> None:
    hold = Hold("job", owner, reason, until.replace(microsecond=0))  # type: ignore[attr-defined]
    assert parse_hold("job", hold.annotation()[1]) == hold


def test_every_hold_on_an_object_is_shown_until_the_last_has_ended() -> None:
    later = SOON + timedelta(hours=1)
    held = a_pod(
        annotations=dict(
            [Hold("job", "ada", "a leak", SOON).annotation(), Hold("autoscaler", "bob", "an audit", later).annotation()]
        )
    )
    shown = hold_condition(held, NOW)
    assert shown is not None
    assert shown["message"].startswith("ada holds job until 2030-01-01T00:05:00Z: a leak; bob holds autoscaler until")
    assert next_hold_end(held, NOW) == SOON
    shown = hold_condition(held, SOON)
    assert shown is not None
    assert shown["message"].startswith("bob holds autoscaler")
    assert next_hold_end(held, SOON) == later
    assert hold_condition(held, later) is None
    assert next_hold_end(held, later) is None
    condition_of = (Condition(type="Held", status="True"),)
    assert [each["status"] for each in hold_conditions(held, condition_of, later)] == [
        "False"
    ]  # the end is written once
    assert hold_conditions(held, (), later) == []

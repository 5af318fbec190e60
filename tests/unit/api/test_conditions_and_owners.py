"""Conditions with their transition times, and owners by uid."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kedge.api.codec import encode_json
from kedge.api.conditions import (
    condition,
    find_condition,
    is_true,
    keep_transition_times,
    remove_condition,
    set_condition,
)
from kedge.api.kinds import KINDS
from kedge.api.owners import controller_of, is_owned_by, owner_reference
from kedge.api.views import PodView, ReplicaSetView, decode_as

T1 = datetime(2026, 1, 1, tzinfo=UTC)
T2 = datetime(2026, 1, 2, tzinfo=UTC)


def test_the_transition_time_changes_only_with_the_status() -> None:
    first = set_condition([], condition("Ready", status=False, reason="Starting", observed_generation=1), T1)
    assert first[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    again = set_condition(
        first, condition("Ready", status=False, reason="Slow", message="m", observed_generation=2), T2
    )
    assert again[0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert (again[0]["reason"], again[0]["message"], again[0]["observedGeneration"]) == ("Slow", "m", 2)
    ready = set_condition(again, condition("Ready", status=True, reason="Up"), T2)
    assert ready[0]["lastTransitionTime"] == "2026-01-02T00:00:00Z"
    assert first[0]["reason"] == "Starting"


def test_conditions_keep_their_order_and_the_other_types() -> None:
    two = set_condition(
        set_condition([], condition("A", status=True, reason="r"), T1), condition("B", status=None, reason="r"), T1
    )
    changed = set_condition(two, condition("A", status=False, reason="r"), T2)
    assert [(each["type"], each["status"]) for each in changed] == [("A", "False"), ("B", "Unknown")]
    assert changed[1] == two[1]
    assert [each["type"] for each in remove_condition(changed, "A")] == ["B"]


def test_setting_an_equal_condition_changes_nothing() -> None:
    new = condition("A", status=True, reason="r", observed_generation=3)
    once = set_condition([], new, T1)
    assert set_condition(once, new, T2) == once


def test_a_condition_without_a_time_gets_one() -> None:
    assert (
        set_condition([{"type": "A", "status": "True"}], condition("A", status=True, reason="r"), T2)[0][
            "lastTransitionTime"
        ]
        == "2026-01-02T00:00:00Z"
    )


def test_conditions_of_a_view_are_found_by_type() -> None:
    status = {"conditions": set_condition([], condition("Ready", status=True, reason="Up"), T1)}
    pod = decode_as(PodView, encode_json({"status": status}))
    assert is_true(pod.status.conditions, "Ready")
    assert not is_true(pod.status.conditions, "Other")
    assert find_condition(pod.status.conditions, "Other") is None
    found = find_condition(pod.status.conditions, "Ready")
    assert found is not None
    assert found.last_transition_time == T1


def owned(*references: dict[str, Any]) -> PodView:
    return decode_as(PodView, encode_json({"metadata": {"ownerReferences": list(references)}}))


@pytest.fixture
def owner() -> ReplicaSetView:
    return decode_as(ReplicaSetView, b'{"metadata":{"name":"web","uid":"u1"}}')


def test_a_reference_names_its_owner_by_uid(owner: ReplicaSetView) -> None:
    reference = owner_reference(KINDS.resolve("rs"), owner)
    assert reference == {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "web",
        "uid": "u1",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod = owned(reference)
    assert is_owned_by(pod, "u1")
    assert not is_owned_by(pod, "u2")
    found = controller_of(pod)
    assert found is not None
    assert found.uid == "u1"


def test_an_owner_need_not_be_the_controller(owner: ReplicaSetView) -> None:
    reference = owner_reference(KINDS.resolve("rs"), owner.metadata, controller=False, block_owner_deletion=False)
    pod = owned(reference)
    assert set(reference) == {"apiVersion", "kind", "name", "uid"}
    assert controller_of(pod.metadata) is None
    assert is_owned_by(pod.metadata, "u1")


# -- conditions of any writer -----------------------------------------------------------------------

NOW = "2030-01-01T00:00:00Z"
THEN = "2029-01-01T00:00:00Z"


def status(*conditions: Any) -> dict[str, Any]:
    return {"replicas": 1, "conditions": list(conditions)}


def test_an_unchanged_condition_keeps_its_time() -> None:
    old = status({"type": "Ready", "status": "True", "lastTransitionTime": THEN})
    for sent in ({}, {"lastTransitionTime": NOW}, {"lastTransitionTime": THEN, "message": "new words"}):
        new = status({"type": "Ready", "status": "True", **sent})
        assert keep_transition_times(old, new, NOW)["conditions"][0]["lastTransitionTime"] == THEN


def test_a_changed_condition_gets_a_new_time() -> None:
    old = status({"type": "Ready", "status": "True", "lastTransitionTime": THEN})
    moved = {"type": "Ready", "status": "False"}
    between = "2029-06-01T00:00:00Z"
    for sent, expected in (("", NOW), (THEN, NOW), (between, between)):
        kept = keep_transition_times(old, status({**moved, "lastTransitionTime": sent}), NOW)
        assert kept["conditions"][0]["lastTransitionTime"] == expected


def test_a_new_condition_gets_the_time_of_the_write() -> None:
    kept = keep_transition_times(None, status({"type": "Ready", "status": "True"}), NOW)
    assert kept["conditions"][0]["lastTransitionTime"] == NOW
    assert kept["replicas"] == 1


@pytest.mark.parametrize("junk", [None, 7, "x", [], {}, {"conditions": 3}, {"conditions": [None, 7, {"type": []}]}])
def test_a_value_that_is_not_a_list_of_conditions_is_left_to_validation(junk: Any) -> None:
    keep_transition_times(junk, junk, NOW)
    good = status({"type": "Ready", "status": "True", "lastTransitionTime": THEN})
    assert keep_transition_times(junk, good, NOW) == good
    keep_transition_times(good, junk, NOW)

"""The repair condition of a Deployment, from its ReplicaSets."""

from __future__ import annotations

from typing import Any

import msgspec

from kedge.api.views import DeploymentView, ReplicaSetView
from kedge.controllers.deployment.status import availability_floor, have_counted, repairs


def repaired(*statuses: str) -> list[dict[str, Any]]:
    return [
        {"type": "RepairComplete", "status": status, "reason": "Replacing", "message": "web-0"} for status in statuses
    ]


def a_set(name: str, *statuses: str, has: int = 1, refused: bool = False, generation: int = 0) -> ReplicaSetView:
    conditions = repaired(*statuses)
    if refused:
        conditions.append({"type": "ReplicaFailure", "status": "True", "reason": "Forbidden", "message": "no more"})
    body = {"metadata": {"name": name, "generation": generation}, "status": {"conditions": conditions, "replicas": has}}
    return msgspec.convert(body, ReplicaSetView)


def a_deployment(*statuses: str) -> DeploymentView:
    return msgspec.convert({"metadata": {"name": "web"}, "status": {"conditions": repaired(*statuses)}}, DeploymentView)


def test_a_deployment_without_repairs_has_no_condition() -> None:
    assert repairs(a_deployment(), [a_set("a"), a_set("b")]) == []


def test_a_repair_is_complete_when_it_is_in_every_replica_set() -> None:
    (under_way,) = repairs(a_deployment("True"), [a_set("a", "True"), a_set("b", "False")])
    assert (under_way["status"], under_way["reason"], under_way["message"]) == ("False", "Replacing", "b: web-0")
    (done,) = repairs(a_deployment(), [a_set("a", "True"), a_set("b")])
    assert done["status"] == "True"


def test_a_repair_is_blocked_while_another_replica_set_is_refused() -> None:
    """After a rollout the lost replica belongs to the new ReplicaSet, which has no repair of its own."""
    (blocked,) = repairs(a_deployment("True"), [a_set("a", "True"), a_set("b", has=0, refused=True)])
    assert (blocked["status"], blocked["reason"], blocked["message"]) == ("False", "Forbidden", "b: no more")


def test_a_repair_is_not_complete_before_every_replica_is_counted() -> None:
    assert repairs(a_deployment("True"), [a_set("a", "True", has=0)]) == []
    assert repairs(a_deployment("True"), [a_set("a", "True", generation=2)]) == []


def test_a_repair_completes_although_its_replica_set_is_gone() -> None:
    (done,) = repairs(a_deployment("False"), [a_set("a")])
    assert done["status"] == "True"


def test_the_condition_of_the_floor_is_true_only_while_it_keeps_a_replica() -> None:
    (holds,) = availability_floor(a_deployment(), "web-2")
    assert (holds["type"], holds["status"]) == ("AvailabilityFloor", "True")
    assert "web-2" in holds["message"]
    assert 'kedge.dev/availability-floor: "off"' in holds["message"]
    assert availability_floor(a_deployment(), "") == []


def test_a_status_counts_once_it_is_about_the_newest_spec_of_every_replica_set() -> None:
    assert have_counted([])
    assert have_counted([a_set("a")])
    assert not have_counted([a_set("a"), a_set("b", generation=2)])

"""The repair condition of a Deployment, from its ReplicaSets."""

from __future__ import annotations

from typing import Any

import msgspec

from kedge.api.views import DeploymentView, ReplicaSetView
from kedge.controllers.deployment.status import repairs


def repaired(*statuses: str) -> list[dict[str, Any]]:
    return [
        {"type": "RepairComplete", "status": status, "reason": "Replacing", "message": "web-0"} for status in statuses
    ]


def a_set(name: str, *statuses: str) -> ReplicaSetView:
    body = {"metadata": {"name": name}, "status": {"conditions": repaired(*statuses)}}
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


def test_a_repair_completes_although_its_replica_set_is_gone() -> None:
    (done,) = repairs(a_deployment("False"), [a_set("a")])
    assert done["status"] == "True"

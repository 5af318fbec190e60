"""The state of a repair: a requested one differs from a complete one, and its blocker is named."""

from __future__ import annotations

import pytest
from tests.kit.pod_views import a_pod, ready_pod

from kedge.api.views import Condition, PodView, ReplicaSetView
from kedge.api.views.workloads import ReplicaSetSpec, ReplicaSetStatus
from kedge.api.wellknown import DISRUPTION_TARGET, NODE_LOST, REPLACES
from kedge.controllers.replicaset.status import repair_condition
from kedge.errors import Forbidden, Invalid, OperatingError

OWNER = ReplicaSetView(spec=ReplicaSetSpec(replicas=2))
REPLACING = {REPLACES: "uid-of-web-0"}
LOST = Condition(type=DISRUPTION_TARGET, status="True", reason=NODE_LOST)
UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")
UNKNOWN = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
WELL = ready_pod("web-1")


FULL = Forbidden('pods "web-0" is forbidden: exceeded quota: limits, requested: pods=1, used: pods=2, limited: pods=2')


def statuses(*pods: PodView, refusal: OperatingError | None = None) -> tuple[str, str, str]:
    (condition_of,) = repair_condition(OWNER, [*pods, WELL], refusal) or [{"status": "", "reason": "", "message": ""}]
    return condition_of["status"], condition_of["reason"], condition_of["message"]


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        (a_pod("web-0", node="node-a", conditions=(UNKNOWN,)), "ReplicaUnknown", "web-0"),
        (a_pod("web-0", node="node-a", conditions=(LOST,)), "ReleaseRequested", "web-0"),
        (a_pod("web-0", node="node-a", phase="Failed"), "Replacing", "web-0"),
        (a_pod("web-2", annotations=REPLACING), "ReplacementStarting", "web-2"),
        (a_pod("web-2", annotations=REPLACING, node="node-b", phase="Running"), "ReplacementStarting", "web-2"),
    ],
)
def test_each_step_of_a_repair_has_a_reason_and_none_is_complete(pod: PodView, reason: str, message: str) -> None:
    assert statuses(pod) == ("False", reason, message)


def test_the_blocker_of_a_replacement_is_named() -> None:
    waiting = a_pod("web-2", annotations=REPLACING, conditions=(UNSCHEDULABLE,))
    assert statuses(waiting) == ("False", "Unschedulable", "web-2: queued, Unschedulable")


@pytest.mark.parametrize(
    ("message", "reason"),
    [("0/3 nodes: 2 cpu, 1 taint", "InsufficientCpu"), ("0/3 nodes: 3 zone quota risk", "ZoneQuota")],
)
def test_the_blocker_of_a_replacement_is_the_schedulers_reason(message: str, reason: str) -> None:
    refused = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    waiting = a_pod("web-2", annotations=REPLACING, conditions=(refused,))
    assert statuses(waiting) == ("False", reason, f"web-2: queued, {message}")


def test_the_refusal_of_a_replacement_is_named() -> None:
    ended = a_pod("web-0", node="node-a", phase="Failed")
    assert statuses(ended, refusal=FULL) == ("False", "QuotaExceeded", FULL.message)
    assert statuses(ended, refusal=Invalid("no name")) == ("False", "Invalid", "no name")


REPAIRED = ReplicaSetView(
    spec=OWNER.spec, status=ReplicaSetStatus(conditions=(Condition(type="RepairComplete", status="True"),))
)


def test_a_repair_is_not_complete_while_a_replica_is_missing() -> None:
    """The ended pod is swept, so only the number of replicas shows that one is missing."""
    (missing,) = repair_condition(REPAIRED, [WELL])
    assert (missing["status"], missing["reason"]) == ("False", "ReplicasMissing")
    (refused,) = repair_condition(REPAIRED, [WELL], FULL)
    assert (refused["status"], refused["reason"], refused["message"]) == ("False", "QuotaExceeded", FULL.message)


def test_a_replica_that_was_just_created_is_not_missing() -> None:
    (complete,) = repair_condition(REPAIRED, [WELL], created=1)
    assert complete["status"] == "True"


def test_a_repair_is_complete_when_the_replacement_is_ready() -> None:
    assert statuses(ready_pod("web-2", annotations=REPLACING)) == ("", "", "")
    before = ReplicaSetStatus(conditions=(Condition(type="RepairComplete", status="False"),))
    (condition_of,) = repair_condition(ReplicaSetView(spec=OWNER.spec, status=before), [WELL, ready_pod("web-2")])
    assert (condition_of["status"], condition_of["reason"]) == ("True", "Repaired")

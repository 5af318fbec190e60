"""Progress: the stage of a replica, and why it is not further."""

from __future__ import annotations

import pytest
from tests.kit.pod_views import NOW, a_pod, ago, ready_pod

from kedge.api.views import Condition, ContainerState, ContainerStatus, PodView
from kedge.api.views.core import ContainerStateWaiting
from kedge.api.views.workloads import PendingReason, StageCounts, WorkloadProgress
from kedge.controllers.shared.conditions import stage_conditions
from kedge.controllers.shared.progress import LastAction, ReplicaStage, progress_of, stage_of, sum_of_progress

PULLING = ContainerStatus(name="main", state=ContainerState(waiting=ContainerStateWaiting(reason="ImagePullBackOff")))
UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")

SILENT = Condition(type="Ready", status="Unknown", reason="NodeUnknown")


@pytest.mark.parametrize(
    ("pod", "stage"),
    [
        (a_pod(gated=True), ReplicaStage.ADMITTED),
        (a_pod(), ReplicaStage.QUEUED),
        (a_pod(conditions=(UNSCHEDULABLE,)), ReplicaStage.QUEUED),
        (a_pod(nominated="node-a"), ReplicaStage.SCHEDULED),
        (a_pod(node="node-a", phase="Pending"), ReplicaStage.BOUND),
        (a_pod(node="node-a", phase="Pending", statuses=(PULLING,)), ReplicaStage.STARTING),
        (a_pod(node="node-a", phase="Running"), ReplicaStage.STARTING),
        (ready_pod("web-0"), ReplicaStage.READY),
        (ready_pod("web-1"), ReplicaStage.SERVING),
        (a_pod(node="node-a", phase="Running", conditions=(SILENT,)), ReplicaStage.UNKNOWN),
        (ready_pod("web-1", draining_s=1), None),
        (ready_pod("web-1", terminating=True), None),
        (ready_pod("web-1", phase="Failed"), None),
    ],
    ids=lambda value: str(value) if not isinstance(value, PodView) else "",
)
def test_a_replica_is_counted_at_the_furthest_stage_it_has_reached(pod: PodView, stage: ReplicaStage | None) -> None:
    assert stage_of(pod, {"uid-of-web-1"}) is stage


def test_pending_replicas_are_counted_by_reason() -> None:
    pods = [
        a_pod("web-0", conditions=(UNSCHEDULABLE,)),
        a_pod("web-1", conditions=(UNSCHEDULABLE,)),
        a_pod("web-2", gated=True),
        a_pod("web-3", node="node-a", phase="Pending", statuses=(PULLING,)),
        ready_pod("web-4"),
        ready_pod("web-5", draining_s=3),
        a_pod("web-6", phase="Failed"),
    ]
    progress = progress_of(pods, desired=5, listed={"uid-of-web-4"}, generation=7, before=WorkloadProgress())
    assert progress["stages"] == {
        "admitted": 1, "queued": 2, "scheduled": 0, "bound": 0, "starting": 1, "ready": 0, "serving": 1,
    }  # fmt: skip
    assert progress["pending"] == [
        {"stage": "admitted", "reason": "SchedulingGated", "count": 1},
        {"stage": "queued", "reason": "Unschedulable", "count": 2},
        {"stage": "starting", "reason": "ImagePullBackOff", "count": 1},
    ]
    assert progress["leaving"] == 1
    assert (progress["desired"], progress["observedGeneration"]) == (5, 7)


def test_a_reconcile_without_actions_keeps_the_last_action() -> None:
    before = WorkloadProgress(last_action="create web-3", last_action_time=ago(9), last_error="Forbidden: no quota")
    progress = progress_of([], desired=1, listed=(), generation=1, before=before)
    assert progress["lastAction"] == "create web-3"
    assert progress["lastActionTime"] == "2029-12-31T23:59:51Z"
    assert progress["lastError"] == "Forbidden: no quota"


def test_an_action_that_succeeds_clears_the_last_error() -> None:
    before = WorkloadProgress(last_action="create web-3", last_action_time=ago(9), last_error="Forbidden: no quota")
    progress = progress_of(
        [], desired=1, listed=(), generation=1, before=before, last_action=LastAction("create web-3", at=NOW)
    )
    assert progress["lastError"] is None
    assert progress["lastActionTime"] == "2030-01-01T00:00:00Z"


def test_a_deployment_sums_the_counts_of_its_replica_sets() -> None:
    one = WorkloadProgress(
        stages=StageCounts(queued=2, serving=1),
        leaving=1,
        pending=(PendingReason(stage="queued", reason="Quota", count=2),),
    )
    other = WorkloadProgress(
        stages=StageCounts(queued=1, ready=4), pending=(PendingReason(stage="queued", reason="Quota", count=1),)
    )
    total = sum_of_progress([one, other], desired=8, generation=3, before=WorkloadProgress(), deadline=NOW)
    assert total["stages"]["queued"] == 3
    assert (total["stages"]["ready"], total["stages"]["serving"], total["leaving"]) == (4, 1, 1)
    assert total["pending"] == [{"stage": "queued", "reason": "Quota", "count": 3}]
    assert total["deadline"] == "2030-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("stages", "desired", "statuses"),
    [
        ({}, 2, ("False", "WaitingForReplicas")),
        ({"queued": 1, "ready": 1}, 2, ("False", "WaitingForNodes")),
        ({"ready": 1}, 2, ("False", "WaitingForReplicas")),
        ({"bound": 1, "serving": 1}, 2, ("True", "AllBound")),
        ({"serving": 3}, 2, ("True", "AllBound")),
        ({"scheduled": 1, "serving": 2}, 2, ("False", "WaitingForNodes")),
        ({}, 0, ("True", "AllBound")),
    ],
)
def test_bound_is_true_when_all_requested_replicas_have_a_node(
    stages: dict[str, int], desired: int, statuses: tuple[str, str]
) -> None:
    bound, _ = stage_conditions({"stages": stages, "unknown": 0, "pending": []}, desired=desired)
    assert (bound["status"], bound["reason"]) == statuses


def test_a_replica_on_a_silent_node_is_unknown_beside_the_stages() -> None:
    pods = [ready_pod("web-0"), a_pod("web-1", node="node-a", phase="Running", conditions=(SILENT,))]
    progress = progress_of(pods, desired=2, listed=(), generation=1, before=WorkloadProgress())
    assert progress["unknown"] == 1
    assert sum(progress["stages"].values()) == 1
    assert progress["pending"] == [{"stage": "unknown", "reason": "NodeUnknown", "count": 1}]
    bound, _ = stage_conditions(progress, desired=2)
    assert bound["status"] == "True"  # it has a node


def test_progress_of_an_earlier_generation_leaves_the_retries_as_they_were() -> None:
    pods = [a_pod("web-0", conditions=(UNSCHEDULABLE,))]
    progress = progress_of(pods, desired=1, listed=(), generation=1, before=WorkloadProgress())
    (bound,) = stage_conditions(progress, desired=1, counted=False)
    assert bound["type"] == "Bound"


def test_the_conditions_carry_the_reason_and_message_of_the_scheduler() -> None:
    message = "0/3 nodes: 2 zone quota risk/zone-c, 1 cpu"
    refused = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=message)
    pods = [a_pod("web-0", conditions=(refused,)), a_pod("web-1", conditions=(UNSCHEDULABLE,))]
    progress = progress_of(pods, desired=2, listed=(), generation=1, before=WorkloadProgress())
    assert progress["pending"] == [{"stage": "queued", "reason": "Unschedulable", "count": 2, "message": message}]
    bound, retrying = stage_conditions(progress, desired=2)
    assert (retrying["status"], retrying["reason"], retrying["message"]) == ("True", "ZoneQuota", message)
    assert (bound["status"], bound["reason"], bound["message"]) == ("False", "WaitingForNodes", message)
    part = WorkloadProgress(pending=(PendingReason("queued", "Unschedulable", 2, message),))
    total = sum_of_progress([WorkloadProgress(), part], desired=2, generation=1, before=WorkloadProgress())
    assert total["pending"] == progress["pending"]

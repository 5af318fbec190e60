"""`kedge why` about objects that controllers reconcile: last decisions, inputs and wake-ups; and the stages of pods."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.kit.records import BEGAN, call, decision, made

from kedge.api.objects import Object
from kedge.keys import Key
from kedge.observe.readers.why import Answer, ClusterEvidence, RecordedWrite, why_object, why_pod, why_workload
from kedge.observe.readers.why.pod import stage_of
from kedge.observe.records import AdmittedWrite, AttemptChoice, CacheMark, Decision, PodRun, SchedulingAttempt

POD = Key("Pod", "default", "web-0")
OWNER = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-web", "controller": True}]
REPLICA_SET = made("ReplicaSet.apps", "web-a", 9, metadata={"ownerReferences": OWNER})


def deployment() -> Object:
    template = {"spec": {"containers": [{"name": "main", "image": "web"}]}}
    created = {"creationTimestamp": "2030-01-01T00:00:00Z"}
    return made("Deployment.apps", "web", 9, metadata=created, spec={"replicas": 2, "template": template})


def at(seconds: float, found: Decision) -> Decision:
    return msgspec.structs.replace(found, began=BEGAN + timedelta(seconds=seconds))


def evidence(objects: Sequence[Object], decisions: Sequence[Decision], *writes: RecordedWrite) -> ClusterEvidence:
    by_key = {each.key: [each] for each in writes}
    return ClusterEvidence({each.key: each for each in objects}, decisions, BEGAN + timedelta(seconds=60), by_key)


def lines(answer: Answer, label: str) -> list[str]:
    return [each.text for each in answer.evidence if each.label == label]


def refused(**fields: Any) -> Decision:
    """A reconcile whose write met a conflict, on an old cache of ReplicaSets."""
    conflict = msgspec.structs.replace(
        call(key=REPLICA_SET.key, outcome="Conflict"), error={"message": "web-a is at revision 9, not 7"}
    )
    defaults: dict[str, Any] = {
        "controller": "deployment", "uid": "uid-web", "attempt": 4, "waited_s": 1.5, "result": "failed",
        "error": "Conflict: web-a is at revision 9, not 7", "wakes": (("Deployment/default/web", "ada"),),
        "marks": (CacheMark("Deployment.apps", 1, 9, 0.1), CacheMark("ReplicaSet.apps", 2, 7, 3.2)),
    }  # fmt: skip
    return decision("deployment:p:4", [conflict], **{**defaults, **fields})


def test_a_deployment_that_its_controller_cannot_write_has_everything_about_that_decision() -> None:
    newer = RecordedWrite(REPLICA_SET.key, 9, BEGAN - timedelta(seconds=1), REPLICA_SET.origin)
    answer = why_workload(deployment(), evidence([deployment(), REPLICA_SET], [refused()], newer))
    (line,) = lines(answer, "decision")
    assert line == (
        "deployment:p:4 of deployment at 00:00:00, attempt 4, after 1.5 s in the queue:"
        " Conflict: web-a is at revision 9, not 7"
    )
    assert lines(answer, "age") == ["created 60 s before"]
    assert lines(answer, "refused") == ["web-a is at revision 9, not 7"]
    assert lines(answer, "inputs") == [
        "Deployment.apps at revision 9, 0.1 s old",
        "ReplicaSet.apps at revision 7, 3.2 s old; web-a was at 9 then, written by a writer without a name",
    ]
    assert lines(answer, "woken by") == ["Deployment/default/web, by ada"]
    assert lines(answer, "tried again on") == ["a retry after a delay"]


def test_a_failed_decision_comes_before_newer_ones_that_did_not() -> None:
    collected = at(5, decision("garbage:p:1", controller="garbage", uid="uid-web"))
    of_part = at(6, decision("replicaset:p:1", controller="replicaset", key=REPLICA_SET.key, result="requeue"))
    answer = why_workload(deployment(), evidence([deployment(), REPLICA_SET], [refused(), collected, of_part]))
    assert [each.partition(" at ")[0] for each in lines(answer, "decision")] == [
        "deployment:p:4 of deployment",
        "replicaset:p:1 of replicaset about ReplicaSet.apps/default/web-a",
        "garbage:p:1 of garbage",
    ]


def test_a_controller_that_writes_comes_before_a_newer_one_that_only_reads() -> None:
    wrote = decision("deployment:p:1", [call(revision=9, reply=(deployment(),))], controller="deployment")
    idle = at(1, decision("deployment:p:2", controller="deployment"))
    collected = at(5, decision("garbage:p:1", controller="garbage"))
    answer = why_workload(deployment(), evidence([deployment()], [wrote, idle, collected]))
    assert [each.partition(" ")[0] for each in lines(answer, "decision")] == ["deployment:p:2", "garbage:p:1"]


@pytest.mark.parametrize(
    ("result", "delay_s", "text"),
    [
        ("await change", None, "a change of an object that its controller watches"),
        ("requeue", 5.0, "a change of an object that its controller watches, or the end of a delay of 5.0 s"),
        ("terminal", None, "a change of the object: its controller does not try the same again"),
        ("cancelled", None, "the next start of its controller"),
    ],
)
def test_the_next_decision_follows_from_the_result_of_the_last(result: str, delay_s: float | None, text: str) -> None:
    last = decision("quota:p:1", controller="quota", key=Key("Namespace", "", "risk"), result=result, delay_s=delay_s)
    namespace = msgspec.structs.replace(made("Namespace", "risk", 5), key=last.key)
    answer = why_object(namespace, evidence([namespace], [last]))
    assert lines(answer, "tried again on") == [text]


def test_any_other_object_has_its_decision_and_inputs_and_no_later_changes() -> None:
    node = made("Node", "node-1", 30, metadata={"creationTimestamp": "2030-01-01T00:00:30Z"})
    marks = (CacheMark("Node", 1, 20, 0.5),)
    last = decision("node-lifecycle:p:1", controller="node-lifecycle", key=node.key, marks=marks)
    answer = why_object(node, evidence([node], [last]))
    assert lines(answer, "age") == ["created 30 s before"]
    assert lines(answer, "decision") == [
        "node-lifecycle:p:1 of node-lifecycle at 00:00:00, attempt 1, after 0.0 s in the queue"
    ]
    assert lines(answer, "inputs") == ["Node at revision 20, 0.5 s old"]


def test_attempts_reports_admission_and_agents_are_no_controllers() -> None:
    others = [
        decision("s:p:1", scheduling=SchedulingAttempt()),
        decision("s:p:2", part_of="s:p:1"),
        decision("admission:p:3", admission=AdmittedWrite("ada", (), "", 9, "")),
        decision("agent:p:4", pod_run=PodRun("node-1", "uid", 3)),
    ]
    assert lines(why_workload(deployment(), evidence([deployment()], others)), "decision") == []


def test_a_placed_pod_has_the_inputs_of_its_attempt_and_no_later_changes() -> None:
    choice = AttemptChoice("node-1", 470, 1, 3, "", "", False, ())  # noqa: FBT003  a record
    marks = (CacheMark("Node", 1, 20, 0.5), CacheMark("Pod", 2, 21, 0.0))
    last = decision("s:p:1", key=POD, scheduling=SchedulingAttempt(choice=choice), marks=marks)
    node, changed = made("Node", "node-1", 21), made("Node", "node-2", 30)
    pod = made("Pod", "web-0", 40, spec={"nodeName": "node-1"}, status={"phase": "Running"})
    assert lines(why_pod(pod, evidence([pod, node, changed], [last])), "inputs") == [
        "Node at revision 20, 0.5 s old; node-1 was at 21 then, written by a writer without a name",
        "Pod at revision 21, 0.0 s old",
    ]


# -- stages ------------------------------------------------------------------------------------------

READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
GATES = {"schedulingGates": [{"name": "kedge.dev/wait"}]}


@pytest.mark.parametrize(
    ("spec", "status", "stage", "text"),
    [
        (GATES, {}, "admitted", "admitted"),
        ({}, {}, "queued", "queued, no attempt was kept"),
        ({}, {"nominatedNodeName": "node-1"}, "scheduled", "scheduled, no attempt was kept"),
        ({"nodeName": "node-1"}, {"phase": "Pending"}, "bound", "bound to node-1, pending"),
        ({"nodeName": "node-1"}, READY, "serving", "serving, bound to node-1, running"),
        ({"nodeName": "node-1"}, {"phase": "Succeeded"}, "succeeded", "bound to node-1, succeeded"),
    ],
)
def test_a_pod_has_the_stage_that_progress_counts(
    spec: dict[str, Any], status: dict[str, Any], stage: str, text: str
) -> None:
    pod = made("Pod", "web-0", 5, spec=spec, status=status)
    endpoint = {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "web-0", "uid": "uid-web-0"}}
    serves = made("EndpointSlice.discovery.k8s.io", "web-x", 6, addressType="IPv4", endpoints=[endpoint])
    found = evidence([pod, serves], [])
    assert stage_of(pod, found.listed_uids()) == stage
    assert lines(why_pod(pod, found), "stage") == [text]


def test_a_workload_counts_the_pods_that_serve_and_does_not_explain_them() -> None:
    owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-a", "uid": "uid-web-a", "controller": True}]
    pods = [
        made("Pod", f"web-{n}", 5, metadata={"ownerReferences": owner}, spec={"nodeName": "node-1"}, status=READY)
        for n in range(3)
    ]
    target = {"kind": "Pod", "name": "web-1", "uid": "uid-web-1"}
    endpoints = [
        {"addresses": ["10.0.0.1"], "targetRef": target},
        {"addresses": ["10.0.0.2"], "targetRef": {**target, "uid": "uid-web-2"}, "conditions": {"ready": False}},
    ]
    serves = made("EndpointSlice.discovery.k8s.io", "web-x", 6, addressType="IPv4", endpoints=endpoints)
    answer = why_workload(deployment(), evidence([deployment(), REPLICA_SET, *pods, serves], []))
    assert lines(answer, "stages") == ["2 ready", "1 serving"]
    assert answer.parts == ()

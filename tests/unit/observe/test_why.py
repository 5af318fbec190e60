"""The reader behind `kedge why`: one sentence, a tier, then evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.kit.records import BEGAN, WEB, call, decision, made, pod

from kedge.api.objects import Object
from kedge.api.wellknown import BIND_ANNOTATION
from kedge.keys import Key, Origin
from kedge.observe.readers.recording import Recording
from kedge.observe.readers.why import (
    Answer,
    ClusterEvidence,
    RecordedWrite,
    Tier,
    evidence_of,
    why_gone,
    why_object,
    why_pod,
    why_workload,
    writes_of,
)
from kedge.observe.readers.why.inputs import KIND_OF_REASON
from kedge.observe.readers.why.placement import NEVER_ALONE, NODES_MAX
from kedge.observe.readers.why.workload import LATEST, PARTS_MAX
from kedge.observe.records import (
    PROCESS_ENDED,
    AttemptChoice,
    CacheMark,
    CommitRecord,
    CoverageRecord,
    Decision,
    EmptyNodes,
    NearestNode,
    NodeAccount,
    SchedulingAttempt,
    ScoredNode,
    StoreState,
    WakeCause,
    cut_off_record,
)
from kedge.placement.reasons import BLOCKER_LABELS, Reason

POD = Key("Pod", "default", "web-0")
QUOTA = Key("ZoneQuota.kedge.dev", "default", "risk")


def pod_of(name: str = "web-0", *, node: str = "", ready: bool = False, owner: str = "", **status: Any) -> Object:
    metadata: dict[str, Any] = {}
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
        ]
    spec = {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})}
    state = {"conditions": [{"type": "Ready", "status": "True"}] if ready else [], **status}
    return made("Pod", name, 5, metadata=metadata, spec=spec, status=state)


def evidence(
    objects: Iterable[Object] = (), decisions: Sequence[Decision] = (), writes: Iterable[RecordedWrite] = ()
) -> ClusterEvidence:
    by_key: dict[Key, list[RecordedWrite]] = {}
    for each in writes:
        by_key.setdefault(each.key, []).append(each)
    return ClusterEvidence({each.key: each for each in objects}, decisions, BEGAN + timedelta(seconds=60), by_key)


REASONS = {"cpu": Reason.RESOURCE, **{label: reason for reason, label in BLOCKER_LABELS.items()}}


def reasons_of(counts: Iterable[str]) -> tuple[str, ...]:
    """The codes of blockers that are written as the scheduler writes them."""
    return tuple(next(code for label, code in REASONS.items() if each.startswith(label)) for each in counts)


def attempt(
    counts: Mapping[str, int],
    *,
    marks: Sequence[CacheMark] = (),
    node: str | None = None,
    empty: EmptyNodes | None = None,
    **fields: Any,
) -> Decision:
    """A scheduling attempt about `POD` that found these blockers, or chose `node`."""
    nodes = sum(counts.values()) + (node is not None)
    near = NearestNode("node-c12", next(iter(counts)), 300) if counts else None
    top = (ScoredNode(node, 470, {"spread": 100}), ScoredNode("node-z", 400, {"spread": 30})) if node else ()
    scheduling = SchedulingAttempt(
        choice=AttemptChoice(node, 470, int(node is not None), nodes, "scheduler-policy", "v4", False, ()),  # noqa: FBT003  a record
        account=NodeAccount(b"", tuple(counts), dict(counts), top, near, reasons_of(counts), empty),
        unblocked_by=("room", "quota"),
        **fields,
    )
    return decision(
        "default-scheduler:p:1",
        controller="default-scheduler",
        key=POD,
        uid="uid-web-0",
        attempt=3,
        waited_s=0.25,
        marks=tuple(marks),
        wakes=(("pod gone", ""),),
        scheduling=scheduling,
    )


def lines(answer: Answer, label: str) -> list[str]:
    return [each.text for each in answer.evidence if each.label == label]


@pytest.mark.parametrize(
    ("restarts", "sentence"),
    [
        (0, "web-0 is running on node-1"),
        (1, "web-0 is running on node-1; it was restarted once"),
        (2, "web-0 is running on node-1; it was restarted 2 times"),
    ],
)
def test_restarts_are_counted_in_words(restarts: int, sentence: str) -> None:
    statuses = [{"name": "main", "restartCount": restarts}]
    answer = why_pod(pod_of(node="node-1", ready=True, phase="Running", containerStatuses=statuses), evidence())
    assert (answer.sentence, answer.tier) == (sentence, Tier.FINE)
    assert lines(answer, "decision") == ["it was created with the name of its node"]


def test_a_pod_that_was_bound_lacks_its_record_and_one_created_on_a_node_has_none() -> None:
    status, spec = {"phase": "Running"}, {"containers": [{"name": "main"}], "nodeName": "node-1"}
    for notes, expected in (
        (
            {BIND_ANNOTATION: "{}"},
            "the decision that placed it has no record here: it was cut off, or counted and not kept",
        ),
        ({}, "it was created with the name of its node"),
    ):
        found = made("Pod", "web-0", 5, metadata={"annotations": notes}, spec=spec, status=status)
        assert lines(why_pod(found, evidence()), "decision") == [expected]


def test_a_pod_on_a_node_that_does_not_exist_has_that_in_its_first_sentence() -> None:
    nodes = frozenset({"node-2"})
    lost = pod_of(node="node-1", phase="Pending")
    answer = why_pod(lost, replace(evidence(), node_names=nodes))
    assert answer.sentence == (
        "web-0 names the node node-1, which does not exist: register that node, or create the pod again without"
        " spec.nodeName"
    )
    assert answer.tier is Tier.MISCONFIGURED
    assert why_pod(lost, evidence()).sentence == "web-0 is pending on node-1", "a node may be unknown and exist"
    assert "does not exist" not in why_pod(pod_of(node="node-2"), replace(evidence(), node_names=nodes)).sentence
    ended = pod_of(node="node-1", phase="Succeeded")
    assert why_pod(ended, replace(evidence(), node_names=nodes)).sentence == "web-0 is succeeded on node-1"
    bound = made("Pod", "web-0", 5, metadata={"annotations": {BIND_ANNOTATION: "{}"}}, spec={"nodeName": "node-1"})
    answer = why_pod(bound, replace(evidence(), node_names=nodes))
    assert (
        answer.sentence == "web-0 names the node node-1, which does not exist: it was bound there, and the node is gone"
    )
    assert answer.tier is Tier.BROKEN


def test_a_recording_knows_every_node_only_with_the_state_that_it_begins_with() -> None:
    node = made("Node", "node-1", 3)
    whole = Recording(states=[StoreState(3, BEGAN, (node,))])
    assert evidence_of(whole).node_names == frozenset({"node-1"})
    assert evidence_of(Recording()).node_names is None


def test_an_attempt_that_was_cut_off_is_named_as_such() -> None:
    cut = cut_off_record(msgspec.structs.replace(attempt({"cpu": 2}, node="node-b7"), result=""), PROCESS_ENDED)
    answer = why_pod(pod_of(), evidence(decisions=[cut]))
    assert answer.sentence.endswith("node-b7 was chosen, and then: its process ended before the outcome was known")
    (line,) = lines(answer, "decision")
    assert line.endswith("; cut off: its process ended")
    (coverage,) = lines(answer, "coverage")
    assert ": 1 cut off; " in coverage


def test_a_placed_pod_has_the_points_of_its_node_and_of_the_runners_up() -> None:
    answer = why_pod(pod_of(node="node-b7", phase="Running"), evidence(decisions=[attempt({"cpu": 2}, node="node-b7")]))
    assert lines(answer, "chosen") == ["with score 470 of 1 feasible nodes, 3 in all"]
    assert lines(answer, "scores") == ["node-b7 470: spread 100", "node-z 400: spread 30"]
    assert lines(answer, "policy") == ["scheduler-policy version v4"]


def test_a_pending_pod_has_every_node_and_the_nearest_and_what_wakes_it() -> None:
    answer = why_pod(pod_of(), evidence(decisions=[attempt({"topology spread": 8, "cpu": 4})]))
    assert answer.sentence == "web-0 is pending: none of 12 nodes fits: 8 topology spread, 4 cpu"
    assert answer.tier is Tier.WAITING
    assert lines(answer, "nodes") == ["8: topology spread", "4: cpu"]
    assert lines(answer, "now or never") == []
    assert lines(answer, "nearest") == ["node-c12, but for topology spread"]
    assert lines(answer, "tried again on") == ["room, quota"]
    assert lines(answer, "woken by") == ["pod gone"]
    assert "attempt 3, after 0.2 s in the queue" in lines(answer, "decision")[0]
    assert lines(answer, "stage") == ["queued, 3 attempts"]


def test_a_pod_that_only_people_can_help_is_misconfigured() -> None:
    blocked = evidence(decisions=[attempt({"node selector": 3, "taint dedicated": 1})])
    assert why_pod(pod_of(), blocked).tier is Tier.MISCONFIGURED
    mixed = evidence(decisions=[attempt({"node selector": 3, "cpu": 1})])
    assert why_pod(pod_of(), mixed).tier is Tier.WAITING


def test_a_decision_on_an_old_quota_cache_is_named_as_the_cause() -> None:
    """The worked example of the lesson on observability: quota was freed, and the scheduler had not seen it yet."""
    quota = made("ZoneQuota.kedge.dev", "risk", 918_946, "quota:p:9")
    stale = attempt({"zone quota risk/zone-c": 4}, marks=[CacheMark(QUOTA.kind, 7, 918_812, 8.9)])
    freed = RecordedWrite(QUOTA, 918_946, BEGAN - timedelta(seconds=1), Origin("", "quota:p:9"))
    answer = why_pod(pod_of(), evidence([quota], [stale], [freed]))
    assert "was already at revision 918946, by quota, and the cache was at 918812" in answer.sentence
    assert "wait for the scheduler to catch up" in answer.sentence
    assert lines(answer, "inputs") == [
        "ZoneQuota.kedge.dev at revision 918812, 8.9 s old; risk was at 918946 then, written by quota"
    ]


def test_a_quota_that_was_freed_after_the_last_decision_is_named_too() -> None:
    quota = made("ZoneQuota.kedge.dev", "risk", 918_946, "quota:p:9")
    fresh = attempt({"zone quota risk/zone-c": 4}, marks=[CacheMark(QUOTA.kind, 7, 918_812, 0.1)])
    freed = RecordedWrite(QUOTA, 918_946, BEGAN + timedelta(seconds=1), Origin("", "quota:p:9"))
    answer = why_pod(pod_of(), evidence([quota], [fresh], [freed]))
    assert "old cache" not in answer.sentence
    assert "ZoneQuota risk has changed since, at revision 918946, by quota" in answer.sentence
    assert lines(answer, "inputs")[0].endswith("risk has changed since, at 918946, by quota")


def test_a_write_of_a_person_has_the_name_of_its_user() -> None:
    quota = made("ZoneQuota.kedge.dev", "risk", 918_946)
    quota = msgspec.structs.replace(quota, origin=Origin("", "", "ada"))
    fresh = attempt({"zone quota risk/zone-c": 4}, marks=[CacheMark(QUOTA.kind, 7, 918_812, 0.1)])
    answer = why_pod(pod_of(), evidence([quota], [fresh]))
    assert "ZoneQuota risk has changed since, at revision 918946, by ada" in answer.sentence


def test_a_node_that_changed_after_the_decision_is_no_cause() -> None:
    node = made("Node", "node-1", 30)
    later = evidence([node], [attempt({"cpu": 4}, marks=[CacheMark("Node", 7, 20, 0.1)])])
    assert why_pod(pod_of(), later).sentence == "web-0 is pending: none of 4 nodes fits: 4 cpu"


def test_a_preempted_pod_names_its_preemptor() -> None:
    by = attempt({"cpu": 1}, nominated_node="node-1", victims=("Pod/default/other",))
    answer = why_pod(pod_of("other", node="node-1"), evidence(decisions=[by]))
    assert lines(answer, "preempted")[0].startswith("by Pod/default/web-0 at ")


@pytest.mark.parametrize(
    ("reason", "tier"),
    [
        ("CrashLoopBackOff", Tier.BROKEN),
        ("CreateContainerConfigError", Tier.MISCONFIGURED),
        ("ContainerCreating", Tier.WAITING),
    ],
)
def test_a_container_that_does_not_run_decides_the_tier(reason: str, tier: Tier) -> None:
    waiting = [{"name": "main", "state": {"waiting": {"reason": reason, "message": "no command"}}}]
    answer = why_pod(pod_of(node="node-1", containerStatuses=waiting), evidence())
    assert answer.tier is tier
    assert answer.sentence == f"web-0 is on node-1 and does not run: container main: {reason} (no command)"


def test_a_condition_about_an_earlier_generation_states_both() -> None:
    conditions = [{"type": "RepairComplete", "status": "True", "reason": "Done", "observedGeneration": 41}]
    workload = made(
        "Deployment.apps",
        "web",
        9,
        metadata={"generation": 42},
        spec={"replicas": 0},
        status={"observedGeneration": 41, "conditions": conditions},
    )
    answer = why_workload(workload, evidence())
    assert lines(answer, "conditions") == [
        "RepairComplete=True (Done), generation 41 of 42: it is about an earlier declaration"
    ]
    assert lines(answer, "generation") == ["42 desired, 41 observed by its controller"]
    assert "has not seen generation 42 yet" in answer.sentence


def test_a_workload_explains_the_pods_that_it_owns_and_no_others() -> None:
    workload = made("Deployment.apps", "web", 9, spec={"replicas": 9}, status={"readyReplicas": 1})
    owner = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "uid-web", "controller": True}]
    replica_set = made("ReplicaSet.apps", "web-a", 9, metadata={"ownerReferences": owner})
    pods = [pod_of(f"web-{n}", owner="web-a", ready=not n, node="node-1" if not n else "") for n in range(8)]
    stranger = pod_of("web-api-0", owner="web-api")
    autoscaler = made(
        "HorizontalPodAutoscaler.autoscaling",
        "web",
        9,
        spec={"scaleTargetRef": {"kind": "Deployment", "name": "web"}},
        status={
            "desiredReplicas": 9,
            "currentReplicas": 8,
            "conditions": [{"type": "ScalingHeldBack", "status": "True", "reason": "LowReady"}],
        },
    )
    answer = why_workload(workload, evidence([replica_set, *pods, stranger, autoscaler]))
    assert answer.sentence == ("web has 1 of 9 replicas ready; web-1 waits for its first attempt to be scheduled")
    assert lines(answer, "stages") == ["7 queued", "1 ready"]
    assert [each.about for each in answer.parts] == [f"Pod/default/web-{n}" for n in range(1, 1 + PARTS_MAX)]
    assert lines(answer, "more") == ["2 other pods are not ready"]
    assert lines(answer, "autoscaler") == ["web wants 9 of 8", "ScalingHeldBack=True (LowReady)"]
    assert not any(lines(part, "coverage") for part in answer.parts)


def test_a_healthy_workload_has_its_latest_decisions() -> None:
    decisions = []
    versions = []
    for revision, ready in enumerate((0, 1, 2, 3), 1):
        name = f"deployments:{revision}"
        found = made(
            "Deployment.apps",
            "web",
            revision,
            name,
            spec={"replicas": 3, "template": {"spec": {"containers": [{"name": "main", "image": "web"}]}}},
            status={
                "readyReplicas": ready,
                "conditions": [{"type": "Bound", "status": "False", "reason": f"R{ready}"}],
            },
        )
        versions.append(found)
        written = call(key=WEB, revision=revision, reply=(found,))
        decisions.append(decision(name, [written], began=BEGAN + timedelta(seconds=revision)))
    answer = why_workload(versions[-1], evidence(decisions=decisions))
    assert (answer.sentence, answer.tier) == ("web is as declared: 3 of 3 replicas are ready", Tier.FINE)
    latest = lines(answer, "latest")
    assert latest[-1].endswith("deployments: Deployment web Bound=False (R3)"), latest
    assert 1 < len(latest) <= LATEST
    assert lines(why_workload(versions[-1], evidence()), "latest") == []


def test_decisions_of_other_generations_are_left_out_on_request() -> None:
    decisions = [decision(f"d-{n}", generation=n, error=f"failed {n}") for n in (41, 42)]
    workload = made("Deployment.apps", "web", 9, spec={"replicas": 0})
    everything = evidence(decisions=decisions)
    assert lines(why_workload(workload, everything), "last failure")[0].endswith("failed 42")
    assert lines(why_workload(workload, everything.of_generation(WEB, 41)), "last failure")[0].endswith("failed 41")


def test_a_recording_gives_the_state_at_its_end_and_the_time_of_each_write() -> None:
    old, new, gone = pod("a", 3), pod("a", 7), pod("b", 4)
    recording = Recording(
        states=[StoreState(4, BEGAN, (old, gone))],
        commits=[
            CommitRecord(7, BEGAN + timedelta(seconds=1), (new,)),
            CommitRecord(8, BEGAN + timedelta(seconds=2), (), (gone.key,)),
        ],
        undecoded=["one section is of another build"],
    )
    found = evidence_of(recording)
    assert found.objects == {new.key: new}
    assert found.now == BEGAN + timedelta(seconds=2)
    assert [(each.revision, each.at) for each in found.writes[new.key]] == [(7, BEGAN + timedelta(seconds=1))]
    assert found.missing == ("one section is of another build",)


def test_a_recording_can_be_asked_about_an_earlier_revision() -> None:
    old, new = pod("a", 3), pod("a", 7)
    early, late = (decision(f"d-{n}", began=BEGAN + timedelta(seconds=n)) for n in (0, 5))
    commits = [CommitRecord(7, BEGAN + timedelta(seconds=1), (new,)), CommitRecord(9, BEGAN + timedelta(seconds=6), ())]
    recording = Recording(states=[StoreState(4, BEGAN, (old,))], commits=commits, decisions=[early, late])
    assert evidence_of(recording, revision=6).objects == {old.key: old}
    then = evidence_of(recording, revision=7)
    assert (then.objects, then.decisions) == ({new.key: new}, [early])
    assert evidence_of(recording).decisions == [early, late]


def test_writes_of_decisions_are_dated_by_their_replies() -> None:
    found = pod("a", 7)
    made_by = decision("d-1", [call(key=found.key, revision=7, reply=(found,)), call(outcome="Conflict", revision=9)])
    (write,) = writes_of([made_by])[found.key]
    assert (write.revision, write.origin) == (7, found.origin)
    assert write.at == BEGAN + timedelta(seconds=0.1 + 0.2)


def test_an_answer_is_text_with_each_label_once_and_a_document_with_its_kind() -> None:
    answer = why_pod(pod_of(), evidence(decisions=[attempt({"topology spread": 8, "cpu": 4})]))
    text = answer.text().splitlines()
    assert text[0] == answer.sentence
    assert sum(line.startswith("  nodes ") for line in text) == 1
    assert text[-1].startswith("  coverage")
    document = answer.document()
    assert (document["kind"], document["tier"], document["about"]) == ("Explanation", "waiting", "Pod/default/web-0")
    assert {"label": "nodes", "text": "4: cpu"} in document["evidence"]
    assert msgspec.json.decode(msgspec.json.encode(document)) == document


# -- now or never, nodes, gangs, preemption, other kinds ------------------------------------------------


def test_the_codes_that_decide_tiers_are_the_placement_layer_s() -> None:
    assert {Reason(each) for each in (*NEVER_ALONE, *KIND_OF_REASON)} <= set(Reason)


def test_a_pod_that_fits_on_no_node_even_if_empty_is_misconfigured_although_it_asks_only_for_cpu() -> None:
    never = EmptyNodes(0, {"cpu": 3}, (Reason.RESOURCE,))
    answer = why_pod(pod_of(), evidence(decisions=[attempt({"cpu": 3}, empty=never)]))
    assert answer.tier is Tier.MISCONFIGURED
    assert lines(answer, "now or never") == ["never: on none of 3 nodes, even if all were empty: 3 cpu"]


@pytest.mark.parametrize(
    ("empty", "text"),
    [
        (EmptyNodes(3, {}, ()), "not now: it would fit on each of 3 nodes if they were empty"),
        (
            EmptyNodes(1, {"taint": 2}, (Reason.TAINT,)),
            "not now: it would fit on 1 of 3 nodes if they were empty, and not on the others: 2 taint",
        ),
        (
            EmptyNodes(0, {"cordoned": 3}, (Reason.NODE_CORDONED,)),
            "not as they are: on none of 3 nodes, even if all were empty: 3 cordoned",
        ),
    ],
)
def test_a_pod_that_would_fit_on_empty_nodes_waits(empty: EmptyNodes, text: str) -> None:
    answer = why_pod(pod_of(), evidence(decisions=[attempt({"cpu": 3}, empty=empty)]))
    assert (answer.tier, lines(answer, "now or never")) == (Tier.WAITING, [text])


def with_nodes(found: Decision, first_failing: bytes) -> Decision:
    assert found.scheduling is not None
    assert found.scheduling.account is not None
    found.scheduling.account = msgspec.structs.replace(found.scheduling.account, first_failing=first_failing)
    return found


def test_every_node_is_named_under_its_first_blocker_and_many_are_counted() -> None:
    nodes = [made("Node", f"node-{n:02}", 3) for n in range(14)]
    found = with_nodes(attempt({"cpu": 12, "taint": 2}), bytes([1] * 12 + [2, 2]))
    answer = why_pod(pod_of(), evidence(nodes, [found]))
    named = ", ".join(f"node-{n:02}" for n in range(NODES_MAX))
    assert lines(answer, "nodes") == [f"12: cpu ({named}, and 2 more)", "2: taint (node-12, node-13)"]
    answer = why_pod(pod_of(), evidence(nodes[:5], [found]))
    assert lines(answer, "nodes")[-1] == "their names are not known: nodes were added or removed since the decision"


def test_a_recording_names_the_nodes_of_the_time_of_the_decision() -> None:
    found = with_nodes(attempt({"cpu": 2}, marks=[CacheMark("Node", 1, 4, 0.1)]), b"\x01\x01")
    old = [made("Node", name, 3) for name in ("node-a", "node-b")]
    recording = Recording(
        states=[StoreState(4, BEGAN, (*old, pod_of()))],
        commits=[CommitRecord(9, BEGAN, (made("Node", "node-c", 9),), (old[0].key,))],
        decisions=[found],
    )
    assert lines(why_pod(pod_of(), evidence_of(recording)), "nodes") == ["2: cpu (node-a, node-b)"]


def gang_member(name: str) -> Object:
    return made("Pod", name, 5, metadata={"labels": {"kedge.dev/gang": "crew"}}, spec={"containers": [{"name": "m"}]})


def test_the_member_that_holds_a_gang_back_is_named_in_the_first_sentence_of_the_others() -> None:
    small, large = (gang_member(name) for name in ("web-1", "web-0"))
    answer = why_pod(small, evidence([small, large], [attempt({"cpu": 3})]))
    assert answer.sentence == "web-1 is pending: web-0 holds gang crew back: none of 3 nodes fits: 3 cpu"
    own = why_pod(large, evidence([small, large], [attempt({"cpu": 3})]))
    assert own.sentence == "web-0 is pending: none of 3 nodes fits: 3 cpu"
    assert lines(own, "gang") == ["crew: web-0 holds 1 other members back: none of 3 nodes fits: 3 cpu"]
    placed = [attempt({"cpu": 3}), attempt({}, node="node-1")]
    assert lines(why_pod(small, evidence([small, large], placed)), "gang") == []


def test_a_preempted_pod_that_ends_or_is_gone_names_its_preemptor_first() -> None:
    by = attempt({"cpu": 1}, nominated_node="node-1", victims=("Pod/default/other",))
    ending = made(
        "Pod", "other", 5, metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"}, spec={"nodeName": "node-1"}
    )
    answer = why_pod(ending, evidence(decisions=[by]))
    assert answer.sentence == "other is ending on node-1: Pod/default/web-0 preempted it"
    gone = why_gone(Key("Pod", "default", "other"), evidence(decisions=[by]))
    assert gone is not None
    assert gone.sentence == "other is gone: Pod/default/web-0 preempted it on node-1 at 00:00:00"
    assert why_gone(Key("Pod", "default", "stranger"), evidence(decisions=[by])) is None


def test_a_wake_up_names_the_change_and_its_writer() -> None:
    woken = attempt({"cpu": 3}, cause=WakeCause(QUOTA, 7, "quota"))
    woken.wakes = (("a quota changed", "quota"),)
    answer = why_pod(pod_of(), evidence(decisions=[woken]))
    assert lines(answer, "woken by") == ["a quota changed: ZoneQuota.kedge.dev/default/risk at revision 7, by quota"]


def test_a_pod_without_a_record_has_the_reason_of_the_scheduler_s_condition() -> None:
    conditions = [{"type": "PodScheduled", "status": "False", "message": "gang crew: 1 of 3 members"}]
    waiting = made("Pod", "web-0", 5, spec={"containers": [{"name": "m"}]}, status={"conditions": conditions})
    assert why_pod(waiting, evidence()).sentence == "web-0 is pending: gang crew: 1 of 3 members"


def test_a_replica_set_and_a_job_are_explained_with_their_pods() -> None:
    replica_set = made("ReplicaSet.apps", "web-a", 9, spec={"replicas": 2}, status={"readyReplicas": 1})
    pods = [pod_of(f"web-{n}", owner="web-a", ready=not n, node="node-1" if not n else "") for n in range(2)]
    answer = why_workload(replica_set, evidence([replica_set, *pods]))
    assert answer.sentence == "web-a has 1 of 2 replicas ready; web-1 waits for its first attempt to be scheduled"
    runs = made("Job.batch", "sums", 9, spec={"completions": 3}, status={"succeeded": 1, "active": 2})
    assert why_workload(runs, evidence()).sentence == "sums runs: 1 of 3 pods have succeeded, 2 are active"
    failed = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
    broken = made("Job.batch", "sums", 9, spec={"completions": 3}, status={"conditions": failed})
    answer = why_workload(broken, evidence())
    assert answer.sentence == "sums has failed: BackoffLimitExceeded; 0 of 3 pods have succeeded"
    assert answer.tier is Tier.BROKEN
    ended = [{"type": "Complete", "status": "True"}]
    complete = made("Job.batch", "sums", 9, spec={"completions": 3}, status={"succeeded": 3, "conditions": ended})
    assert why_workload(complete, evidence()).tier is Tier.FINE


def test_any_other_object_has_its_conditions_and_its_last_failure() -> None:
    node = made("Node", "node-1", 5, status={"conditions": [{"type": "Ready", "status": "False", "reason": "Silent"}]})
    assert why_object(node, evidence()).sentence == "Node node-1 is not Ready: Silent"
    quota = made("ZoneQuota.kedge.dev", "risk", 5)
    failed = decision("quota:p:1", controller="quota", key=QUOTA, uid="uid-risk", error="Conflict: it moved")
    answer = why_object(quota, evidence(decisions=[failed]))
    assert answer.sentence == "the last decision about ZoneQuota risk failed: Conflict: it moved"
    assert answer.tier is Tier.BROKEN
    assert why_object(quota, evidence()).tier is Tier.FINE


def test_the_coverage_has_counts_by_rule_the_sample_rate_and_what_was_not_kept() -> None:
    kept = [decision("d-1", kept="failure: Conflict"), decision("d-2", kept="sample")]
    covered = [CoverageRecord("p", BEGAN, BEGAN, n, {"failure": 1, "sample": 1}, 100) for n in (300, 402)]
    found = ClusterEvidence({}, kept, BEGAN, coverages=covered)
    assert found.coverage() == (
        "2 decisions kept from 2030-01-01 00:00:00 to 00:00:00: 1 by failure, 1 by sample;"
        " of 402 that ended since 2030-01-01 00:00:00, 400 were counted and not kept;"
        " 1 in 100 of those that no other rule keeps is a sample"
    )

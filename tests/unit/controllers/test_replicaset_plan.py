"""The plan of a ReplicaSet: which pods it creates, drains, resumes, deletes, releases and sweeps."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.pod_histories import PodModel
from tests.kit.pod_views import NOW, a_pod, ready_pod

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.views import Condition, PodView, ReplicaSetView
from kedge.api.views.base import Labels, ObjectMeta
from kedge.api.views.core import PodTemplate
from kedge.api.views.workloads import ReplicaSetSpec
from kedge.controllers.replicaset.plan import ReplicaRules, plan_replicas
from kedge.controllers.replicaset.status import replica_counts
from kedge.controllers.shared.kinds import POD
from kedge.controllers.shared.pods import in_deletion_order
from kedge.controllers.shared.replicas import lost_status
from kedge.keys import Key


def plan(want: int, *pods: PodView, **more: Any) -> Any:
    rules = {name: more.pop(name) for name in ("burst", "drain_s", "min_ready_s", "ghosts") if name in more}
    return plan_replicas(ReplicaRules(want, **rules), pods, now=NOW, **more)


def names(pods: Any) -> list[str]:
    return [pod.name for pod in pods]


# -- making ----------------------------------------------------------------------------------------


def test_missing_pods_are_created() -> None:
    assert plan(3, ready_pod("web-0")).create == ("", "")
    assert plan(1, ready_pod("web-0")).silent


def test_a_burst_is_bounded_and_shows_that_there_is_more() -> None:
    made = plan(100, burst=10)
    assert len(made.create) == 10
    assert made.curtailed
    assert not plan(10, burst=10).curtailed


@pytest.mark.parametrize("leaving", [{"terminating": True}, {"draining_s": 1}, {"conditions": ()}])
def test_a_copy_that_may_still_run_is_not_replaced(leaving: dict[str, Any]) -> None:
    """Draining, stopping, or on a suspect node: it counts until its end is recorded."""
    found = plan(1, ready_pod("web-0", **leaving), listed={"uid-of-web-0"})
    assert found.create == ()


def test_an_ended_pod_is_replaced_by_one_that_names_its_uid() -> None:
    found = plan(2, ready_pod("web-0"), a_pod("web-1", phase="Failed"))
    assert found.create == ("uid-of-web-1",)
    assert found.sweep == ()


def test_an_ended_pod_is_swept_once_its_replacement_names_it() -> None:
    found = plan(2, ready_pod("web-0"), a_pod("web-1", phase="Failed"), a_pod("web-2", replaces="uid-of-web-1"))
    assert found.create == ()
    assert names(found.sweep) == ["web-1"]


def test_an_ended_pod_that_is_already_replaced_is_not_named_again() -> None:
    found = plan(
        3,
        a_pod("web-0", phase="Failed", age_s=500),
        a_pod("web-1", phase="Failed", age_s=300),
        a_pod("web-2", replaces="uid-of-web-0"),
    )
    assert found.create == ("uid-of-web-1", "")


def test_an_ended_pod_that_waits_for_its_finalizers_is_not_deleted_again() -> None:
    assert plan(0, a_pod("web-0", phase="Failed", terminating=True, grace_s=0, finalizers=("x",))).silent
    assert names(plan(0, a_pod("web-0", phase="Failed", terminating=True, grace_s=30)).sweep) == ["web-0"]


def test_ghosts_hold_a_replacement_back() -> None:
    assert plan(2, ready_pod("web-0"), ghosts=1).create == ()
    assert plan(2, ready_pod("web-0"), ghosts=0).create == ("",)


# -- a lost node -----------------------------------------------------------------------------------


def test_a_lost_pod_is_released_first_and_replaced_only_when_that_is_recorded() -> None:
    found = plan(1, ready_pod("web-0", lost=True))
    assert names(found.release) == ["web-0"]
    assert found.create == ()
    after = plan(1, a_pod("web-0", phase="Failed", lost=True))
    assert after.release == ()
    assert after.create == ("uid-of-web-0",)


def test_suspicion_releases_nothing() -> None:
    unknown = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
    assert plan(1, a_pod("web-0", node="node-a", conditions=(unknown,))).silent


def test_a_lost_pod_counts_as_surplus() -> None:
    found = plan(1, ready_pod("web-0"), ready_pod("web-1", lost=True))
    assert names(found.release) == ["web-1"]
    assert (found.drain, found.delete) == ((), ())


# -- surplus ---------------------------------------------------------------------------------------


def test_pods_with_work_drain_and_others_are_deleted_at_once() -> None:
    found = plan(1, ready_pod("web-0"), ready_pod("web-1", ready_s=5), a_pod("web-2"))
    assert names(found.delete) == ["web-2"]
    assert names(found.drain) == ["web-1"]


def test_a_draining_pod_is_deleted_when_no_slice_lists_it() -> None:
    pods = (ready_pod("web-0"), ready_pod("web-1", draining_s=1))
    assert plan(1, *pods, listed={"uid-of-web-1"}).delete == ()
    assert names(plan(1, *pods, listed={"uid-of-web-0"}).delete) == ["web-1"]


def test_a_draining_pod_is_deleted_when_its_drained_condition_is_true() -> None:
    done = Condition(type="Drained", status="True")
    pod = ready_pod("web-0", draining_s=1, conditions=(done,))
    assert names(plan(0, pod, listed={"uid-of-web-0"}).delete) == ["web-0"]


def test_a_draining_pod_is_deleted_when_its_drain_time_is_over() -> None:
    pod = ready_pod("web-0", draining_s=4)
    waiting = plan(0, pod, listed={"uid-of-web-0"}, drain_s=10)
    assert waiting.silent
    assert waiting.requeue_at == NOW + timedelta(seconds=6)
    assert names(plan(0, pod, listed={"uid-of-web-0"}, drain_s=4).delete) == ["web-0"]


def test_a_draining_pod_that_is_needed_again_is_resumed() -> None:
    found = plan(2, ready_pod("web-0"), ready_pod("web-1", draining_s=1), listed={"uid-of-web-1"})
    assert names(found.resume) == ["web-1"]
    assert (found.create, found.delete) == ((), ())


def test_times_in_the_far_future_do_not_block() -> None:
    marked = ready_pod("web-0", draining_s=-86_400)
    assert names(plan(0, marked, listed={"uid-of-web-0"}).drain) == ["web-0"]
    assert plan(1, ready_pod("web-0", ready_s=-86_400), min_ready_s=10).requeue_at is None


def test_a_held_pod_is_neither_drained_nor_deleted_nor_released_nor_swept() -> None:
    pods = (
        ready_pod("web-0"),
        ready_pod("web-1", draining_s=100),
        ready_pod("web-2", lost=True),
        a_pod("web-3", phase="Failed"),
    )
    assert plan(0, *pods, held={pod.uid for pod in pods}).silent


ORDERED = [
    a_pod("unassigned"),
    a_pod("pending", node="b", phase="Pending"),
    a_pod("unknown", node="b", phase="Unknown"),
    a_pod("not-ready", node="b"),
    ready_pod("not-yet-available", node="b", ready_s=5, cost="9"),
    ready_pod("cheap", node="b", cost="-1"),
    ready_pod("crowded", node="a"),
    ready_pod("crowded-too", node="a", age_s=200),
    ready_pod("just-ready", node="c", ready_s=50),
    ready_pod("restarted", node="d", restarts=3),
    ready_pod("young", node="e", age_s=70),
    ready_pod("old", node="f", age_s=7000),
]


@given(st.permutations(ORDERED))
def test_a_surplus_is_deleted_in_deletion_order(pods: list[PodView]) -> None:
    siblings = [pod for pod in pods if pod.spec.node_name != "b"]
    given_up = in_deletion_order(pods, siblings=siblings, min_ready_s=10, now=NOW)
    assert names(given_up) == names(ORDERED)


def test_siblings_of_other_replica_sets_make_a_node_crowded() -> None:
    pods = [ready_pod("web-0", node="a", age_s=500), ready_pod("web-1", node="b", age_s=100)]
    others = [ready_pod("old-0", node="a")]
    assert names(plan(1, *pods, siblings=[*pods, *others]).drain) == ["web-0"]
    assert names(plan(1, *pods).drain) == ["web-1"]


# -- status ----------------------------------------------------------------------------------------


def test_status_counts_replicas_that_neither_drain_nor_terminate() -> None:
    template = PodTemplate(metadata=ObjectMeta(labels=Labels({"app": "web", "tier": "front"})))
    replica_set = ReplicaSetView(spec=ReplicaSetSpec(replicas=4, template=template, min_ready_seconds=10))
    pods = [
        ready_pod("web-0", labels={"app": "web", "tier": "front", "more": "x"}),
        ready_pod("web-1", ready_s=3),
        a_pod("web-2"),
        ready_pod("web-3", draining_s=1),
        ready_pod("web-4", terminating=True),
        a_pod("web-5", phase="Failed"),
    ]
    assert replica_counts(replica_set, pods, NOW) == {
        "replicas": 3,
        "fullyLabeledReplicas": 1,
        "readyReplicas": 2,
        "availableReplicas": 1,
        "terminatingReplicas": 2,
    }


def test_the_plan_requeues_when_a_pod_becomes_available() -> None:
    assert plan(1, ready_pod("web-0", ready_s=3), min_ready_s=10).requeue_at == NOW + timedelta(seconds=7)


# -- properties ------------------------------------------------------------------------------------


def disturb(world: PodModel, chance: Random) -> None:
    """One event of one pod: it starts, becomes ready, stops, fails, is deleted, or is lost with its node."""
    pod = world.pods[chance.choice(sorted(world.pods))]
    match chance.randrange(8):
        case 0 | 1 | 2 if pod.runs:
            pod.node, pod.phase = pod.node or chance.choice("ab"), "Running"
            if chance.random() < 0.7:
                pod.ready_at = pod.ready_at or world.now
                world.listed.add(pod.uid)
        case 3 | 4 if pod.terminating and not pod.lost:
            del world.pods[pod.name]
        case 5:
            pod.phase, pod.ready_at = "Failed", None
        case 6 if pod.node and pod.runs:
            pod.lost = chance.random() < 0.5
        case 7 if pod.node and chance.random() < 0.5:
            pod.terminating = True


@settings(max_examples=300)
@given(st.integers(0, 2**32).map(Random))
def test_there_are_never_more_pods_than_requested_and_finally_as_many(chance: Random) -> None:
    world, rules = PodModel(), ReplicaRules(chance.randint(0, 5), burst=3)
    for _ in range(40):
        for _ in range(chance.randint(0, 3)):
            if world.pods:
                disturb(world, chance)
        if chance.random() < 0.2:
            rules = ReplicaRules(chance.randint(0, 5), burst=3)
        world.now += timedelta(seconds=chance.choice([0, 1, 20]))
        copies, ready = len(world.running()), len([pod for pod in world.ready() if not pod.lost])
        replaced = {pod.replaces for pod in world.pods.values() if pod.replaces}
        plan = world.plan(rules)
        made = world.slots(plan)
        world.apply(plan, made)
        assert len(world.running()) <= max(copies, rules.want), "it made more copies than are wanted"
        assert len(world.ready()) >= min(ready, rules.want), "it gave up a ready replica that was needed"
        assert not replaced.intersection(plan.create), "it replaced a pod twice"
        before = world.views()
        world.apply(plan, made)
        assert world.views() == before, "carried out twice, it did something twice"
    world.settle(rules)
    assert len(world.ready()) == len(world.pods) == rules.want
    assert world.plan(rules).silent


@pytest.mark.parametrize("types", [("Ready",), ("ContainersReady", "Ready")])
def test_the_status_of_a_lost_pod_has_the_generation_that_was_read(types: tuple[str, ...]) -> None:
    known = {"status": "True", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    metadata = {"name": "web-0", "namespace": "default", "uid": "u-1", "generation": 2}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {}}
    body["status"] = {"conditions": [{"type": each, **known} for each in types]}
    lost = Object(POD, Key("Pod", "default", "web-0"), encode_object(body), revision=7, created=1)
    written = lost_status(lost, NOW)["status"]["conditions"]
    assert [(each["type"], each["status"], each["observedGeneration"]) for each in written] == [
        (each, "False", 2) for each in types
    ]

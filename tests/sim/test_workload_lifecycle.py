"""The visible behaviour of workloads, step by step, without faults: real service, real controllers, virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.controllers import replica_set
from tests.kit.workload_harness import WorkloadHarness, without_faults
from tests.kit.workload_manifests import BATCH, JOB, WEB, batch, image, web
from tests.objects import DEPLOYMENT, POD, RESOURCE_QUOTA, deployment, pod, resource_quota

from kedge.api.conditions import is_true
from kedge.api.holds import Hold
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, WriteOptions
from kedge.api.wellknown import AT_MOST_ONE, AVAILABILITY_FLOOR, DISRUPTION_TARGET, DRAINING, NODE_LOST, REPLACES
from kedge.controllers.shared.templates import template_digest, template_hash, template_of
from kedge.keys import Key

REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")


# -- Deployments -----------------------------------------------------------------------------------


@without_faults
async def test_undoing_a_rollout_reuses_the_old_replica_set_and_moves_its_revision_up(
    harness: WorkloadHarness,
) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    await harness.service.patch(WEB, image("web:2"))
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == 3)
    assert harness.web().metadata.annotations["deployment.kubernetes.io/revision"] == "2"
    await harness.service.patch(WEB, image("web:1"))
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:1")) == 3)
    await harness.silence()
    assert len(harness.sets()) == 2
    revisions = sorted(each.metadata.annotations["deployment.kubernetes.io/revision"] for each in harness.sets())
    assert revisions == ["2", "3"]
    assert harness.web().metadata.annotations["deployment.kubernetes.io/revision"] == "3"
    observed = harness.condition("RollbackObserved")
    assert observed is not None
    assert observed.status == "True"
    assert observed.message == "revision 3 is what revision 1 was"
    assert observed.observed_generation == harness.web().generation


@without_faults
async def test_a_paused_rollout_continues_only_when_it_is_resumed(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    await harness.service.patch(WEB, {"spec": {"paused": True}})
    await harness.service.patch(WEB, image("web:2"))
    await asyncio.sleep(30)
    assert len(harness.sets()) == 1
    progressing = harness.condition("Progressing")
    assert progressing is not None
    assert (progressing.status, progressing.reason) == ("Unknown", "DeploymentPaused")
    await harness.service.patch(WEB, {"spec": {"replicas": 4}})
    await harness.until(lambda: len(harness.serving("web:1")) == 4)  # it still scales
    await harness.service.patch(WEB, {"spec": {"paused": False}})
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == 4)


@without_faults
async def test_a_rollout_whose_pods_never_start_exceeds_its_deadline_and_the_old_pods_stay(
    harness: WorkloadHarness,
) -> None:
    body = web(3, surge=1, unavailable=0)
    body["spec"]["progressDeadlineSeconds"] = 60
    await harness.service.create(DEPLOYMENT, body)
    await harness.until(harness.is_done)
    harness.nodes.starts = lambda found: found.view.spec.containers[0].image != "web:2"
    await harness.service.patch(WEB, image("web:2"))
    await harness.until(lambda: (c := harness.condition("Progressing")) is not None and c.status == "False")
    progressing = harness.condition("Progressing")
    assert progressing is not None
    assert progressing.reason == "ProgressDeadlineExceeded"
    assert len(harness.serving("web:1")) == 3
    progress = harness.web().status.progress
    assert (progress.stages.serving, progress.stages.starting + progress.stages.bound) == (3, 1)
    await harness.silence()
    await harness.service.patch(WEB, image("web:3"))
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:3")) == 3)
    progressing = harness.condition("Progressing")
    assert progressing is not None
    assert progressing.status == "True"


@without_faults
async def test_old_replica_sets_beyond_the_history_limit_are_deleted(harness: WorkloadHarness) -> None:
    body = web(2, surge=1, unavailable=1)
    body["spec"]["revisionHistoryLimit"] = 1
    await harness.service.create(DEPLOYMENT, body)
    for n in (2, 3, 4):
        await harness.service.patch(WEB, image(f"web:{n}"))
        await harness.until(lambda n=n: harness.is_done() and len(harness.serving(f"web:{n}")) == 2)  # type: ignore[misc]
    await harness.until(lambda: len(harness.sets()) == 2)
    await harness.silence()
    images = {each.view.spec.template.spec.containers[0].image for each in harness.sets()}
    assert images == {"web:3", "web:4"}


@pytest.mark.parametrize(("replicas", "at_most_one"), [(1, False), (3, False), (2, True)])
@pytest.mark.parametrize("recreate", [True, False])
def test_a_rollback_keeps_the_last_available_replica(replicas: int, at_most_one: bool, recreate: bool) -> None:
    """The template that it returns to does not start any more: without the floor no replica would be left."""

    @without_faults
    async def program(harness: WorkloadHarness) -> None:
        body = deployment("web", replicas=replicas)
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}
        body["spec"]["strategy"] = {"type": "Recreate"} if recreate else rolling
        if at_most_one:
            body["spec"]["template"]["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
        await harness.service.create(DEPLOYMENT, body)
        await harness.until(harness.is_done)
        first = harness.web().spec.template.spec.containers[0].image
        await harness.service.patch(WEB, image("web:2"))
        await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == replicas)
        harness.nodes.starts = lambda _: False
        await harness.service.patch(WEB, image(first))
        await harness.until(lambda: (c := harness.condition("AvailabilityFloor")) is not None and c.status == "True")
        await asyncio.sleep(120)
        assert len(harness.serving("web:2")) == 1
        assert len(harness.reader.pods()) <= max(2, replicas)  # only a single replica gets a copy more
        harness.nodes.starts = lambda _: True
        await harness.until(lambda: harness.is_done() and len(harness.serving(first)) == replicas)
        await harness.until(lambda: (c := harness.condition("AvailabilityFloor")) is not None and c.status == "False")
        await harness.service.patch(WEB, {"metadata": {"annotations": {AVAILABILITY_FLOOR: "off"}}, **image("web:2")})
        harness.nodes.starts = lambda _: False
        await harness.until(lambda: not harness.serving())

    program()


@without_faults
async def test_recreate_ends_all_old_replicas_before_a_new_one_starts(harness: WorkloadHarness) -> None:
    body = deployment("web", replicas=3)
    body["spec"]["strategy"] = {"type": "Recreate"}
    await harness.service.create(DEPLOYMENT, body)
    await harness.until(harness.is_done)

    def one_revision(_: object) -> Any:
        images = {each.view.spec.containers[0].image for each in harness.reader.pods() if not each.view.finished}
        if len(images) > 1:
            yield "two revisions at once", str(images)

    harness.sim.check_always(one_revision)
    await harness.service.patch(WEB, image("web:2"))
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == 3)


@without_faults
async def test_a_replica_set_of_another_owner_keeps_its_name(harness: WorkloadHarness) -> None:
    body = web(1, surge=1, unavailable=0)
    shown = (await harness.service.create(DEPLOYMENT, body, options=WriteOptions(dry_run=True))).object
    name = f"web-{template_hash(template_digest(template_of(shown)), 0)}"
    foreign = replica_set(name, 0)
    await harness.service.create(REPLICA_SET, foreign)
    await harness.service.create(DEPLOYMENT, body)
    await harness.until(harness.is_done)
    assert harness.web().status.collision_count == 1
    assert len(harness.sets()) == 2
    left = harness.reader.get(Key(REPLICA_SET.key_kind, "default", name))
    assert left is not None
    assert not left.metadata.owner_references
    await harness.silence()


@without_faults
async def test_a_held_deployment_is_left_alone_until_the_hold_expires(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(2, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    until = harness.sim.driver.env().now() + timedelta(seconds=90)
    name, text = Hold("deployment", "ada", "looking into the leak", until).annotation()
    await harness.service.patch(WEB, {"metadata": {"annotations": {name: text}}})
    await harness.service.patch(WEB, image("web:2"))
    await harness.until(lambda: (c := harness.condition("Held")) is not None and c.status == "True")
    await asyncio.sleep(60)
    assert len(harness.sets()) == 1
    held = harness.condition("Held")
    assert held is not None
    assert "ada" in held.message
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == 2)
    held = harness.condition("Held")
    assert held is not None
    assert held.status == "False"
    await harness.silence()


# -- ReplicaSets -----------------------------------------------------------------------------------


@without_faults
async def test_surplus_leaves_the_endpoints_before_it_is_deleted(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(lambda: harness.is_done() and harness.web().status.progress.stages.serving == 3)
    marked: list[str] = []

    def drained_first(_: object) -> Any:
        (listing,) = harness.reader.objects("EndpointSlice.discovery.k8s.io")
        listed = {endpoint.target_ref.uid for endpoint in listing.view.endpoints}
        for each in harness.reader.pods():
            if DRAINING in each.metadata.annotations and each.uid not in marked:
                marked.append(each.uid)
            if each.view.terminating and each.uid in listed:
                yield "deleted while listed", str(each)

    harness.sim.check_always(drained_first)
    await harness.service.patch(WEB, {"spec": {"replicas": 1}})
    await harness.until(harness.is_done)
    assert len(marked) == 2


@without_faults
async def test_a_lost_replica_is_released_and_replaced_once_by_one_that_names_it(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    lost = harness.reader.pods()[0]
    target = {"type": DISRUPTION_TARGET, "status": "True", "reason": NODE_LOST}
    conditions = [*lost.edit()["status"]["conditions"], target]
    await harness.service.patch(lost.key, {"status": {"conditions": conditions}}, subresource="status")
    await harness.until(lambda: harness.is_done() and lost.uid not in {each.uid for each in harness.reader.pods()})
    replacements = [each for each in harness.reader.pods() if each.metadata.annotations.get(REPLACES) == lost.uid]
    assert len(replacements) == 1
    (owner,) = harness.sets()
    await harness.until(lambda: is_true(harness.sets()[0].view.status.conditions, "RepairComplete"))
    assert owner.uid == harness.sets()[0].uid
    await harness.silence()


@without_faults
async def test_a_pod_whose_labels_change_is_released_and_a_matching_orphan_is_adopted(
    harness: WorkloadHarness,
) -> None:
    await harness.service.create(DEPLOYMENT, web(2, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    stray = harness.reader.pods()[0]
    await harness.service.patch(stray.key, {"metadata": {"labels": {"app": "stray"}}})
    await harness.until(lambda: len(harness.reader.pods()) == 3)
    now = harness.reader.get(stray.key)
    assert now is not None
    assert now.uid == stray.uid
    assert not now.metadata.owner_references
    await harness.service.patch(stray.key, {"metadata": {"labels": {"app": "web"}}})
    await harness.until(harness.is_done)  # adopted again, so there is a surplus, which is deleted
    await harness.silence()


@without_faults
async def test_an_at_most_one_pod_waits_for_the_end_of_a_pod_deleted_by_force(
    harness: WorkloadHarness,
) -> None:
    body = web(1, surge=0, unavailable=1)
    body["spec"]["template"]["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    await harness.service.create(DEPLOYMENT, body)
    await harness.until(harness.is_done)
    (gone,) = harness.reader.pods()
    await harness.service.delete(gone.key, DeleteOptions(grace_s=0))
    await asyncio.sleep(60)
    assert harness.reader.pods() == [], "a second copy was made while the first may still run"
    node = harness.reader.get(Key("Node", "", gone.view.spec.node_name))
    assert node is not None
    await harness.service.confirm_ended(node=node.key.name, node_uid=node.uid, pod_uid=gone.uid)
    await harness.until(harness.is_done)


@without_faults
async def test_an_at_most_one_pod_of_a_job_waits_for_the_end_of_the_pod_before_it(harness: WorkloadHarness) -> None:
    """Its finalizer is removed and the pod is deleted by force: only the claim on the node shows that it runs."""
    body = batch(completions=1, parallelism=1)
    body["spec"]["template"]["metadata"] = {"annotations": {AT_MOST_ONE: "true"}}
    await harness.service.create(JOB, body)
    await harness.until(lambda: [each for each in harness.reader.pods() if each.view.spec.node_name])
    (gone,) = harness.reader.pods()
    node = harness.reader.get(Key("Node", "", gone.view.spec.node_name))
    assert node is not None
    await harness.service.patch(gone.key, {"metadata": {"finalizers": None}})
    await harness.service.delete(gone.key, DeleteOptions(grace_s=0))
    await asyncio.sleep(60)
    assert harness.reader.pods() == []
    await harness.service.confirm_ended(node=node.key.name, node_uid=node.uid, pod_uid=gone.uid)
    await harness.until(lambda: len(harness.reader.pods()) == 1)


@without_faults
async def test_a_slot_whose_last_pod_may_still_run_stays_taken(harness: WorkloadHarness) -> None:
    body = web(2, surge=0, unavailable=1)
    body["spec"]["template"]["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    await harness.service.create(DEPLOYMENT, body)
    await harness.until(harness.is_done)
    first, second = harness.reader.pods()
    for each in (first, second):
        await harness.service.delete(each.key, DeleteOptions(grace_s=0))
    node = harness.reader.get(Key("Node", "", second.view.spec.node_name))
    assert node is not None
    await harness.service.confirm_ended(node=node.key.name, node_uid=node.uid, pod_uid=second.uid)
    await asyncio.sleep(60)
    assert [each.key for each in harness.reader.pods()] == [second.key], "one has ended, and it is not the first"


@without_faults
async def test_a_refusal_is_shown_until_there_is_room_again(harness: WorkloadHarness) -> None:
    await harness.service.create(RESOURCE_QUOTA, resource_quota(pods="2"))
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(lambda: (c := harness.condition("ReplicaFailure")) is not None and c.status == "True")
    failure = harness.condition("ReplicaFailure")
    assert failure is not None
    assert failure.reason == "Forbidden"
    assert len(harness.reader.pods()) == 2
    assert harness.sets()[0].view.status.progress.last_error.startswith("Forbidden")
    await harness.service.patch(Key("ResourceQuota", "default", "limits"), {"spec": {"hard": {"pods": "9"}}})
    await harness.until(harness.is_done)
    await harness.until(lambda: (c := harness.condition("ReplicaFailure")) is not None and c.status == "False")
    await harness.silence()


@without_faults
async def test_a_slot_with_a_foreign_pod_is_skipped(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(1, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    (owner,) = harness.sets()
    foreign = pod(f"{owner.key.name}-1")
    foreign["metadata"]["labels"] = {"app": "other"}
    await harness.service.create(POD, foreign)
    await harness.service.patch(WEB, {"spec": {"replicas": 2}})
    await harness.until(lambda: harness.web().status.available_replicas == 2)
    names = [each.key.name.rpartition("-")[2] for each in harness.reader.pods()]
    assert names == ["0", "1", "2"]


# -- Jobs ------------------------------------------------------------------------------------------


def job_status(harness: WorkloadHarness) -> Any:
    found = harness.reader.get(BATCH)
    return None if found is None else found.view.status


@without_faults
async def test_a_finished_job_is_deleted_after_its_time_to_live_and_its_pods_have_no_finalizer(
    harness: WorkloadHarness,
) -> None:
    await harness.service.create(JOB, batch(completions=3, parallelism=2, ttlSecondsAfterFinished=30))
    await harness.until(lambda: is_true(job_status(harness).conditions, "Complete"))
    assert job_status(harness).succeeded == 3
    assert job_status(harness).completion_time is not None
    await harness.until(lambda: harness.reader.get(BATCH) is None)
    assert not any(each.metadata.finalizers for each in harness.reader.pods())


@without_faults
async def test_a_job_that_fails_too_often_stops_with_a_condition(harness: WorkloadHarness) -> None:
    harness.nodes.phase_of = lambda _: "Failed"
    await harness.service.create(JOB, batch(completions=3, parallelism=1, backoffLimit=2))
    await harness.until(lambda: is_true(job_status(harness).conditions, "Failed"), within_s=600)
    failed = harness.condition("Failed", BATCH)
    assert failed is not None
    assert failed.reason == "BackoffLimitExceeded"
    assert job_status(harness).failed == 3
    await harness.silence()


@without_faults
async def test_a_suspended_job_stops_and_continues_when_resumed(harness: WorkloadHarness) -> None:
    harness.nodes.phase_of = lambda _: "Running"
    await harness.service.create(JOB, batch(completions=4, parallelism=2))
    await harness.until(lambda: len(harness.reader.pods()) == 2)
    await harness.service.patch(BATCH, {"spec": {"suspend": True}})
    await harness.until(
        lambda: is_true(job_status(harness).conditions, "Suspended") and job_status(harness).active == 0
    )
    assert job_status(harness).start_time is None
    harness.nodes.phase_of = lambda _: "Succeeded"
    await harness.service.patch(BATCH, {"spec": {"suspend": False}})
    await harness.until(lambda: is_true(job_status(harness).conditions, "Complete"), within_s=600)
    assert job_status(harness).succeeded == 4


@without_faults
async def test_a_job_that_runs_too_long_is_ended(harness: WorkloadHarness) -> None:
    harness.nodes.phase_of = lambda _: "Running"
    await harness.service.create(JOB, batch(completions=1, parallelism=1, activeDeadlineSeconds=30))
    await harness.until(lambda: is_true(job_status(harness).conditions, "Failed"))
    failed = harness.condition("Failed", BATCH)
    assert failed is not None
    assert failed.reason == "DeadlineExceeded"
    assert job_status(harness).active == 0


@without_faults
async def test_an_indexed_job_runs_each_index_with_its_number(harness: WorkloadHarness) -> None:
    seen: dict[str, int] = {}

    def fail_first(found: Object) -> str:
        (variable,) = found.view.spec.containers[0].env
        seen[variable.value] = seen.get(variable.value, 0) + 1
        return "Failed" if variable.value == "1" and seen["1"] == 1 else "Succeeded"

    harness.nodes.phase_of = fail_first
    await harness.service.create(JOB, batch(completions=4, parallelism=2, completionMode="Indexed"))
    await harness.until(lambda: is_true(job_status(harness).conditions, "Complete"), within_s=300)
    assert job_status(harness).completed_indexes == "0-3"
    assert (job_status(harness).succeeded, job_status(harness).failed) == (4, 1)
    assert seen == {"0": 1, "1": 2, "2": 1, "3": 1}


@without_faults
async def test_the_pods_of_a_deleted_job_have_no_finalizer(harness: WorkloadHarness) -> None:
    harness.nodes.phase_of = lambda _: "Running"
    await harness.service.create(JOB, batch(completions=2, parallelism=2))
    await harness.until(lambda: len(harness.reader.pods()) == 2)
    await harness.service.delete(BATCH, DeleteOptions(propagation="Background"))
    await harness.until(lambda: not any(each.metadata.finalizers for each in harness.reader.pods()))


@without_faults
async def test_a_pod_of_a_job_that_a_service_lists_counts_as_serving(harness: WorkloadHarness) -> None:
    harness.nodes.phase_of = lambda _: "Running"  # it runs on
    await harness.service.create(JOB, batch(completions=1))
    await harness.until(lambda: [pod for pod in harness.reader.pods() if pod.view.status.phase == "Running"])
    (pod,) = harness.reader.pods()
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Started"}]}
    await harness.service.patch(pod.key, {"status": ready}, subresource="status")

    def stages() -> Any:
        found = harness.reader.get(BATCH)
        assert found is not None
        return found.view.status.progress.stages

    await harness.until(lambda: stages().serving == 1)
    assert stages().ready == 0
    await harness.silence()

"""What people see of workloads, step by step, without faults: real service, real controllers, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any

from tests.objects import DEPLOYMENT, POD, RESOURCE_QUOTA, deployment, pod, resource_quota
from tests.sim.controllers import replica_set, written
from tests.sim.test_workloads import BATCH, JOB, WEB, batch, image, web
from tests.sim.workloads import Hands, Manager, Reader, is_serving, stage

from kedge.api.conditions import find_condition, is_true
from kedge.api.holds import Hold
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, WriteOptions
from kedge.api.views import Condition
from kedge.api.wellknown import AT_MOST_ONE, DISRUPTION_TARGET, DRAINING, NODE_LOST, REPLACES
from kedge.controllers.shared.templates import template_digest, template_hash, template_of
from kedge.keys import Key
from kedge.server.service import Service
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation, run

REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")


@dataclass
class Scene:
    """A calm cluster with one process of workload controllers."""

    sim: Simulation
    cluster: Cluster
    hands: Hands
    reader: Reader

    @property
    def service(self) -> Service:
        return self.cluster.authority

    async def until(self, goal: Callable[[], Any], *, within_s: float = 120.0) -> None:
        async with asyncio.timeout(within_s):
            while not goal():  # noqa: ASYNC110  what it waits for is in a store, which has no event for it
                await asyncio.sleep(0.25)

    async def silence(self) -> None:
        """Nobody writes any more."""
        await asyncio.sleep(20)
        before = written(self.cluster)
        await asyncio.sleep(60)
        assert written(self.cluster) == before, written(self.cluster) - before

    def web(self) -> Any:
        found = self.reader.get(WEB)
        assert found is not None
        return found.view

    def condition(self, type_: str, key: Key = WEB) -> Condition | None:
        found = self.reader.get(key)
        return None if found is None else find_condition(found.view.status.conditions, type_)

    def sets(self) -> list[Object]:
        return self.reader.objects("ReplicaSet.apps")

    def serving(self, name: str = "") -> list[Object]:
        pods = [each for each in self.reader.pods() if is_serving(each)]
        return [each for each in pods if not name or each.view.spec.containers[0].image == name]

    def is_done(self) -> bool:
        status = self.web().status
        want = self.web().spec.replicas
        return bool(
            status.observed_generation == self.web().generation
            and status.updated_replicas == status.available_replicas == status.replicas == want
            and len(self.reader.pods()) == want
        )


Story = Callable[[Scene], Coroutine[Any, Any, None]]


def calm(story: Story) -> Callable[[], None]:
    """Run a story once, without faults; what it raises fails the test."""

    async def program(sim: Simulation) -> None:
        sim.heal()
        cluster = await stage(sim)
        hands = Hands(cluster)
        sim.host("manager").boot(Manager(sim, cluster).start)
        working = asyncio.create_task(hands.run())
        await story(Scene(sim, cluster, hands, Reader(cluster.store)))
        working.cancel()

    @wraps(story)
    def test() -> None:
        outcome = run(program, 1)
        assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"

    del test.__wrapped__  # pytest would ask for the story's argument
    return test


# -- Deployments -----------------------------------------------------------------------------------


@calm
async def test_undoing_a_rollout_uses_the_old_replica_set_again_and_moves_its_revision_up(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    await scene.service.patch(WEB, image("web:2"))
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:2")) == 3)
    assert scene.web().metadata.annotations["deployment.kubernetes.io/revision"] == "2"
    await scene.service.patch(WEB, image("web:1"))
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:1")) == 3)
    await scene.silence()
    assert len(scene.sets()) == 2
    revisions = sorted(each.metadata.annotations["deployment.kubernetes.io/revision"] for each in scene.sets())
    assert revisions == ["2", "3"]
    assert scene.web().metadata.annotations["deployment.kubernetes.io/revision"] == "3"
    observed = scene.condition("RollbackObserved")
    assert observed is not None
    assert observed.status == "True"
    assert observed.message == "revision 3 is what revision 1 was"
    assert observed.observed_generation == scene.web().generation


@calm
async def test_a_paused_rollout_moves_only_when_it_is_resumed(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    await scene.service.patch(WEB, {"spec": {"paused": True}})
    await scene.service.patch(WEB, image("web:2"))
    await asyncio.sleep(30)
    assert len(scene.sets()) == 1
    progressing = scene.condition("Progressing")
    assert progressing is not None
    assert (progressing.status, progressing.reason) == ("Unknown", "DeploymentPaused")
    await scene.service.patch(WEB, {"spec": {"replicas": 4}})
    await scene.until(lambda: len(scene.serving("web:1")) == 4)  # it still scales
    await scene.service.patch(WEB, {"spec": {"paused": False}})
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:2")) == 4)


@calm
async def test_a_rollout_whose_pods_never_start_is_called_stuck_and_the_old_ones_go_on(scene: Scene) -> None:
    body = web(3, surge=1, unavailable=0)
    body["spec"]["progressDeadlineSeconds"] = 60
    await scene.service.create(DEPLOYMENT, body)
    await scene.until(scene.is_done)
    scene.hands.starts = lambda found: found.view.spec.containers[0].image != "web:2"
    await scene.service.patch(WEB, image("web:2"))
    await scene.until(lambda: (c := scene.condition("Progressing")) is not None and c.status == "False")
    progressing = scene.condition("Progressing")
    assert progressing is not None
    assert progressing.reason == "ProgressDeadlineExceeded"
    assert len(scene.serving("web:1")) == 3
    progress = scene.web().status.progress
    assert (progress.stages.serving, progress.stages.starting + progress.stages.bound) == (3, 1)
    await scene.silence()
    await scene.service.patch(WEB, image("web:3"))
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:3")) == 3)
    progressing = scene.condition("Progressing")
    assert progressing is not None
    assert progressing.status == "True"


@calm
async def test_only_so_many_old_replica_sets_are_kept(scene: Scene) -> None:
    body = web(2, surge=1, unavailable=1)
    body["spec"]["revisionHistoryLimit"] = 1
    await scene.service.create(DEPLOYMENT, body)
    for n in (2, 3, 4):
        await scene.service.patch(WEB, image(f"web:{n}"))
        await scene.until(lambda n=n: scene.is_done() and len(scene.serving(f"web:{n}")) == 2)  # type: ignore[misc]
    await scene.until(lambda: len(scene.sets()) == 2)
    await scene.silence()
    images = {each.view.spec.template.spec.containers[0].image for each in scene.sets()}
    assert images == {"web:3", "web:4"}


@calm
async def test_recreate_ends_all_old_replicas_before_a_new_one_begins(scene: Scene) -> None:
    body = deployment("web", replicas=3)
    body["spec"]["strategy"] = {"type": "Recreate"}
    await scene.service.create(DEPLOYMENT, body)
    await scene.until(scene.is_done)

    def one_revision(_: object) -> Any:
        images = {each.view.spec.containers[0].image for each in scene.reader.pods() if not each.view.finished}
        if len(images) > 1:
            yield "two revisions at once", str(images)

    scene.sim.check_always(one_revision)
    await scene.service.patch(WEB, image("web:2"))
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:2")) == 3)


@calm
async def test_a_name_that_another_has_is_left_to_it(scene: Scene) -> None:
    body = web(1, surge=1, unavailable=0)
    shown = (await scene.service.create(DEPLOYMENT, body, options=WriteOptions(dry_run=True))).object
    name = f"web-{template_hash(template_digest(template_of(shown)), 0)}"
    foreign = replica_set(name, 0)
    await scene.service.create(REPLICA_SET, foreign)
    await scene.service.create(DEPLOYMENT, body)
    await scene.until(scene.is_done)
    assert scene.web().status.collision_count == 1
    assert len(scene.sets()) == 2
    left = scene.reader.get(Key(REPLICA_SET.key_kind, "default", name))
    assert left is not None
    assert not left.metadata.owner_references
    await scene.silence()


@calm
async def test_a_held_deployment_is_left_alone_until_the_hold_ends_by_itself(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(2, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    until = scene.sim.driver.env().now() + timedelta(seconds=90)
    name, text = Hold("deployment", "ada", "looking into the leak", until).annotation()
    await scene.service.patch(WEB, {"metadata": {"annotations": {name: text}}})
    await scene.service.patch(WEB, image("web:2"))
    await scene.until(lambda: (c := scene.condition("Held")) is not None and c.status == "True")
    await asyncio.sleep(60)
    assert len(scene.sets()) == 1
    held = scene.condition("Held")
    assert held is not None
    assert "ada" in held.message
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:2")) == 2)
    held = scene.condition("Held")
    assert held is not None
    assert held.status == "False"
    await scene.silence()


# -- ReplicaSets -----------------------------------------------------------------------------------


@calm
async def test_surplus_leaves_the_endpoints_before_it_is_deleted(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(lambda: scene.is_done() and scene.web().status.progress.stages.serving == 3)
    marked: list[str] = []

    def drained_first(_: object) -> Any:
        (listing,) = scene.reader.objects("EndpointSlice.discovery.k8s.io")
        listed = {endpoint.target_ref.uid for endpoint in listing.view.endpoints}
        for each in scene.reader.pods():
            if DRAINING in each.metadata.annotations and each.uid not in marked:
                marked.append(each.uid)
            if each.view.terminating and each.uid in listed:
                yield "deleted while listed", str(each)

    scene.sim.check_always(drained_first)
    await scene.service.patch(WEB, {"spec": {"replicas": 1}})
    await scene.until(scene.is_done)
    assert len(marked) == 2


@calm
async def test_a_lost_replica_is_released_and_replaced_once_by_one_that_names_it(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    lost = scene.reader.pods()[0]
    target = {"type": DISRUPTION_TARGET, "status": "True", "reason": NODE_LOST}
    conditions = [*lost.edit()["status"]["conditions"], target]
    await scene.service.patch(lost.key, {"status": {"conditions": conditions}}, subresource="status")
    await scene.until(lambda: scene.is_done() and lost.uid not in {each.uid for each in scene.reader.pods()})
    replacements = [each for each in scene.reader.pods() if each.metadata.annotations.get(REPLACES) == lost.uid]
    assert len(replacements) == 1
    (owner,) = scene.sets()
    await scene.until(lambda: is_true(scene.sets()[0].view.status.conditions, "RepairComplete"))
    assert owner.uid == scene.sets()[0].uid
    await scene.silence()


@calm
async def test_a_pod_whose_labels_change_is_let_go_alive_and_one_that_fits_is_taken_in(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(2, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    stray = scene.reader.pods()[0]
    await scene.service.patch(stray.key, {"metadata": {"labels": {"app": "stray"}}})
    await scene.until(lambda: len(scene.reader.pods()) == 3)
    now = scene.reader.get(stray.key)
    assert now is not None
    assert now.uid == stray.uid
    assert not now.metadata.owner_references
    await scene.service.patch(stray.key, {"metadata": {"labels": {"app": "web"}}})
    await scene.until(scene.is_done)  # taken in again, and one too many: the surplus goes
    await scene.silence()


@calm
async def test_a_pod_that_asks_for_at_most_one_waits_for_the_end_of_one_deleted_by_force(scene: Scene) -> None:
    body = web(1, surge=0, unavailable=1)
    body["spec"]["template"]["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    await scene.service.create(DEPLOYMENT, body)
    await scene.until(scene.is_done)
    (gone,) = scene.reader.pods()
    await scene.service.delete(gone.key, DeleteOptions(grace_s=0))
    await asyncio.sleep(60)
    assert scene.reader.pods() == [], "a second copy was made while the first may still run"
    node = scene.reader.get(Key("Node", "", gone.view.spec.node_name))
    assert node is not None
    await scene.service.confirm_ended(node=node.key.name, node_uid=node.uid, pod_uid=gone.uid)
    await scene.until(scene.is_done)


@calm
async def test_a_slot_whose_last_pod_may_still_run_is_not_given_to_another(scene: Scene) -> None:
    body = web(2, surge=0, unavailable=1)
    body["spec"]["template"]["metadata"]["annotations"] = {AT_MOST_ONE: "true"}
    await scene.service.create(DEPLOYMENT, body)
    await scene.until(scene.is_done)
    first, second = scene.reader.pods()
    for each in (first, second):
        await scene.service.delete(each.key, DeleteOptions(grace_s=0))
    node = scene.reader.get(Key("Node", "", second.view.spec.node_name))
    assert node is not None
    await scene.service.confirm_ended(node=node.key.name, node_uid=node.uid, pod_uid=second.uid)
    await asyncio.sleep(60)
    assert [each.key for each in scene.reader.pods()] == [second.key], "one has ended, and it is not the first"


@calm
async def test_a_refusal_is_told_and_forgotten_when_there_is_room_again(scene: Scene) -> None:
    await scene.service.create(RESOURCE_QUOTA, resource_quota(pods="2"))
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(lambda: (c := scene.condition("ReplicaFailure")) is not None and c.status == "True")
    failure = scene.condition("ReplicaFailure")
    assert failure is not None
    assert failure.reason == "Forbidden"
    assert len(scene.reader.pods()) == 2
    assert scene.sets()[0].view.status.progress.last_error.startswith("Forbidden")
    await scene.service.patch(Key("ResourceQuota", "default", "limits"), {"spec": {"hard": {"pods": "9"}}})
    await scene.until(scene.is_done)
    await scene.until(lambda: (c := scene.condition("ReplicaFailure")) is not None and c.status == "False")
    await scene.silence()


@calm
async def test_a_foreign_pod_in_a_slot_is_passed_by(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(1, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    (owner,) = scene.sets()
    foreign = pod(f"{owner.key.name}-1")
    foreign["metadata"]["labels"] = {"app": "other"}
    await scene.service.create(POD, foreign)
    await scene.service.patch(WEB, {"spec": {"replicas": 2}})
    await scene.until(lambda: scene.web().status.available_replicas == 2)
    names = [each.key.name.rpartition("-")[2] for each in scene.reader.pods()]
    assert names == ["0", "1", "2"]


# -- Jobs ------------------------------------------------------------------------------------------


def job_status(scene: Scene) -> Any:
    found = scene.reader.get(BATCH)
    return None if found is None else found.view.status


@calm
async def test_a_job_that_is_over_goes_after_its_time_to_live_and_its_pods_are_free(scene: Scene) -> None:
    await scene.service.create(JOB, batch(completions=3, parallelism=2, ttlSecondsAfterFinished=30))
    await scene.until(lambda: is_true(job_status(scene).conditions, "Complete"))
    assert job_status(scene).succeeded == 3
    assert job_status(scene).completion_time is not None
    await scene.until(lambda: scene.reader.get(BATCH) is None)
    assert not any(each.metadata.finalizers for each in scene.reader.pods())


@calm
async def test_a_job_that_fails_too_often_says_so_and_stops(scene: Scene) -> None:
    scene.hands.phase_of = lambda _: "Failed"
    await scene.service.create(JOB, batch(completions=3, parallelism=1, backoffLimit=2))
    await scene.until(lambda: is_true(job_status(scene).conditions, "Failed"), within_s=600)
    failed = scene.condition("Failed", BATCH)
    assert failed is not None
    assert failed.reason == "BackoffLimitExceeded"
    assert job_status(scene).failed == 3
    await scene.silence()


@calm
async def test_a_suspended_job_stops_and_goes_on_when_resumed(scene: Scene) -> None:
    scene.hands.phase_of = lambda _: "Running"
    await scene.service.create(JOB, batch(completions=4, parallelism=2))
    await scene.until(lambda: len(scene.reader.pods()) == 2)
    await scene.service.patch(BATCH, {"spec": {"suspend": True}})
    await scene.until(lambda: is_true(job_status(scene).conditions, "Suspended") and job_status(scene).active == 0)
    assert job_status(scene).start_time is None
    scene.hands.phase_of = lambda _: "Succeeded"
    await scene.service.patch(BATCH, {"spec": {"suspend": False}})
    await scene.until(lambda: is_true(job_status(scene).conditions, "Complete"), within_s=600)
    assert job_status(scene).succeeded == 4


@calm
async def test_a_job_that_runs_too_long_is_ended(scene: Scene) -> None:
    scene.hands.phase_of = lambda _: "Running"
    await scene.service.create(JOB, batch(completions=1, parallelism=1, activeDeadlineSeconds=30))
    await scene.until(lambda: is_true(job_status(scene).conditions, "Failed"))
    failed = scene.condition("Failed", BATCH)
    assert failed is not None
    assert failed.reason == "DeadlineExceeded"
    assert job_status(scene).active == 0


@calm
async def test_an_indexed_job_runs_each_index_and_tells_it_which(scene: Scene) -> None:
    seen: dict[str, int] = {}

    def fail_first(found: Object) -> str:
        (variable,) = found.view.spec.containers[0].env
        seen[variable.value] = seen.get(variable.value, 0) + 1
        return "Failed" if variable.value == "1" and seen["1"] == 1 else "Succeeded"

    scene.hands.phase_of = fail_first
    await scene.service.create(JOB, batch(completions=4, parallelism=2, completionMode="Indexed"))
    await scene.until(lambda: is_true(job_status(scene).conditions, "Complete"), within_s=300)
    assert job_status(scene).completed_indexes == "0-3"
    assert (job_status(scene).succeeded, job_status(scene).failed) == (4, 1)
    assert seen == {"0": 1, "1": 2, "2": 1, "3": 1}


@calm
async def test_a_deleted_job_keeps_no_pod_from_going(scene: Scene) -> None:
    scene.hands.phase_of = lambda _: "Running"
    await scene.service.create(JOB, batch(completions=2, parallelism=2))
    await scene.until(lambda: len(scene.reader.pods()) == 2)
    await scene.service.delete(BATCH, DeleteOptions(propagation="Background"))
    await scene.until(lambda: not any(each.metadata.finalizers for each in scene.reader.pods()))


@calm
async def test_a_jobs_pod_that_is_listed_for_its_service_counts_as_serving(scene: Scene) -> None:
    scene.hands.phase_of = lambda _: "Running"  # it runs on
    await scene.service.create(JOB, batch(completions=1))
    await scene.until(lambda: [pod for pod in scene.reader.pods() if pod.view.status.phase == "Running"])
    (pod,) = scene.reader.pods()
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Started"}]}
    await scene.service.patch(pod.key, {"status": ready}, subresource="status")

    def stages() -> Any:
        found = scene.reader.get(BATCH)
        assert found is not None
        return found.view.status.progress.stages

    await scene.until(lambda: stages().serving == 1)
    assert stages().ready == 0
    await scene.silence()

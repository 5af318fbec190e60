"""`kubectl rollout undo`: it writes template and annotations of an old ReplicaSet back, as one JSON patch."""

from __future__ import annotations

from typing import Any

from tests.objects import DEPLOYMENT
from tests.sim.test_workload_stories import Scene, calm
from tests.sim.test_workloads import WEB, image, web

from kedge.api.requests import PatchType
from kedge.api.wellknown import UPDATED_MAX
from kedge.server.service import AdmissionChain, AdmissionRequest, FunctionPolicy

REVISION = "deployment.kubernetes.io/revision"
KEPT = (
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
)
"""Annotations of the Deployment that kubectl keeps; all others become the ReplicaSet's."""


async def undo(scene: Scene, *, to: int = 0) -> None:
    """What kubectl does: to a revision, or to the one before the newest."""
    by_revision = {int(each.metadata.annotations[REVISION]): each for each in scene.sets()}
    revision = to or sorted(by_revision)[-2]
    old = by_revision[revision].edit()
    template: dict[str, Any] = old["spec"]["template"]
    del template["metadata"]["labels"]["pod-template-hash"]
    own = scene.web().metadata.annotations
    notes = {name: own[name] for name in KEPT if name in own}
    notes |= {name: text for name, text in old["metadata"]["annotations"].items() if name not in KEPT}
    operations = [
        {"op": "replace", "path": "/spec/template", "value": template},
        {"op": "replace", "path": "/metadata/annotations", "value": notes},
    ]
    await scene.service.patch(WEB, operations, patch_type=PatchType.JSON)


async def rolled_out_to(scene: Scene, *names: str) -> None:
    for name in names:
        await scene.service.patch(WEB, image(name))
        await scene.until(lambda name=name: scene.is_done() and len(scene.serving(name)) == 3)  # type: ignore[misc]


@calm
async def test_undo_goes_back_to_the_revision_before_and_undo_again_forth(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    await rolled_out_to(scene, "web:1", "web:2")
    for times, name in enumerate(("web:1", "web:2", "web:1"), start=3):
        await undo(scene)
        await scene.until(lambda name=name: scene.is_done() and len(scene.serving(name)) == 3)  # type: ignore[misc]
        assert scene.web().metadata.annotations[REVISION] == str(times)
    assert len(scene.sets()) == 2
    observed = scene.condition("RollbackObserved")
    assert observed is not None
    assert (observed.status, observed.message) == ("True", "revision 5 is what revision 3 was")
    await scene.silence()


@calm
async def test_undo_to_a_revision_uses_its_replica_set_again(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    await rolled_out_to(scene, "web:2", "web:3")
    await undo(scene, to=1)
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:1")) == 3)
    assert sorted(int(each.metadata.annotations[REVISION]) for each in scene.sets()) == [2, 3, 4]


@calm
async def test_undo_brings_back_no_cap_that_a_rollout_in_stages_had_set(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    cap = {"metadata": {"annotations": {UPDATED_MAX: "1"}}}
    await scene.service.patch(WEB, {**image("web:2"), **cap})
    await scene.until(lambda: len(scene.serving("web:2")) == 1)
    await scene.silence()
    await scene.service.patch(WEB, {"metadata": {"annotations": {UPDATED_MAX: None}}})
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:2")) == 3)
    await rolled_out_to(scene, "web:3")
    await undo(scene)
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:2")) == 3)
    assert UPDATED_MAX not in scene.web().metadata.annotations


@calm
async def test_undo_finds_a_replica_set_that_admission_had_changed(scene: Scene) -> None:
    def add_team(_: AdmissionRequest, __: object) -> list[dict[str, str]]:
        return [{"op": "add", "path": "/spec/template/metadata/labels/team", "value": "risk"}]

    policy = FunctionPolicy("team", kinds=["ReplicaSet.apps"], verbs=["create"], mutate=add_team)
    scene.cluster.admit_by(AdmissionChain(mutating=[policy]))
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    await rolled_out_to(scene, "web:2")
    await undo(scene)
    await scene.until(lambda: scene.is_done() and len(scene.serving("web:1")) == 3)
    await scene.silence()
    assert len(scene.sets()) == 2
    observed = scene.condition("RollbackObserved")
    assert observed is not None
    assert observed.status == "True"

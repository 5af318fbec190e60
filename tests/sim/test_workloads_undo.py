"""`kubectl rollout undo`: it copies template and annotations of an old ReplicaSet back, as one JSON patch."""

from __future__ import annotations

from typing import Any

from tests.kit.workload_harness import WorkloadHarness, without_faults
from tests.kit.workload_manifests import WEB, image, web
from tests.objects import DEPLOYMENT

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


async def undo(harness: WorkloadHarness, *, to: int = 0) -> None:
    """As kubectl does: to a revision, or to the one before the newest."""
    by_revision = {int(each.metadata.annotations[REVISION]): each for each in harness.sets()}
    revision = to or sorted(by_revision)[-2]
    old = by_revision[revision].edit()
    template: dict[str, Any] = old["spec"]["template"]
    del template["metadata"]["labels"]["pod-template-hash"]
    own = harness.web().metadata.annotations
    notes = {name: own[name] for name in KEPT if name in own}
    notes |= {name: text for name, text in old["metadata"]["annotations"].items() if name not in KEPT}
    operations = [
        {"op": "replace", "path": "/spec/template", "value": template},
        {"op": "replace", "path": "/metadata/annotations", "value": notes},
    ]
    await harness.service.patch(WEB, operations, patch_type=PatchType.JSON)


async def rolled_out_to(harness: WorkloadHarness, *names: str) -> None:
    for name in names:
        await harness.service.patch(WEB, image(name))
        await harness.until(lambda name=name: harness.is_done() and len(harness.serving(name)) == 3)  # type: ignore[misc]


@without_faults
async def test_undo_goes_back_one_revision_and_undo_again_returns(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    await rolled_out_to(harness, "web:1", "web:2")
    for times, name in enumerate(("web:1", "web:2", "web:1"), start=3):
        await undo(harness)
        await harness.until(lambda name=name: harness.is_done() and len(harness.serving(name)) == 3)  # type: ignore[misc]
        assert harness.web().metadata.annotations[REVISION] == str(times)
    assert len(harness.sets()) == 2
    observed = harness.condition("RollbackObserved")
    assert observed is not None
    assert (observed.status, observed.message) == ("True", "revision 5 is what revision 3 was")
    await harness.silence()


@without_faults
async def test_undo_to_a_revision_reuses_its_replica_set(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    await rolled_out_to(harness, "web:2", "web:3")
    await undo(harness, to=1)
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:1")) == 3)
    assert sorted(int(each.metadata.annotations[REVISION]) for each in harness.sets()) == [2, 3, 4]


@without_faults
async def test_undo_does_not_restore_the_cap_of_a_staged_rollout(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    cap = {"metadata": {"annotations": {UPDATED_MAX: "1"}}}
    await harness.service.patch(WEB, {**image("web:2"), **cap})
    await harness.until(lambda: len(harness.serving("web:2")) == 1)
    await harness.silence()
    await harness.service.patch(WEB, {"metadata": {"annotations": {UPDATED_MAX: None}}})
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == 3)
    await rolled_out_to(harness, "web:3")
    await undo(harness)
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:2")) == 3)
    assert UPDATED_MAX not in harness.web().metadata.annotations


@without_faults
async def test_undo_finds_a_replica_set_that_admission_had_changed(harness: WorkloadHarness) -> None:
    def add_team(_: AdmissionRequest, __: object) -> list[dict[str, str]]:
        return [{"op": "add", "path": "/spec/template/metadata/labels/team", "value": "risk"}]

    policy = FunctionPolicy("team", kinds=["ReplicaSet.apps"], verbs=["create"], mutate=add_team)
    harness.cluster.admit_by(AdmissionChain(mutating=[policy]))
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    await rolled_out_to(harness, "web:2")
    await undo(harness)
    await harness.until(lambda: harness.is_done() and len(harness.serving("web:1")) == 3)
    await harness.silence()
    assert len(harness.sets()) == 2
    observed = harness.condition("RollbackObserved")
    assert observed is not None
    assert observed.status == "True"

"""Progress as conditions: each is true when it should be, with the right generation."""

from __future__ import annotations

from collections.abc import Iterator

from tests.kit.safeguards import replaced
from tests.kit.workload_harness import WorkloadHarness, without_faults
from tests.kit.workload_manifests import WEB, image, web
from tests.objects import DEPLOYMENT

from kedge.api.conditions import find_condition
from kedge.api.wellknown import DISRUPTION_TARGET, NODE_LOST
from kedge.sim.cluster import Commit


def condition_of(harness: WorkloadHarness, type_: str) -> tuple[str, bool]:
    """A condition of the Deployment, and whether it is about the newest generation."""
    found = harness.condition(type_)
    return ("", False) if found is None else (found.status, found.observed_generation == harness.web().generation)


@without_faults
async def test_the_deployment_shows_a_repair_from_start_to_end(harness: WorkloadHarness) -> None:
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await harness.until(harness.is_done)
    assert harness.condition("RepairComplete") is None
    harness.nodes.starts = lambda _: False
    lost = harness.reader.pods()[0]
    target = {"type": DISRUPTION_TARGET, "status": "True", "reason": NODE_LOST}
    conditions = [*lost.edit()["status"]["conditions"], target]
    await harness.service.patch(lost.key, {"status": {"conditions": conditions}}, subresource="status")
    await harness.until(lambda: condition_of(harness, "RepairComplete") == ("False", True))
    await harness.silence()
    repair = harness.condition("RepairComplete")
    assert repair is not None
    assert repair.reason == "ReplacementStarting"  # requested is not complete
    harness.nodes.starts = lambda _: True
    await harness.until(lambda: condition_of(harness, "RepairComplete") == ("True", True))
    await harness.service.patch(WEB, {"spec": {"replicas": 2}})
    await harness.until(lambda: harness.is_done() and condition_of(harness, "RepairComplete") == ("True", True))
    await harness.silence()


@without_faults
async def test_bound_is_never_true_before_all_replicas_of_the_template_have_a_node(
    harness: WorkloadHarness,
) -> None:
    def bound_too_early(_: Commit) -> Iterator[tuple[str, str]]:
        found = harness.reader.get(WEB)
        bound = None if found is None else find_condition(found.view.status.conditions, "Bound")
        if found is None or bound is None or bound.status != "True":
            return
        # The condition of an earlier generation stays until the next reconcile.
        if bound.observed_generation == found.view.generation:
            wanted = found.view.spec.template.spec.containers[0].image
            placed = [pod for pod in harness.reader.pods() if pod.view.spec.node_name]
            placed = [pod for pod in placed if pod.view.spec.containers[0].image == wanted]
            if len(placed) < found.view.spec.replicas:
                yield "bound", f"{len(placed)} of {found.view.spec.replicas} replicas of {wanted} have a node"

    harness.sim.check_always(bound_too_early)
    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=1))
    await harness.until(harness.is_done)
    assert condition_of(harness, "Bound") == ("True", True)
    await harness.service.patch(WEB, image("web:2"))
    await harness.until(lambda: condition_of(harness, "Bound") == ("False", True))
    reason = harness.condition("Bound")
    assert reason is not None
    assert reason.reason in ("WaitingForReplicas", "WaitingForNodes")
    await harness.until(harness.is_done)
    assert condition_of(harness, "Bound") == ("True", True)
    await harness.service.patch(WEB, {"spec": {"replicas": 5}})
    await harness.until(lambda: condition_of(harness, "Bound") == ("False", True))
    await harness.until(harness.is_done)
    assert condition_of(harness, "Bound") == ("True", True)


@without_faults
async def test_a_scale_down_leaves_the_deployment_bound(harness: WorkloadHarness) -> None:
    """The ReplicaSet has not counted its new generation at once, but it had more replicas with a node."""
    seen: list[str] = []

    def note(_: Commit) -> Iterator[tuple[str, str]]:
        found = harness.condition("Bound") if harness.reader.get(WEB) is not None else None
        seen.append("" if found is None else found.status)
        return iter(())

    await harness.service.create(DEPLOYMENT, web(3, surge=1, unavailable=1))
    await harness.until(harness.is_done)
    harness.sim.check_always(note)
    await harness.service.patch(WEB, {"spec": {"replicas": 1}})
    await harness.until(harness.is_done)
    assert condition_of(harness, "Bound") == ("True", True)
    assert set(seen) == {"True"}


async def idle() -> None:
    """No pod is bound or started."""


@without_faults
async def test_bound_and_retrying_are_about_the_newest_generation(
    harness: WorkloadHarness,
) -> None:
    with replaced(harness.nodes, "work", idle):
        await harness.service.create(DEPLOYMENT, web(2, surge=1, unavailable=0))
        await harness.until(lambda: condition_of(harness, "Bound") == ("False", True))
        assert condition_of(harness, "SchedulingRetrying") == ("False", True)  # it waits for its turn
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        await harness.until(lambda: len(harness.reader.pods()) == 2)
        for pod in harness.reader.pods():
            await harness.service.patch(pod.key, {"status": {"conditions": [refused]}}, subresource="status")
        await harness.until(lambda: condition_of(harness, "SchedulingRetrying") == ("True", True))
        await harness.silence()
    await harness.until(lambda: condition_of(harness, "Bound") == ("True", True))
    await harness.until(lambda: condition_of(harness, "SchedulingRetrying") == ("False", True))
    await harness.service.patch(WEB, image("web:2"))
    await harness.until(harness.is_done)
    assert condition_of(harness, "Bound") == ("True", True)
    await harness.silence()

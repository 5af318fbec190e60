"""Progress in a word: each condition that people wait for is there when it should be, of the generation it is about."""

from __future__ import annotations

from collections.abc import Iterator

from tests.caches import replaced
from tests.objects import DEPLOYMENT
from tests.sim.test_workload_stories import Scene, calm
from tests.sim.test_workloads import WEB, image, web

from kedge.api.conditions import find_condition
from kedge.api.wellknown import DISRUPTION_TARGET, NODE_LOST
from kedge.sim.cluster import Commit


def told(scene: Scene, type_: str) -> tuple[str, bool]:
    """The status of a condition of the Deployment, and whether it is about the newest generation."""
    found = scene.condition(type_)
    return ("", False) if found is None else (found.status, found.observed_generation == scene.web().generation)


@calm
async def test_a_repair_is_told_by_the_deployment_from_its_beginning_to_its_end(scene: Scene) -> None:
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=0))
    await scene.until(scene.is_done)
    assert scene.condition("RepairComplete") is None
    scene.hands.starts = lambda _: False
    lost = scene.reader.pods()[0]
    target = {"type": DISRUPTION_TARGET, "status": "True", "reason": NODE_LOST}
    conditions = [*lost.edit()["status"]["conditions"], target]
    await scene.service.patch(lost.key, {"status": {"conditions": conditions}}, subresource="status")
    await scene.until(lambda: told(scene, "RepairComplete") == ("False", True))
    await scene.silence()
    repair = scene.condition("RepairComplete")
    assert repair is not None
    assert repair.reason == "ReplacementStarting"  # asked for is not done
    scene.hands.starts = lambda _: True
    await scene.until(lambda: told(scene, "RepairComplete") == ("True", True))
    await scene.service.patch(WEB, {"spec": {"replicas": 2}})
    await scene.until(lambda: scene.is_done() and told(scene, "RepairComplete") == ("True", True))
    await scene.silence()


@calm
async def test_bound_is_never_said_before_as_many_replicas_of_its_template_have_a_node(scene: Scene) -> None:
    def has_said_too_early(_: Commit) -> Iterator[tuple[str, str]]:
        found = scene.reader.get(WEB)
        bound = None if found is None else find_condition(found.view.status.conditions, "Bound")
        if found is None or bound is None or bound.status != "True":
            return
        # What it had said of an earlier generation stands until it has looked.
        if bound.observed_generation == found.view.generation:
            wanted = found.view.spec.template.spec.containers[0].image
            placed = [pod for pod in scene.reader.pods() if pod.view.spec.node_name]
            placed = [pod for pod in placed if pod.view.spec.containers[0].image == wanted]
            if len(placed) < found.view.spec.replicas:
                yield "bound", f"{len(placed)} of {found.view.spec.replicas} replicas of {wanted} have a node"

    scene.sim.check_always(has_said_too_early)
    await scene.service.create(DEPLOYMENT, web(3, surge=1, unavailable=1))
    await scene.until(scene.is_done)
    assert told(scene, "Bound") == ("True", True)
    await scene.service.patch(WEB, image("web:2"))
    await scene.until(lambda: told(scene, "Bound") == ("False", True))
    reason = scene.condition("Bound")
    assert reason is not None
    assert reason.reason in ("WaitingForReplicas", "WaitingForNodes")
    await scene.until(scene.is_done)
    assert told(scene, "Bound") == ("True", True)
    await scene.service.patch(WEB, {"spec": {"replicas": 5}})
    await scene.until(lambda: told(scene, "Bound") == ("False", True))
    await scene.until(scene.is_done)
    assert told(scene, "Bound") == ("True", True)


async def idle() -> None:
    """Nobody binds, nobody starts."""


@calm
async def test_whether_replicas_are_bound_or_tried_again_is_told_of_the_newest_generation(scene: Scene) -> None:
    with replaced(scene.hands, "work", idle):
        await scene.service.create(DEPLOYMENT, web(2, surge=1, unavailable=0))
        await scene.until(lambda: told(scene, "Bound") == ("False", True))
        assert told(scene, "SchedulingRetrying") == ("False", True)  # its turn has not come
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        await scene.until(lambda: len(scene.reader.pods()) == 2)
        for pod in scene.reader.pods():
            await scene.service.patch(pod.key, {"status": {"conditions": [refused]}}, subresource="status")
        await scene.until(lambda: told(scene, "SchedulingRetrying") == ("True", True))
        await scene.silence()
    await scene.until(lambda: told(scene, "Bound") == ("True", True))
    await scene.until(lambda: told(scene, "SchedulingRetrying") == ("False", True))
    await scene.service.patch(WEB, image("web:2"))
    await scene.until(scene.is_done)
    assert told(scene, "Bound") == ("True", True)
    await scene.silence()

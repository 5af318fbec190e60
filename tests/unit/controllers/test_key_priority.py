"""The priority of a workload's key: that of the pods of its template."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.runtime import make_cache_harness, until
from tests.kit.workload_manifests import web
from tests.objects import asynchronous

from kedge.api.kinds import KINDS
from kedge.api.wellknown import PRIORITY_CLASS_KIND
from kedge.controllers.deployment import deployment_controller
from kedge.controllers.shared.replicas import PRIORITY_CLASSES, template_priority
from kedge.runtime import ControllerRuntime


def priority_class(name: str, value: int, *, default: bool = False) -> dict[str, Any]:
    metadata = {"name": name}
    api = "scheduling.k8s.io/v1"
    return {"apiVersion": api, "kind": "PriorityClass", "metadata": metadata, "value": value, "globalDefault": default}


@asynchronous
async def test_a_key_has_the_priority_of_the_class_of_its_pods() -> None:
    """Admission resolves the class of pods only: the controllers of templates resolve it themselves."""
    harness = await make_cache_harness()
    await harness.world.create(priority_class("urgent", 1000))
    await harness.world.create(priority_class("plain", 7, default=True))
    cache = harness.caches.cache(KINDS.of_key_kind(PRIORITY_CLASS_KIND))
    for index in PRIORITY_CLASSES.indexes:
        cache.add_index(index)
    await until(lambda: cache.synced)

    async def priority(name: str, **spec: object) -> int:
        body = web(0, surge=1, unavailable=0)
        body["metadata"]["name"] = name
        body["spec"]["template"]["spec"].update(spec)
        return template_priority(await harness.world.create(body), harness.caches)

    assert await priority("a", priorityClassName="urgent") == 1000
    assert await priority("b", priorityClassName="system-node-critical") == 2_000_001_000
    assert await priority("c") == 7
    assert await priority("d", priorityClassName="missing") == 0
    assert await priority("e", priority=3) == 3
    await harness.caches.stop()


@asynchronous
async def test_the_report_of_a_deployments_key_has_the_priority_of_its_class() -> None:
    """Its rollout waits for replicas, so that the key stays in the queue until the progress deadline."""
    harness = await make_cache_harness()
    await harness.world.create(priority_class("urgent", 1000))
    body = web(1, surge=1, unavailable=0)
    body["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    made = await harness.world.create(body)
    controller = deployment_controller(ControllerRuntime(harness.client, harness.env, harness.caches))
    running = asyncio.create_task(controller.run())
    try:
        await until(lambda: (found := controller.explain(made.key)) is not None and found.priority == 1000)
    finally:
        await controller.stop()
        await running
        await harness.caches.stop()

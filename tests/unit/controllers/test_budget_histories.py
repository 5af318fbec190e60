"""Where each kind has a history of its own, no revision of a budget tells how far the cache of pods is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.kit.runtime import QUICK, CacheHarness, make_cache_harness, unaltered, until
from tests.objects import BUDGET, NODE, asynchronous, node, pod, pod_key

from kedge.api.requests import Binding, DeleteOptions, WatchEvent
from kedge.api.views import PodDisruptionBudgetView
from kedge.api.views.workloads import DisruptionBudgetStatus
from kedge.controllers.budget.controller import budget_controller
from kedge.keys import Key
from kedge.runtime import ControllerRuntime

WEB = Key(BUDGET.key_kind, "default", "web")


async def status(harness: CacheHarness) -> DisruptionBudgetStatus:
    return (await harness.world.get(WEB)).as_view(PodDisruptionBudgetView).status


async def until_allowed(harness: CacheHarness, count: int) -> None:
    async with asyncio.timeout(10):
        while (await status(harness)).disruptions_allowed != count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)  # the controller says nothing but this


class Scene:
    """Three ready pods, of which two must stay, and a transport that can hide one of them."""

    def __init__(self, harness: CacheHarness) -> None:
        self.harness, self.service = harness, harness.world.service
        self.controller = budget_controller(ControllerRuntime(harness.client, harness.env, caches=harness.caches))

    async def start(self, name: str) -> None:
        found = await self.harness.world.create(pod(name))
        await self.service.bind(Binding(pod=found.key, pod_uid=found.uid, node="node-a"))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.service.patch(found.key, {"status": ready}, subresource="status")

    async def look(self) -> DisruptionBudgetStatus:
        """What the budget says after a look that begins when the cache of pods is past its revision."""
        (pods,) = self.harness.caches.of_kind("Pod")
        for _ in range(2):
            await pods.at_least((await self.harness.world.get(WEB)).revision)
            await self._run_once()
        return await status(self.harness)

    async def _run_once(self) -> None:
        runs = self.controller.statistics().runs
        self.controller.wake(WEB)
        await until(lambda: self.controller.statistics().runs > runs + self.controller.queue.running)

    def hide(self, event: WatchEvent) -> tuple[WatchEvent, ...]:
        return () if event.object is not None and event.object.key == pod_key("web-0") else (event,)


@asynccontextmanager
async def a_scene(*, one_history: bool) -> AsyncIterator[Scene]:
    harness = await make_cache_harness(replace(QUICK, budget_again_s=0.01))
    harness.transport.one_history = one_history
    scene = Scene(harness)
    await scene.service.create(NODE, node())
    for n in range(3):
        await scene.start(f"web-{n}")
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
    await scene.service.create(BUDGET, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
    running = asyncio.create_task(scene.controller.run())
    try:
        await until_allowed(harness, 1)
        yield scene
    finally:
        await scene.controller.stop()
        await running
        await harness.caches.stop()


@pytest.mark.parametrize("one_history", [False, True])
@asynchronous
async def test_an_eviction_is_not_forgotten_on_the_word_of_another_history(one_history: bool) -> None:
    """1. A pod is evicted. 2. The cache of pods is not told, and its revision goes past the budget's all the same: as
    it may where the two are of different histories. Where they are said to be of one, that would be taken for proof.
    """
    async with a_scene(one_history=one_history) as scene:
        scene.harness.transport.alter = scene.hide
        await scene.service.evict(pod_key("web-0"), DeleteOptions())
        told = await scene.look()
        if one_history:
            assert (told.current_healthy, told.disruptions_allowed, [*told.disrupted_pods]) == (3, 1, [])
            return
        assert (told.current_healthy, told.disruptions_allowed, [*told.disrupted_pods]) == (2, 0, ["web-0"])
        scene.harness.transport.alter = unaltered
        (pods,) = scene.harness.caches.of_kind("Pod")
        pods.request_relist()
        await until(lambda: (found := pods.get(pod_key("web-0")).value) is not None and found.view.terminating)
        told = await scene.look()
        assert (told.current_healthy, told.disruptions_allowed, [*told.disrupted_pods]) == (2, 0, [])


@asynchronous
async def test_a_namesake_of_an_evicted_pod_counts_without_one_history_too() -> None:
    """1. A pod is evicted and goes. 2. Another takes its name, before the budget's controller has looked."""
    async with a_scene(one_history=False) as scene:
        scene.harness.transport.alter = scene.hide
        await scene.service.evict(pod_key("web-0"), DeleteOptions())
        await scene.service.delete(pod_key("web-0"), DeleteOptions(grace_s=0))
        await scene.start("web-0")
        assert (await scene.look()).disruptions_allowed == 0
        scene.harness.transport.alter = unaltered
        (pods,) = scene.harness.caches.of_kind("Pod")
        pods.request_relist()
        await until_allowed(scene.harness, 1)
        assert not (await status(scene.harness)).disrupted_pods

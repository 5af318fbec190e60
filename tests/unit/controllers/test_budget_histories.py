"""If each kind has its own history, the revision of a budget does not bound the cache of pods."""

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
            await asyncio.sleep(0.002)  # the only field that the controller writes


class BudgetHarness:
    """Three ready pods, of which two must stay, and a transport that can hide one pod."""

    def __init__(self, harness: CacheHarness) -> None:
        self.harness, self.service = harness, harness.world.service
        self.controller = budget_controller(ControllerRuntime(harness.client, harness.env, caches=harness.caches))

    async def start(self, name: str) -> None:
        found = await self.harness.world.create(pod(name))
        await self.service.bind(Binding(pod=found.key, pod_uid=found.uid, node="node-a"))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.service.patch(found.key, {"status": ready}, subresource="status")

    async def reconcile(self) -> DisruptionBudgetStatus:
        """The budget's status after a reconcile that starts when the cache of pods is past its revision."""
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
async def a_budget(*, one_history: bool) -> AsyncIterator[BudgetHarness]:
    harness = await make_cache_harness(replace(QUICK, budget_again_s=0.01))
    harness.transport.one_history = one_history
    budget = BudgetHarness(harness)
    await budget.service.create(NODE, node())
    for n in range(3):
        await budget.start(f"web-{n}")
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
    await budget.service.create(BUDGET, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})
    running = asyncio.create_task(budget.controller.run())
    try:
        await until_allowed(harness, 1)
        yield budget
    finally:
        await budget.controller.stop()
        await running
        await harness.caches.stop()


@pytest.mark.parametrize("one_history", [False, True])
@asynchronous
async def test_a_revision_of_another_history_does_not_clear_an_eviction(one_history: bool) -> None:
    """1. A pod is evicted. 2. The cache of pods misses the event, and its revision still passes the budget's, as it may
    with separate histories. With one history that would count as proof."""
    async with a_budget(one_history=one_history) as budget:
        budget.harness.transport.alter = budget.hide
        await budget.service.evict(pod_key("web-0"), DeleteOptions())
        after = await budget.reconcile()
        if one_history:
            assert (after.current_healthy, after.disruptions_allowed, [*after.disrupted_pods]) == (
                3,
                1,
                [],
            )
            return
        assert (after.current_healthy, after.disruptions_allowed, [*after.disrupted_pods]) == (
            2,
            0,
            ["web-0"],
        )
        budget.harness.transport.alter = unaltered
        (pods,) = budget.harness.caches.of_kind("Pod")
        pods.request_relist()
        await until(lambda: (found := pods.get(pod_key("web-0")).value) is not None and found.view.terminating)
        after = await budget.reconcile()
        assert (after.current_healthy, after.disruptions_allowed, [*after.disrupted_pods]) == (
            2,
            0,
            [],
        )


@asynchronous
async def test_a_new_pod_of_the_same_name_counts_without_one_history_too() -> None:
    """1. A pod is evicted and deleted. 2. A new pod takes its name before the budget is reconciled."""
    async with a_budget(one_history=False) as budget:
        budget.harness.transport.alter = budget.hide
        await budget.service.evict(pod_key("web-0"), DeleteOptions())
        await budget.service.delete(pod_key("web-0"), DeleteOptions(grace_s=0))
        await budget.start("web-0")
        assert (await budget.reconcile()).disruptions_allowed == 0
        budget.harness.transport.alter = unaltered
        (pods,) = budget.harness.caches.of_kind("Pod")
        pods.request_relist()
        await until_allowed(budget.harness, 1)
        assert not (await status(budget.harness)).disrupted_pods

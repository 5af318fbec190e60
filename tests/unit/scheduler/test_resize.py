"""Pods that are resized in place: the scheduler keeps their room, and wakes others when it is freed."""

from __future__ import annotations

from typing import Any

from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, with_scheduler
from tests.objects import node, pod_key

from kedge.api.requests import PatchType


async def resize(harness: SchedulerHarness, name: str, cpu: str) -> None:
    body = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
    await harness.cluster.authority.patch(pod_key(name), body, patch_type=PatchType.STRATEGIC, subresource="resize")


async def report(harness: SchedulerHarness, name: str, cpu: str, **status: Any) -> None:
    """Write what a node reports: this much CPU is allocated and applied."""
    amounts = {"cpu": cpu, "memory": "64Mi"}
    shown = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    shown |= {"allocatedResources": amounts, "resources": {"requests": amounts}}
    body = {"status": {"containerStatuses": [shown], **status}}
    await harness.cluster.authority.patch(pod_key(name), body, subresource="status")


@with_scheduler()
async def test_room_that_a_pending_resize_asks_for_is_not_given_to_others(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("first", cpu="200m")
    await until(lambda: harness.place("first"))
    await report(harness, "first", "200m")
    await resize(harness, "first", "700m")
    await harness.pod("second", cpu="500m")
    await until(lambda: harness.reason("second") == "0/1 nodes: 1 cpu")
    infeasible = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    await report(harness, "first", "200m", conditions=[infeasible])
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_a_resize_down_wakes_a_pod_when_it_is_applied(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("first", cpu="800m")
    await until(lambda: harness.place("first"))
    await report(harness, "first", "800m")
    await harness.pod("second", cpu="500m")
    await until(lambda: harness.reason("second") == "0/1 nodes: 1 cpu")
    await resize(harness, "first", "300m")
    await report(harness, "first", "300m")
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_a_pending_pod_that_is_resized_down_is_tried_again(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("large", cpu="2")
    await until(lambda: harness.reason("large") == "0/1 nodes: 1 cpu")
    await resize(harness, "large", "500m")
    await until(lambda: harness.place("large"))

"""Attempts run in bursts, and other tasks of the process run in between."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.objects import NAMESPACE, NODE, POD, node, pod

from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.limits import Limits
from kedge.scheduler import Scheduler
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

BURST = 16
PODS = 100


async def most_at_once(cpu: str) -> int:
    """The most attempts between two steps of another task, with many pending pods from the start."""
    env = system_env(limits=Limits(scheduler_burst_max=BURST))
    service = Service(MemoryStore(env), env)
    for name in ("default", "kube-system"):
        await service.create(NAMESPACE, {"metadata": {"name": name}})
    for name in ("node-a", "node-b"):
        await service.create(NODE, node(name, cpu="64"))
    for n in range(PODS):
        await service.create(POD, pod(f"web-{n}", cpu=cpu))
    scheduler = Scheduler(Client(DirectTransport(service), env, component="scheduler"), env)
    running = asyncio.create_task(scheduler.run())
    most = before = 0
    async with asyncio.timeout(60):
        while scheduler.statistics().attempts < PODS:
            await asyncio.sleep(0)
            now = scheduler.statistics().attempts
            most, before = max(most, now - before), now
    scheduler.stop()
    with suppress(asyncio.CancelledError):
        await running
    return most


@pytest.mark.parametrize(("cpu", "most"), [("100m", BURST), ("100", BURST // 8)])
def test_a_burst_is_bounded_and_an_unschedulable_attempt_counts_as_eight(cpu: str, most: int) -> None:
    assert asyncio.run(most_at_once(cpu)) == most

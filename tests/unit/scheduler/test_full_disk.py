"""A scheduler on a store whose disk is full for a while: no partial bind, and every pod is bound in the end."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from tests.kit.full_disk import LEDGER, LIMITS, NAMESPACE, eventually
from tests.objects import NODE, POD, node, pod
from tests.unit.store.sqlite_faults import Probe

from kedge.api.requests import ListOptions
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.scheduler import Scheduler
from kedge.server.service import Service

PODS = 12


def test_each_pod_is_bound_once_when_a_full_disk_has_space_again(tmp_path: Path) -> None:
    async def program() -> None:
        probe, env = Probe(), system_env(limits=LIMITS)
        store = await probe.open(tmp_path / "kedge.db", env)
        service = Service(store, env)
        for name in ("default", "kube-system"):
            await service.create(NAMESPACE, {"metadata": {"name": name}})
        for name in ("node-a", "node-b", "node-c"):
            await service.create(NODE, node(name, cpu="500m"))
        scheduler = Scheduler(Client(DirectTransport(service), env, component="scheduler"), env)
        running = asyncio.create_task(scheduler.run())
        await eventually(lambda: scheduler.leading)

        sample = env.metrics.registry.get_sample_value

        def failed() -> float:
            ends = ("unavailable", "heldoff")  # by the disk, and then by the breaker
            counts = (sample("kedge_scheduler_attempts_total", {"result": end}) for end in ends)
            return sum(count or 0.0 for count in counts)

        await asyncio.gather(*(service.create(POD, pod(f"web-{n}", cpu="100m")) for n in range(PODS)))
        probe.fail("INSERT", sqlite3.SQLITE_FULL)  # before any bind is written
        await eventually(lambda: failed() >= 3 * PODS)
        found = (await service.list(POD, ListOptions())).objects
        assert not [each.key.name for each in found if each.view.spec.node_name]
        assert scheduler.leading, "it goes on trying"

        probe.end_partition()
        await eventually(lambda: scheduler.bound == PODS)
        await eventually(lambda: not scheduler.statistics().assumed)
        found = (await service.list(POD, ListOptions())).objects
        places = {each.uid: each.view.spec.node_name for each in found}
        held = {
            uid: ledger.key.name
            for ledger in (await service.list(LEDGER, ListOptions())).objects
            for uid in ledger.view.status.entries
        }
        assert len(places) == PODS
        assert held == places
        assert scheduler.statistics().claims == PODS
        assert max(list(places.values()).count(name) for name in ("node-a", "node-b", "node-c")) <= 5
        scheduler.stop()
        await running
        await store.close()

    asyncio.run(program())

"""Controllers on a store whose disk is full for a while: nothing is written partly or twice, and work continues."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from tests.objects import DEPLOYMENT, deployment
from tests.unit.store.sqlite_faults import Probe, until

from kedge.api.kinds import KINDS
from kedge.api.requests import ListOptions
from kedge.cli.wiring import ControlPlane
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service import Service

POD, REPLICA_SET = KINDS.of_key_kind("Pod"), KINDS.of_key_kind("ReplicaSet.apps")
LIMITS = Limits(
    client_attempts_max=1, client_backoff_s=0.01, client_backoff_s_max=0.05, breaker_open_s=0.05,
    queue_backoff_s=0.01, queue_backoff_s_max=0.05,
)  # fmt: skip
WEB = Key("Deployment.apps", "default", "web")


def failures(env: Env, controller: str) -> float:
    labels = {"controller": controller, "result": "failed"}
    return env.metrics.registry.get_sample_value("kedge_runtime_reconciles_total", labels) or 0.0


async def made(service: Service) -> tuple[list[str], list[str]]:
    sets = (await service.list(REPLICA_SET, ListOptions())).objects
    pods = (await service.list(POD, ListOptions())).objects
    return [each.key.name for each in sets], [each.key.name for each in pods]


async def until_made(service: Service, pods: int) -> None:
    async with asyncio.timeout(30):
        while len((await made(service))[1]) < pods:  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # the store has no event for it


def test_a_workload_is_created_and_scaled_once_when_a_full_disk_has_room_again(tmp_path: Path) -> None:
    async def program() -> None:
        probe, env = Probe(), system_env(limits=LIMITS)
        store = await probe.open(tmp_path / "kedge.db", env)
        service = Service(store, env)
        plane = ControlPlane(DirectTransport(service), env, decisions=tmp_path / "decisions", schedulers=())
        running = asyncio.create_task(plane.run())
        await until(lambda: plane.leading)

        await service.create(DEPLOYMENT, deployment("web", replicas=3))
        probe.fail("INSERT", sqlite3.SQLITE_FULL)  # before its ReplicaSet is written
        await until(lambda: failures(env, "deployment") >= 3)
        assert await made(service) == ([], [])
        probe.end_partition()
        await until_made(service, 3)

        await service.patch(WEB, {"spec": {"replicas": 6}})
        probe.fail("INSERT", sqlite3.SQLITE_FULL)  # and again, when it exists
        before = failures(env, "deployment")
        await until(lambda: failures(env, "deployment") >= before + 3)
        assert len((await made(service))[1]) == 3
        probe.end_partition()
        await until_made(service, 6)

        (named,), pods = await made(service)
        assert sorted(pods) == [f"{named}-{slot}" for slot in range(6)]
        await plane.stop()
        await running
        await store.close()

    asyncio.run(program())

"""A server on SQLite is SIGKILLed in the middle of rollouts; the simulator's invariants judge the history of the run.

CI kills it three times, `make torture` twenty.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.torture_cluster import POD, WEB, TortureCluster, Writer, check_complete
from tests.e2e.up_cluster import up_cluster
from tests.torture.counts import report

from kedge.api.requests import ListOptions
from kedge.cli.live_history import HistoryRecorder
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.errors import OperatingError
from kedge.server.service import Service
from kedge.sim.judges.recorded import judge_history
from kedge.store.sqlite import SqliteStore

KILLS = int(os.environ.get("KEDGE_TORTURE_ROUNDS", "3"))
SEED = int(os.environ.get("KEDGE_TORTURE_SEED", "1"))
MIN_READY_S = 1
"""A rollout that lacks a pod lasts at least this much longer: a kill is not so late."""
WITHIN_S = 120.0

pytestmark = pytest.mark.slow


async def updated_pods(client: Client, version: int) -> int:
    listed = (await client.list(POD, ListOptions(namespace="default"))).objects
    return sum(each.metadata.annotations.get("version") == str(version) for each in listed)


async def wait_under_way(cluster: TortureCluster, version: int, updated: int) -> None:
    """Wait until the rollout of a version has made this many pods."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            with suppress(OperatingError):
                if await updated_pods(cluster.client, version) >= updated:
                    return
            await asyncio.sleep(0.02)


def copy_of_store(folder: Path, copy: Path) -> Path:
    copy.mkdir()
    for file in folder.glob("kedge.db*"):
        shutil.copy(file, copy)
    return copy / "kedge.db"


async def check_killed_in_the_middle(copy: Path, version: int, replicas: int) -> None:
    """The store of the killed server has a part of the rollout: some pods of its version, and not its end."""
    env = system_env()
    store = await SqliteStore.open(copy, env)
    client = Client(DirectTransport(Service(store, env)), env, component="test")
    web = await client.get(WEB)
    status = web.edit()["status"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    is_over = status.get("observedGeneration") == web.metadata.generation and counts == [replicas] * 3
    assert await updated_pods(client, version), f"the rollout of version {version} had not begun: {status}"
    assert not is_over, f"the rollout of version {version} was over: {status}"
    await store.close()


def test_a_server_is_killed_in_the_middle_of_rollouts_and_its_history_breaks_no_invariant(tmp_path: Path) -> None:
    async def run() -> None:
        rng = random.Random(SEED)
        (tmp_path / "state").mkdir(mode=0o700)
        async with up_cluster(tmp_path / "state", nodes=2) as cluster:
            (up,) = cluster.parts["up"]
            recorder = HistoryRecorder(cluster.client, system_env())
            start = await recorder.start()
            await cluster.deploy(3, min_ready_s=MIN_READY_S)
            writer = Writer(cluster.client)
            writing = asyncio.ensure_future(writer.run())
            for version in range(2, KILLS + 2):
                replicas = rng.randrange(2, 5)
                await cluster.roll(version, replicas)
                await wait_under_way(cluster, version, rng.randrange(1, replicas))
                await asyncio.to_thread(up.kill)
                copy = copy_of_store(tmp_path / "state", tmp_path / f"at-kill-{version}")
                await check_killed_in_the_middle(copy, version, replicas)
                up.start()
                await cluster.converged(version, replicas)
                cluster.check_no_doubles()
            writing.cancel()
            await writer.check_nothing_is_lost()
            commits = await recorder.stop()
            check_complete(commits, writer.acknowledged)
            assert judge_history(start, commits) == []
            report("rollouts", kills=KILLS, operations=len(commits), acknowledged=len(writer.acknowledged),
                   unknown=writer.unknown, lost=0, violations=0)  # fmt: skip

    asyncio.run(run())

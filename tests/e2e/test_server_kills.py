"""A server on SQLite is SIGKILLed in the middle of rollouts; the simulator's invariants judge the history of the run.

CI kills it three times, `make torture` twenty.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from tests.e2e.torture_cluster import Writer, check_complete
from tests.e2e.up_cluster import up_cluster

from kedge.cli.live_history import HistoryRecorder
from kedge.env import system_env
from kedge.sim.judges.recorded import judge_history

KILLS = int(os.environ.get("KEDGE_TORTURE_ROUNDS", "3"))
SEED = int(os.environ.get("KEDGE_TORTURE_SEED", "1"))

pytestmark = pytest.mark.slow


def test_a_server_is_killed_in_the_middle_of_rollouts_and_its_history_breaks_no_invariant(tmp_path: Path) -> None:
    async def run() -> None:
        rng = random.Random(SEED)
        (tmp_path / "state").mkdir(mode=0o700)
        async with up_cluster(tmp_path / "state", nodes=2) as cluster:
            (up,) = cluster.parts["up"]
            recorder = HistoryRecorder(cluster.client, system_env())
            start = await recorder.start()
            await cluster.deploy(3)
            writer = Writer(cluster.client)
            writing = asyncio.ensure_future(writer.run())
            rolling = 0
            for version in range(2, KILLS + 2):
                replicas = rng.randrange(2, 5)
                await cluster.roll(version, replicas)
                await asyncio.sleep(rng.uniform(0.0, 2.0))
                rolling += await cluster.is_rolling(version, replicas)
                await asyncio.to_thread(up.kill)
                up.start()
                await cluster.converged(version, replicas)
                cluster.check_no_doubles()
            writing.cancel()
            await writer.check_nothing_is_lost()
            commits = await recorder.stop()
            check_complete(commits, writer.acknowledged)
            assert judge_history(start, commits) == []
            assert 2 * rolling >= KILLS, f"only {rolling} of {KILLS} kills were in the middle of a rollout"
            print(f"{KILLS} kills, {rolling} of them in the middle of a rollout")
            print(f"{len(writer.acknowledged)} acknowledged, {len(commits)} commits judged")

    asyncio.run(run())

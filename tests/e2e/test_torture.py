"""Any one process of a cluster is killed, or any link cut, while a workload rolls: it converges each time.

No acknowledged write is lost, no pod has two processes, and the history breaks no invariant of the simulator.
CI runs two of each fault, `make torture` twenty.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from tests.e2e.torture_cluster import TortureCluster, Writer, check_complete, torture_cluster
from tests.torture.counts import report

from kedge.cli.live_history import HistoryRecorder
from kedge.env import system_env
from kedge.sim.judges.recorded import judge_history

ROUNDS = int(os.environ.get("KEDGE_TORTURE_ROUNDS", "2"))
SEED = int(os.environ.get("KEDGE_TORTURE_SEED", "1"))
EVERY = "server,scheduler,controllers,agent,etcd member,etcd link,server link"
FAULTS = os.environ.get("KEDGE_TORTURE_FAULTS", EVERY).split(",")

pytestmark = pytest.mark.slow


async def inject(fault: str, cluster: TortureCluster, rng: random.Random) -> str:
    """Do it, wait a moment, and undo it. Returns the name of the victim."""
    pause_s = rng.uniform(0.0, 3.0)
    if fault == "etcd member":
        member = rng.choice(cluster.etcd)
        await asyncio.to_thread(member.kill)
        await asyncio.sleep(pause_s)
        member.start()
        return member.name
    if fault.endswith(" link"):
        link = rng.choice(cluster.links[fault.removesuffix(" link")])
        if rng.random() < 0.5:
            await link.refuse()
            await asyncio.sleep(pause_s)
            await link.listen()
        else:  # no error, and no data
            link.requests_flow.clear()
            await asyncio.sleep(pause_s)
            link.requests_flow.set()
        return f"link to {link.target}"
    part = rng.choice(cluster.parts[fault])
    await asyncio.to_thread(part.kill)
    await asyncio.sleep(pause_s)
    part.start()
    return part.name


def test_any_one_of_each_is_killed_or_cut_off_while_a_workload_rolls(tmp_path: Path) -> None:
    async def run() -> None:
        rng = random.Random(SEED)
        async with torture_cluster(tmp_path) as cluster:
            recorder = HistoryRecorder(cluster.client, system_env())
            start = await recorder.start()
            await cluster.deploy(4)
            writer = Writer(cluster.client)
            writing = asyncio.ensure_future(writer.run())
            order = [fault for fault in FAULTS for _ in range(ROUNDS)]
            rng.shuffle(order)
            rolling = 0
            loop = asyncio.get_running_loop()
            for version, fault in enumerate(order, 2):
                replicas = rng.randrange(3, 6)
                began_s = loop.time()
                await cluster.roll(version, replicas)
                await asyncio.sleep(rng.uniform(0.0, 2.0))
                rolling += await cluster.is_rolling(version, replicas)
                victim = await inject(fault, cluster, rng)
                await cluster.converged(version, replicas)
                cluster.check_no_doubles()
                cluster.check_parts()
                print(f"{version - 1}/{len(order)} {fault}: {victim}, converged in {loop.time() - began_s:.1f} s")
            writing.cancel()
            await writer.check_nothing_is_lost()
            assert writer.acknowledged
            commits = await recorder.stop()
            check_complete(commits, writer.acknowledged)
            assert judge_history(start, commits) == []
            assert 2 * rolling >= len(order), f"only {rolling} of {len(order)} faults were in the middle of a rollout"
            parts, members = sum(fault in cluster.parts for fault in order), order.count("etcd member")
            report("cluster", kills=parts, etcd_kills=members, operations=len(commits),
                   acknowledged=len(writer.acknowledged), unknown=writer.unknown, lost=0, violations=0)  # fmt: skip
            print(f"{len(commits)} commits judged, {rolling} of {len(order)} faults in the middle of a rollout")

    asyncio.run(run())

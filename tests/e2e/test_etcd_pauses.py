"""One of three etcd members is paused, as by a stalled disk or a hung machine: commits go on within three seconds."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import pairwise

import pytest
from tests.etcd_server import EtcdServer, etcd_cluster, is_leader, sound_etcd
from tests.tools import missing_tool

from kedge.env import system_env
from kedge.errors import OutcomeUnknown, Unavailable
from kedge.keys import Key
from kedge.store.contract import Put
from kedge.store.etcd import EtcdStore

pytestmark = pytest.mark.soak  # it measures time, and needs a machine of its own
STANDSTILL_S_MAX = 3.0
PAUSE_S = 6.0


async def longest_gap_s(store: EtcdStore, member: EtcdServer) -> float:
    """The longest time between two acknowledged commits while `member` is paused."""
    acknowledged = [time.monotonic()]
    stop = asyncio.Event()

    async def write(number: int) -> None:
        while not stop.is_set():
            try:
                await store.commit([], [Put(Key("Thing", "pauses", f"w{number}"), b"x")])
                acknowledged.append(time.monotonic())
            except (Unavailable, OutcomeUnknown):
                pass
            await asyncio.sleep(0.02)

    tasks = [asyncio.ensure_future(write(n)) for n in range(4)]
    await asyncio.sleep(1.0)
    os.kill(member.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(PAUSE_S)
        acknowledged.append(time.monotonic())
    finally:
        os.kill(member.pid, signal.SIGCONT)
    stop.set()
    await asyncio.gather(*tasks)
    return max(later - earlier for earlier, later in pairwise(acknowledged))


def test_commits_go_on_within_three_seconds_of_a_pause() -> None:
    binary = sound_etcd() or missing_tool("a sound etcd", install="apt-get install etcd-server")

    async def run(members: list[EtcdServer]) -> None:
        store = await EtcdStore.open(
            [each.endpoint for each in members], system_env(), prefix="/pauses", compactor=False
        )
        gaps: dict[str, float] = {}
        for number in range(4):
            leader = [each for each in members if await asyncio.to_thread(is_leader, each)]
            victim = leader[0] if number % 2 == 0 else members[number % 3]
            gaps[f"{number}: {'leader' if victim in leader else 'follower'}"] = await longest_gap_s(store, victim)
            await asyncio.sleep(2.0)
        await store.close()
        print(gaps)
        assert max(gaps.values()) < STANDSTILL_S_MAX, gaps

    with etcd_cluster(binary) as members:
        asyncio.run(asyncio.wait_for(run(members), 120))

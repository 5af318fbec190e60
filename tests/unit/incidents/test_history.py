"""A history that begins in the past: as far back as the store keeps it, with the times of its commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from tests.kit.loops import on_loop
from tests.kit.records import BEGAN, Time

from kedge.api.kinds import KINDS
from kedge.cli.live_history import HistoryRecorder, PastRevisions
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.observe.records import CommitRecord, StoreState
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

NAMESPACE = KINDS.of_key_kind("Namespace")


class Recorded(NamedTuple):
    state: StoreState
    commits: list[CommitRecord]

    def names(self) -> set[str]:
        return {each.key.name for each in self.state.objects}

    def times(self) -> dict[str, float]:
        return {
            each.key.name: (commit.at - BEGAN).total_seconds() for commit in self.commits for each in commit.written
        }


async def recorded_since(seconds: float, *, compact_at: int = 0) -> Recorded:
    """Namespaces are created every ten seconds, with a mark a second after each; then a history begins."""
    time = Time()
    env = replace(system_env(), now=time.now)
    store = MemoryStore(env)
    client = Client(DirectTransport(Service(store, env)), env, component="test")
    past = PastRevisions(client, env, NAMESPACE)
    await past.look()
    for n in range(4):
        time.seconds = 10.0 * n
        await client.create(NAMESPACE, {"metadata": {"name": f"n-{n}"}})
        time.seconds += 1
        await past.look()
        if n == compact_at - 1:
            await store.compact(await store.revision())
    time.seconds = 100.0
    recorder = HistoryRecorder(client, env, [NAMESPACE], past=past)
    state = await recorder.start(BEGAN + timedelta(seconds=seconds))
    await client.create(NAMESPACE, {"metadata": {"name": "late"}})
    return Recorded(state, await recorder.stop())


@on_loop
async def test_a_history_begins_at_the_last_mark_before_the_wanted_time() -> None:
    found = await recorded_since(15)
    assert found.names() == {"n-0", "n-1"}
    assert found.state.at == BEGAN + timedelta(seconds=11)
    assert found.times() == {"n-2": 21.0, "n-3": 31.0, "late": 100.0}


@on_loop
async def test_a_history_of_before_the_first_mark_begins_with_it() -> None:
    found = await recorded_since(-50)
    assert found.names() == {"n-0"}
    assert set(found.times()) == {"n-1", "n-2", "n-3", "late"}


@on_loop
async def test_a_history_begins_later_if_the_store_has_dropped_the_rest() -> None:
    found = await recorded_since(0, compact_at=3)
    assert found.names() == {"n-0", "n-1", "n-2"}
    assert found.state.at == BEGAN + timedelta(seconds=21)
    assert set(found.times()) == {"n-3", "late"}


@on_loop
async def test_marks_are_dropped_with_the_ring() -> None:
    time = Time()
    env = replace(system_env(), now=time.now)
    client = Client(DirectTransport(Service(MemoryStore(env), env)), env, component="test")
    await client.create(NAMESPACE, {"metadata": {"name": "n"}})
    past = PastRevisions(client, env, NAMESPACE)
    for n in range(2_000):
        time.seconds = float(n)
        await past.look()
        if n % 100 == 0:
            await asyncio.sleep(0)
    marks = past.from_time(BEGAN)
    assert len(marks) <= env.limits.decision_ring_s + 3
    assert marks[-1].at == time.now()

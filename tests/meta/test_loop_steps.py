"""No step of the event loop is longer than `STEP_S_MAX` with 100,000 objects; exceptions are declared here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from tests.kit.loop_steps import SteppedLoop, run_stepped
from tests.objects import CONFIG_MAP

from kedge.api.requests import DeleteCollection, List, ListOptions, OpenWatch, WatchOptions
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import system_env
from kedge.heap import tune_collector
from kedge.keys import Key
from kedge.limits import STEP_S_MAX
from kedge.runtime.cache import CacheSet
from kedge.server.service import Service, operations
from kedge.store import Put
from kedge.store.sqlite import SqliteStore

OBJECTS: Final = 100_000
_NEVER_SUSPENDS = "a watch in the same process whose next batch is there does not suspend between two batches"
LONGER: Final[dict[str, tuple[float, str]]] = {
    "watch of all history": (0.20, _NEVER_SUSPENDS),
    "watch from the beginning": (0.15, _NEVER_SUSPENDS),
    "delete of a collection": (0.17, "in the watcher of the cache; the cause is not known yet"),
    "cache, first list": (0.20, "a relist applies at once, so that no reader sees half of it"),
    "list": (0.04, "near the limit; the cause is not known yet"),
    "list with a selector": (0.03, "near the limit; the cause is not known yet"),
    "store list at a past revision": (0.03, "every change since is looked at, for each slice"),
    "commits": (0.04, "1,000 writes share a sync (`sync_ops_max`); this test also makes 1,000 objects in one step"),
    "compaction": (0.035, "the history in memory is cut in one step"),
}
"""Parts that hold the loop longer than the limit: their bound in seconds, and why. It may shrink and not grow."""


def stored(number: int) -> Put:
    name = f"c{number:06}"
    namespace = f"n{number % 10}"
    value = (
        f'{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"u{number}",'
        f'"creationTimestamp":"2030-01-01T00:00:00Z","labels":{{"app":"a{number % 7}"}}}},"data":{{"k":"v{number}"}}}}'
    )
    return Put(Key("ConfigMap", namespace, name), value.encode())


async def filled(store: SqliteStore) -> None:
    commits = []
    for start in range(0, OBJECTS, 100):
        commits.append(store.commit([], [stored(n) for n in range(start, start + 100)]))
        if len(commits) == 10:
            await asyncio.gather(*commits)
            commits = []


async def every_operation(loop: SteppedLoop, path: Path) -> None:
    env = system_env()
    store = await SqliteStore.open(path, env)
    service = Service(store, env)
    client = Client(DirectTransport(service), env, component="test")
    async with loop.part("commits"):
        await filled(store)
    async with loop.part("store list"):
        assert len((await store.list("ConfigMap")).entries) == OBJECTS
    async with loop.part("store list of a namespace"):
        await store.list("ConfigMap", namespace="n3")
    revision = await store.revision()
    await store.commit([], [stored(1)])
    async with loop.part("store list at a past revision"):
        await store.list("ConfigMap", at=revision)
    async with loop.part("list"):
        assert len((await client.list(CONFIG_MAP)).objects) == OBJECTS
    async with loop.part("list with a selector"):
        await client.send(List(CONFIG_MAP, ListOptions(label_selector="app=a1")))
    async with loop.part("list in pages"):
        page = await client.list(CONFIG_MAP, ListOptions(limit=500))
        await client.list(CONFIG_MAP, ListOptions(limit=500, continue_token=page.continue_token))
    async with loop.part("watch from the beginning"):
        options = WatchOptions(allow_bookmarks=True, send_initial_events=True, resource_version_match="NotOlderThan")
        events = await client.open_watch(OpenWatch(CONFIG_MAP, options))
        async for event in events:
            if event.initial_end:
                break
        await events.aclose()
    async with loop.part("watch of all history"):
        after = str(store.statistics().compacted)
        events = await client.open_watch(OpenWatch(CONFIG_MAP, WatchOptions(resource_version=after)))
        seen = 0
        async for _ in events:
            seen += 1
            if seen > OBJECTS // 2:
                break
        await events.aclose()
    async with loop.part("cache, first list"):
        caches = CacheSet(client, env)
        cache = caches.cache(CONFIG_MAP)
        async with asyncio.timeout(120):
            await cache.at_least(await store.revision())
    async with loop.part("export"):
        exported = await store.export()
        async for _ in exported.slices:
            pass
    async with loop.part("sweep of operations"):
        await operations.sweep(service._core)
    async with loop.part("delete of a collection"):
        await client.send(DeleteCollection(CONFIG_MAP, ListOptions(namespace="n0")))
    async with loop.part("compaction"):
        await store.compact(await store.revision())
    await caches.stop()
    await store.close()


@pytest.mark.slow
def test_no_step_of_the_loop_is_long_with_100_000_objects(tmp_path: Path) -> None:
    tune_collector()
    _, steps = run_stepped(lambda loop: every_operation(loop, tmp_path / "store"))
    for step in steps[:10]:
        print(f"{step.cpu_s * 1000:8.1f} ms  {step.part}: {step.name}")
    late = [step for step in steps if step.cpu_s > LONGER.get(step.part, (STEP_S_MAX, ""))[0]]
    assert not late

"""A cache that follows its kind over a wire, for tests of the watcher between them."""

from __future__ import annotations

import dataclasses

from tests.caches import QUICK, Bench, make_bench, revisions, until
from tests.objects import CONFIG_MAP, config_map

from kedge.keys import Key
from kedge.limits import Limits
from kedge.runtime.cache import Cache
from kedge.runtime.watcher import Watcher

SLOW_GUARD = dataclasses.replace(QUICK, watch_probe_s=60.0, watch_silence_s=60.0)
"""No guard looks after the stream: what a test shows is the work of the safeguard it is about."""


async def start(limits: Limits = QUICK, *, maps: int = 4) -> tuple[Bench, Cache, Watcher]:
    bench = await make_bench(limits)
    for n in range(maps):
        await bench.world.create(config_map(f"m{n}"))
    cache = bench.caches.cache(CONFIG_MAP)
    await until(lambda: cache.synced)
    return bench, cache, bench.caches.watcher(cache)


def map_key(name: str) -> Key:
    return Key("ConfigMap", "default", name)


def equal(bench: Bench, cache: Cache) -> bool:
    return revisions(cache.list().value) == bench.committed(CONFIG_MAP)


async def stop(bench: Bench, *, reported: int = 0) -> None:
    await bench.caches.stop()
    await until(lambda: bench.wire.streams == 0)
    assert len(bench.reported) == reported, bench.reported

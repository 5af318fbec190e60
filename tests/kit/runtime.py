"""Harnesses of the runtime: caches and watchers on a real service, and a work queue on a clock that the test moves."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from tests.objects import CONFIG_MAP, World, config_map, make_world

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import (
    EventType,
    List,
    ListOptions,
    ObjectList,
    OpenWatch,
    Reply,
    Request,
    WatchEvent,
    WatchOptions,
)
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, TaskSpawner, uid_from
from kedge.errors import Unavailable
from kedge.keys import NO_REVISION, Key
from kedge.limits import Limits
from kedge.runtime.cache import Cache, CacheSet
from kedge.runtime.queue import Item, ItemOutcome, Loop, RunEffects, Wake, WorkQueue
from kedge.runtime.watcher import Watcher
from kedge.store.memory import MemoryStore

QUICK = Limits(
    client_attempts_max=1,
    breaker_failures_max=10_000,
    watch_backoff_s=0.001,
    watch_backoff_s_max=0.004,
    watch_probe_s=0.01,
    watch_silence_s=0.05,
    watch_healthy_s=0.02,
    watch_progress_s=0.005,
    watch_future_wait_s=0.02,
    relist_page_max=3,
    floor_relist_s=0.03,
)
"""Every delay of seconds is one of milliseconds."""


def unaltered(event: WatchEvent) -> tuple[WatchEvent, ...]:
    return (event,)


class ControlledTransport(DirectTransport):
    """A transport to a real service that the test can disconnect, delay and alter."""

    def __init__(self, world: World) -> None:
        super().__init__(world.service)
        self.lists: list[ListOptions] = []
        self.watches: list[WatchOptions] = []
        self.list_errors: list[Exception] = []
        self.watch_errors: list[Exception] = []
        self.before_list: Callable[[ListOptions], Any] | None = None
        self.alter_list: Callable[[ObjectList], ObjectList] = lambda listing: listing
        self.alter: Callable[[WatchEvent], tuple[WatchEvent, ...]] = unaltered
        """The events that replace each event: none, itself, or more."""
        self.down = False
        self.mute = False
        """Streams stay open and deliver nothing."""
        self._cut: dict[asyncio.Future[None], Exception | None] = {}
        self.streams = 0

    @property
    def whole_lists(self) -> list[ListOptions]:
        """Lists that are not probes."""
        return [options for options in self.lists if options.limit != 1]

    async def send(self, request: Request[Reply]) -> Reply:
        if isinstance(request, List):
            return cast("Reply", await self._list(request))
        return await super().send(request)

    async def _list(self, request: List) -> ObjectList:
        options = request.options
        await self._check_up()
        if options.limit != 1:
            if self.before_list is not None:
                await self.before_list(options)
            if self.list_errors:
                raise self.list_errors.pop(0)
        self.lists.append(options)
        return self.alter_list(await super().send(request))

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        await self._check_up()
        self.watches.append(request.options)
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        events = self._events(await super().open_watch(request))
        await anext(events)  # started: from here on it can be cut, and closes its stream
        return events

    async def _check_up(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise Unavailable("the transport is down")

    def cut(self, error: Exception | None = None) -> None:
        """End every stream: without or with an error."""
        for cut in tuple(self._cut):
            if not cut.done():
                self._cut[cut] = error
                cut.set_result(None)

    async def _events(self, stream: AsyncGenerator[WatchEvent, None]) -> AsyncGenerator[WatchEvent, None]:
        cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cut[cut] = None
        self.streams += 1
        pending: asyncio.Future[WatchEvent] | None = None
        try:
            yield WatchEvent(EventType.BOOKMARK, None, NO_REVISION)  # consumed by `open_watch`
            while True:
                pending = asyncio.ensure_future(anext(stream))
                either: tuple[asyncio.Future[Any], ...] = (pending, cut)
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    if (error := self._cut[cut]) is not None:
                        raise error
                    return
                try:
                    event = await pending
                except StopAsyncIteration:
                    return
                if not self.mute:
                    for each in self.alter(event):
                        yield each
        finally:
            self.streams -= 1
            del self._cut[cut]
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
            await stream.aclose()


class CacheHarness:
    """A service, a transport to it, and the caches of one process."""

    def __init__(self, world: World, env: Env) -> None:
        self.world = world
        self.env = env
        self.transport = ControlledTransport(world)
        self.client = Client(self.transport, env, component="test")
        self.caches = CacheSet(self.client, env)
        self.reported: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.reported.append(context.get("exception") or RuntimeError(context["message"]))
        )

    @property
    def store(self) -> MemoryStore:
        assert isinstance(self.world.store, MemoryStore)
        return self.world.store

    def committed(self, kind: Kind) -> dict[Key, int]:
        return {entry.key: entry.modified for entry in self.store.entries() if entry.key.kind == kind.key_kind}

    async def quiet(self, *kinds: Kind) -> None:
        """Wait until the caches of `kinds` have every commit."""
        revision = await self.store.revision()
        for kind in kinds:
            for cache in self.caches.of_kind(kind.key_kind):
                await cache.at_least(revision, within_s=10)

    async def compact(self) -> None:
        await self.store.compact(await self.store.revision())


async def make_cache_harness(limits: Limits = QUICK) -> CacheHarness:
    world = await make_world(limits=limits)
    env = dataclasses.replace(world.env, monotonic=lambda: asyncio.get_running_loop().time())
    return CacheHarness(world, env)


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  a condition without a signal
            await asyncio.sleep(0.001)


def revisions(objects: tuple[Object, ...]) -> dict[Key, int]:
    return {each.key: each.revision for each in objects}


# -- watchers --------------------------------------------------------------------------------------

SLOW_GUARD = dataclasses.replace(QUICK, watch_probe_s=60.0, watch_silence_s=60.0)
"""No probes: a test then shows the effect of the safeguard that it is about."""


async def start_watcher(limits: Limits = QUICK, *, maps: int = 4) -> tuple[CacheHarness, Cache, Watcher]:
    harness = await make_cache_harness(limits)
    for n in range(maps):
        await harness.world.create(config_map(f"m{n}"))
    cache = harness.caches.cache(CONFIG_MAP)
    await until(lambda: cache.synced)
    return harness, cache, harness.caches.watcher(cache)


def map_key(name: str) -> Key:
    return Key("ConfigMap", "default", name)


def is_current(harness: CacheHarness, cache: Cache) -> bool:
    return revisions(cache.list().value) == harness.committed(CONFIG_MAP)


async def stop_watcher(harness: CacheHarness, *, reported: int = 0) -> None:
    await harness.caches.stop()
    await until(lambda: harness.transport.streams == 0)
    assert len(harness.reported) == reported, harness.reported


# -- queues ----------------------------------------------------------------------------------------


class QueueHarness:
    """One queue of string keys on a clock that only the test moves. The tenant is the part before the slash."""

    def __init__(self, *, seed: int = 0, workers: int = 0, limits: Limits | None = None, **named: Any) -> None:
        self.now_s = 1000.0
        source = random.Random(seed)
        self.env = Env(
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s),
            monotonic=lambda: self.now_s,
            random=source,
            new_uid=lambda: uid_from(source),
            spawn=TaskSpawner(),
            limits=limits or Limits(),
        )
        self.loops: list[Loop[str]] = []
        named.setdefault("tenant_of", lambda key: key.partition("/")[0] if "/" in key else "")
        self.queue: WorkQueue[str] = WorkQueue(self.env, "test", workers=workers, on_loop=self.loops.append, **named)

    def take(self) -> Item[str]:
        item = self.queue.get_nowait()
        assert item is not None, "no key is ready"
        return item

    def taken(self, count: int, *, service_s: float = 0.0) -> list[str]:
        """Run `count` items one after another."""
        keys = []
        for _ in range(count):
            item = self.take()
            self.now_s += service_s
            self.queue.done(item)
            keys.append(item.key)
        return keys

    def run(
        self, key: str, why: str | Wake, outcome: ItemOutcome | None = None, facts: RunEffects | None = None
    ) -> float:
        """Wake a key and run it as soon as it is due. Returns the delay."""
        assert self.queue.add(key, why)
        begun_s = self.now_s
        report = self.queue.explain(key)
        assert report is not None
        assert report.next_run_s is not None
        self.now_s = max(self.now_s, report.next_run_s)
        item = self.take()
        assert item.key == key
        self.queue.done(item, outcome or ItemOutcome.success(), facts)
        return self.now_s - begun_s

    def sample(self, name: str, **labels: str) -> float:
        value = self.env.metrics.registry.get_sample_value(name, {"queue": "test", **labels})
        assert value is not None, f"no series {name}"
        return value


def fails(text: str = "no") -> ItemOutcome:
    return ItemOutcome.failure(RuntimeError(text))

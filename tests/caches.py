"""Caches on a real service, behind a wire that can be cut, slowed, bent and compacted: for tests of `runtime.cache`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from tests.objects import World, make_world

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
from kedge.env import Env
from kedge.errors import Unavailable
from kedge.keys import NO_REVISION, Key
from kedge.limits import Limits
from kedge.runtime.cache import CacheSet
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
"""Everything that takes seconds takes milliseconds."""


def as_it_is(event: WatchEvent) -> tuple[WatchEvent, ...]:
    return (event,)


class Wire(DirectTransport):
    """A real service behind a wire that the test holds."""

    def __init__(self, world: World) -> None:
        super().__init__(world.service)
        self.lists: list[ListOptions] = []
        self.watches: list[WatchOptions] = []
        self.list_errors: list[Exception] = []
        self.watch_errors: list[Exception] = []
        self.before_list: Callable[[ListOptions], Any] | None = None
        self.bend_list: Callable[[ObjectList], ObjectList] = lambda listing: listing
        self.bend: Callable[[WatchEvent], tuple[WatchEvent, ...]] = as_it_is
        """What becomes of each event: nothing, itself, more."""
        self.down = False
        self.mute = False
        """Streams live on, and bring nothing."""
        self._cut: dict[asyncio.Future[None], Exception | None] = {}
        self.streams = 0

    @property
    def whole_lists(self) -> list[ListOptions]:
        """Lists that are no probes."""
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
        return self.bend_list(await super().send(request))

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        await self._check_up()
        self.watches.append(request.options)
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        events = self._events(await super().open_watch(request))
        await anext(events)  # begun: from here on it can be cut, and closes what it opened
        return events

    async def _check_up(self) -> None:
        await asyncio.sleep(0)
        if self.down:
            raise Unavailable("the wire is cut")

    def cut(self, error: Exception | None = None) -> None:
        """End every stream: quietly, or with an error."""
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
            yield WatchEvent(EventType.BOOKMARK, None, NO_REVISION)  # for `watch` alone
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
                    for each in self.bend(event):
                        yield each
        finally:
            self.streams -= 1
            del self._cut[cut]
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
            await stream.aclose()


class Bench:
    """A world, a wire to it, and the caches of one process."""

    def __init__(self, world: World, env: Env) -> None:
        self.world = world
        self.env = env
        self.wire = Wire(world)
        self.client = Client(self.wire, env, component="test")
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
        """Wait until the caches of `kinds` have everything that was committed."""
        revision = await self.store.revision()
        for kind in kinds:
            for cache in self.caches.of_kind(kind.key_kind):
                await cache.at_least(revision, within_s=10)

    async def compact(self) -> None:
        await self.store.compact(await self.store.revision())


async def make_bench(limits: Limits = QUICK) -> Bench:
    world = await make_world(limits=limits)
    env = dataclasses.replace(world.env, monotonic=lambda: asyncio.get_running_loop().time())
    return Bench(world, env)


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    """Let the world run until something holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # the condition is anybody's, and says nothing when it holds


def revisions(objects: tuple[Object, ...]) -> dict[Key, int]:
    return {each.key: each.revision for each in objects}


@contextmanager
def replaced(target: object, name: str, value: object) -> Iterator[None]:
    """A safeguard taken away, for as long as the block lasts."""
    saved = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, saved)

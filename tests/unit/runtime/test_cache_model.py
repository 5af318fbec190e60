"""After any faults of the stream, a quiet cache equals the store, and its indexes equal a recomputation."""

from __future__ import annotations

import asyncio
import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.runtime import QUICK, CacheHarness, make_cache_harness, revisions, unaltered, until
from tests.objects import CONFIG_MAP, config_map

from kedge.api.objects import Object
from kedge.errors import AlreadyExists, Lagged, NotFound, Unavailable
from kedge.keys import Key
from kedge.runtime.cache import Cache, CacheChange, ChangeType, Index

NAMES = ("a", "b", "c", "d", "e")
COLOURS = ("red", "green", "blue")
LIMITS = dataclasses.replace(QUICK, relist_page_max=2, received_log_max=16)


def colours_of(each: Object) -> tuple[str, ...]:
    return tuple(sorted(set(each.edit().get("data", {}).values())))


BY_COLOUR = Index("colour", colours_of)

steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.sampled_from(COLOURS)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just("")),
    st.tuples(st.sampled_from(("end", "lag", "fail", "down", "up", "compact", "relist", "twice", "turn", "quiet")),
              st.just(""), st.just("")),
)  # fmt: skip


class Model:
    """The store as a plain dict, and the state that a subscriber derives from changes."""

    def __init__(self, harness: CacheHarness, cache: Cache) -> None:
        self.harness = harness
        self.cache = cache
        self.colours: dict[str, str] = {}
        self.notified: dict[Key, Object] = {}
        self.revision = 0
        cache.add_index(BY_COLOUR)
        cache.subscribe(self._receive, name="model")

    def _receive(self, change: CacheChange) -> None:
        if change.type is ChangeType.DELETED:
            assert self.notified.pop(change.key).revision <= change.revision
        else:
            assert change.new is not None
            assert (change.key in self.notified) == (change.type is ChangeType.CHANGED)
            assert change.key not in self.notified or self.notified[change.key].revision < change.new.revision
            self.notified[change.key] = change.new
        self.check()

    def check(self) -> None:
        """Invariants that hold at every moment."""
        cache = self.cache
        assert cache.revision >= self.revision
        self.revision = cache.revision
        if not cache.statistics().relists:
            return
        objects = cache.list().value
        assert [each.key for each in objects] == sorted(each.key for each in objects)
        for colour in COLOURS:
            assert cache.by_index(BY_COLOUR, colour).value == tuple(e for e in objects if colour in colours_of(e))
        rebuilt, revision = cache.received.state_at(cache.place)
        assert rebuilt == {each.key: each for each in objects}
        assert revision <= cache.revision

    async def step(self, what: str, name: str, colour: str) -> None:
        service, transport = self.harness.world.service, self.harness.transport
        key = Key("ConfigMap", "default", name)
        match what:
            case "put":
                try:
                    await service.create(CONFIG_MAP, config_map(name, colour=colour))
                except AlreadyExists:
                    await service.patch(key, {"data": {"colour": colour}})
                self.colours[name] = colour
            case "delete":
                try:
                    await service.delete(key)
                except NotFound:
                    assert name not in self.colours
                self.colours.pop(name, None)
            case "end" | "lag" | "fail":
                transport.cut({"end": None, "lag": Lagged("slow"), "fail": Unavailable("cut")}[what])
            case "down" | "up":
                transport.down = what == "down"
            case "compact":
                await self.harness.compact()
            case "relist":
                self.cache.request_relist()
            case "twice":
                transport.alter = lambda event: (event, event)
            case "turn":
                await asyncio.sleep(0)
            case _:
                await self.quiet()
        self.check()

    async def quiet(self) -> None:
        self.harness.transport.down = False
        await self.harness.quiet(CONFIG_MAP)
        await until(lambda: self.notified == {each.key: each for each in self.cache.list().value})
        found = self.cache.list().value
        assert revisions(found) == self.harness.committed(CONFIG_MAP)
        assert {each.key.name: each.edit()["data"]["colour"] for each in found} == self.colours
        for name in NAMES:
            assert (self.cache.tombstone(Key("ConfigMap", "default", name)) is None) or name not in self.colours


@settings(max_examples=150)
@given(st.lists(steps, max_size=40))
def test_a_quiet_cache_equals_the_store(plan: list[tuple[str, str, str]]) -> None:
    async def run() -> None:
        harness = await make_cache_harness(LIMITS)
        model = Model(harness, harness.caches.cache(CONFIG_MAP))
        for what, name, colour in plan:
            await model.step(what, name, colour)
        harness.transport.alter = unaltered
        await model.quiet()
        assert harness.reported == []
        await harness.caches.stop()

    asyncio.run(run())

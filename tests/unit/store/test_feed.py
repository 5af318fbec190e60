"""Bounds and sharing inside the feed: not in the contract, but memory and speed depend on them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.sqlite_faults import env_with

from kedge.errors import Compacted, InvariantBroken, Lagged, Unavailable
from kedge.keys import FENCE, Key, Revision
from kedge.store.contract import Change, Entry, Put, Store
from kedge.store.feed import ALL_KINDS, Feed, FeedWatch
from kedge.store.memory import MemoryStore
from kedge.store.sqlite import SqliteStore


def key(name: str) -> Key:
    return Key("Thing", "ns", name)


def change(revision: Revision, name: str = "a", previous: Entry | None = None) -> Change:
    entry = Entry(key(name), b"", previous.created if previous else revision, revision)
    return Change(revision, key(name), entry, previous)


def test_history_is_bounded_and_a_watch_behind_it_gets_compacted() -> None:
    async def run() -> None:
        store = MemoryStore(env_with(history_commits_max=80))
        idle = await store.watch("Other", after=0)
        behind = await store.watch("Thing", after=0)
        for n in range(1000):
            await store.commit([], [Put(key(str(n % 7)), b"")])
            assert store.statistics().history_changes <= 80
        statistics = store.statistics()
        assert statistics.compacted >= 1000 - 80
        assert statistics.history_changes == 1000 - statistics.compacted
        with pytest.raises(Compacted) as caught:
            await behind.__anext__()
        assert caught.value.oldest == statistics.compacted
        idle.request_progress()
        assert (await idle.__anext__()).revision == 1000, "nothing of its kind was dropped"
        await store.close()

    asyncio.run(run())


def test_heartbeats_leave_holes_that_compaction_clears() -> None:
    async def run() -> None:
        store = MemoryStore(env_with())
        for n in range(50):
            await store.commit([], [Put(key("lease"), b"%d" % n, latest_only=True)])
        watch = await store.watch("Thing", after=0)
        batch = await watch.__anext__()
        assert [(each.revision, each.created) for each in batch.changes] == [(50, False)]
        await store.compact(49)
        assert store.statistics().history_changes == 1
        await store.close()

    asyncio.run(run())


def test_watches_at_the_same_position_share_one_batch() -> None:
    async def run() -> None:
        feed = Feed(env_with(), revision=0, compacted=0)
        watches = [await feed.watch("Thing", after=0) for _ in range(3)]
        elsewhere = await feed.watch("Thing", after=0, namespace="elsewhere")
        feed.publish(1, [change(1)])
        batches = [await watch.__anext__() for watch in watches]
        assert batches[0] is batches[1] is batches[2]
        elsewhere.request_progress()
        assert (await elsewhere.__anext__()).changes == ()
        feed.publish(2, [change(2, "b")])
        assert [(await watch.__anext__()).changes[0].revision for watch in watches] == [2, 2, 2]
        feed.close()

    asyncio.run(run())


def test_revisions_are_published_in_order() -> None:
    async def run() -> None:
        feed = Feed(env_with(), revision=5, compacted=5)
        for revision in (5, 4):
            with pytest.raises(InvariantBroken):
                feed.publish(revision, [change(revision)])

    asyncio.run(run())


def test_each_watch_ends_with_an_error_of_its_own() -> None:
    async def run() -> None:
        feed = Feed(env_with(), revision=0, compacted=0)
        watches = [await feed.watch("Thing", after=0) for _ in range(2)]
        waiting = asyncio.ensure_future(feed.wait_reached(7))
        await asyncio.sleep(0)
        feed.close("the disk is gone")
        errors = await asyncio.gather(*(watch.__anext__() for watch in watches), waiting, return_exceptions=True)
        assert [str(error) for error in errors] == ["the disk is gone"] * 3
        assert all(isinstance(error, Unavailable) for error in errors)
        assert errors[0] is not errors[1]
        assert feed.watchers == 0

    asyncio.run(run())


def test_no_timer_outlives_a_closed_feed() -> None:
    async def run() -> None:
        feed = Feed(env_with(watch_progress_s=3600), revision=0, compacted=0)
        await feed.watch("Thing", after=0)
        feed.publish(1, [change(1)])
        timer = feed._progress_timer
        assert timer is not None
        feed.close()
        assert timer.cancelled()

    asyncio.run(run())


def test_a_watch_that_begins_behind_gets_a_progress_mark_at_once() -> None:
    async def run() -> None:
        feed = Feed(env_with(watch_progress_s=3600), revision=0, compacted=0)
        feed.publish(1, [change(1)])
        feed.publish(2, [change(2, "b")])
        quiet = await feed.watch("Other", after=1)
        async with asyncio.timeout(10):
            assert (await anext(quiet)).revision == 2
        feed.close()

    asyncio.run(run())


def test_a_change_of_leader_sends_progress_to_idle_watches_at_once() -> None:
    async def run() -> None:
        feed = Feed(env_with(watch_progress_s=3600), revision=0, compacted=0)
        quiet = await feed.watch("Other", after=0)
        feed.publish(1, [change(1)])
        fence = Key(FENCE, "ns", "leader")
        feed.publish(2, [Change(2, fence, Entry(fence, b"", 2, 2), None)])
        async with asyncio.timeout(10):
            assert (await anext(quiet)).revision == 2, (
                "the caches of a new leader would wait for the next progress period"
            )
        feed.close()

    asyncio.run(run())


def test_a_callback_drains_in_the_step_of_the_commit_and_an_ended_watch_affects_no_other() -> None:
    async def run() -> None:
        feed = Feed(env_with(watch_backlog_max=2), revision=0, compacted=0)
        taken: list[Revision] = []
        ends: list[type[Exception]] = []
        watches = [await feed.watch("Thing", after=0) for _ in range(3)]

        def take(watch: FeedWatch) -> None:
            try:
                while (batch := watch.take_nowait()) is not None:
                    taken.append(batch.revision)
            except (Lagged, StopAsyncIteration) as error:
                ends.append(type(error))

        prompt, slow, last = watches
        prompt.on_ready, last.on_ready = partial(take, prompt), partial(take, last)
        for revision in (1, 2, 3):
            feed.publish(revision, [change(revision)])
        assert taken == [1, 1, 2, 2, 3, 3]
        slow.on_ready = partial(take, slow)  # it is three behind, gets Lagged while the others are notified, and leaves
        feed.publish(4, [change(4)])
        assert taken[6:] == [4, 4]
        assert ends == [Lagged]
        assert feed.watchers == 2
        prompt.request_progress()
        assert taken[8:] == [4], "a requested progress mark is sent too"
        feed.close()
        assert ends[1:] == [StopAsyncIteration, StopAsyncIteration], "and the end too"

    asyncio.run(run())


class Callbacks:
    """Callbacks that drain their watches; the one named `broken` raises after it has taken a batch."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Revision]] = []
        self.reported: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.reported.append(context["exception"]))

    def attach(self, name: str, watch: Any) -> None:
        def take() -> None:
            while (batch := watch.take_nowait()) is not None:
                self.taken.append((name, batch.revision))
                if name == "broken":
                    raise ZeroDivisionError("a bug of the callback")

        watch.on_ready = take


def test_a_callback_that_raises_is_reported_and_ends_only_its_own_watch() -> None:
    """A batch that it took may be lost. Later changes would follow a gap, so it has to watch again."""

    async def run() -> None:
        feed = Feed(env_with(watch_progress_s=3600), revision=0, compacted=0)
        callbacks = Callbacks()
        watches = {name: await feed.watch("Thing", after=0) for name in ("first", "broken", "last")}
        everything, waiting = await feed.watch(ALL_KINDS, after=0), await feed.watch("Thing", after=0)
        for name, watch in watches.items():
            callbacks.attach(name, watch)
        callbacks.attach("everything", everything)
        reading = asyncio.ensure_future(anext(waiting))
        reached = asyncio.ensure_future(feed.wait_reached(1))
        await asyncio.sleep(0)
        feed.publish(1, [change(1)])
        feed.publish(2, [change(2, "b")])
        names = ("first", "broken", "last", "everything")
        assert callbacks.taken == [(name, 1) for name in names] + [(name, 2) for name in names if name != "broken"]
        assert [str(error) for error in callbacks.reported] == ["a bug of the callback"]
        assert feed._progress_timer is not None
        async with asyncio.timeout(10):
            assert (await reading).revision == 2
            await reached
            with pytest.raises(Unavailable, match="watch again after the last revision processed"):
                await anext(watches["broken"])
        assert feed.watchers == 4
        feed.close()

    asyncio.run(run())


def test_a_callback_that_raises_at_the_end_of_its_watch_delays_no_other_end() -> None:
    async def run() -> None:
        feed = Feed(env_with(), revision=0, compacted=0)
        callbacks = Callbacks()
        bad, good = [await feed.watch("Thing", after=0) for _ in range(2)]
        callbacks.attach("bad", bad)  # it does not catch the end of the watch
        reading = asyncio.ensure_future(anext(good))
        await asyncio.sleep(0)
        feed.close("the disk is gone")
        with pytest.raises(Unavailable, match="the disk is gone"):
            await reading
        with pytest.raises(Unavailable, match="the disk is gone"):
            bad.take_nowait()
        assert [str(error) for error in callbacks.reported] == ["the disk is gone"]
        assert feed.watchers == 0

    asyncio.run(run())


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_commit_is_acknowledged_although_a_callback_raises(backend: str, tmp_path: Path) -> None:
    async def run() -> None:
        env = env_with()
        store: Store = MemoryStore(env) if backend == "memory" else await SqliteStore.open(tmp_path / "a.db", env)
        callbacks = Callbacks()
        for name in ("broken", "last"):
            callbacks.attach(name, await store.watch("Thing", after=0))
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(store.commit([], [Put(key(name), b"")]) for name in "ab")) == [1, 2]
            assert await store.commit([], [Put(key("c"), b"")]) == 3
        assert [name for name, _ in callbacks.taken].count("broken") == 1
        assert callbacks.taken[-1] == ("last", 3)
        assert len(callbacks.reported) == 1
        await store.close()

    asyncio.run(run())

"""Bounds and sharing inside the feed that no contract promises, but memory and speed depend on."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.unit.store.sqlite_faults import env_with

from kedge.errors import Compacted, InvariantBroken, Lagged, Unavailable
from kedge.keys import FENCE, Key, Revision
from kedge.store.contract import Change, Entry, Put
from kedge.store.feed import Feed, FeedWatch
from kedge.store.memory import MemoryStore


def key(name: str) -> Key:
    return Key("Thing", "ns", name)


def change(revision: Revision, name: str = "a", previous: Entry | None = None) -> Change:
    entry = Entry(key(name), b"", previous.created if previous else revision, revision)
    return Change(revision, key(name), entry, previous)


def test_history_is_bounded_and_the_watch_behind_it_is_told() -> None:
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


def test_watches_that_stand_together_share_one_batch() -> None:
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


def test_a_watch_that_begins_behind_hears_at_once_how_far_history_is() -> None:
    async def run() -> None:
        feed = Feed(env_with(watch_progress_s=3600), revision=0, compacted=0)
        feed.publish(1, [change(1)])
        feed.publish(2, [change(2, "b")])
        quiet = await feed.watch("Other", after=1)
        async with asyncio.timeout(10):
            assert (await anext(quiet)).revision == 2
        feed.close()

    asyncio.run(run())


def test_when_a_lease_changes_hands_every_idle_watch_hears_so_at_once() -> None:
    async def run() -> None:
        feed = Feed(env_with(watch_progress_s=3600), revision=0, compacted=0)
        quiet = await feed.watch("Other", after=0)
        feed.publish(1, [change(1)])
        fence = Key(FENCE, "ns", "leader")
        feed.publish(2, [Change(2, fence, Entry(fence, b"", 2, 2), None)])
        async with asyncio.timeout(10):
            assert (await anext(quiet)).revision == 2, "a new leader's caches would wait for a period"
        feed.close()

    asyncio.run(run())


def test_who_is_told_takes_in_that_very_step_and_one_that_has_ended_harms_no_other() -> None:
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
        slow.on_ready = partial(take, slow)  # it is three behind, finds that out while others are told, and leaves
        feed.publish(4, [change(4)])
        assert taken[6:] == [4, 4]
        assert ends == [Lagged]
        assert feed.watchers == 2
        prompt.request_progress()
        assert taken[8:] == [4], "a mark that was asked for comes as well"
        feed.close()
        assert ends[1:] == [StopAsyncIteration, StopAsyncIteration], "and so does the end"

    asyncio.run(run())

"""A watch of the etcd store that is drained by its callback, from a catch-up over to the feed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from tests.unit.store.sqlite_faults import env_with

from kedge.errors import Unavailable
from kedge.keys import Key, Revision
from kedge.store.contract import Batch, Change, Entry
from kedge.store.etcd.watch import CatchUp, EtcdWatch
from kedge.store.feed import Feed, FeedWatch


def change(revision: Revision) -> Change:
    key = Key("Thing", "ns", f"a-{revision}")
    return Change(revision, key, Entry(key, b"", revision, revision), None)


class OldHistory(CatchUp):
    """Revisions 1 to `last`, one a batch, as etcd would deliver them."""

    def __init__(self, last: Revision) -> None:
        self.revision = 0
        self.pending = cast("Any", ())
        self.reads = 0
        self.closed = False
        self._last = last

    async def next(self, progress_wanted: bool) -> Batch | None:  # noqa: ARG002
        await asyncio.sleep(0)
        if self.revision == self._last:
            raise Unavailable("the connection broke")
        self.reads += 1
        self.revision += 1
        return Batch((change(self.revision),), self.revision)

    def close(self) -> None:
        self.closed = True


class FakeStore:
    """The part of an `EtcdStore` that a watch uses: a feed whose history begins after revision 3."""

    def __init__(self) -> None:
        self.feed = Feed(env_with(), revision=3, compacted=3)
        self.ended: list[EtcdWatch] = []

    async def read_commits(self) -> tuple[int, int]:
        return 0, 0

    def want_progress(self, watch: FeedWatch) -> None:
        watch.request_progress()

    def left(self, watch: EtcdWatch) -> None:
        self.ended.append(watch)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, name=name)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_callback_gets_old_history_and_then_the_feed_without_a_gap() -> None:
    async def run() -> None:
        store, source = FakeStore(), OldHistory(3)
        watch = EtcdWatch(store, source, kind="Thing", namespace="")
        taken: list[Revision] = []

        def drain() -> None:
            while (batch := watch.take_nowait()) is not None:
                taken.extend(each.revision for each in batch.changes)
                assert watch.revision == batch.revision

        watch.on_ready = drain
        assert not watch.pushes
        await settle()
        assert (taken, source.closed, watch.pushes) == ([1, 2, 3], True, True)
        store.feed.publish(4, [change(4)])
        assert taken == [1, 2, 3, 4], "in the step of the commit"

    asyncio.run(run())


def test_a_slow_reader_is_one_batch_behind_etcd_and_its_revision_is_the_last_taken() -> None:
    async def run() -> None:
        store, source = FakeStore(), OldHistory(3)
        watch = EtcdWatch(store, source, kind="Thing", namespace="")
        watch.on_ready = lambda: None
        await settle()
        assert (source.reads, watch.revision) == (1, 0)
        watch.on_ready = None
        batch = await anext(watch)
        assert (batch.revision, watch.revision) == (1, 1), "the batch read ahead is not lost"
        assert [(await anext(watch)).revision for _ in range(2)] == [2, 3]

    asyncio.run(run())


def test_a_callback_sees_the_end_of_a_catch_up() -> None:
    async def run() -> None:
        store, source = FakeStore(), OldHistory(1)
        watch = EtcdWatch(store, source, kind="Thing", namespace="")
        ends: list[Exception] = []

        def drain() -> None:
            try:
                while watch.take_nowait() is not None:
                    pass
            except (Unavailable, StopAsyncIteration) as error:
                watch.on_ready = None
                ends.append(error)

        watch.on_ready = drain
        await settle()
        assert [str(error) for error in ends] == ["the connection broke"]
        with pytest.raises(Unavailable):
            watch.take_nowait()

    asyncio.run(run())


def test_closing_during_a_catch_up_notifies_the_callback() -> None:
    async def run() -> None:
        store, source = FakeStore(), OldHistory(3)
        watch = EtcdWatch(store, source, kind="Thing", namespace="")
        calls: list[str] = []
        watch.on_ready = lambda: calls.append("ready")
        await settle()
        watch.close()
        await settle()
        assert calls, "the callback was not called for the end"
        assert source.closed
        assert store.ended
        with pytest.raises(StopAsyncIteration):
            watch.take_nowait()

    asyncio.run(run())


def test_a_callback_that_raises_during_a_catch_up_is_reported_and_ends_the_watch() -> None:
    async def run() -> None:
        reported: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
        store, source = FakeStore(), OldHistory(3)
        watch = EtcdWatch(store, source, kind="Thing", namespace="")

        def broken() -> None:
            watch.take_nowait()
            raise ZeroDivisionError("a bug of the callback")

        watch.on_ready = broken
        await settle()
        assert [type(error) for error in reported] == [ZeroDivisionError]
        with pytest.raises(Unavailable, match="callback raised"):
            watch.take_nowait()

    asyncio.run(run())

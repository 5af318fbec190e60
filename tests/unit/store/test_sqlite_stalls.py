"""A disk that stalls: the event loop goes on, memory has only what is durable, and later commits wait."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.store.sqlite_faults import Probe, env_with, rows_in, sqlite_error, until

from kedge.errors import Conflict, OutcomeUnknown, Unavailable
from kedge.keys import Key
from kedge.store.contract import Absent, DeleteKey, Put, Store
from kedge.store.sqlite import SqliteStore


def key(name: str) -> Key:
    return Key("Thing", "ns", name)


async def names_in(store: Store) -> list[str]:
    return [entry.key.name for entry in (await store.list("Thing")).entries]


class Stall:
    """Statements with a prefix do not end before `end`. The loop could not call it if they held the loop."""

    def __init__(self, probe: Probe, start: str, error: Exception | None = None) -> None:
        self._ended = threading.Event()
        self.begun = threading.Event()

        def stall() -> None:
            self.begun.set()
            assert self._ended.wait(30), "the stalled statement held the loop"
            if error is not None:
                raise error

        probe.before[start] = stall

    def end(self) -> None:
        self._ended.set()


@contextmanager
def running(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, Probe, SqliteStore]]:
    probe = Probe()
    with asyncio.Runner() as runner:
        store = runner.run(probe.open(tmp_path / "a.db", env_with(sync_wait_s=0.001)))
        yield runner, probe, store
        runner.run(store.close())


def test_nothing_of_a_commit_is_seen_before_its_sync_ends(tmp_path: Path) -> None:
    with running(tmp_path) as (runner, probe, store):

        async def run() -> None:
            await store.commit([], [Put(key("a"), b"1"), Put(key("c"), b"1")])
            watch = await store.watch("Thing", after=1)
            stall = Stall(probe, "COMMIT")
            first = asyncio.ensure_future(
                store.commit([], [Put(key("a"), b"2"), Put(key("b"), b"1"), DeleteKey(key("c"))])
            )
            await until(stall.begun.is_set)
            entry = (await store.get([key("a")])).entries[0]
            assert entry is not None
            assert entry.value == b"1"
            assert store.get_nowait([key("b")]).entries == (None,)
            assert await names_in(store) == ["a", "c"]
            assert await store.revision() == 1
            assert watch.take_nowait() is None
            second = asyncio.ensure_future(store.commit([Absent(key("b"))], [Put(key("b"), b"2")]))
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert not first.done()
            assert not second.done()
            stall.end()
            assert await first == 2
            with pytest.raises(Conflict):
                await second
            assert await names_in(store) == ["a", "b"]
            assert [change.key.name for change in (await watch.__anext__()).changes] == ["a", "b", "c"]
            probe.end_partition()

        runner.run(run())
    assert [row[3] for row in rows_in(tmp_path / "a.db")] == ["a", "c", "a", "b", "c"]


@pytest.mark.parametrize(
    ("code", "raised"), [(sqlite3.SQLITE_IOERR, OutcomeUnknown), (sqlite3.SQLITE_FULL, Unavailable)]
)
def test_a_commit_that_fails_after_a_stall_leaves_nothing_in_memory(
    tmp_path: Path, code: int, raised: type[Exception]
) -> None:
    with running(tmp_path) as (runner, probe, store):

        async def run() -> None:
            await store.commit([], [Put(key("a"), b"1")])
            store._reserve.give_up()
            stall = Stall(probe, "COMMIT", sqlite_error(code, "injected"))
            commit = asyncio.ensure_future(store.commit([], [DeleteKey(key("a")), Put(key("b"), b"1")]))
            await until(stall.begun.is_set)
            stall.end()
            with pytest.raises(raised):
                await commit
            probe.end_partition()
            if raised is Unavailable:  # certain that nothing was written: the store serves on
                assert await names_in(store) == ["a"]
                await store.commit([], [DeleteKey(key("a"))])

        runner.run(run())


def test_commits_wait_for_a_checkpoint_that_stalls_and_the_loop_does_not(tmp_path: Path) -> None:
    with running(tmp_path) as (runner, probe, store):

        async def run() -> None:
            stall = Stall(probe, "PRAGMA wal_checkpoint")
            store._checkpoint()
            commit = asyncio.ensure_future(store.commit([], [Put(key("a"), b"1")]))
            await until(stall.begun.is_set)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert not commit.done()
            stall.end()
            assert await commit == 1
            probe.end_partition()

        runner.run(run())


def test_commits_wait_for_a_slice_of_a_compaction_that_stalls(tmp_path: Path) -> None:
    with running(tmp_path) as (runner, probe, store):

        async def run() -> None:
            for value in (b"1", b"2"):
                await store.commit([], [Put(key("a"), value)])
            stall = Stall(probe, "COMMIT", sqlite_error(sqlite3.SQLITE_IOERR, "injected"))
            compaction = asyncio.ensure_future(store.compact(2))
            await until(stall.begun.is_set)
            commit = asyncio.ensure_future(store.commit([], [Put(key("b"), b"1")]))
            await asyncio.sleep(0.001)
            assert not commit.done()
            probe.end_partition()
            stall.end()
            with pytest.raises(Unavailable):
                await compaction
            assert await commit == 3
            await store.compact(3)

        runner.run(run())


def test_close_waits_for_the_commit_under_way_and_settles_the_rest(tmp_path: Path) -> None:
    with running(tmp_path) as (runner, probe, store):

        async def run() -> None:
            stall = Stall(probe, "COMMIT")
            commits = [asyncio.ensure_future(store.commit([], [Put(key("a"), b"1")]))]
            await until(stall.begun.is_set)
            commits.append(asyncio.ensure_future(store.commit([], [Put(key("b"), b"1")])))
            closed = asyncio.ensure_future(store.close())
            await asyncio.sleep(0.001)
            assert not closed.done()
            probe.end_partition()
            stall.end()
            await closed
            assert await asyncio.gather(*commits) == [1, 2]

        runner.run(run())


def test_the_thread_of_a_store_ends_with_it(tmp_path: Path) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "disk of a.db" and thread.is_alive()]

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await store.commit([], [Put(key("a"), b"1")])
        assert threads()
        await store.close()
        await until(lambda: not threads())

    asyncio.run(run())

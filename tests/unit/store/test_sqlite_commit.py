"""Group commit: one sync for many commits, no acknowledgement before it, and failures of the disk."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.unit.store.sqlite_faults import Clock, Probe, env_with, rows_in

from kedge.errors import Conflict, OutcomeUnknown, TooManyRequests, Unavailable
from kedge.keys import Key
from kedge.store.contract import Absent, AtRevision, DeleteKey, Put, Store
from kedge.store.sqlite import SqliteStore


def key(name: str) -> Key:
    return Key("Thing", "ns", name)


async def value_of(store: Store, name: str) -> bytes | None:
    entry = (await store.get([key(name)])).entries[0]
    return entry.value if entry is not None else None


def test_commits_that_arrive_together_share_one_sync(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db")
        before = probe.count("COMMIT")
        revisions = await asyncio.gather(*(store.commit([], [Put(key(str(n)), b"")]) for n in range(64)))
        assert probe.count("COMMIT") == before + 1
        assert revisions == list(range(1, 65))
        await store.close()

    asyncio.run(run())


def test_a_commit_of_a_request_that_is_being_read_shares_the_sync(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db")
        before = probe.count("COMMIT")
        first = asyncio.ensure_future(store.commit([], [Put(key("a"), b"")]))
        for _ in range(2):
            await asyncio.sleep(0)
        await asyncio.gather(first, store.commit([], [Put(key("b"), b"")]))
        assert probe.count("COMMIT") == before + 1
        await store.close()

    asyncio.run(run())


def test_a_sync_takes_no_more_than_its_bounds(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db", env_with(sync_ops_max=10, sync_bytes_max=1000))
        before = probe.count("COMMIT")
        await asyncio.gather(*(store.commit([], [Put(key(str(n)), b"")]) for n in range(35)))
        assert probe.count("COMMIT") == before + 4
        await asyncio.gather(*(store.commit([], [Put(key(str(n)), b"x" * 400)]) for n in range(6)))
        assert probe.count("COMMIT") == before + 4 + 3
        await store.commit([], [Put(key("large"), b"x" * 5000)])
        assert await value_of(store, "large") == b"x" * 5000
        await store.close()

    asyncio.run(run())


def test_later_commits_of_a_batch_see_earlier_ones_and_fail_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        results = await asyncio.gather(
            store.commit([Absent(key("a"))], [Put(key("a"), b"1")]),
            store.commit([Absent(key("a"))], [Put(key("a"), b"2")]),
            store.commit([AtRevision(key("a"), 1)], [Put(key("a"), b"3")]),
            store.commit([], [DeleteKey(key("a")), Put(key("b"), b"1")]),
            store.commit([], [DeleteKey(key("a"))]),
            return_exceptions=True,
        )
        assert results[0] == 1
        assert isinstance(results[1], Conflict)
        assert (results[1].key, results[1].revision) == (key("a"), 1)
        assert list(results[2:4]) == [2, 3]
        assert isinstance(results[4], Conflict)
        assert [await value_of(store, name) for name in "ab"] == [None, b"1"]
        assert store.statistics().conflicts == 2
        await store.close()

    asyncio.run(run())


def test_no_commit_is_acknowledged_before_its_sync(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db")
        watch = await store.watch("Thing", after=0)
        reader = asyncio.ensure_future(watch.__anext__())
        tasks = [asyncio.ensure_future(store.commit([], [Put(key("a"), b"1")]))]
        tasks.append(asyncio.ensure_future(store.commit([Absent(key("a"))], [])))
        seen: list[tuple[int, list[bool]]] = []
        probe.before["COMMIT"] = lambda: seen.append(
            (store.statistics().revision, [reader.done(), *(task.done() for task in tasks)])
        )
        probe.after["COMMIT"] = probe.before["COMMIT"]
        await asyncio.wait(tasks)
        assert seen == [(0, [False, False, False])] * 2
        assert isinstance(tasks[1].exception(), Conflict)
        assert (await reader).revision == 1
        probe.end_partition()
        await store.close()

    asyncio.run(run())


def test_an_acknowledged_commit_is_in_the_files_at_that_moment(tmp_path: Path) -> None:
    """A kill does not test a sync, because the page cache survives it; so the order of steps is tested instead."""

    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db", env_with(wal_pages_max=20))
        assert probe.connections[0].execute("PRAGMA synchronous").fetchone() == (2,), "full sync is not on"
        assert probe.connections[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
        for n in range(30):
            revision = await store.commit([], [Put(key("a"), b"%d" % n * 500), Put(key("b"), b"%d" % n)])
            copy = tmp_path / f"copy-{n}"
            copy.mkdir()
            for name in ("a.db", "a.db-wal"):
                shutil.copy(tmp_path / name, copy / name)
            other = await SqliteStore.open(copy / "a.db", env_with())
            assert await other.revision() == revision
            assert await value_of(other, "b") == b"%d" % n
            await other.close()
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "\nUPDATE", "DELETE", "COMMIT"])
def test_a_full_disk_fails_the_batch_and_the_store_serves_on(statement: str, tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db")
        first = await store.commit([], [Put(key("a"), b"1"), Put(key("gone"), b"1"), Put(key("beat"), b"1")])
        watch = await store.watch("", after=first)
        probe.fail(statement, sqlite3.SQLITE_FULL)
        results = await asyncio.gather(
            store.commit([], [Put(key("a"), b"2"), Put(key("b"), b"2"), DeleteKey(key("gone"))]),
            store.commit([], [Put(key("a"), b"3"), Put(key("gone"), b"3")]),
            store.commit([], [Put(key("beat"), b"3", latest_only=True)]),
            store.commit([Absent(key("b"))], [Put(key("c"), b"3")]),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [Unavailable] * 4
        assert len({id(result) for result in results}) == 4, "one exception raised by many tasks"
        assert "full: free some space" in str(results[0])
        assert [await value_of(store, name) for name in ("a", "b", "c", "gone")] == [b"1", None, None, b"1"]
        assert [entry.key.name for entry in (await store.list("Thing")).entries] == ["a", "beat", "gone"]
        assert await store.revision() == first
        assert any("commits fail" in alarm for alarm in store.statistics().alarms)
        probe.end_partition()
        again = await store.commit([AtRevision(key("a"), first), Absent(key("b"))], [Put(key("b"), b"4")])
        assert again == first + 1
        batch = await watch.__anext__()
        assert [change.key.name for change in batch.changes] == ["b"]
        await store.close()
        assert [row[3] for row in rows_in(tmp_path / "a.db")] == ["a", "gone", "beat", "b"]

    asyncio.run(run())


@pytest.mark.parametrize("written", [False, True])
def test_a_failed_sync_is_an_unknown_outcome_and_the_store_stops(written: bool, tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db")
        first = await store.commit([], [Put(key("a"), b"1")])
        watch = await store.watch("Thing", after=first)
        reader = asyncio.ensure_future(watch.__anext__())
        await asyncio.sleep(0)
        probe.fail("COMMIT", sqlite3.SQLITE_IOERR, after=written)
        results = await asyncio.gather(
            store.commit([], [Put(key("a"), b"2")]),
            store.commit([Absent(key("a"))], []),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [OutcomeUnknown] * 2
        with pytest.raises(Unavailable, match="open the store again"):
            await reader
        for work in (store.get([key("a")]), store.commit([], [Put(key("b"), b"")]), store.revision(), store.compact(1)):
            with pytest.raises(Unavailable, match="open the store again"):
                await work
        assert any("may or may not have been written" in alarm for alarm in store.statistics().alarms)
        await store.close()
        probe.end_partition()
        store = await probe.open(tmp_path / "a.db")
        assert await value_of(store, "a") == (b"2" if written else b"1")
        await store.close()

    asyncio.run(run())


def test_a_disk_that_stops_writing_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """No injected error: a limit of the system keeps the log from growing."""

    async def fill(store: Store, acknowledged: dict[str, int]) -> None:
        for n in range(1000):
            writes = [Put(key(str(n)), b"x" * 3000), Put(key("last"), b"%d" % n)]
            acknowledged[str(n)] = await store.commit([], writes)

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        acknowledged: dict[str, int] = {}
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            with pytest.raises(OutcomeUnknown):  # because it fails in the middle of COMMIT
                await fill(store, acknowledged)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with pytest.raises(Unavailable, match="open the store again"):
            await store.revision()
        await store.close()
        assert len(acknowledged) > 10

        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        found = {entry.key.name: entry.modified for entry in (await store.list("Thing")).entries}
        last = int(await value_of(store, "last") or b"")
        assert last in (len(acknowledged) - 1, len(acknowledged))
        del found["last"]
        assert len(found) == last + 1
        assert acknowledged.items() <= found.items()
        await store.commit([], [Put(key("more"), b"")])
        await store.close()

    asyncio.run(run())


def test_a_rollback_that_fails_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db")
        probe.fail("INSERT INTO versions", sqlite3.SQLITE_FULL)
        probe.fail("ROLLBACK", sqlite3.SQLITE_IOERR)
        with pytest.raises(OutcomeUnknown):
            await store.commit([], [Put(key("a"), b"2")])
        with pytest.raises(Unavailable):
            await store.revision()
        await store.close()

    asyncio.run(run())


def test_a_bug_in_the_store_answers_every_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        monkeypatch.setattr(store._feed, "publish_all", lambda _: 1 / 0)
        results = await asyncio.gather(
            store.commit([], [Put(key("a"), b"")]), store.commit([], [Put(key("b"), b"")]), return_exceptions=True
        )
        assert [type(result) for result in results] == [OutcomeUnknown] * 2
        with pytest.raises(Unavailable, match="report this"):
            await store.revision()
        await store.close()

    asyncio.run(run())


def test_a_cancelled_waiter_does_not_undo_its_commit(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        tasks = [asyncio.ensure_future(store.commit([], [Put(key(str(n)), b"")])) for n in range(6)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True, False] * 3
        assert [tasks[n].result() for n in (1, 3, 5)] == [2, 4, 6]
        assert len((await store.list("Thing")).entries) == 6
        await store.close()

    asyncio.run(run())


def test_commits_past_the_queue_limit_are_rejected(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with(commit_queue_max=5))
        results = await asyncio.gather(
            *(store.commit([], [Put(key(str(n)), b"")]) for n in range(8)), return_exceptions=True
        )
        assert results[:5] == [1, 2, 3, 4, 5]
        assert [type(result) for result in results[5:]] == [TooManyRequests] * 3
        assert await store.commit([], [Put(key("later"), b"")]) == 6
        await store.close()

    asyncio.run(run())


def test_closing_settles_waiting_commits(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with(sync_ops_max=2))
        tasks = [asyncio.ensure_future(store.commit([], [Put(key(str(n)), b"")])) for n in range(9)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*tasks) == list(range(1, 10))
        assert len(rows_in(tmp_path / "a.db")) == 9
        assert not (tmp_path / "a.db-wal").exists()

    asyncio.run(run())


def test_a_slow_sync_raises_an_alarm_that_expires(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        clock, probe = Clock(), Probe()
        env = env_with(clock, sync_hold_s_alarm=0.5, alarm_s=60, compact_every_s=3600)
        store = await probe.open(tmp_path / "a.db", env)
        await store.commit([], [Put(key("a"), b"")])
        assert store.statistics().alarms == ()

        def slow() -> None:
            clock.seconds += 2

        probe.before["COMMIT"] = slow
        await store.commit([], [Put(key("a"), b"")])
        await store.commit([], [Put(key("a"), b"")])
        probe.end_partition()
        statistics = store.statistics()
        assert statistics.sync_s_max == 2
        assert len(statistics.alarms) == 1
        assert "took 2.000 s" in statistics.alarms[0]
        assert [record.message for record in caplog.records].count(statistics.alarms[0]) == 1, (
            "logged once, not each time"
        )
        sample = env.metrics.registry.get_sample_value
        assert sample("kedge_store_alarms_total", {"alarm": "sync slow"}) == 2
        assert sample("kedge_store_sync_seconds_count") == 3
        clock.seconds += 61
        assert store.statistics().alarms == ()
        await store.close()

    asyncio.run(run())


def test_the_log_stays_short_and_a_checkpoint_waits_for_the_answers(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db", env_with(wal_pages_max=20))
        done: list[int] = []
        early: list[int] = []
        probe.before["PRAGMA wal_checkpoint(PASSIVE)"] = lambda: early.append(store.statistics().commits - len(done))

        async def write(writer: int) -> None:
            for n in range(20):
                await store.commit([], [Put(key(f"{writer}-{n}"), b"x" * 1000)])
                done.append(n)

        await asyncio.gather(*(write(n) for n in range(16)))
        assert len(early) >= 2
        assert set(early) == {0}, "a checkpoint ran before the commits were acknowledged"
        assert (tmp_path / "a.db-wal").stat().st_size < 60 * 16_384
        await store.close()

    asyncio.run(run())

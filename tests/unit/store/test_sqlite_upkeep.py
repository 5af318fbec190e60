"""Compaction, history across a reopening, and backups of the SQLite store."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.unit.store.sqlite_faults import Clock, Probe, env_with, rows_in, until

from kedge.errors import Compacted, Terminal, Unavailable
from kedge.keys import Key, Revision
from kedge.store.contract import RESTORE_BUMP, DeleteKey, Put, Store
from kedge.store.sqlite import SqliteStore


def key(name: str) -> Key:
    return Key("Thing", "ns", name)


async def put(store: Store, name: str, value: bytes = b"") -> Revision:
    return await store.commit([], [Put(key(name), value)])


def test_compaction_deletes_obsolete_versions_in_slices(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db", env_with(compact_rows_max=7))
        for n in range(30):
            await store.commit([], [Put(key(name), b"%d" % n) for name in ("a", "b")])
        await put(store, "gone")
        await store.commit([], [DeleteKey(key("gone"))])
        middle = await put(store, "a", b"middle")
        last = await put(store, "a", b"last")
        before = probe.count("COMMIT")
        await store.compact(middle)
        assert probe.count("COMMIT") - before == 63 // 7 + 1, "63 rows in slices of 7, and one slice that finds none"
        await store.compact(middle)
        assert probe.count("COMMIT") - before == 10, "nothing left to do, and nothing written"
        await store.close()
        rows = rows_in(tmp_path / "a.db", "SELECT id >> 10, name FROM versions ORDER BY id")
        assert rows == [(30, "b"), (middle, "a"), (last, "a")]

    asyncio.run(run())


def test_compaction_resumes_after_a_failure(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db", env_with(compact_rows_max=4))
        for n in range(20):
            last = await put(store, "a", b"%d" % n)
        left = [2]

        def fail_later() -> None:
            left[0] -= 1
            if left[0] < 0:
                raise sqlite3.OperationalError("injected")

        probe.before["COMMIT"] = fail_later
        with pytest.raises(Unavailable, match="could not be written"):
            await store.compact(last)
        probe.end_partition()
        assert await put(store, "b") == last + 1
        await store.close()
        assert len(rows_in(tmp_path / "a.db")) == 20 - 7 + 1, (
            "the second row makes the first obsolete, so 8 rows delete 7"
        )
        store = await probe.open(tmp_path / "a.db")
        with pytest.raises(Compacted):
            await store.get([key("a")], at=last - 1)
        await store.compact(last)
        await store.close()
        assert len(rows_in(tmp_path / "a.db")) == 2

    asyncio.run(run())


def test_history_is_kept_for_its_time_and_no_longer(tmp_path: Path) -> None:
    async def run() -> None:
        clock, probe = Clock(), Probe()
        store = await probe.open(tmp_path / "a.db", env_with(clock, compact_every_s=0.001, history_s=100))

        async def next_round() -> None:
            swept = store._sweeper._ran_at
            clock.seconds += 10
            await until(lambda: store._sweeper._ran_at != swept)

        first = await put(store, "a")
        await next_round()
        for _ in range(8):
            second = await put(store, "a")
            await next_round()
        assert store.statistics().compacted == 0, "90 seconds of history, and 100 are kept"
        for _ in range(3):
            await next_round()
        assert first <= store.statistics().compacted < second
        for _ in range(20):
            await next_round()
        assert store.statistics().compacted == second
        assert store.statistics().alarms == ()
        await store.close()
        assert len(rows_in(tmp_path / "a.db")) == 1

    asyncio.run(run())


def test_a_compaction_that_fails_or_stalls_raises_an_alarm(tmp_path: Path) -> None:
    async def run() -> None:
        clock, probe = Clock(), Probe()
        store = await probe.open(tmp_path / "a.db", env_with(clock, compact_every_s=0.001, history_s=0))
        probe.fail("DELETE FROM versions", sqlite3.SQLITE_FULL)
        await put(store, "a")
        await until(lambda: store.statistics().alarms)
        assert "compaction failed and will be retried" in store.statistics().alarms[0]
        clock.seconds += 100
        assert any("no compaction has finished for 100 s" in alarm for alarm in store.statistics().alarms)
        probe.end_partition()
        clock.seconds += 100
        await until(lambda: not store.statistics().alarms)
        assert store.statistics().compacted == 1
        await store.close()

    asyncio.run(run())


def test_a_slice_that_blocks_the_loop_raises_an_alarm(tmp_path: Path) -> None:
    async def run() -> None:
        clock, probe = Clock(), Probe()
        store = await probe.open(tmp_path / "a.db", env_with(clock, compact_every_s=3600, sync_hold_s_alarm=0.5))
        last = await put(store, "a")

        def slow() -> None:
            clock.seconds += 1

        probe.before["DELETE FROM versions WHERE id = ?"] = slow
        await store.compact(last)
        assert any("slice of a compaction took 1.000 s" in alarm for alarm in store.statistics().alarms)
        await store.close()

    asyncio.run(run())


def test_a_compaction_that_cannot_keep_up_raises_an_alarm(tmp_path: Path) -> None:
    async def run() -> None:
        clock, probe = Clock(), Probe()
        env = env_with(clock, compact_every_s=30, compact_rows_max=2, sync_hold_s_alarm=60)
        store = await probe.open(tmp_path / "a.db", env)
        for _ in range(11):
            last = await put(store, "a")

        def slow() -> None:
            clock.seconds += 10

        probe.before["DELETE FROM versions WHERE id = ?"] = slow
        await store.compact(4)
        assert store.statistics().alarms == (), "three slices of 10 s, and one compaction is due every 30 s"
        await store.compact(last)
        assert any("history grows faster than it is compacted" in alarm for alarm in store.statistics().alarms)
        assert env.metrics.registry.get_sample_value("kedge_store_compaction_seconds_count") == 3 + 4
        await store.close()

    asyncio.run(run())


def test_closing_during_a_compaction_ends_it(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with(compact_rows_max=1))
        for _ in range(50):
            last = await put(store, "a")
        compaction = asyncio.ensure_future(store.compact(last))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(Unavailable, match="closed"):
            await compaction

    asyncio.run(run())


def test_heartbeats_leave_one_row_and_keep_past_revisions_readable(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await store.commit([], [Put(key("lease"), b"0", latest_only=True), Put(key("plain"), b"0")])
        middle = await put(store, "plain", b"1")
        for n in range(1, 20):
            await store.commit([], [Put(key("lease"), b"%d" % n, latest_only=True)])
        await store.close()
        names = [name for (name,) in rows_in(tmp_path / "a.db", "SELECT name FROM versions ORDER BY id")]
        assert names == ["plain", "plain", "lease"]
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        then = {entry.key.name: entry.value for entry in (await store.list("Thing", at=middle)).entries}
        assert then == {"plain": b"1", "lease": b"19"}, "a newer version of the lease, but not nothing"
        watch = await store.watch("Thing", after=0)
        batch = await watch.__anext__()
        assert [(c.key.name, c.revision) for c in batch.changes] == [("plain", 1), ("plain", 2), ("lease", 21)]
        assert batch.changes[2].previous is None
        await store.close()

    asyncio.run(run())


def test_a_heartbeat_replaces_earlier_ordinary_versions(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await put(store, "a", b"1")
        second = await put(store, "a", b"2")
        # In one sync: each must inherit from the one before it, not from the row in the file.
        await asyncio.gather(
            store.commit([], [Put(key("a"), b"3", latest_only=True)]),
            store.commit([], [Put(key("a"), b"4", latest_only=True)]),
        )
        await store.close()
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        then = (await store.get([key("a")], at=second)).entries[0]
        assert then is not None
        assert then.value == b"4", "the second version is gone, and the first is not the version of that revision"
        last = await store.commit([], [DeleteKey(key("a"))])
        await store.compact(last)
        await store.close()
        assert rows_in(tmp_path / "a.db") == [], "a row that compaction would never delete"
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        assert (await store.list("Thing")).entries == []
        assert await store.revision() == last
        await store.close()

    asyncio.run(run())


def test_a_backup_is_one_revision_under_concurrent_writes(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with(backup_rows_max=3))
        pairs = [[key(f"{n}-left"), key(f"{n}-right")] for n in range(20)]
        for pair in pairs:
            await store.commit([], [Put(each, b"0") for each in pair])
        stop = False
        rounds = 0

        async def write() -> None:
            nonlocal rounds
            while not stop:
                rounds += 1
                for pair in pairs:
                    await store.commit([], [Put(each, b"%d" % rounds) for each in pair])

        writer = asyncio.ensure_future(write())
        await asyncio.sleep(0.01)
        at = await store.backup(tmp_path / "backup")
        after = await store.revision()
        want = (await store.list("Thing", at=at)).entries
        stop = True
        await writer
        assert after > at, "no writes during the backup: the test is void"
        incarnation = store.incarnation
        await store.close()

        shutil.copy(tmp_path / "backup", tmp_path / "again")
        for name in ("backup", "again"):
            restored = await SqliteStore.open(tmp_path / name, env_with())
            assert (await restored.list("Thing")).entries == want
            assert await restored.revision() == at + RESTORE_BUMP
            assert restored.incarnation != incarnation
            await restored.close()

    asyncio.run(run())


def test_a_backup_overwrites_nothing_and_leaves_no_partial_file(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with(backup_rows_max=1))
        for n in range(20):
            await put(store, str(n))
        (tmp_path / "taken").write_text("mine")
        with pytest.raises(Terminal, match="taken exists: choose another path"):
            await store.backup(tmp_path / "taken")
        assert (tmp_path / "taken").read_text() == "mine"
        backup = asyncio.ensure_future(store.backup(tmp_path / "backup"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        backup.cancel()
        with pytest.raises(asyncio.CancelledError):
            await backup
        with pytest.raises(Terminal):
            await store.backup(tmp_path / "nowhere" / "backup")
        await store.close()

    asyncio.run(run())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "a.db-mark", "a.db-reserve", "taken"]


def test_a_backup_of_an_empty_store_can_be_restored(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await store.backup(tmp_path / "backup")
        await store.close()
        restored = await SqliteStore.open(tmp_path / "backup", env_with())
        assert await put(restored, "a") == RESTORE_BUMP + 1
        await restored.close()

    asyncio.run(run())


def test_compaction_deletes_nothing_by_a_row_that_is_damaged(tmp_path: Path) -> None:
    async def run() -> None:
        probe = Probe()
        store = await probe.open(tmp_path / "a.db", env_with(compact_every_s=3600))
        for value in (b"1", b"2"):
            await store.commit([], [Put(Key("Thing", "ns", "a"), value)])
            await store.commit([], [Put(Key("Thing", "ns", "b"), value)])
        (db,) = probe.connections
        db.execute("UPDATE versions SET name = 'b' WHERE id = (SELECT max(id) - 1024 FROM versions)")
        with pytest.raises(Unavailable, match="does not have its checksum"):
            await store.compact(4)
        assert db.execute("SELECT count(*) FROM versions").fetchone() == (4,)
        db.execute("UPDATE versions SET name = 'a' WHERE id = (SELECT max(id) - 1024 FROM versions)")
        await store.compact(4)
        assert db.execute("SELECT count(*) FROM versions").fetchone() == (2,)
        await store.close()

    asyncio.run(run())

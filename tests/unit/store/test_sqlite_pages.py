"""Files with another page size than this version uses: they keep it, and everything works on them."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.store.sqlite_faults import env_with, rows_in

from kedge.keys import Key
from kedge.store.contract import RESTORE_BUMP, Put
from kedge.store.sqlite import SqliteStore

SMALL, OWN = 4096, 16_384
"""SQLite's default page size, which the first stores had, and that of a new store."""


def key(n: int) -> Key:
    return Key("Thing", "ns", str(n))


def page_bytes(path: Path) -> int:
    ((found,),) = rows_in(path, "PRAGMA page_size")
    return int(found)


async def write(path: Path, numbers: range) -> None:
    store = await SqliteStore.open(path, env_with())
    for n in numbers:
        await store.commit([], [Put(key(n), b"%d " % n * 500)])
    await store.close()


async def values_in(path: Path) -> dict[Key, bytes]:
    store = await SqliteStore.open(path, env_with())
    found = {entry.key: entry.value for entry in (await store.list("Thing")).entries}
    await store.close()
    return found


def turn_small(path: Path) -> None:
    """Rewrite the file as an earlier version would have written it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute(f"PRAGMA page_size={SMALL}")
        db.execute("VACUUM")


def small_store(path: Path, objects: int = 20) -> None:
    asyncio.run(write(path, range(objects)))
    turn_small(path)
    assert page_bytes(path) == SMALL


def test_a_new_store_and_a_backup_have_the_pages_of_this_version(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await store.backup(tmp_path / "backup")
        await store.close()

    asyncio.run(run())
    assert (page_bytes(tmp_path / "a.db"), page_bytes(tmp_path / "backup")) == (OWN, OWN)


def test_a_store_with_small_pages_keeps_them_and_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    small_store(path)
    asyncio.run(write(path, range(20, 40)))
    assert page_bytes(path) == SMALL
    assert asyncio.run(values_in(path)) == {key(n): b"%d " % n * 500 for n in range(40)}


@pytest.mark.parametrize("small", [True, False])
def test_the_log_of_any_page_size_stays_short(small: bool, tmp_path: Path) -> None:
    """With the wrong page size the count would be four times too low, and checkpoints four times too late."""
    path, wal_pages_max = tmp_path / "a.db", 40
    asyncio.run(write(path, range(1)))
    if small:
        turn_small(path)
    size = page_bytes(path)

    async def run() -> int:
        store = await SqliteStore.open(path, env_with(wal_pages_max=wal_pages_max))
        for batch in range(20):  # a third of its pages a batch, and one sync a batch
            rows = (key(16 * batch + n) for n in range(16))
            await asyncio.gather(*(store.commit([], [Put(each, b"x" * (size - 200))]) for each in rows))
            await asyncio.sleep(0)  # a checkpoint runs after the answers
        longest = (tmp_path / "a.db-wal").stat().st_size
        await store.close()
        return longest

    assert asyncio.run(run()) < 2.5 * wal_pages_max * size


def test_a_backup_of_a_store_with_small_pages_is_restored_by_this_version(tmp_path: Path) -> None:
    small_store(tmp_path / "a.db")

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        assert await store.backup(tmp_path / "backup") == 20
        await store.close()
        restored = await SqliteStore.open(tmp_path / "backup", env_with())
        assert await restored.revision() == 20 + RESTORE_BUMP
        await restored.close()

    asyncio.run(run())
    assert page_bytes(tmp_path / "backup") == OWN
    assert asyncio.run(values_in(tmp_path / "backup")) == asyncio.run(values_in(tmp_path / "a.db"))


def test_a_backup_with_small_pages_is_restored_once_and_advances(tmp_path: Path) -> None:
    async def back_up() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await store.backup(tmp_path / "backup")
        await store.close()

    asyncio.run(write(tmp_path / "a.db", range(20)))
    asyncio.run(back_up())
    turn_small(tmp_path / "backup")
    shutil.copy(tmp_path / "backup", tmp_path / "again")

    async def restore() -> tuple[int, int, str, str]:
        first = await SqliteStore.open(tmp_path / "backup", env_with())
        restored, incarnation = await first.revision(), first.incarnation
        await first.close()
        second = await SqliteStore.open(tmp_path / "backup", env_with())
        again = await second.revision(), second.incarnation
        await second.close()
        return restored, again[0], incarnation, again[1]

    restored, later, incarnation, same = asyncio.run(restore())
    assert restored == later == 20 + RESTORE_BUMP, "a restored store is no longer a backup"
    assert incarnation == same
    assert page_bytes(tmp_path / "backup") == SMALL
    assert asyncio.run(values_in(tmp_path / "again")) == asyncio.run(values_in(tmp_path / "a.db"))

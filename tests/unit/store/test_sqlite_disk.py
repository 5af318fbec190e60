"""The disk of a running store: its file is deleted or replaced, or there is no room."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.full_disk import small_disk
from tests.unit.store.sqlite_faults import Clock, env_with

from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.store.contract import DeleteKey, Put
from kedge.store.sqlite import SqliteStore, file
from kedge.store.sqlite.disk_reserve import reserve_path


def put(name: str, size: int = 1_000) -> Put:
    return Put(Key("Thing", "ns", name), b"x" * size)


def replace_by_a_copy(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (Path.unlink, "a.db was deleted or moved"),
        (replace_by_a_copy, "a.db was replaced by another file"),
        (lambda path: file.log_of(path).unlink(), "a.db-wal was deleted or moved"),
    ],
)
def test_a_store_whose_file_is_gone_acknowledges_nothing(
    harm: Callable[[Path], None], what: str, tmp_path: Path
) -> None:
    async def run() -> None:
        clock = Clock()
        path = tmp_path / "a.db"
        store = await SqliteStore.open(path, env_with(clock))
        for n in range(3):
            await store.commit([], [put(f"t{n}")])
            clock.seconds += 1.1
        harm(path)
        with pytest.raises(Unavailable, match=f"nothing was written: .*{what}.*restore a backup"):
            await store.commit([], [put("late")])
        assert any(what in alarm for alarm in store.statistics().alarms)
        with pytest.raises(Unavailable, match=what):
            await store.get([Key("Thing", "ns", "t0")])
        await store.close()

    asyncio.run(run())


def test_a_close_after_a_replacement_leaves_the_new_file_alone(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        path = tmp_path / "a.db"
        store = await SqliteStore.open(path, env_with(clock))
        await store.commit([], [put("a")])
        for each in (path, file.log_of(path)):
            each.unlink()
            each.write_bytes(b"another")
        clock.seconds += 1.1
        with pytest.raises(Unavailable):
            await store.commit([], [put("b")])
        await store.close()
        assert {each.read_bytes() for each in (path, file.log_of(path))} == {b"another"}

    asyncio.run(run())


def fill_disk(disk: Path) -> Path:
    """Write until the disk has no room."""
    filler = disk / "filler"
    status = os.statvfs(disk)
    with filler.open("ab") as written:
        written.write(bytes(status.f_bavail * status.f_frsize))
    return filler


async def write_until_full(store: SqliteStore) -> None:
    async def write() -> None:
        for n in range(1000):
            await store.commit([], [put(f"more{n}", 100_000)])

    with pytest.raises(Unavailable, match="is full"):
        await write()


async def names_in(store: SqliteStore) -> set[str]:
    return {entry.key.name for entry in (await store.list("Thing")).entries}


def test_a_full_disk_leaves_room_for_deletions_and_for_opening(tmp_path: Path) -> None:
    """New objects are rejected, deletions commit, and the store opens though the disk has no room."""

    async def run(disk: Path) -> None:
        path, env = disk / "a.db", env_with(store_reserve_bytes=1 << 20)
        store = await SqliteStore.open(path, env)
        for n in range(20):
            await store.commit([], [put(f"t{n}")])
        fill_disk(disk)
        await write_until_full(store)
        with pytest.raises(Unavailable, match="its reserve is for updates and deletions"):
            await store.commit([], [put("new")])
        await store.commit([], [DeleteKey(Key("Thing", "ns", "t0"))])
        await store.commit([], [put("t1", 10)])
        names = await names_in(store)
        await store.close()
        for each in (file.log_of(path), path.with_name("a.db-shm")):
            each.unlink(missing_ok=True)
        fill_disk(disk)
        again = await SqliteStore.open(path, env)
        assert await names_in(again) == names
        await again.commit([], [DeleteKey(Key("Thing", "ns", "t2"))])
        await again.close()

    with small_disk(tmp_path / "disk", "6m") as disk:
        asyncio.run(run(disk))


def test_the_reserve_is_taken_again_when_there_is_room(tmp_path: Path) -> None:
    async def run(disk: Path) -> None:
        path, env = disk / "a.db", env_with(clock := Clock(), store_reserve_bytes=1 << 20)
        store = await SqliteStore.open(path, env)
        filler = fill_disk(disk)
        await write_until_full(store)
        assert reserve_path(path).stat().st_size == 1 << 19
        filler.unlink()
        clock.seconds += 2
        await store.commit([], [put("new")])
        assert reserve_path(path).stat().st_size == 1 << 20
        await store.close()

    with small_disk(tmp_path / "disk", "6m") as disk:
        asyncio.run(run(disk))

"""A file from which versions are missing: the version that replaced a missing one shows it when the store is opened.

A disk that loses some pages of a checkpoint leaves such a file. Its structure and every row in it are sound.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from tests.unit.store.sqlite_faults import env_with

from kedge.errors import StoreDamaged
from kedge.keys import Key
from kedge.store.contract import DeleteKey, Put, Write
from kedge.store.sqlite import SqliteStore

A = Key("Thing", "ns", "a")


async def written(path: Path, *commits: Write, compacted: int = 0) -> None:
    store = await SqliteStore.open(path, env_with())
    for each in commits:
        await store.commit([], [each])
    if compacted:
        await store.compact(compacted)
    await store.close()


async def value_of(path: Path) -> bytes | None:
    store = await SqliteStore.open(path, env_with())
    found = (await store.get([A])).entries[0]
    await store.close()
    return found.value if found is not None else None


@pytest.mark.parametrize(
    ("commits", "missing", "reason"),
    [
        ((Put(A, b"1"), Put(A, b"2"), Put(A, b"3")), 2, "at revision 3 replaced revision 2, and the file has 1"),
        ((Put(A, b"1"), Put(A, b"2")), 1, "at revision 2 replaced revision 1, and the file has none"),
        ((Put(A, b"1"), DeleteKey(A), Put(A, b"3")), 2, "at revision 3 replaced no version, and the file has 1"),
        ((Put(A, b"1"), DeleteKey(A)), 1, "at revision 2 replaced revision 1, and the file has none"),
    ],
)
def test_a_version_whose_predecessor_is_missing_is_damage(
    commits: tuple[Write, ...], missing: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    asyncio.run(written(path, *commits))
    db = sqlite3.connect(path)
    db.execute("DELETE FROM versions WHERE id >> 10 = ?", (missing,))
    db.commit()
    db.close()
    with pytest.raises(StoreDamaged, match=reason):
        asyncio.run(value_of(path))


@pytest.mark.parametrize("compacted", [0, 1, 2, 3, 4, 5])
def test_versions_that_the_store_itself_deleted_are_not_missed(compacted: int, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    beat = Put(A, b"beat", latest_only=True)
    asyncio.run(written(path, Put(A, b"1"), Put(A, b"2"), beat, beat, Put(A, b"5"), compacted=compacted))
    assert asyncio.run(value_of(path)) == b"5"
    asyncio.run(written(path, beat, DeleteKey(A), beat, Put(A, b"9")))
    assert asyncio.run(value_of(path)) == b"9"

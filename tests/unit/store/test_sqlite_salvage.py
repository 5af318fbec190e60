"""`examine_file` finds every kind of damage; `salvage_file` brings out everything that is sound, and lists the rest."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest
from tests.unit.store.filled_files import as_schema, fill, opened
from tests.unit.store.sqlite_faults import env_with

from kedge.errors import Unavailable
from kedge.keys import Key
from kedge.store.sqlite import ExaminedFile, SqliteStore, examine_file, restore_to_sqlite, salvage_file

PAGE = 16_384


def ignore(count: int) -> None:
    del count


def parts(found: ExaminedFile) -> set[str]:
    return {each.part for each in found.findings}


def state_of(found: ExaminedFile) -> dict[Key, bytes]:
    return {entry.key: entry.value for entry in found.entries}


def _written(key: Key) -> set[bytes]:
    """Every value that `fill` gives to an object."""
    if key.kind == "Lease":
        return {b"%d" % n for n in range(60)}
    return {b"%d" % n * 300 for n in range(60) if f"t{n % 25}" == key.name}


def edit(path: Path, sql: str) -> None:
    db = sqlite3.connect(path)
    db.execute(sql)
    db.commit()
    db.close()


def test_a_sound_store_has_no_findings_and_is_salvaged_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    state = asyncio.run(fill(path))
    before = path.read_bytes()
    files = sorted(each.name for each in tmp_path.iterdir())
    for found in (examine_file(path, ignore), salvage_file(path, ignore)):
        assert found.findings == ()
        assert state_of(found) == state
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == files


def test_a_store_that_was_killed_is_read_with_its_log(tmp_path: Path) -> None:
    async def run() -> dict[Key, bytes]:
        await fill(tmp_path / "a.db")
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        from kedge.store.contract import Put

        for n in range(10):
            await store.commit([], [Put(Key("Thing", "ns", f"long{n}"), bytes([n]) * 40_000)])
        (tmp_path / "killed").mkdir()
        for name in ("a.db", "a.db-wal"):
            (tmp_path / "killed" / name).write_bytes((tmp_path / name).read_bytes())
        state = {entry.key: entry.value for kind in ("Thing", "Lease") for entry in (await store.list(kind)).entries}
        await store.close()
        return state

    state = asyncio.run(run())
    killed = tmp_path / "killed" / "a.db"
    for found in (salvage_file(killed, ignore), examine_file(killed, ignore)):
        assert found.findings == ()
        assert state_of(found) == state


@pytest.mark.parametrize(
    ("sql", "part"),
    [
        ("UPDATE versions SET value = 'x' WHERE name = 't9'", "versions"),
        ("DELETE FROM facts WHERE name = 'swept'", "facts"),
        ("DELETE FROM versions WHERE id >> 10 = 63", "log"),
        ("PRAGMA user_version=0", "pages"),
    ],
)
def test_every_kind_of_damage_is_found(sql: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    asyncio.run(fill(path))
    edit(path, sql)
    assert parts(examine_file(path, ignore)) == {part}


def test_objects_on_other_pages_survive_a_damaged_one(tmp_path: Path) -> None:
    path, out = tmp_path / "a.db", tmp_path / "out.db"
    state = asyncio.run(fill(path))
    whole = path.read_bytes()
    draw = random.Random(7)
    for number in range(len(whole) // PAGE):
        content = bytearray(whole)
        content[number * PAGE : (number + 1) * PAGE] = draw.randbytes(PAGE)
        path.write_bytes(content)
        found = salvage_file(path, ignore)
        salvaged = state_of(found)
        assert found.findings or salvaged == state, "only a free page has nothing to lose"
        assert len(salvaged) >= 8
        assert all(value in _written(key) for key, value in salvaged.items())
    restore = restore_to_sqlite(out, found.entries, found.revision, "x", slice_rows=100, progress=ignore)
    asyncio.run(restore)
    assert asyncio.run(opened(out)) == salvaged


def test_flipped_values_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    state = asyncio.run(fill(path))
    edit(path, "UPDATE versions SET value = substr(value, 1, 50) WHERE name = 't9'")
    found = salvage_file(path, ignore)
    assert {key: value for key, value in state.items() if key.name != "t9"} == state_of(found)
    assert all("Thing/ns/t9" in each.what for each in found.findings)


def test_a_file_of_before_checksums_is_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    state = asyncio.run(fill(path))
    as_schema(path, 1)
    assert state_of(salvage_file(path, ignore)) == state


def test_a_store_in_use_is_not_read(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        script = (
            "import sys; from pathlib import Path; from kedge.store.sqlite import examine_file\n"
            "examine_file(Path(sys.argv[1]), print)"
        )
        import sys

        command = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path / "a.db"), stderr=asyncio.subprocess.PIPE
        )
        _, said = await command.communicate()
        assert Unavailable.__name__ in said.decode()
        await store.close()

    asyncio.run(run())

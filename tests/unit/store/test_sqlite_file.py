"""Which files are opened and which are rejected unchanged."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.filled_files import as_schema
from tests.unit.store.sqlite_faults import env_with, rows_in, sqlite_error

from kedge.errors import StoreDamaged, Terminal, Unavailable
from kedge.keys import Key, Origin
from kedge.store.contract import Put
from kedge.store.sqlite import SqliteStore, file


async def open_and_close(path: Path, **options: Any) -> None:
    await (await SqliteStore.open(path, env_with(), **options)).close()


def check_rejected(path: Path, match: str, error: type[Exception] = Terminal, **options: Any) -> None:
    """Opening must fail with a message, and change no byte of the directory."""
    directory = path.parent
    before = {each.name: each.read_bytes() for each in directory.iterdir()} if directory.is_dir() else {}
    with pytest.raises(error, match=match) as caught:
        asyncio.run(open_and_close(path, **options))
    assert path.name in str(caught.value) or str(directory) in str(caught.value)
    if directory.is_dir():
        assert {each.name: each.read_bytes() for each in directory.iterdir()} == before


def store_at(path: Path, objects: int = 1) -> None:
    async def run() -> None:
        store = await SqliteStore.open(path, env_with())
        for n in range(objects):
            await store.commit([], [Put(Key("Thing", "ns", str(n)), b"x" * 1000)])
        await store.close()

    asyncio.run(run())


def test_only_the_owner_may_read_the_files_of_a_store(tmp_path: Path) -> None:
    """Also its log, which SQLite makes while the store is open."""
    before = os.umask(0o022)
    modes: dict[str, int] = {}

    def note_modes() -> None:
        modes.update((each.name, each.stat().st_mode & 0o777) for each in tmp_path.iterdir())

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "kedge.db", env_with())
        await store.commit([], [Put(Key("Secret", "ns", "s"), b"hunter2")])
        note_modes()
        await store.close()

    try:
        asyncio.run(run())
    finally:
        os.umask(before)
    assert {"kedge.db", "kedge.db-wal"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    check_rejected(tmp_path / "nowhere" / "a.db", "is not a directory: create it")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is cut short, at 0 bytes"),
        (b"not a database at all", "is not a kedge store"),
        (b"not a database at all" * 100, "is not a kedge store"),
        (b"SQLite format 3\0", "is cut short, at 16 bytes"),
    ],
)
def test_a_file_of_garbage_is_rejected(content: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(content)
    check_rejected(tmp_path / "a.db", match)


def test_a_database_of_another_program_is_rejected(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("CREATE TABLE theirs (x)")
    db.execute("PRAGMA application_id=42")
    db.commit()
    db.close()
    check_rejected(tmp_path / "a.db", "another program")


def test_a_newer_schema_is_rejected(tmp_path: Path) -> None:
    store_at(tmp_path / "a.db")
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("PRAGMA user_version=99")
    db.execute("UPDATE facts SET value = 99 WHERE name = 'schema'")
    db.commit()
    db.close()
    check_rejected(tmp_path / "a.db", "newer kedge .schema 99, this one knows 4.: upgrade kedge")


def test_a_damaged_file_is_rejected(tmp_path: Path) -> None:
    store_at(tmp_path / "a.db", objects=50)
    content = bytearray((tmp_path / "a.db").read_bytes())
    content[4 * 4096 : 8 * 4096] = b"\xa5" * (4 * 4096)
    (tmp_path / "a.db").write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"damaged .*: restore a backup"):
        asyncio.run(open_and_close(tmp_path / "a.db"))


def test_a_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "inner" / "a.db").mkdir(parents=True)
    with pytest.raises(Terminal, match="cannot be opened"):
        asyncio.run(open_and_close(tmp_path / "inner" / "a.db"))


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_file_is_rejected(what: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "a.db")
        store_at(path)
        path.chmod(0o444 if what == "file" else 0o666)
        path.parent.chmod(0o777 if what == "file" else 0o555)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)  # permissions do not apply to root
        try:
            with pytest.raises(Terminal, match=r"a\.db cannot be written.*change its permissions"):
                asyncio.run(open_and_close(path))
        finally:
            os.seteuid(before)
            path.parent.chmod(0o755)


@pytest.mark.parametrize("log", ["a.db-wal", "a.db-journal"])
def test_a_log_without_its_file_is_not_applied_to_a_new_one(log: str, tmp_path: Path) -> None:
    (tmp_path / log).write_bytes(b"the only copy of something")
    check_rejected(tmp_path / "a.db", "is missing but its log")


def test_a_backup_is_not_opened_over_the_log_of_another_store(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        await store.commit([], [Put(Key("Thing", "ns", "a"), b"")])
        (tmp_path / "restored").mkdir()
        await store.backup(tmp_path / "restored" / "a.db")
        # As after a crash: the log of the lost store is still there.
        (tmp_path / "restored" / "a.db-wal").write_bytes((tmp_path / "a.db-wal").read_bytes())
        await store.close()

    asyncio.run(run())
    check_rejected(tmp_path / "restored" / "a.db", "is the log of another store: move the log away")


HOLD = """
import asyncio, sys
from kedge.env import system_env
from kedge.store.sqlite import SqliteStore
async def run():
    store = await SqliteStore.open(sys.argv[1], system_env())
    print("open", flush=True)
    sys.stdin.read()
    await store.close()
asyncio.run(run())
"""


def test_a_second_process_cannot_open_the_store(tmp_path: Path) -> None:
    store_at(tmp_path / "a.db")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "a.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        check_rejected(tmp_path / "a.db", "in use by another process: stop that one", Unavailable)
        holder.communicate()
    asyncio.run(open_and_close(tmp_path / "a.db"))


def test_one_process_cannot_open_the_store_twice(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "a.db", env_with())
        with pytest.raises(Unavailable, match="in use"):
            await SqliteStore.open(tmp_path / "a.db", env_with())
        # The attempt must not release the first one's lock, as closing any descriptor of the file would.
        command = [sys.executable, "-c", HOLD, str(tmp_path / "a.db")]
        other = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)  # noqa: ASYNC221
        assert "Unavailable" in other.stderr
        await store.commit([], [Put(Key("Thing", "ns", "a"), b"")])
        await store.close()

    asyncio.run(run())


def test_creation_leaves_nothing_but_the_store(tmp_path: Path) -> None:
    store_at(tmp_path / "a.db")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.db", "a.db-mark", "a.db-reserve"]
    assert rows_in(tmp_path / "a.db", "PRAGMA application_id") == [(file.APPLICATION_ID,)]
    assert rows_in(tmp_path / "a.db", "PRAGMA user_version") == [(file.SCHEMA_VERSION,)]


def test_a_migration_runs_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_at(tmp_path / "a.db")

    def half_done(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE extra (x)")
        raise sqlite_error(sqlite3.SQLITE_IOERR, "injected")

    def done(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE extra (x)")

    now = file.SCHEMA_VERSION
    monkeypatch.setattr(file, "SCHEMA_VERSION", now + 1)
    monkeypatch.setitem(file.MIGRATIONS, now, half_done)
    with pytest.raises(Unavailable, match="injected"):
        asyncio.run(open_and_close(tmp_path / "a.db"))
    assert rows_in(tmp_path / "a.db", "PRAGMA user_version") == [(now,)]
    monkeypatch.setitem(file.MIGRATIONS, now, done)
    for _ in range(2):  # a second run would find the table
        asyncio.run(open_and_close(tmp_path / "a.db"))
    assert rows_in(tmp_path / "a.db", "PRAGMA user_version") == [(now + 1,)]
    assert rows_in(tmp_path / "a.db", "SELECT * FROM extra") == []
    assert len(rows_in(tmp_path / "a.db")) == 1


def test_a_file_of_before_callers_is_read_and_gets_them(tmp_path: Path) -> None:
    path, key = tmp_path / "a.db", Key("Thing", "ns", "new")
    store_at(path, objects=3)
    as_schema(path, 1)

    async def write() -> None:
        store = await SqliteStore.open(path, env_with())
        await store.commit([], [Put(key, b"")], origin=Origin("op", "", "ada", ("a", "b,c")))
        await store.close()

    async def read() -> list[tuple[str, tuple[str, ...]]]:
        store = await SqliteStore.open(path, env_with())
        found = (await store.list("Thing")).entries
        await store.close()
        return [(each.origin.caller, each.origin.groups) for each in found]

    asyncio.run(write())
    assert asyncio.run(read()) == [*[("", ())] * 3, ("ada", ("a", "b,c"))]
    assert rows_in(path, "PRAGMA user_version") == [(file.SCHEMA_VERSION,)]


def test_a_file_of_before_checksums_gets_them_and_is_verified_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store_at(path, objects=3)
    written = rows_in(path)
    as_schema(path, 3)
    asyncio.run(open_and_close(path))
    assert rows_in(path) == written
    with sqlite3.connect(path) as db:
        db.execute("UPDATE versions SET value = 'y' || substr(value, 2) WHERE name = '1'")
    db.close()
    with pytest.raises(StoreDamaged, match="the version of Thing/ns/1 at revision 2 does not have its checksum"):
        asyncio.run(open_and_close(path))

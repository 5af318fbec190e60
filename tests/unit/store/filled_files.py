"""Stores on SQLite with every sort of row, and files as earlier versions wrote them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.unit.store.sqlite_faults import env_with

from kedge.keys import Key, Origin
from kedge.store.contract import DeleteKey, Put
from kedge.store.sqlite import SqliteStore, file

State = dict[Key, bytes]
ORIGIN = Origin("op-1", "controller:7", "ada", ("group",))


async def fill(path: Path) -> State:
    """A store with creations, updates, deletions, versions that are replaced at once, and a compaction."""
    store = await SqliteStore.open(path, env_with())
    for n in range(60):
        await store.commit([], [Put(Key("Thing", "ns", f"t{n % 25}"), f"{n}".encode() * 300)], origin=ORIGIN)
        await store.commit([], [Put(Key("Lease", "ns", f"l{n % 3}"), f"{n}".encode(), latest_only=True)])
    await store.commit([], [DeleteKey(Key("Thing", "ns", "t3")), DeleteKey(Key("Thing", "ns", "t4"))])
    await store.compact(50)
    state = {entry.key: entry.value for kind in ("Thing", "Lease") for entry in (await store.list(kind)).entries}
    await store.close()
    return state


async def opened(path: Path) -> State:
    store = await SqliteStore.open(path, env_with())
    state = {entry.key: entry.value for kind in ("Thing", "Lease") for entry in (await store.list(kind)).entries}
    await store.close()
    return state


_ADDED = {2: ("versions", "caller"), 3: ("versions", "groups"), 4: ("versions", "checksum", "facts", "checksum")}
"""Tables and columns, by the schema version that added them."""


def as_schema(path: Path, version: int) -> None:
    """Make a closed store what an earlier kedge would have written."""
    with sqlite3.connect(path) as db:
        for step in range(file.SCHEMA_VERSION, version, -1):
            added = _ADDED[step]
            for table, column in zip(added[::2], added[1::2], strict=True):
                db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        db.execute(f"PRAGMA user_version={version}")
        db.execute("UPDATE facts SET value = ? WHERE name = 'schema'", (version,))
    db.close()

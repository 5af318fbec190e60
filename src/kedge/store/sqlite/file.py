"""The file of a SQLite store: its schema and migrations, rows and facts, loading and backup.

A file is a log of versions and a few named facts, each with a checksum. `store` decides what is written to it, `sweep`
deletes old versions, `locked_file` opens it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from kedge.caches import weighed
from kedge.keys import NO_ORIGIN, NO_REVISION, Key, Origin, Revision
from kedge.store.contract import Change, Entry
from kedge.store.encryption import ValueCipher
from kedge.store.sqlite.checksums import (
    Fact,
    StoredRow,
    fact_checksum,
    is_sound,
    row_checksum,
)
from kedge.store.sqlite.failures import wrapped

APPLICATION_ID: Final = int.from_bytes(b"kedg")
BACKUP_ID: Final = int.from_bytes(b"kedb")
"""Marks a backup, in the file's first bytes, until it is opened as a store."""
SCHEMA_VERSION: Final = 4


def _add_callers(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE versions ADD COLUMN caller TEXT NOT NULL DEFAULT ''")


def _add_groups(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE versions ADD COLUMN groups TEXT NOT NULL DEFAULT ''")


def _add_checksums(db: sqlite3.Connection) -> None:
    db.create_function("row_checksum", 11, row_checksum, deterministic=True)
    db.create_function("fact_checksum", 2, fact_checksum, deterministic=True)
    db.execute("ALTER TABLE versions ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    db.execute(f"UPDATE versions SET checksum = row_checksum({', '.join(COLUMNS[:-1])})")
    db.execute("ALTER TABLE facts ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    db.execute("UPDATE facts SET checksum = fact_checksum(name, value)")


MIGRATIONS: Final[dict[int, Callable[[sqlite3.Connection], None]]] = {
    1: _add_callers,
    2: _add_groups,
    3: _add_checksums,
}
"""Migrations, by the schema version that they start from. Each runs inside the caller's transaction."""

_PAGE_BYTES: Final = 16_384
"""Page size of a new file. A few objects fit in one, so a commit writes fewer pages: an insert takes about six sevenths
of the time that it takes with SQLite's default of 4 KiB, and a single commit is no slower."""
SEQ_BITS: Final = 10
"""A row's id is its revision and its index in the commit, so the log is ordered and each insert is an append."""

_SCHEMA: Final = """
CREATE TABLE versions (
    id INTEGER PRIMARY KEY,       -- revision << 10 | place in the commit
    kind TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    created INTEGER NOT NULL,     -- the revision that created the object
    previous INTEGER NOT NULL,    -- the revision of the version this one replaced; 0 if there is none
                                  -- negative: that version is gone, and this is the one that it had replaced
    operation TEXT NOT NULL,
    decision TEXT NOT NULL,
    value BLOB,                   -- NULL for a deletion
    -- The columns that migrations of older files add are last. Groups are a JSON array; empty if there are none.
    caller TEXT NOT NULL DEFAULT '',
    groups TEXT NOT NULL DEFAULT '',
    checksum INTEGER NOT NULL DEFAULT 0   -- of the other columns: `checksums`
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value, checksum INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
"""
COLUMNS: Final = (
    "id", "kind", "namespace", "name", "created", "previous", "operation", "decision", "value", "caller", "groups",
    "checksum",
)  # fmt: skip
INSERT_VERSION: Final = "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE_VERSION: Final = "DELETE FROM versions WHERE id BETWEEN ? AND ? AND name = ? AND namespace = ? AND kind = ?"
INHERIT_PREVIOUS: Final = """
UPDATE versions SET (previous, checksum) = (
    SELECT -abs(old.previous), versions.checksum - versions.previous - abs(old.previous) FROM versions AS old
    WHERE old.id BETWEEN ? AND ? AND old.name = ? AND old.namespace = ? AND old.kind = ?
) WHERE id = ?
"""
"""For a `latest_only` version, whose predecessor is deleted at once: it inherits the version that its predecessor
replaced. Otherwise that version would never be deleted, and would reappear after a delete."""
SET_FACT: Final = "INSERT OR REPLACE INTO facts VALUES (?, ?, ?)"
READ_ROWS: Final = "SELECT * FROM versions ORDER BY id"


def row_of(change: Change, seq: int) -> StoredRow:
    kind, namespace, name = change.key
    operation, decision, caller, groups = change.origin
    entry, previous = change.entry, change.previous
    id_ = change.revision << SEQ_BITS | seq
    created, value = NO_REVISION, None
    if entry is not None:
        created, value = entry.created, entry.value
    replaced = previous.modified if previous is not None else NO_REVISION
    stored_groups = groups_text(groups) if groups else ""
    checksum = row_checksum(
        id_, kind, namespace, name, created, replaced, operation, decision, value, caller, stored_groups
    )
    return (
        id_, kind, namespace, name, created, replaced, operation, decision, value, caller, stored_groups, checksum,
    )  # fmt: skip


@weighed(entries=1024, bytes_max=1 << 20)
def groups_text(groups: tuple[str, ...]) -> str:
    """Groups as one column. Few sets of groups write most versions, so they are remembered."""
    return msgspec.json.encode(groups).decode()


@weighed(entries=1024, bytes_max=1 << 20)
def groups_of(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()


def origin_of(operation: str, decision: str, caller: str, groups: str) -> Origin:
    if operation or decision or caller or groups:
        return Origin(operation, decision, caller, groups_of(groups))
    return NO_ORIGIN


def id_of(revision: Revision, seq: int) -> int:
    return revision << SEQ_BITS | seq


def place_of(version: Entry) -> tuple[int, int, str, str, str]:
    """The parameters that find the row of a version: the ids that it can have, and its key."""
    kind, namespace, name = version.key
    return *ids_of(version.modified), name, namespace, kind


def ids_of(revision: Revision) -> tuple[int, int]:
    """The first and the last id that a row of this revision can have."""
    return revision << SEQ_BITS, (revision + 1 << SEQ_BITS) - 1


# -- building --------------------------------------------------------------------------------------


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


_drafts: Final = itertools.count()


def building(
    path: Path, application_id: int, facts: Mapping[str, Fact], slices: Iterable[Sequence[StoredRow]] = ()
) -> Iterator[None]:
    """Write a whole store beside `path`, yielding after each slice, and link it to `path` atomically at the end."""
    draft = path.with_name(f"{path.name}.draft-{os.getpid()}-{next(_drafts)}")
    draft.unlink(missing_ok=True)  # left by a killed process with the same pid
    try:
        # It may hold Secrets, so its owner alone may read it. SQLite gives its log the mode of the file.
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # No journal and no sync: a lost draft does no harm. It is synced below, slice by slice.
        db = sqlite3.connect(draft, isolation_level=None)
        try:
            db.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            db.execute("PRAGMA journal_mode=OFF")
            db.execute("PRAGMA synchronous=OFF")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA application_id={application_id}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            set_facts(db, facts)
            for rows in slices:
                db.execute("BEGIN")
                db.executemany(INSERT_VERSION, rows)
                db.execute("COMMIT")
                sync_path(draft)
                yield
        finally:
            db.close()
        sync_path(draft)
        os.link(draft, path)  # fails if another process was first, where a rename would replace its store
        sync_path(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading and copying ---------------------------------------------------------------------------


class StoreFacts(NamedTuple):
    """The facts that every file has."""

    incarnation: str
    compacted: Revision
    swept: int
    """The id up to which the sweeper has read rows."""


def set_facts(db: sqlite3.Connection, facts: Mapping[str, Fact]) -> None:
    db.executemany(SET_FACT, [(name, value, fact_checksum(name, value)) for name, value in facts.items()])


def read_facts(db: sqlite3.Connection) -> StoreFacts:
    """
    Raises:
        ValueError: a fact is missing, or is not as it was written.
    """
    found: dict[str, Any] = {}
    for name, value, checksum in db.execute("SELECT * FROM facts"):
        if fact_checksum(name, value) != checksum:
            raise ValueError(f"the fact {name!r} does not have its checksum")
        found[name] = value
    if missing := [name for name in StoreFacts._fields if name not in found]:
        raise ValueError(f"it has no fact {' or '.join(map(repr, missing))}")
    return StoreFacts(str(found["incarnation"]), int(found["compacted"]), int(found["swept"]))


def page_bytes(db: sqlite3.Connection) -> int:
    (found,) = db.execute("PRAGMA page_size").fetchone()
    return int(found)


def free_bytes(db: sqlite3.Connection) -> int:
    """Room inside the file, in pages of deleted rows."""
    (pages,) = db.execute("PRAGMA freelist_count").fetchone()
    return int(pages) * page_bytes(db)


def newest_revision(db: sqlite3.Connection) -> Revision:
    """The newest revision of a row or of a compaction, which may have left no rows."""
    (newest,) = db.execute("SELECT max(id) FROM versions").fetchone()
    return max((newest or 0) >> SEQ_BITS, read_facts(db).compacted)


def seal_rows(rows: list[StoredRow], cipher: ValueCipher) -> None:
    """Encrypt the values of rows about to be inserted, where their kind is."""
    kinds = cipher.sealed_kinds
    for index, row in enumerate(rows):
        if row[1] in kinds and row[8] is not None:
            stored = (*row[:8], cipher.seal(Key(*row[1:4]), row[8]), *row[9:11])
            rows[index] = (*stored, row_checksum(*stored))


def load(
    db: sqlite3.Connection,
    compacted: Revision,
    publish: Callable[[Revision, list[Change]], None],
    cipher: ValueCipher | None = None,
) -> Iterable[Entry]:
    """Read the log once: publish the changes after `compacted`, and return the newest versions.

    Raises:
        ValueError: a version is not as it was written, or one that it replaced is missing.
    """
    newest: dict[Key, Entry] = {}
    swept = read_facts(db).swept
    revision, changes = NO_REVISION, list[Change]()
    for row in db.execute(READ_ROWS):
        if not is_sound(row):
            raise ValueError(not_sound(row))
        id_, kind, namespace, name, created, previous, operation, decision, value, caller, groups, _ = row
        at = id_ >> SEQ_BITS
        if at != revision:
            if changes:
                publish(revision, changes)
            revision, changes = at, []
        key = Key(sys.intern(kind), sys.intern(namespace), name)
        before = newest.pop(key, None)
        if before is not None:
            key = before.key
            if before.modified != previous:
                if before.modified != -previous:
                    raise ValueError(not_replaced(key, at, previous, before.modified))
                before = None  # the version between was `latest_only` and is deleted
        elif previous > 0 and id_ > swept:
            raise ValueError(not_replaced(key, at, previous, NO_REVISION))
        if cipher is not None and value is not None:
            value = cipher.open(key, value)
        origin = origin_of(operation, decision, caller, groups)
        entry = Entry(key, value, created, at, origin) if value is not None else None
        if entry is not None:
            newest[key] = entry
        if at > compacted:
            changes.append(Change(at, key, entry, before, origin))
    if changes:
        publish(revision, changes)
    return newest.values()


def not_sound(row: Sequence[Any]) -> str:
    """The finding for a row whose checksum differs. The damage may be in its key."""
    id_, kind, namespace, name = row[:4]
    where = f"revision {id_ >> SEQ_BITS}" if isinstance(id_, int) else f"id {id_!r}"
    return f"the version of {kind}/{namespace}/{name} at {where} does not have its checksum"


def not_replaced(key: Key, at: Revision, previous: Revision, found: Revision) -> str:
    """The finding for a version whose predecessor is not the one that it replaced: a page between them is older."""
    wanted = f"revision {abs(previous)}" if previous else "no version"
    return f"the version of {key} at revision {at} replaced {wanted}, and the file has {found or 'none'} before it"


async def write_backup(
    path: Path, entries: Sequence[Entry], revision: Revision, incarnation: str, *, slice_rows: int
) -> None:
    """Write a store with `entries` and no history, marked as a backup, without blocking the event loop."""
    places: dict[Revision, int] = {}

    def row(entry: Entry) -> StoredRow:
        seq = places[entry.modified] = places.get(entry.modified, -1) + 1
        return row_of(Change(entry.modified, entry.key, entry, None, entry.origin), seq)

    slices = (
        [row(entry) for entry in entries[start : start + slice_rows]] for start in range(0, len(entries), slice_rows)
    )
    facts: Mapping[str, Fact] = {"incarnation": incarnation, "compacted": revision, "swept": ids_of(revision)[1]}
    try:
        for _ in building(path, BACKUP_ID, facts, slices):
            await asyncio.sleep(0)
    except (OSError, sqlite3.Error) as error:
        raise wrapped(error, path) from error

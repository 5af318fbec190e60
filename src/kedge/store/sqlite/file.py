"""The file of a SQLite store: creation, recognition, opening, migration, loading and backup.

A file is a log of versions and a few named facts. `store` decides what is written to it, `sweep` deletes old versions.
A file that is not a kedge store, or is in use, is rejected before it is modified.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from kedge.errors import OperatingError, Terminal, Unavailable
from kedge.keys import NO_ORIGIN, NO_REVISION, Key, Origin, Revision
from kedge.store.contract import RESTORE_BUMP, Change, Entry

APPLICATION_ID: Final = int.from_bytes(b"kedg")
BACKUP_ID: Final = int.from_bytes(b"kedb")
"""Marks a backup, in the file's first bytes, until it is opened as a store."""
SCHEMA_VERSION: Final = 3


def _add_callers(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE versions ADD COLUMN caller TEXT NOT NULL DEFAULT ''")


def _add_groups(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE versions ADD COLUMN groups TEXT NOT NULL DEFAULT ''")


MIGRATIONS: Final[dict[int, Callable[[sqlite3.Connection], None]]] = {1: _add_callers, 2: _add_groups}
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
    groups TEXT NOT NULL DEFAULT ''
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
INSERT_VERSION: Final = "INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE_VERSION: Final = "DELETE FROM versions WHERE id BETWEEN ? AND ? AND name = ? AND namespace = ? AND kind = ?"
INHERIT_PREVIOUS: Final = """
UPDATE versions SET previous = (
    SELECT -abs(old.previous) FROM versions AS old
    WHERE old.id BETWEEN ?1 AND ?2 AND old.name = ?3 AND old.namespace = ?4 AND old.kind = ?5
) WHERE id = ?6
"""
"""For a `latest_only` version, whose predecessor is deleted at once: it inherits the version that its predecessor
replaced. Otherwise that version would never be deleted, and would reappear after a delete."""
SET_FACT: Final = "INSERT OR REPLACE INTO facts VALUES (?, ?)"

Row = tuple[int, str, str, str, int, int, str, str, bytes | None, str, str]


def row_of(change: Change, seq: int) -> Row:
    kind, namespace, name = change.key
    operation, decision, caller, groups = change.origin
    entry, previous = change.entry, change.previous
    return (
        change.revision << SEQ_BITS | seq,
        kind,
        namespace,
        name,
        entry.created if entry is not None else NO_REVISION,
        previous.modified if previous is not None else NO_REVISION,
        operation,
        decision,
        entry.value if entry is not None else None,
        caller,
        groups_text(groups) if groups else "",
    )


@lru_cache(maxsize=1024)
def groups_text(groups: tuple[str, ...]) -> str:
    """Groups as one column. Few sets of groups write most versions, so they are remembered."""
    return msgspec.json.encode(groups).decode()


@lru_cache(maxsize=1024)
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


# -- opening ---------------------------------------------------------------------------------------


def open_file(
    path: Path, new_uid: Callable[[], str], connection: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open the store at `path` exclusively, creating it if there is none."""
    if not path.parent.is_dir():
        raise Terminal(f"{path.parent} is not a directory: create it, or put the store elsewhere")
    try:
        if not path.exists():
            _create(path, new_uid())
        held = _identity(path)
        if held in _held.values():
            raise in_use(path)
        _check_header(path)
        _check_writable(path)
        db = sqlite3.connect(path, timeout=0, isolation_level=None, factory=connection)
    except (OSError, sqlite3.Error) as error:
        raise wrapped(error, path) from error
    _held[id(db)] = held
    try:
        _prepare(db, path, new_uid)
    except sqlite3.Error as error:
        close_file(db)
        raise wrapped(error, path) from error
    except BaseException:
        close_file(db)
        raise
    return db


def close_file(db: sqlite3.Connection) -> None:
    db.close()
    _held.pop(id(db), None)


_held: Final[dict[int, tuple[int, int]]] = {}
"""Files this process has open, by connection. A process loses its locks on a file when it closes *any* descriptor of
it, so reading such a file, as `_check_header` does, would let another process open it."""


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _create(path: Path, incarnation: str) -> None:
    """Create a complete, empty store at `path` atomically, so that no process sees a partial file."""
    for log in (log_of(path), path.with_name(path.name + "-journal")):
        if log.exists():
            # SQLite would apply the log of the old file to the new one.
            raise Terminal(f"{path} is missing but its log {log} is there: put it back, or move the log away")
    try:
        for _ in building(path, APPLICATION_ID, {"incarnation": incarnation, "compacted": NO_REVISION, "swept": 0}):
            pass
    except FileExistsError:
        pass  # another process created it first: open that one


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


_drafts: Final = itertools.count()


def building(
    path: Path, application_id: int, facts: dict[str, str | int], slices: Iterable[Sequence[Row]] = ()
) -> Iterator[None]:
    """Write a whole store beside `path`, yielding after each slice, and link it to `path` atomically at the end."""
    draft = path.with_name(f"{path.name}.draft-{os.getpid()}-{next(_drafts)}")
    draft.unlink(missing_ok=True)  # left by a killed process with the same pid
    try:
        # No journal and no sync: a lost draft does no harm. It is synced below, slice by slice.
        db = sqlite3.connect(draft, isolation_level=None)
        try:
            db.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            db.execute("PRAGMA journal_mode=OFF")
            db.execute("PRAGMA synchronous=OFF")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA application_id={application_id}")
            db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.executemany(SET_FACT, facts.items())
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


def _check_header(path: Path) -> None:
    """Read only the first bytes, so that a file of another program is not even locked."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise Terminal(f"{path} is not a kedge store or a SQLite database: choose another path, or move it away")
    application_id = int.from_bytes(header[68:72])
    _check_identity(path, application_id, int.from_bytes(header[60:64]))
    if application_id == BACKUP_ID and log_of(path).exists():
        # A backup copied over a store that was not closed: SQLite would apply that store's log to it.
        raise Terminal(f"{path} is a backup but {log_of(path)} is the log of another store: move the log away")


def _check_writable(path: Path) -> None:
    """SQLite would open it read-only, and fail later with a worse message."""
    for each in (path, path.parent):
        if not os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise Terminal(f"{path} cannot be written: no write permission on {each}; change its permissions")


def _check_identity(path: Path, application_id: int, version: int) -> None:
    if application_id not in (APPLICATION_ID, BACKUP_ID):
        raise Terminal(f"{path} is a SQLite database of another program: choose another path")
    if version > SCHEMA_VERSION:
        raise Terminal(
            f"{path} was written by a newer kedge (schema {version}, this one knows {SCHEMA_VERSION}): upgrade kedge"
        )


def _prepare(db: sqlite3.Connection, path: Path, new_uid: Callable[[], str]) -> None:
    """Lock the file for this process, make commits durable, and migrate it in one transaction."""
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA fullfsync=1")  # where a plain fsync does not reach the disk
    db.execute("PRAGMA checkpoint_fullfsync=1")
    db.execute("BEGIN IMMEDIATE")
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    _check_identity(path, application_id, version)
    for step in range(version, SCHEMA_VERSION):
        MIGRATIONS[step](db)
        db.execute(f"PRAGMA user_version={step + 1}")
    if application_id == BACKUP_ID:
        _restore(db, new_uid())
    db.execute(SET_FACT, ("schema", SCHEMA_VERSION))  # proves early that the file can be written
    db.execute("COMMIT")
    # Only now: the changes to a backup must be in the file itself, where `_check_header` reads, not in a log.
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise Terminal(f"{path} is on a filesystem without write-ahead logging: put the store on a local disk")


def _restore(db: sqlite3.Connection, incarnation: str) -> None:
    """Restore a backup: advance the revision, drop its history, take a new incarnation."""
    jumped = newest_revision(db) + RESTORE_BUMP
    db.executemany(SET_FACT, [("incarnation", incarnation), ("compacted", jumped), ("swept", ids_of(jumped)[1])])
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def in_use(path: Path) -> Unavailable:
    return Unavailable(f"{path} is in use by another process: stop that one, or connect to its server")


def wrapped(error: Exception, path: Path) -> OperatingError:
    """The error for a failure of SQLite or of the filesystem, with what to do next."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    match primary:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return in_use(path)
        case sqlite3.SQLITE_FULL:
            return Unavailable(f"the disk of {path} is full: free some space")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Terminal(f"{path} cannot be written ({error}): change its permissions and its directory's")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Terminal(f"{path} is damaged ({error}): restore a backup")
    if isinstance(error, FileExistsError):
        return Terminal(f"{path} exists: choose another path")
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return Terminal(f"{path} cannot be opened ({error.strerror}): change its permissions, or choose another path")
    return Unavailable(f"{path}: {error}")


# -- reading and copying ---------------------------------------------------------------------------


def read_facts(db: sqlite3.Connection) -> dict[str, str | int]:
    return dict(db.execute("SELECT name, value FROM facts").fetchall())


def page_bytes(db: sqlite3.Connection) -> int:
    (found,) = db.execute("PRAGMA page_size").fetchone()
    return int(found)


def newest_revision(db: sqlite3.Connection) -> Revision:
    """The newest revision of a row or of a compaction, which may have left no rows."""
    (newest,) = db.execute("SELECT max(id) FROM versions").fetchone()
    return max((newest or 0) >> SEQ_BITS, int(read_facts(db)["compacted"]))


def load(
    db: sqlite3.Connection, compacted: Revision, publish: Callable[[Revision, list[Change]], None]
) -> Iterable[Entry]:
    """Read the log once: publish the changes after `compacted`, and return the newest versions."""
    newest: dict[Key, Entry] = {}
    revision, changes = NO_REVISION, list[Change]()
    for id_, kind, namespace, name, created, previous, operation, decision, value, caller, groups in db.execute(
        "SELECT * FROM versions ORDER BY id"
    ):
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
                before = None  # the version between was `latest_only` and is deleted
        origin = origin_of(operation, decision, caller, groups)
        entry = Entry(key, value, created, at, origin) if value is not None else None
        if entry is not None:
            newest[key] = entry
        if at > compacted:
            changes.append(Change(at, key, entry, before, origin))
    if changes:
        publish(revision, changes)
    return newest.values()


async def write_backup(
    path: Path, entries: Sequence[Entry], revision: Revision, incarnation: str, *, slice_rows: int
) -> None:
    """Write a store with `entries` and no history, marked as a backup, without blocking the event loop."""
    places: dict[Revision, int] = {}

    def row(entry: Entry) -> Row:
        seq = places[entry.modified] = places.get(entry.modified, -1) + 1
        return row_of(Change(entry.modified, entry.key, entry, None, entry.origin), seq)

    slices = (
        [row(entry) for entry in entries[start : start + slice_rows]] for start in range(0, len(entries), slice_rows)
    )
    facts: dict[str, str | int]
    facts = {"incarnation": incarnation, "compacted": revision, "swept": ids_of(revision)[1]}
    try:
        for _ in building(path, BACKUP_ID, facts, slices):
            await asyncio.sleep(0)
    except (OSError, sqlite3.Error) as error:
        raise wrapped(error, path) from error

"""Opens the file of a SQLite store: recognition, locking, verification and migration.

A file that is not a kedge store, or is in use, is rejected before it is modified. A damaged one is rejected by
`StoreDamaged`, and is closed: the next attempt finds it as free as the first one did.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kedge.errors import Terminal
from kedge.keys import NO_REVISION, Revision
from kedge.store.contract import RESTORE_BUMP
from kedge.store.sqlite import file
from kedge.store.sqlite.checksums import Fact
from kedge.store.sqlite.disk_reserve import release_reserve
from kedge.store.sqlite.failures import damaged, in_use, is_full, raise_at_open, wrapped
from kedge.store.sqlite.file import APPLICATION_ID, BACKUP_ID, log_of
from kedge.store.sqlite.revision_mark import read_mark
from kedge.store.sqlite.write_ahead import missing_commits


class OpenedFile(NamedTuple):
    """A store's file, locked by this process."""

    db: sqlite3.Connection
    identity: tuple[int, int]
    lost: str
    """The evidence that acknowledged commits are missing; empty if there is none."""


def open_file(
    path: Path, new_uid: Callable[[], str], connection: type[sqlite3.Connection] = sqlite3.Connection
) -> OpenedFile:
    """Open the store at `path` exclusively, creating it if there is none.

    Raises:
        StoreDamaged: its content is not what a store wrote.
        Terminal: it is not a kedge store, or cannot be written.
        Unavailable: another process has it open, or the disk is full.
    """
    if not path.parent.is_dir():
        raise Terminal(f"{path.parent} is not a directory: create it, or put the store elsewhere")
    try:
        if not path.exists():
            _create(path, new_uid())
        if is_held(path):
            raise in_use(path)
        held = identity(path)
        check_header(path)
        _check_writable(path)
        evidence = _LogEvidence(missing_commits(log_of(path), path), _checkpointed(path))
        # The store's own thread uses it too, one call at a time.
        db = sqlite3.connect(path, timeout=0, isolation_level=None, factory=connection, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise wrapped(error, path) from error
    _held[id(db)] = held
    try:
        lost = _prepare(db, path, new_uid, evidence)
    except BaseException as error:  # noqa: BLE001  every error is raised again, as the one for its cause
        close_file(db)
        if is_full(error) and release_reserve(path):
            return open_file(path, new_uid, connection)
        raise_at_open(error, path)
    return OpenedFile(db, held, lost)


def close_file(db: sqlite3.Connection) -> None:
    db.close()
    _held.pop(id(db), None)


_held: Final[dict[int, tuple[int, int]]] = {}
"""Files this process has open, by connection. A process loses its locks on a file when it closes *any* descriptor of
it, so reading such a file, as `check_header` does, would let another process open it."""


def is_held(path: Path) -> bool:
    """Whether this process has the store at `path` open."""
    return identity(path) in _held.values()


def identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _create(path: Path, incarnation: str) -> None:
    """Create a complete, empty store at `path` atomically, so that no process sees a partial file."""
    for log in (log_of(path), path.with_name(path.name + "-journal")):
        if log.exists():
            # SQLite would apply the log of the old file to the new one.
            raise Terminal(f"{path} is missing but its log {log} is there: put it back, or move the log away")
    facts: Mapping[str, Fact] = {"incarnation": incarnation, "compacted": NO_REVISION, "swept": 0}
    try:
        for _ in file.building(path, APPLICATION_ID, facts):
            pass
    except FileExistsError:
        pass  # another process created it first: open that one


# -- the header ------------------------------------------------------------------------------------

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_SCHEMA_TEXT: Final = b"CREATE TABLE versions ("
_FIRST_BYTES: Final = 65_536
"""The largest page of SQLite: the first page of a store, which has its schema, is not longer."""
_FIXED_FIELDS: Final = {
    18: (1, 2),  # written with a rollback journal, or with a write-ahead log
    19: (1, 2),
    20: (0,),  # bytes reserved at the end of each page
    21: (64,),
    22: (32,),
    23: (32,),
    **dict.fromkeys(range(52, 56), (0,)),  # no automatic vacuum
    **dict.fromkeys(range(64, 68), (0,)),
    **dict.fromkeys(range(72, 92), (0,)),  # reserved for expansion
}
"""Bytes of SQLite's header that have one of these values in every store of kedge."""


def check_header(path: Path) -> None:
    """Read only the first page, so that a file of another program is not even locked."""
    with path.open("rb") as opened:
        first = opened.read(_FIRST_BYTES)
    application_id = int.from_bytes(first[68:72])
    if len(first) < _HEADER_BYTES and _MAGIC.startswith(first[: len(_MAGIC)]):
        raise damaged(path, f"it is cut short, at {len(first)} bytes")
    if not first.startswith(_MAGIC) or application_id not in (APPLICATION_ID, BACKUP_ID):
        if _SCHEMA_TEXT in first:
            raise damaged(path, "its first bytes are not those of a kedge store, but its schema is")
        if not first.strip(b"\0") or log_of(path).exists():
            raise damaged(path, "its first page is not that of a kedge store")
    if not first.startswith(_MAGIC):
        raise Terminal(f"{path} is not a kedge store or a SQLite database: choose another path, or move it away")
    _check_version(path, application_id, int.from_bytes(first[60:64]))
    for place, allowed in _FIXED_FIELDS.items():
        if first[place] not in allowed:
            raise damaged(path, f"byte {place} of its header is {first[place]}")
    if int.from_bytes(first[56:60]) != 1:
        raise damaged(path, "its header has another text encoding than UTF-8")
    if application_id == BACKUP_ID and log_of(path).exists():
        # A backup copied over a store that was not closed: SQLite would apply that store's log to it.
        raise Terminal(f"{path} is a backup but {log_of(path)} is the log of another store: move the log away")


def _check_version(path: Path, application_id: int, version: int) -> None:
    if application_id not in (APPLICATION_ID, BACKUP_ID):
        raise Terminal(f"{path} is a SQLite database of another program: choose another path")
    if version < 1:
        raise damaged(path, f"its schema version is {version}")
    if version <= file.SCHEMA_VERSION:
        return
    recorded = _recorded_schema(path)
    if recorded != version:
        raise damaged(path, f"its header has schema version {version}, its facts have {recorded}")
    raise Terminal(
        f"{path} was written by a newer kedge (schema {version}, this one knows {file.SCHEMA_VERSION}): upgrade kedge"
    )


def _recorded_schema(path: Path) -> object:
    """The schema version in the facts, which is written with the one in the header."""
    try:
        db = sqlite3.connect(f"file:{path}?immutable=1", uri=True, timeout=0)  # locks nothing
        try:
            row = db.execute("SELECT value FROM facts WHERE name = 'schema'").fetchone()
        finally:
            db.close()
    except sqlite3.Error as error:
        raise_at_open(error, path)
    return row[0] if row is not None else None


def _check_writable(path: Path) -> None:
    """SQLite would open it read-only, and fail later with a worse message."""
    for each in (path, path.parent):
        if not os.access(each, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise Terminal(f"{path} cannot be written: no write permission on {each}; change its permissions")


# -- the content -----------------------------------------------------------------------------------


class _LogEvidence(NamedTuple):
    """Evidence in the log and in the database, taken before SQLite joins them."""

    missing: str
    checkpointed: Revision


def _prepare(db: sqlite3.Connection, path: Path, new_uid: Callable[[], str], evidence: _LogEvidence) -> str:
    """Lock the file for this process, make commits durable, and migrate it in one transaction.

    Returns the evidence that commits are lost. Such a store is treated as a restored backup: no revision that a client
    has seen may be given to another commit.
    """
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA fullfsync=1")  # where a plain fsync does not reach the disk
    db.execute("PRAGMA checkpoint_fullfsync=1")
    db.execute("BEGIN IMMEDIATE")
    check_pages(db, path)
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    _check_version(path, application_id, version)
    for step in range(version, file.SCHEMA_VERSION):
        file.MIGRATIONS[step](db)
        db.execute(f"PRAGMA user_version={step + 1}")
    lost = _lost_commits(db, path, evidence) if application_id == APPLICATION_ID else ""
    if application_id == BACKUP_ID or lost:
        _restore(db, new_uid())
    file.set_facts(db, {"schema": file.SCHEMA_VERSION})  # proves early that the file can be written
    db.execute("COMMIT")
    # Only now: the changes to a backup must be in the file itself, where `check_header` reads, not in a log.
    (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise Terminal(f"{path} is on a filesystem without write-ahead logging: put the store on a local disk")
    with suppress(sqlite3.Error):
        # An empty log: frames of a crash must not be taken for later commits at the next open. It can wait for room.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return lost


def _lost_commits(db: sqlite3.Connection, path: Path, evidence: _LogEvidence) -> str:
    newest, incarnation = file.newest_revision(db), file.read_facts(db).incarnation
    reasons = [evidence.missing] if evidence.missing else []
    if evidence.checkpointed > newest:
        reasons.append(f"revision {evidence.checkpointed} had been moved from the log to the database")
    if (acknowledged := read_mark(path, incarnation)) > newest:
        reasons.append(f"revision {acknowledged} had been acknowledged")
    if not reasons:
        return ""
    return (
        f"acknowledged commits are missing from {path}, which ends at revision {newest}: {'; '.join(reasons)}."
        " The store has a new incarnation, and clients list again; restore a backup if it has more"
    )


def _checkpointed(path: Path) -> Revision:
    """The newest revision in the database without its log. An unfinished checkpoint leaves it unreadable: 0."""
    log = log_of(path)
    if not log.exists() or not log.stat().st_size:
        return NO_REVISION
    with suppress(sqlite3.Error, ValueError, TypeError):
        db = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
        try:
            return file.newest_revision(db)
        finally:
            db.close()
    return NO_REVISION


def check_pages(db: sqlite3.Connection, path: Path) -> None:
    """Verify the structure of the file. Checksums of rows cannot show that a row is missing."""
    found = [str(row[0]) for row in db.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged(path, "; ".join(" ".join(each.split()) for each in found))


def _restore(db: sqlite3.Connection, incarnation: str) -> None:
    """Restore a backup: advance the revision, drop its history, take a new incarnation."""
    jumped = file.newest_revision(db) + RESTORE_BUMP
    file.set_facts(db, {"incarnation": incarnation, "compacted": jumped, "swept": file.ids_of(jumped)[1]})
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")

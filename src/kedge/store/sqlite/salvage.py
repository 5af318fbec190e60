"""Finds what is sound in the file of a SQLite store, and what is not. Changes nothing; the caller writes the result.

`examine_file` reads with SQLite and verifies what an open would, and the agreement of the log with itself.
`salvage_file` reads the pages themselves and returns the newest sound version of each object.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kedge.errors import StoreDamaged
from kedge.keys import NO_REVISION, Key, Revision
from kedge.store.contract import RESTORE_BUMP, Entry
from kedge.store.sqlite import file
from kedge.store.sqlite.checksums import is_sound
from kedge.store.sqlite.failures import in_use
from kedge.store.sqlite.locked_file import check_header, check_pages, is_held
from kedge.store.sqlite.raw_pages import LostPage, RawPages
from kedge.store.sqlite.revision_mark import read_mark
from kedge.store.sqlite.write_ahead import missing_commits


class StoreFinding(NamedTuple):
    """One thing that is wrong in a file."""

    part: str
    """pages, facts, versions or log; the caller adds ledgers and quotas."""
    what: str


class ExaminedFile(NamedTuple):
    """The objects of a file that are sound, and everything that is not."""

    entries: tuple[Entry, ...]
    revision: Revision
    incarnation: str
    versions: int
    findings: tuple[StoreFinding, ...]


def examine_file(path: Path, progress: Callable[[int], None]) -> ExaminedFile:
    """Verify all of a store that is not open.

    Raises:
        Unavailable: a process has it open.
        Terminal: it is not a kedge store.
    """
    check_unused(path)
    examined = _Examined()
    try:
        check_header(path)
        db = read_only(path)
        try:
            _examine(db, path, examined, progress)
        finally:
            db.close()
    except StoreDamaged as error:
        examined.add("pages", str(error).partition(": restore a backup")[0])
    except sqlite3.Error as error:
        examined.add("pages", f"{path}: {error}")
    if missing := missing_commits(file.log_of(path), path):
        examined.add("log", missing)
    return examined.result()


def check_unused(path: Path) -> None:
    """Raise `Unavailable` if a process has the store open. Takes no lock, and creates no file as SQLite would."""
    if is_held(path):
        raise in_use(path)
    with path.open("rb") as opened:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, _LOCK_BYTES[0], _LOCK_BYTES[1], 0)
        kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(opened, fcntl.F_GETLK, asked))
    if kind != fcntl.F_UNLCK:
        raise in_use(path)


_FLOCK: Final = "hhqqi"  # struct flock: type, whence, start, length, pid
_LOCK_BYTES: Final = (0x4000_0000, 512)
"""Where SQLite locks a database, and how many bytes."""


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Without a log the file is opened as immutable."""
    log = file.log_of(path)
    has_log = log.exists() and log.stat().st_size > 0
    return sqlite3.connect(f"file:{path}?{'mode=ro' if has_log else 'immutable=1'}", uri=True, timeout=0)


class _Examined:
    """The versions and findings so far."""

    def __init__(self) -> None:
        self.findings: list[StoreFinding] = []
        self.newest: dict[Key, Entry] = {}
        self.seen: dict[Key, tuple[Revision, Revision]] = {}  # revision and creation of the last version, deletions too
        self.revision = NO_REVISION
        self.incarnation = ""
        self.versions = 0

    def add(self, part: str, what: str) -> None:
        self.findings.append(StoreFinding(part, what))

    def take(self, row: Sequence[Any]) -> None:
        """Take a sound row in. Rows come in the order of their ids."""
        id_, kind, namespace, name, created, _, operation, decision, value, caller, groups = row[:11]
        key, at = Key(kind, namespace, name), id_ >> file.SEQ_BITS
        self.versions += 1
        self.revision = max(self.revision, at)
        self.seen[key] = (at, created)
        self.newest.pop(key, None)
        if value is not None:
            self.newest[key] = Entry(key, value, created, at, file.origin_of(operation, decision, caller, groups))

    def result(self) -> ExaminedFile:
        entries = tuple(self.newest.values())
        return ExaminedFile(entries, self.revision, self.incarnation, self.versions, tuple(self.findings))


def _examine(db: sqlite3.Connection, path: Path, examined: _Examined, progress: Callable[[int], None]) -> None:
    try:
        check_pages(db, path)
    except StoreDamaged as error:
        examined.add("pages", str(error).partition(": restore a backup")[0])
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version < file.SCHEMA_VERSION:
        examined.add(
            "versions", f"schema {version} has no checksums yet: open it with `kedge server` once, which adds them"
        )
    compacted = NO_REVISION
    try:
        facts = file.read_facts(db)
        examined.incarnation, compacted = facts.incarnation, facts.compacted
    except ValueError as error:
        examined.add("facts", str(error))
    for row in db.execute(file.READ_ROWS):
        if version >= file.SCHEMA_VERSION and not is_sound(row):
            examined.add("versions", file.not_sound(row))
            continue
        for what in _disagreements(row, examined, compacted):
            examined.add("log", what)
        examined.take(row)
        progress(examined.versions)
    examined.revision = max(examined.revision, compacted)
    if (acknowledged := read_mark(path, examined.incarnation)) > examined.revision:
        examined.add("log", f"revision {acknowledged} was acknowledged, and {examined.revision} is the newest")


def _disagreements(row: Sequence[Any], examined: _Examined, compacted: Revision) -> Iterator[str]:
    """Contradictions between a sound row and the rows before it."""
    id_, kind, namespace, name, created, previous = row[:6]
    key, at = Key(kind, namespace, name), id_ >> file.SEQ_BITS
    before = examined.seen.get(key)
    if created > at or previous >= at:
        yield f"{key} at revision {at} was created at {created} and replaced {previous}, which are later"
    if previous > compacted and (before is None or before[0] < previous):
        yield f"{key} at revision {at} replaced revision {previous}, which is missing"
    if before is not None and before[0] == previous and row[8] is not None and before[1] not in (created, NO_REVISION):
        yield f"{key} was created at {before[1]} by its version {before[0]}, and at {created} by its version {at}"


def salvage_file(path: Path, progress: Callable[[int], None]) -> ExaminedFile:
    """The newest sound version of every object, and all that is lost, of a store that is not open."""
    check_unused(path)
    examined = _Examined()
    rows: dict[int, tuple[Any, ...]] = {}
    for found in RawPages(path).rows():
        if isinstance(found, LostPage):
            examined.add("pages", f"page {found.page}: {found.why}")
            continue
        row = found.columns + ("",) * (11 - len(found.columns))
        if not (is_sound(row) if len(row) == len(file.COLUMNS) else _has_types(row)):
            examined.add("versions", file.not_sound(row))
            continue
        rows[row[0]] = row
        progress(len(rows))
    for _, row in sorted(rows.items()):
        examined.take(row)
    # The facts may be lost. A restored store advances its revision: stay ahead of one that had been restored before.
    examined.revision += 2 * RESTORE_BUMP if examined.findings else 0
    try:
        db = read_only(path)
        try:
            facts = file.read_facts(db)
            examined.incarnation, examined.revision = facts.incarnation, max(examined.revision, facts.compacted)
        finally:
            db.close()
    except (sqlite3.Error, ValueError, TypeError) as error:
        examined.add("facts", str(error))
    return examined.result()


def _has_types(row: Sequence[Any]) -> bool:
    """Whether a row of before checksums has the types of its columns."""
    texts = (*row[1:4], *row[6:8], *row[9:11])
    return all(isinstance(each, str) for each in texts) and isinstance(row[8], bytes | None)

"""Writes a backup as a SQLite store. `SqliteStore.open` recognises it and advances the revision.

It is written under another name, read back, and only then given its own: a killed restore leaves nothing in its place.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from kedge.errors import Terminal
from kedge.keys import Key, Revision
from kedge.store.backup import BackupTotal, Digest
from kedge.store.contract import Entry
from kedge.store.sqlite import file
from kedge.store.sqlite.checksums import is_sound
from kedge.store.sqlite.failures import wrapped


async def restore_to_sqlite(
    path: Path,
    entries: Iterable[Entry],
    revision: Revision,
    incarnation: str,
    *,
    slice_rows: int,
    progress: Callable[[int], None],
) -> BackupTotal:
    """Write every object, read all of it back, then name it `path`. Never replaces a store.

    Raises:
        Terminal: `path` exists or cannot be written.
        Unavailable: the disk is full.
    """
    for each in (path, file.log_of(path)):
        if each.exists():
            raise Terminal(f"{each} exists: restore to another --state, or move it away first")
    draft = path.with_name(f"{path.name}.restoring-{os.getpid()}")
    ordered = sorted(entries, key=lambda entry: entry.modified)
    digest = Digest()
    digest.add(ordered)
    try:
        draft.unlink(missing_ok=True)
        await file.write_backup(draft, ordered, revision, incarnation, slice_rows=slice_rows)
        progress(len(ordered))
        if (found := _read_back(draft)) != digest.total:
            raise Terminal(f"{draft} has {found} where {digest.total} was written: check the disk")
        os.link(draft, path)  # fails where a rename would replace
        file.sync_path(path.parent)
    except (OSError, sqlite3.Error) as error:
        raise wrapped(error, path) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return digest.total


def _read_back(path: Path) -> BackupTotal:
    digest = Digest()
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
        if verdict != "ok":
            raise Terminal(f"{path} is damaged right after it was written ({verdict}): check the disk")
        for row in db.execute(file.READ_ROWS):
            if not is_sound(row):
                raise Terminal(f"{path} is damaged right after it was written ({file.not_sound(row)}): check the disk")
            id_, kind, namespace, name, created, _, operation, decision, value, caller, groups, _ = row
            origin = file.origin_of(operation, decision, caller, groups)
            digest.add([Entry(Key(kind, namespace, name), value, created, id_ >> file.SEQ_BITS, origin)])
    finally:
        db.close()
    return digest.total

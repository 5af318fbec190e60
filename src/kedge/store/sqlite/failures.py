"""The errors of a SQLite store: each names the file, what is wrong with it, and the next step."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

from kedge.errors import OperatingError, StoreDamaged, Terminal, Unavailable


def in_use(path: Path) -> Unavailable:
    return Unavailable(f"{path} is in use by another process: stop that one, or connect to its server")


def damaged(path: Path, what: object) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged ({what}): restore a backup, or list the damage with `kedge store check {path}`"
        f" and write what is sound to a new file with `kedge store salvage {path} OUT`"
    )


def disk_full(path: Path) -> Unavailable:
    return Unavailable(f"the disk of {path} is full: free some space")


def is_full(error: BaseException) -> bool:
    return primary_code(error) == sqlite3.SQLITE_FULL


def primary_code(error: BaseException) -> int | None:
    """SQLite's result code without its extension; None for an error that is not SQLite's."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def wrapped(error: Exception, path: Path) -> OperatingError:
    """The error for a failure of SQLite or of the filesystem, with what to do next."""
    match primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return in_use(path)
        case sqlite3.SQLITE_FULL:
            return disk_full(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Terminal(f"{path} cannot be written ({error}): change its permissions and its directory's")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, error)
    if isinstance(error, FileExistsError):
        return Terminal(f"{path} exists: choose another path")
    if isinstance(error, FileNotFoundError):
        return Terminal(f"{path} cannot be written ({error.strerror}): make its directory, or choose another path")
    if isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError):
        return Terminal(f"{path} cannot be opened ({error.strerror}): change its permissions, or choose another path")
    return Unavailable(f"{path}: {error}")


def raise_at_open(error: BaseException, path: Path) -> NoReturn:
    """Raise the error for a failure while the file is opened and read. Its content alone can cause most: damage."""
    if not isinstance(error, Exception) or isinstance(error, OperatingError):
        raise error
    code = primary_code(error)
    if isinstance(error, OSError | MemoryError) or not (code in _CONTENT or code is None):
        raise wrapped(error, path) from error
    raise damaged(path, error if isinstance(error, sqlite3.Error | ValueError) else repr(error)) from error


_CONTENT = (
    sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_INTERNAL, sqlite3.SQLITE_PROTOCOL,
)  # fmt: skip
"""Codes that reading or migrating a sound file cannot give."""

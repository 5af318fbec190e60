"""A backup: every object at one revision, in the kept format, from any backend and for any backend.

    backup   which store, which revision
    entries  a slice of objects; as many sections as it takes
    total    how many objects, and the digest of all of them

A store exports its objects; each backend has its own way to take them in. Nothing here opens a store. The revision bump
of a restored backup is the backend's: `docs/decisions/0006`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec

from kedge.errors import Terminal, Unavailable
from kedge.kept import HEADER, BadKeptFile, Gap, Section, encode_end, encode_section, read_kept, remove_stale_partials
from kedge.keys import Key, Origin, Revision
from kedge.store.contract import Entry

_HEAD, _ENTRIES, _TOTAL = "backup", "entries", "total"
_VERSION: Final = 3
_encode = msgspec.msgpack.Encoder().encode


class _EntryRow(NamedTuple):
    """One object. Version 1 had no callers and version 2 no groups, so their rows end before them."""

    kind: str
    namespace: str
    name: str
    created: Revision
    modified: Revision
    operation: str
    decision: str
    value: bytes
    caller: str = ""
    groups: tuple[str, ...] = ()


_decode = msgspec.msgpack.Decoder(list[_EntryRow]).decode


class StoreExport(NamedTuple):
    """All of a store at one revision."""

    backend: str
    incarnation: str
    revision: Revision
    slices: AsyncIterator[Sequence[Entry]]


@runtime_checkable
class Exporter(Protocol):
    """A store that can be backed up while it serves."""

    async def export(self) -> StoreExport: ...


class BackupHead(msgspec.Struct, frozen=True):
    """Where a backup is from."""

    backend: str
    incarnation: str
    revision: Revision
    made: str
    """Time, in RFC 3339."""


class BackupTotal(msgspec.Struct, frozen=True):
    """The end of a backup."""

    objects: int
    digest: str


class Digest:
    """A checksum over objects, in the order of their keys' first appearance; revisions are not part of it."""

    def __init__(self) -> None:
        self._sum = 0
        self.objects = 0

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            operation, decision, *rest = entry.origin
            while rest and not rest[-1]:  # as backups of earlier versions, which have no such fields
                rest.pop()
            content = _encode((*entry.key, operation, decision, entry.value, *rest))
            # A sum of hashes, so that backends may return objects in any order.
            self._sum = (self._sum + int.from_bytes(sha256(content).digest())) % (1 << 256)
            self.objects += 1

    @property
    def total(self) -> BackupTotal:
        return BackupTotal(self.objects, f"{self._sum:064x}")


async def sliced(entries: Sequence[Entry], size: int) -> AsyncIterator[Sequence[Entry]]:
    """Slices of a snapshot in memory, with a turn for other tasks after each."""
    for start in range(0, len(entries), size):
        yield entries[start : start + size]
        await asyncio.sleep(0)


async def encode_backup(export: StoreExport, made: str) -> AsyncIterator[bytes]:
    """The bytes of a backup, slice by slice."""
    head = BackupHead(export.backend, export.incarnation, export.revision, made)
    yield HEADER + encode_section(_HEAD, msgspec.json.encode(head), version=_VERSION)
    digest, sections = Digest(), 2
    async for entries in export.slices:
        digest.add(entries)
        sections += 1
        yield encode_section(_ENTRIES, _encode([_row(entry) for entry in entries]), version=_VERSION)
    yield encode_section(_TOTAL, msgspec.json.encode(digest.total), version=_VERSION) + encode_end(sections)


async def write_backup_file(path: Path, parts: AsyncIterator[bytes], progress: Callable[[int], None]) -> BackupTotal:
    """Write under a temporary name, verify what is on the disk, then name it `path`. Never replaces a file.

    Raises:
        Terminal: `path` exists, cannot be written, or what was written is not what was meant.
        Unavailable: the disk is full, or the source ended early.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        written = 0
        _check_new(path)
        remove_stale_partials(path.parent)
        with draft.open("wb") as file:
            draft.chmod(0o600)  # it has every Secret
            async for part in parts:
                file.write(part)
                written += len(part)
                progress(written)
            file.flush()
            os.fsync(file.fileno())
        found = check_backup(draft)
        os.link(draft, path)  # fails where a rename would replace
        _sync_folder(path.parent)
    except FileExistsError as error:
        raise Terminal(f"{path} exists: choose another name, or move it away") from error
    except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
        raise Terminal(f"{path} cannot be written: {error.strerror}: choose another folder") from error
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror or error}: free some space and repeat") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return found


def read_backup_head(path: Path) -> BackupHead:
    """
    Raises:
        Terminal: it is not a backup.
    """
    for section in _sections(path):
        if section.name == _HEAD:
            with _decoding(path):
                return msgspec.json.decode(section.body, type=BackupHead)
        break
    raise Terminal(f"{path} is not a backup: give a file that kedge backup wrote")


def read_backup(path: Path) -> Iterator[list[Entry]]:
    """Every object, slice by slice. The whole file has to be read before any of it is used: see `check_backup`."""
    digest, total = Digest(), None
    for section in _sections(path):
        if section.name == _ENTRIES:
            with _decoding(path):
                entries = [_entry(row) for row in _decode(section.body)]
            digest.add(entries)
            yield entries
        elif section.name == _TOTAL:
            with _decoding(path):
                total = msgspec.json.decode(section.body, type=BackupTotal)
    if total != digest.total:
        raise Terminal(f"{path} is damaged: it should have {total} and has {digest.total}: use another backup")


def check_backup(path: Path) -> BackupTotal:
    """Read all of a backup and check every checksum.

    Raises:
        Terminal: it is damaged, cut short, or not a backup.
    """
    read_backup_head(path)
    digest = Digest()
    for entries in read_backup(path):
        digest.add(entries)
    return digest.total


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """A section whose checksum holds but whose content no backup has, such as a hundred thousand brackets."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Terminal(f"{path} is damaged: a section cannot be decoded ({error}): use another backup") from error


def _sections(path: Path) -> Iterator[Section]:
    try:
        for section in read_kept(path):
            if isinstance(section, Gap):
                raise Terminal(f"{path} is damaged: {section}: use another backup")
            if section.version > _VERSION:
                raise Terminal(f"{path} was written by a newer kedge: upgrade kedge")
            yield section
    except BadKeptFile as error:
        raise Terminal(f"{error} (`kedge backup` writes those for a restore)") from error


def _row(entry: Entry) -> _EntryRow:
    operation, decision, caller, groups = entry.origin
    return _EntryRow(*entry.key, entry.created, entry.modified, operation, decision, entry.value, caller, groups)


def _entry(row: _EntryRow) -> Entry:
    origin = Origin(row.operation, row.decision, row.caller, row.groups)
    return Entry(Key(row.kind, row.namespace, row.name), row.value, row.created, row.modified, origin)


def _check_new(path: Path) -> None:
    if path.exists():
        raise FileExistsError


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

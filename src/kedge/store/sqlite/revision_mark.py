"""The newest acknowledged revision, in a small file beside the store: `open` compares the log with it.

It is written after each sync and is never ahead of the log, so a log that ends before it has lost acknowledged commits.
It is not synced, except when the store is closed: a machine that loses power may lose the mark, not gain a false one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from kedge.keys import NO_REVISION, Revision


def mark_path(path: Path) -> Path:
    return path.with_name(path.name + "-mark")


def read_mark(path: Path, incarnation: str) -> Revision:
    """The revision in the mark of the store at `path`; `NO_REVISION` if there is none for this incarnation."""
    with suppress(OSError, ValueError):
        text, _, checksum = mark_path(path).read_text("ascii").rstrip("\n").rpartition(" ")
        found, _, revision = text.rpartition(" ")
        if int(checksum, 16) == crc32(text.encode()) and found == incarnation:
            return int(revision)
    return NO_REVISION


class RevisionMark:
    """The open mark of a store. A disk on which it cannot be written costs the evidence, not the commit."""

    def __init__(self, path: Path, incarnation: str, revision: Revision) -> None:
        self._incarnation = incarnation
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(mark_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.write(revision)

    def write(self, revision: Revision) -> None:
        if self._descriptor is None:
            return
        text = f"{self._incarnation} {revision:020d}"
        with suppress(OSError):
            os.pwrite(self._descriptor, f"{text} {crc32(text.encode()):08x}\n".encode(), 0)

    def close(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

"""The files of the audit log: lines appended and synced, rotated by size, bounded in number.

Every method blocks, and only one is called at a time: `log` calls them in a thread. `reader` reads the files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from kedge.limits import Limits

_NAME: Final = re.compile(r"audit-(\d{10})\.log")


def audit_files(directory: Path) -> dict[int, Path]:
    """The files that are there, oldest first, by number."""
    found = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


class AuditFiles:
    """Appends to the newest file of a directory. Nothing is opened before the first write."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        """Raises `OSError` if the directory cannot be made."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._limits = limits
        self._descriptor = -1
        self._number = 0
        self._size = 0
        """Bytes of the current file that are whole batches. Bytes after it are of a batch that failed."""
        self.count = 0
        """Files on disk, as of the last write."""
        self.bytes = 0
        """Their size, as of the last write."""

    def write(self, lines: bytes) -> None:
        """Append whole lines and sync them. After an error none of them is in the file: write them again.

        Raises:
            OSError: the disk is full or fails.
        """
        if self._descriptor < 0:
            self._open_newest()
        if self._size and self._size + len(lines) > self._limits.audit_file_bytes_max:
            self._rotate()
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._descriptor, view) :]
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(lines)
        self.bytes += len(lines)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open_newest(self) -> None:
        """Go on in the newest file. The line that a kill cut off is ended, so that the next one stands alone."""
        found = audit_files(self._directory)
        self._open(max(found, default=1))
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            os.write(self._descriptor, b"\n")
            self._size += 1
        self._count_files()

    def _rotate(self) -> None:
        """Begin another file, and remove the oldest ones past the bound."""
        self._open(self._number + 1)
        kept = list(audit_files(self._directory).values())
        for path in kept[: max(0, len(kept) - self._limits.audit_files_max)]:
            path.unlink(missing_ok=True)
        self._count_files()

    def _open(self, number: int) -> None:
        path = self._directory / f"audit-{number:010d}.log"
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(opened).st_size
            folder = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # the name of a new file
            finally:
                os.close(folder)
        except OSError:
            os.close(opened)
            raise
        self.close()
        self._descriptor, self._number, self._size = opened, number, size

    def _count_files(self) -> None:
        sizes = [path.stat().st_size for path in audit_files(self._directory).values()]
        self.count, self.bytes = len(sizes), sum(sizes)

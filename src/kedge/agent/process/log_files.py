"""Log files of containers: where they are, their index of times, and how they are kept bounded. Standard library only.

A program writes straight to an O_APPEND file, so its output needs neither agent nor keeper. The keeper looks at each
file once a second: it notes when the output was written, and punches away the oldest part of a file that is too long.
A punched file keeps its length, so positions in it stay valid, and no line is lost between a copy and a truncation.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __package__:
    from kedge.agent.process.keeper_bounds import MARKS_MAX
else:  # run as a part of the keeper, without the package
    from keeper_bounds import MARKS_MAX

POLL_S = 1.0
"""How often the keeper looks: the accuracy of the times, and the time in which a file may exceed its limit."""
MESSAGE_BYTES_MAX, LOG_MESSAGE_BYTES_MAX, LOG_MESSAGE_LINES_MAX = 4096, 2048, 80
"""Kubernetes cuts a termination message so."""
BYTES_MAX = 16 * 1024 * 1024
"""For a record of an earlier version, which names no limit."""
_BLOCK = 4096
_PUNCH_HOLE_KEEP_SIZE = 0x03


class TimeMark(NamedTuple):
    """Output from `position` to `end` was written at or before this time, and after the time of the mark before."""

    position: int
    at: float
    end: int
    """Output from here on is younger: the keeper has not looked at it, or the next mark has its time."""

    def line(self) -> str:
        return f"{self.position} {self.at:.6f} {self.end}\n"


def log_path(pod_folder: Path, container: str, attempt: int) -> Path:
    return pod_folder / "logs" / container / f"{attempt}.log"


def marks_path(log: Path) -> Path:
    return log.with_suffix(".times")


def read_marks(log: Path) -> tuple[list[TimeMark], bool]:
    """The marks of a log file, and whether its program has ended."""
    marks, ended = [], False
    with suppress(OSError):
        for line in marks_path(log).read_text().splitlines():
            parts = line.split()
            if line == "end":
                ended = True
            elif len(parts) == 3:  # a line may be cut short: the keeper was killed while it wrote
                with suppress(ValueError):
                    marks.append(TimeMark(int(parts[0]), float(parts[1]), int(parts[2])))
    return marks, ended


def first_byte(descriptor: int) -> int:
    """The position of the oldest output that is kept."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:
        return 0  # empty, or the file system does not know


def read_message(record: Mapping[str, Any], *, failed: bool) -> str:
    """The cause of its stop, and the text that a process left in its termination file.

    The end of its log, by its policy, if it failed.
    """
    path, policy = record.get("termination", ("", ""))
    text = b""
    with suppress(OSError):
        if path:
            with Path(path).open("rb") as file:
                text = file.read(MESSAGE_BYTES_MAX)
        if not text and failed and policy == "FallbackToLogsOnError":
            with Path(record["log"]).open("rb") as file:
                file.seek(max(first_byte(file.fileno()), file.seek(0, os.SEEK_END) - LOG_MESSAGE_BYTES_MAX))
                text = file.read(LOG_MESSAGE_BYTES_MAX)
                text = b"".join(text.splitlines(keepends=True)[-LOG_MESSAGE_LINES_MAX:])
    left = text.decode(errors="replace").replace("\0", "")
    return "\n".join(each for each in (record.get("cause", ""), left) if each)


class LogFile:
    """Upkeep of the output of one process that runs."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._marks, _ = read_marks(path)
        self._size = 0
        if self._marks:
            with suppress(OSError):  # output that an earlier keeper has marked already
                self._size = min(path.stat().st_size, self._marks[-1].end)

    def look(self) -> None:
        """Note when new output was written, and drop the oldest output if there is too much."""
        try:
            found = self._path.stat()
        except OSError:
            return  # removed from outside: the program keeps running
        if found.st_size < self._size:  # truncated, by its program or from outside
            self._marks, self._size = [], 0
            self._save()
        if found.st_size > self._size:
            self._add(TimeMark(self._size, found.st_mtime, found.st_size))
            self._size = found.st_size
        if found.st_blocks * 512 > self._bytes_max:
            self._drop()

    def end(self) -> None:
        """The process has ended: a reader that follows it stops."""
        self.look()
        with suppress(OSError), marks_path(self._path).open("a") as file:
            file.write("end\n")

    def _add(self, mark: TimeMark) -> None:
        self._marks.append(mark)
        if len(self._marks) > MARKS_MAX:
            del self._marks[1::2]
            self._save()
            return
        with suppress(OSError), marks_path(self._path).open("a") as file:  # times are lost on a full disk, output first
            file.write(mark.line())

    def _save(self) -> None:
        partial = self._path.with_suffix(".partial")
        with suppress(OSError):
            partial.write_text("".join(each.line() for each in self._marks))
            partial.replace(marks_path(self._path))

    def _drop(self) -> None:
        """Free the oldest blocks. A file system without holes loses the whole output so far."""
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                length = (size - self._bytes_max + self._bytes_max // 4) // _BLOCK * _BLOCK
                if length > 0 and not _punch(descriptor, length):
                    os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)
            kept = [number for number, each in enumerate(self._marks) if each.position <= length]
            if len(kept) > 1:
                del self._marks[: kept[-1]]
                self._save()


def _punch(descriptor: int, length: int) -> bool:
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, 0, length) == 0)

"""Reading the logs of a node's containers: tail, since, follow, previous, timestamps, as `kubectl logs` asks for them.

`ProcessDriver.logs` makes it. It reads only files, so it works without the keeper, and for pods that have ended. The
time of a line is that of the keeper's look at the file (`log_files`): accurate to about a second.
"""

from __future__ import annotations

import asyncio
import bisect
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kedge.agent.process import log_files
from kedge.errors import NotFound

CHUNK_BYTES = 64 * 1024
"""Bytes that are read at once, and the longest part of a line that is held."""
FOLLOW_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The part of a log to read. The default is all that is kept."""

    follow: bool = False
    """Wait for more output until the process has ended."""
    previous: bool = False
    """The log of the process before the latest one."""
    tail_lines: int | None = None
    since: datetime | None = None
    timestamps: bool = False
    """Write the time before each line."""
    limit_bytes: int | None = None


class NodeLogs:
    """The logs of all pods of one node."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the state folder of the node."""
        self._pods = folder / "pods"

    def attempts(self, pod_uid: str, container: str) -> list[int]:
        """The restart counts of the processes of a container whose output is kept, in order."""
        return sorted(int(each.stem) for each in self._files(pod_uid, container) if each.stem.isdigit())

    def open(self, pod_uid: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        """The output in pieces of at most a few chunks. Reading starts with the first step.

        Raises:
            NotFound: nothing was started for the container, or only once and `previous` is asked for.
        """
        attempts = self.attempts(pod_uid, container)
        if options.previous:
            attempts = attempts[:-1]
        if not attempts:
            earlier = "previous terminated " if options.previous else ""
            raise NotFound(f"{earlier}container {container} in pod {pod_uid} has no log on this node: it never ran")
        (path,) = [each for each in self._files(pod_uid, container) if each.stem == str(attempts[-1])]
        return _limited(_pieces(path, options), options.limit_bytes)

    def _files(self, pod_uid: str, container: str) -> Iterator[Path]:
        if "/" not in container and "/" not in pod_uid and "*" not in pod_uid:
            for folder in self._pods.glob(f"*_{pod_uid}"):
                yield from (folder / "logs" / container).glob("*.log")


async def _limited(pieces: AsyncIterator[bytes], bytes_max: int | None) -> AsyncIterator[bytes]:
    left = bytes_max
    async for piece in pieces:
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


async def _pieces(path: Path, options: LogOptions) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        descriptor = file.fileno()
        position = _first_line(descriptor)
        if options.since is not None:
            position = max(position, _since(path, options.since.timestamp()))
        if options.tail_lines is not None:
            position = max(position, _tail(descriptor, options.tail_lines, position))
        lines = _Lines(path, timestamps=options.timestamps)
        while True:
            _, ended = log_files.read_marks(path)  # before the read: output after it would be lost otherwise
            while data := os.pread(descriptor, CHUNK_BYTES, position):
                if piece := lines.take(data, position):
                    yield piece
                position += len(data)
                await asyncio.sleep(0)  # other work of the loop goes between the pieces of a long log
            if ended or not options.follow:
                break
            if os.fstat(descriptor).st_size < position:  # truncated: it starts again
                position = 0
            await asyncio.sleep(FOLLOW_POLL_S)
        if rest := lines.rest():
            yield rest


class _Lines:
    """Cuts output into whole lines, and writes times before them."""

    def __init__(self, path: Path, *, timestamps: bool) -> None:
        self._path = path
        self._timestamps = timestamps
        self._held = b""
        self._held_at = 0
        self._marks: list[log_files.TimeMark] = []

    def take(self, data: bytes, position: int) -> bytes:
        """The whole lines of this and earlier data. A line that does not fit into a chunk is passed on in parts."""
        if not self._timestamps:
            return data
        start = self._held_at if self._held else position
        whole, newline, rest = (self._held + data).rpartition(b"\n")
        if not newline and len(rest) < CHUNK_BYTES:
            self._held, self._held_at = rest, start
            return b""
        if not newline:
            whole, rest = rest, b""
        self._held, self._held_at = rest, start + len(whole) + len(newline)
        return self._stamped(whole + newline, start)

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return self._stamped(held, self._held_at) if held else b""

    def _stamped(self, data: bytes, start: int) -> bytes:
        if not self._marks or start + len(data) > self._marks[-1].position:
            self._marks = _times(self._path)
        out = []
        for line in data.splitlines(keepends=True):
            moment = datetime.fromtimestamp(_time_at(self._marks, start), UTC)
            out.append(moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + line)
            start += len(line)
        return b"".join(out)


def _times(path: Path) -> list[log_files.TimeMark]:
    """The marks of the keeper, and one more for the output that it has not looked at yet."""
    found = path.stat()  # before the marks: a mark that is written meanwhile is more accurate than this
    marks, _ = log_files.read_marks(path)
    looked_at = marks[-1].end if marks else 0
    if found.st_size > looked_at or not marks:
        marks.append(log_files.TimeMark(looked_at, found.st_mtime, found.st_size))
    return marks


def _time_at(marks: list[log_files.TimeMark], position: int) -> float:
    """When the byte at this position was written."""
    return marks[max(0, bisect.bisect_right(marks, position, key=lambda each: each.position) - 1)].at


def _since(path: Path, since_s: float) -> int:
    """The position of the first line written at that time or later."""
    marks = _times(path)
    return next((each.position for each in marks if each.at >= since_s), marks[-1].end)


def _first_line(descriptor: int) -> int:
    """The position of the oldest whole line that is kept."""
    position = log_files.first_byte(descriptor)
    if position == 0:
        return 0
    while data := os.pread(descriptor, CHUNK_BYTES, position):
        found = data.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(data)
    return position


def _tail(descriptor: int, lines: int, first: int) -> int:
    """The position of the last so many lines, not before `first`."""
    end = os.fstat(descriptor).st_size
    if lines <= 0:
        return end
    if end and os.pread(descriptor, 1, end - 1) == b"\n":
        lines += 1  # the last line is whole: its end does not begin another one
    while end > first:
        start = max(first, end - CHUNK_BYTES)
        data = os.pread(descriptor, end - start, start)
        while (found := data.rfind(b"\n")) >= 0:
            lines -= 1
            if lines == 0:
                return start + found + 1
            data = data[:found]
        end = start
    return first

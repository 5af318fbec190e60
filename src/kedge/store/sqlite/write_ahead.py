"""Reads SQLite's write-ahead log without SQLite: evidence that acknowledged commits are missing. Pure but for reading.

SQLite applies frames up to the last commit whose checksums hold, and ignores the rest: after a crash that is right, for
the rest was never acknowledged. After damage it drops commits that were. A log is synced with every commit, so a frame
that follows a commit was written after that commit was durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGICS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""Byte order of the checksums, by the first bytes of a log."""


class LogFrame(NamedTuple):
    """One page in a log."""

    page: int
    pages_total: int
    """Size of the database after the commit that this frame ends; 0 if it ends none."""
    valid: bool
    """Whether this frame and all before it have their checksums."""
    content: bytes


def read_frames(path: Path) -> Iterator[LogFrame]:
    """The frames with the salts of the log's header, which are of its present generation; none without a header."""
    with path.open("rb") as log:
        header = log.read(_HEADER.size)
        if not _is_header(header):
            return
        magic, _, page_bytes, _, *salts, _, _ = _HEADER.unpack(header)
        order = _MAGICS[magic]
        running = _checksum(order, header[:24], (0, 0))
        valid = True
        while len(frame := log.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
            page, total, *found_salts, first, second = _FRAME.unpack_from(frame)
            if found_salts != salts:
                valid = False
                continue
            content = frame[_FRAME.size :]
            if valid:
                running = _checksum(order, content, _checksum(order, frame[:8], running))
                valid = running == (first, second)
            yield LogFrame(page, total, valid, content)


def missing_commits(path: Path, database: Path) -> str:
    """The evidence that the log at `path`, of `database`, has lost durable commits; empty if there is none."""
    try:
        size = path.stat().st_size
        if size > _HEADER.size and not _is_header(_first_bytes(path)):
            return "" if _are_moved(path, database) else f"the header of {path} is damaged, and frames follow it"
        after_commit = False
        for frame in read_frames(path):
            if frame.valid:
                continue
            if after_commit:
                return f"{path} has frames of later commits after one that is damaged"
            after_commit = frame.pages_total > 0
    except FileNotFoundError:
        pass  # a store that was closed has no log
    return ""


def _are_moved(path: Path, database: Path) -> bool:
    """Whether the database has all commits of a log whose header is damaged. A power cut can leave such a log:

    1. A checkpoint moves all frames into the database, and syncs it.
    2. SQLite begins the log again: it writes a new header, and syncs it before the first new frame.
    3. The power fails before that sync, and a part of the header is written. The old frames follow it.
    """
    with path.open("rb") as log, database.open("rb") as pages:
        page_bytes = int.from_bytes(pages.read(18)[16:], "big")
        page_bytes = 65_536 if page_bytes == 1 else page_bytes
        places, pages_total = _committed(log, page_bytes)
        for page, place in places.items():
            log.seek(place + _FRAME.size)
            pages.seek((page - 1) * page_bytes)
            if page <= pages_total and log.read(page_bytes) != pages.read(page_bytes):
                return False
    return bool(places)


def _committed(log: BinaryIO, page_bytes: int) -> tuple[dict[int, int], int]:
    """By page: the place of its newest committed frame in a log without a header; and the size of the database then.

    The checksum of the first frame needs the header: those behind it are verified. Nothing if some are damaged.
    """
    places: dict[int, int] = {}
    begun: dict[int, int] = {}
    """Frames of a commit that has not ended."""
    pages_total, place, salts, running, orders = 0, _HEADER.size, None, (0, 0), [*_MAGICS.values()]
    log.seek(place)
    while len(frame := log.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        page, total, *found_salts, first, second = _FRAME.unpack_from(frame)
        if salts is not None and found_salts != salts:
            break  # of a generation before
        if salts is not None:
            content = frame[_FRAME.size :]
            orders = [
                each
                for each in orders
                if _checksum(each, content, _checksum(each, frame[:8], running)) == (first, second)
            ]
        if not page or not orders:
            return {}, 0
        salts, running = found_salts, (first, second)
        begun[page] = place
        if total:
            places |= begun
            begun, pages_total = {}, total
        place += len(frame)
    return places, pages_total


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as log:
        return log.read(_HEADER.size)


def _is_header(header: bytes) -> bool:
    """Whether a log begins with it: a checksum holds, and the size of a page is possible."""
    if len(header) < _HEADER.size:
        return False
    magic, _, page_bytes, _, _, _, first, second = _HEADER.unpack(header)
    if magic not in _MAGICS or not 512 <= page_bytes <= 65_536 or page_bytes & (page_bytes - 1):
        return False
    return _checksum(_MAGICS[magic], header[:24], (0, 0)) == (first, second)


def _checksum(order: str, content: bytes, running: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of `content`, continued from `running`."""
    first, second = running
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFF_FFFF
        second = (second + odd + first) & 0xFFFF_FFFF
    return first, second

"""Reads versions from the pages of a damaged file without SQLite, which gives up at the first page that it cannot use.

Every leaf page is read by itself, so a damaged inner page costs nothing. Pages of the log replace those of the database
up to the last commit that SQLite would apply. Rows are returned as found; `checksums` judges them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from kedge.store.sqlite.file import COLUMNS, log_of
from kedge.store.sqlite.write_ahead import LogFrame, read_frames

_LEAF: Final = 0x0D
_TREE_PAGES: Final = (0x02, 0x05, 0x0A, _LEAF)
_FIRST_COLUMNS: Final = 9
"""Columns of the oldest schema. A row of any other table has fewer."""
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_PAGE_BYTES: Final = 16_384
_CELL_BYTES_MIN: Final = 6
"""A row's pointer, and the least that a row takes."""


class RawRow(NamedTuple):
    """A row as it is on a page; columns that its schema did not have yet are missing."""

    page: int
    columns: tuple[Any, ...]


class LostPage(NamedTuple):
    """A page, or a row of it, that cannot be read."""

    page: int
    why: str


class RawPages:
    """The pages of a file and its log."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        declared = int.from_bytes(self._content[16:18])
        self._size = declared if declared in (512 << n for n in range(8)) else 65_536 if declared == 1 else _PAGE_BYTES
        self._log = _committed(path)
        self.total = max(-(-len(self._content) // self._size), *self._log, 0)
        """Pages in the file, the last one in part perhaps, or in the log."""
        self._chained: set[int] = set()
        """Pages that hold the rest of a long row."""

    def rows(self) -> Iterator[RawRow | LostPage]:
        """Every row of `versions`, page by page; then the pages that are not of a tree, free, or the rest of a row."""
        free = self._free_pages()
        unknown: list[int] = []
        for number in range(1, self.total + 1):
            if number in free:
                continue
            page, start = self._page(number), 100 if number == 1 else 0
            if len(page) < self._size:
                yield LostPage(number, "it is cut short")
            elif page[start] == _LEAF:
                yield from self._rows_on(number, page, start)
            elif page[start] not in _TREE_PAGES:
                unknown.append(number)
        for number in unknown:
            if number not in self._chained:
                yield LostPage(number, "it is not a page of a store; versions on it are lost")

    def _page(self, number: int) -> bytes:
        found = self._log.get(number)
        return found if found is not None else self._content[(number - 1) * self._size : number * self._size]

    def _free_pages(self) -> set[int]:
        """Pages of deleted rows: their content is old."""
        free: set[int] = set()
        trunk = int.from_bytes(self._page(1)[32:36])
        while 0 < trunk <= self.total and trunk not in free:
            page = self._page(trunk)
            count = min(int.from_bytes(page[4:8]), self._size // 4 - 2)
            free |= {trunk, *(int.from_bytes(page[8 + 4 * n : 12 + 4 * n]) for n in range(count))}
            trunk = int.from_bytes(page[:4])
        return free

    def _rows_on(self, number: int, page: bytes, start: int) -> Iterator[RawRow | LostPage]:
        count = int.from_bytes(page[start + 3 : start + 5])
        if count > self._size // _CELL_BYTES_MIN:
            yield LostPage(number, f"it claims to have {count} rows")
            return
        for n in range(count):
            pointer = start + 8 + 2 * n
            try:
                columns = self._row(page, int.from_bytes(page[pointer : pointer + 2]))
            except (IndexError, ValueError, OverflowError) as error:
                yield LostPage(number, f"row {n} of it cannot be read: {error}")
                continue
            if len(columns) >= _FIRST_COLUMNS:
                yield RawRow(number, columns)

    def _row(self, page: bytes, at: int) -> tuple[Any, ...]:
        length, at = _varint(page, at)
        id_, at = _varint(page, at)
        payload = self._payload(page, at, length)
        header_end, place = _varint(payload, 0)
        columns: list[Any] = []
        body = header_end
        while place < header_end:
            serial, place = _varint(payload, place)
            if len(columns) >= len(COLUMNS):
                raise ValueError("it has too many columns")
            value, body = _value(payload, body, serial)
            columns.append(value)
        return (id_, *columns[1:])

    def _payload(self, page: bytes, at: int, length: int) -> bytes:
        """A row's bytes: on the page, and on a chain of others if it is long."""
        if length > len(self._content) + self._size * len(self._log):
            raise ValueError(f"it would be {length} bytes long")
        if length <= self._size - 35:
            return page[at : at + length]
        least = (self._size - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._size - 4)
        local = local if local <= self._size - 35 else least
        parts, missing = [page[at : at + local]], length - local
        following = int.from_bytes(page[at + local : at + local + 4])
        while missing > 0:
            if not 0 < following <= self.total:
                raise ValueError("the rest of it is not there")
            self._chained.add(following)
            rest = self._page(following)
            parts.append(rest[4 : 4 + min(missing, self._size - 4)])
            missing -= self._size - 4
            following = int.from_bytes(rest[:4])
        return b"".join(parts)


def _committed(path: Path) -> dict[int, bytes]:
    """Pages in the log, up to the last commit whose checksums hold."""
    pages: dict[int, bytes] = {}
    pending: list[LogFrame] = []
    if not log_of(path).exists():
        return pages
    for frame in read_frames(log_of(path)):
        if not frame.valid:
            break
        pending.append(frame)
        if frame.pages_total:
            pages.update((each.page, each.content) for each in pending)
            pending.clear()
    return pages


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for n in range(9):
        byte = content[at + n]
        if n == 8:
            value = value << 8 | byte
            return value - (1 << 64) if value >= 1 << 63 else value, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + n + 1
    raise ValueError("unreachable")


def _value(payload: bytes, at: int, serial: int) -> tuple[Any, int]:
    """One column: its value, and where the next one begins."""
    if serial in (0, 8, 9):
        return {0: None, 8: 0, 9: 1}[serial], at
    if serial in _INTEGERS:
        end = at + _INTEGERS[serial]
        value: Any = int.from_bytes(payload[at:end], signed=True)
    elif serial >= 12:
        end = at + (serial - 12) // 2
        value = payload[at:end] if serial % 2 == 0 else payload[at:end].decode()
    else:
        raise ValueError(f"a column has the unknown type {serial}")
    if end > len(payload):
        raise ValueError("it is cut short")
    return value, end

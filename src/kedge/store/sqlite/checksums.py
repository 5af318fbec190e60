"""Checksums of what a SQLite store has on disk: one for each version, one for each fact. Pure.

They are written with the row and verified whenever a row is read from the file: SQLite itself has none for its pages.
A checksum is a CRC of texts and value plus a weighted sum of the numbers. A sum is cheaper than formatting numbers, any
change of one number changes it, and SQL can adjust it when it changes `previous` alone.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

Fact = str | int
StoredRow = tuple[int, str, str, str, int, int, str, str, bytes | None, str, str, int]
"""A row of `versions`, in the order of its columns. The last one is the checksum."""

ID_WEIGHT: Final = 5
CREATED_WEIGHT: Final = 3
DELETED: Final = 0xFFFF_FFFF
"""Flips the bits of a deletion's CRC, so that it is not that of an empty value."""


def row_checksum(
    id_: int,
    kind: str,
    namespace: str,
    name: str,
    created: int,
    previous: int,
    operation: str,
    decision: str,
    value: bytes | None,
    caller: str,
    groups: str,
) -> int:
    """The checksum of a row, as a function of its other columns in their order."""
    crc = crc32(f"{kind}\0{namespace}\0{name}\0{operation}\0{decision}\0{caller}\0{groups}".encode())
    crc = crc ^ DELETED if value is None else crc32(value, crc)
    return crc + previous + created * CREATED_WEIGHT + id_ * ID_WEIGHT


def is_sound(row: StoredRow) -> bool:
    """Whether a row is as it was written. Its columns may have any type: damage changes types too."""
    try:
        return row_checksum(*row[:11]) == row[11]
    except (TypeError, ValueError):  # no checksum is defined for such types
        return False


def fact_checksum(name: str, value: Fact) -> int:
    return crc32(f"{name}\0{type(value).__name__}\0{value}".encode())

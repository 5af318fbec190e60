"""Figures of a recorder: the coverage that every view of its records shows, and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kedge.observe.recording.rules import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The time and the decisions that a view of the records covers. Every view shows it."""

    since: datetime
    """When recording began."""
    until: datetime
    seen: int
    """Decisions that ended: all of them are in the counts."""
    kept: Mapping[str, int]
    """How many of them were kept in full, by rule."""
    sample_every: int
    """One in so many of the decisions that no other rule keeps was kept."""
    held: int
    """Kept records that are still in memory."""
    held_since: datetime | None
    """When the oldest of them began; None if there is none."""
    dropped: int
    """Kept records that were removed from memory for newer ones."""
    windows: tuple[Window, ...]
    """The windows that are open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStatistics:
    seen: int
    kept: Mapping[str, int]
    held: int
    dropped: int
    rows: int
    """The number of rows of counts."""
    other: int
    """Reads and fields that are counted in the row `other`."""
    writers: int
    """Versions whose decision can be looked up."""
    writers_dropped: int
    windows: int

"""Segments of the decision log: kept files in a directory, each of which stands alone.

`log` writes them; `read_decisions` reads them, also while they are written and after a crash. It reports what cannot be
read, and never raises for it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kedge.api.kinds import KINDS, Registry
from kedge.errors import NotFound
from kedge.kept import BadKeptFile, Gap, Section, read_bytes
from kedge.observe.records import BadRecord, Decision, Record, RecordReader

_log = logging.getLogger("kedge.observe")
_NAME: Final = re.compile(r"decisions-(\d{10})\.log")


_CUT_OFF: Final = (
    "its process was killed: decisions that had not ended then have no record, but the versions that they wrote carry"
    " their ids"
)


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"decisions-{number:010d}.log"


def segments(directory: Path) -> dict[int, Path]:
    """The segments that are there, oldest first, by number."""
    found = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


class SkippedPart(NamedTuple):
    """A part of a log that could not be read."""

    segment: Path
    at: int
    """Where in it, in bytes."""
    bytes: int
    """How much was passed over."""
    why: str
    tail: bool = False
    """The end of the newest segment: its writer has not finished it, or was killed."""

    def __str__(self) -> str:
        return f"{self.segment.name}: {self.bytes} bytes at {self.at} were passed over: {self.why}"


def no_log(directory: Path, error: OSError) -> NotFound:
    return NotFound(f"no decision log can be read in {directory}: {error}; give the directory of one")


def log_folders(directory: Path) -> list[Path]:
    """The directory itself, and each one directly below it: processes on one machine have a log each.

    Raises:
        NotFound: there is no such directory. Give that of a log.
    """
    try:
        return [directory, *sorted(each for each in directory.iterdir() if each.is_dir())]
    except OSError as error:
        raise no_log(directory, error) from error


def read_decisions(
    directory: Path, kinds: Registry = KINDS, *, report: Callable[[SkippedPart], None] | None = None
) -> Iterator[Decision]:
    """Every decision in the log of `directory`, as `read_log` has them."""
    return (each for each in read_log(directory, kinds, report=report) if isinstance(each, Decision))


def read_log(
    directory: Path, kinds: Registry = KINDS, *, report: Callable[[SkippedPart], None] | None = None
) -> Iterator[Record]:
    """Every record in the log of `directory`, oldest first. Parts that cannot be read go to `report`, or are logged.

    It may be read while it is written: an unfinished section is passed over, and old segments may be removed.

    Raises:
        NotFound: there is no such directory. Give that of a log.
    """
    skip = warn_of if report is None else report
    try:
        found = segments(directory)
    except OSError as error:
        raise no_log(directory, error) from error
    newest = max(found, default=0)
    for number, path in found.items():
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            skip(SkippedPart(path, 0, 0, "the log reached its bound meanwhile, and this segment was removed"))
            continue
        except OSError as error:
            skip(SkippedPart(path, 0, 0, f"it cannot be read: {error}"))
            continue
        for each in read_segment(read_bytes(data, path), RecordReader(kinds), path, is_newest=number == newest):
            if isinstance(each, SkippedPart):
                skip(each)
            else:
                yield each


def warn_of(skipped: SkippedPart) -> None:
    """Log a part that could not be read."""
    _log.log(logging.DEBUG if skipped.tail else logging.WARNING, "%s", skipped)


def read_segment(
    sections: Iterable[Section | Gap], reader: RecordReader, path: Path, *, is_newest: bool
) -> Iterator[Record | SkippedPart]:
    """The records in the sections of one segment, and each part that cannot be read."""
    try:
        for each in sections:
            if isinstance(each, Gap):
                killed = each.tail and not is_newest  # a later segment exists, so no process writes to this one
                if each.bytes or killed:
                    why = f"{each.why}; {_CUT_OFF}" if killed else each.why
                    yield SkippedPart(path, each.at, each.bytes, why, tail=is_newest and each.tail)
                continue
            try:
                found = reader.read(each)
            except BadRecord as error:
                yield SkippedPart(path, each.at, len(each.body), str(error))
                continue
            if found is not None:
                yield found
    except BadKeptFile as error:
        yield SkippedPart(path, 0, path.stat().st_size if path.exists() else 0, str(error))

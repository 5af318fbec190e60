"""A segment of the decision log, as bytes: framed versions, and decisions that refer to them by number.

A segment stands alone: whatever a decision in it refers to is in it, earlier. `log` writes segments; `read_decisions`
reads them, also while they are written, also after a crash. What cannot be read is reported, never raised.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from kedge.api.kinds import KINDS, Registry
from kedge.api.objects import Object
from kedge.errors import NotFound
from kedge.keys import Key, Revision
from kedge.observe.records import Decision, Version, encode_plain, with_objects, without_objects

_log = logging.getLogger("kedge.observe")

HEADER: Final = b"kedge decisions 1\n"
_FRAME: Final = struct.Struct("<II")  # length and checksum of what follows
_VERSION: Final = b"V"
_DECISION: Final = b"D"
_NAME: Final = re.compile(r"decisions-(\d{10})\.log")


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"decisions-{number:010d}.log"


def segments(directory: Path) -> dict[int, Path]:
    """The segments that are there, oldest first, by number."""
    found = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


# -- writing ---------------------------------------------------------------------------------------


class SegmentEncoder:
    """Turns decisions into the frames of one segment. Remembers which versions the segment has already.

    It holds the bytes of those versions, so it holds about as much as the segment does.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Key, Revision], tuple[int, Version]] = {}
        self._numbers = 0
        self._new: list[tuple[int, Version]] = []
        """Versions that the decision being encoded is the first to refer to, by number."""

    def encode(self, decision: Decision, bytes_max: int) -> list[bytes] | None:
        """The frames to append, versions first; None if they would be more than `bytes_max`.

        Raises:
            TypeError, ValueError, OverflowError, RecursionError: the record holds what cannot be written.
        """
        numbers = self._numbers
        try:
            bare, shown = without_objects(decision)
            body = _encoder.encode((bare, [[self._number(each) for each in objects] for objects in shown]))
            frames = [_frame(_VERSION, _encoder.encode(each)) for each in self._new]
            frames.append(_frame(_DECISION, body))
            if sum(map(len, frames)) <= bytes_max:
                self._new.clear()
                return frames
        except BaseException:
            self._forget(numbers)
            raise
        self._forget(numbers)
        return None

    def _forget(self, numbers: int) -> None:
        """Nothing of the last decision will be in the segment: nobody may refer to its versions."""
        for _, version in self._new:
            self._known.pop((version.key, version.revision), None)
        self._new.clear()
        self._numbers = numbers

    def _number(self, found: Object) -> int:
        place = (found.key, found.revision)
        known = self._known.get(place)
        # A revision names one version of a key, but not of a dry run, nor of an object's last state once removed.
        if known is not None:
            number, version = known
            if version.value == found.value and version.origin == found.origin and version.created == found.created:
                return number
        number = self._numbers
        self._numbers += 1
        self._known[place] = numbered = (number, Version.of(found))
        self._new.append(numbered)
        return number


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_plain)


def _frame(sort: bytes, body: bytes) -> bytes:
    return b"%b%b%b" % (_FRAME.pack(1 + len(body), crc32(body, crc32(sort))), sort, body)


# -- reading ---------------------------------------------------------------------------------------


class Skipped(NamedTuple):
    """A part of a log that could not be read."""

    segment: Path
    at: int
    """Where in it, in bytes."""
    bytes: int
    """How much was passed over."""
    why: str
    tail: bool = False
    """The end of the newest segment: what a writer has not finished, or had not when it died."""

    def __str__(self) -> str:
        return f"{self.segment.name}: {self.bytes} bytes at {self.at} were passed over: {self.why}"


def read_decisions(
    directory: Path, kinds: Registry = KINDS, *, report: Callable[[Skipped], None] | None = None
) -> Iterator[Decision]:
    """Every decision in the log of `directory`, oldest first. What cannot be read goes to `report`, or to the log.

    It may be read while it is written: what is not whole yet is passed over, and segments may go meanwhile.

    Raises:
        NotFound: there is no such directory. Give that of a log.
    """
    tell = _warn if report is None else report
    try:
        found = segments(directory)
    except OSError as error:
        raise NotFound(f"no decision log can be read in {directory}: {error}; give the directory of one") from error
    for number, path in found.items():
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            tell(Skipped(path, 0, 0, "the log outgrew its bound meanwhile, and this segment went"))
            continue
        except OSError as error:
            tell(Skipped(path, 0, 0, f"it cannot be read: {error}"))
            continue
        newest = number == max(found)
        for each in _read_segment(data, kinds):
            if isinstance(each, Decision):
                yield each
            else:
                at, size, why, end = each
                tell(Skipped(path, at, size, why, tail=newest and end))


def _warn(skipped: Skipped) -> None:
    _log.log(logging.DEBUG if skipped.tail else logging.WARNING, "%s", skipped)


def _read_segment(data: bytes, kinds: Registry) -> Iterator[Decision | tuple[int, int, str, bool]]:
    """Its decisions, and what had to be skipped: where, how much, why, and whether the segment just ended there."""
    if not data.startswith(HEADER):
        ended = HEADER.startswith(data)
        yield 0, len(data), "it has no header yet" if ended else "it is no segment that this kedge can read", ended
        return
    objects = _Objects(kinds)
    at = len(HEADER)
    while at < len(data):
        body_at = at + _FRAME.size
        size, checksum = _FRAME.unpack_from(data, at) if body_at <= len(data) else (0, 0)
        end = body_at + size
        if end > len(data):
            yield at, len(data) - at, "the segment ends in the middle of a frame", True
            return
        body = memoryview(data)[body_at:end]
        if size == 0 or crc32(body) != checksum:
            # Where the next frame begins is no longer certain either.
            yield at, len(data) - at, "a frame is damaged, and what follows it is not to be trusted", not any(data[at:])
            return
        found: Decision | None = None
        try:
            if body[0] == _VERSION[0]:
                objects.add(*_version_decoder.decode(body[1:]))
            elif body[0] == _DECISION[0]:
                bare, shown = _decision_decoder.decode(body[1:])
                found = with_objects(bare, [tuple(map(objects.find, numbers)) for numbers in shown])
        except (msgspec.MsgspecError, NotFound, LookupError, ValueError) as error:
            yield at, end - at, f"a record cannot be decoded: {error}", False
        if found is not None:
            yield found
        at = end


_version_decoder = msgspec.msgpack.Decoder(tuple[int, Version])
_decision_decoder = msgspec.msgpack.Decoder(tuple[Decision, list[list[int]]])


class _Objects:
    """The versions of a segment, each made into an object once, and only if a decision was shown it."""

    def __init__(self, kinds: Registry) -> None:
        self._kinds = kinds
        self._versions: dict[int, Version] = {}
        self._made: dict[int, Object] = {}

    def add(self, number: int, version: Version) -> None:
        self._versions[number] = version

    def find(self, number: int) -> Object:
        found = self._made.get(number)
        if found is None:
            version = self._versions.get(number)
            if version is None:
                raise LookupError(f"it refers to version {number}, which is not in its segment")
            found = self._made[number] = version.object(self._kinds)
        return found

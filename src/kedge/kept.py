"""The kept format: one container for everything that is written to be read later, as framed sections.

    header   b"kedge kept 1\n"
    section  marker, length of name, codec version, length and checksum of body | name | checksum of these | body

A section has a name, the version of its codec, and two checksums: a damaged body costs that section alone, and after a
damaged head the reader looks for the next marker. Layers add their own sections (`sim.kernel.artefacts`,
`observe.records`). A complete file ends with an `end` section; without one it was cut short, or is still written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from zlib import crc32

from kedge.errors import InvariantBroken, KedgeError

FORMAT_VERSION: Final = 1
HEADER: Final = b"kedge kept %d\n" % FORMAT_VERSION
SUFFIX: Final = ".kedge"
END: Final = "end"
"""The name of the section that closes a complete file. Its body is the number of sections before it."""
BODY_BYTES_MAX: Final = 1 << 30
"""A larger list is written as several sections of one name."""

_ANY_HEADER: Final = b"kedge kept "
_MARKER: Final = b"\xf4kS\x00"
_HEAD: Final = struct.Struct("<4sBBII")
_CHECKSUM: Final = struct.Struct("<I")
_pack_head, _pack_checksum = _HEAD.pack, _CHECKSUM.pack
_SCAN_BYTES: Final = 1 << 16
_OLDER: Final = (
    (b"kedge decisions ", "a segment of a decision log"),
    (b'{\n "format": "kedge simulation failure"', "a failure of a simulation"),
)
"""How files of earlier builds begin."""


class BadKeptFile(KedgeError):
    """The file cannot be read as a kept file. The message has the reason and the next step."""


class Section(NamedTuple):
    """One sound section."""

    name: str
    version: int
    """The version of the codec of its body. The layer that owns the name checks it."""
    body: bytes
    at: int = 0
    """Where it begins in the file."""

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.at + _size_of(self)


class Gap(NamedTuple):
    """A part of a kept file that cannot be read. The sections before and after it are sound."""

    at: int
    """Where it begins, in bytes."""
    bytes: int
    why: str
    tail: bool = False
    """It reaches to the end: the writer was killed there, or is still writing."""

    def __str__(self) -> str:
        return f"{self.bytes} bytes at {self.at} are missing: {self.why}"


# -- writing ---------------------------------------------------------------------------------------


def encode_section(name: str, body: bytes, *, version: int = 1) -> bytes:
    """One section as bytes, to be appended after `HEADER` or another section."""
    title, size = name.encode(), len(body)
    if not (0 < len(title) < 256 and 0 < version < 256):
        raise InvariantBroken(f"the name of a section has 1 to 255 bytes, and its version is 1 to 255: {name!r}")
    if size > BODY_BYTES_MAX:
        raise InvariantBroken(f"section {name!r} has {size} bytes: write it as several sections")
    head = _pack_head(_MARKER, len(title), version, size, crc32(body)) + title
    return head + _pack_checksum(crc32(head)) + body


def parse_section(data: bytes) -> Section:
    """Undo `encode_section`."""
    fixed = _HEAD.size
    _, title_bytes, version, _, _ = _HEAD.unpack_from(data)
    title = data[fixed : fixed + title_bytes]
    return Section(title.decode(), version, data[fixed + title_bytes + _CHECKSUM.size :])


def encode_end(sections: int) -> bytes:
    return encode_section(END, b"%d" % sections)


def write_kept(path: Path, sections: Iterable[Section]) -> None:
    """Write a whole file under a temporary name, then rename it: a reader sees all of it or none.

    The temporary name is this process's own: two processes that write the same file leave one of the two whole.

    Raises:
        BadKeptFile: it cannot be written there.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_partials(path.parent)
        with partial.open("wb") as file:
            file.write(HEADER)
            count = 0
            for section in sections:
                file.write(encode_section(section.name, section.body, version=section.version))
                count += 1
            file.write(encode_end(count))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise BadKeptFile(f"{path} cannot be written: {error}; choose another directory") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def remove_stale_partials(folder: Path) -> None:
    """Remove the temporary files of writers that were killed: those whose name has the id of no process."""
    with suppress(OSError):
        for each in folder.glob("*.partial"):
            pid = each.name.removesuffix(".partial").rpartition(".")[2]
            if pid.isascii() and pid.isdigit() and len(pid) < 10 and not _is_running(int(pid)):
                each.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it runs, as another user
    return True


# -- reading ---------------------------------------------------------------------------------------


def read_kept(path: Path) -> Iterator[Section | Gap]:
    """Every sound section of a file in order, and a `Gap` for each part that is not. Holds one section at a time.

    Raises:
        BadKeptFile: the file cannot be opened, is none of kedge's, or is of another version.
    """
    try:
        with path.open("rb") as file:
            yield from _read(file, path)
    except OSError as error:
        raise BadKeptFile(f"cannot read {path}: {error.strerror or error}; give a file that kedge kept") from error


def read_bytes(data: bytes, path: Path) -> Iterator[Section | Gap]:
    """The same of a file that was read already; `path` is for the messages."""
    return _read(BytesIO(data), path)


def read_from(file: BinaryIO, size: int, at: int) -> Iterator[Section | Gap]:
    """The sections from `at` on, where one begins. The file may have been closed, or may still be written."""
    return _sections(file, size, at, whole=False)


def section_at(file: BinaryIO, size: int, at: int) -> Section | Gap:
    """The section that begins at `at`."""
    return _section_at(file, at, size)


def last_section(file: BinaryIO, size: int, name: str, version: int) -> Section | None:
    """The last sound section of a name and version; None if there is none."""
    pattern = _MARKER + bytes((len(name), version))
    end = size
    while end > 0:
        begin = max(0, end - _SCAN_BYTES)
        file.seek(begin)
        # Heads that begin in this chunk may reach into the next one.
        chunk = file.read(end - begin + len(pattern) - 1)
        at = len(chunk)
        while (at := chunk.rfind(pattern, 0, at)) >= 0:
            if _has_sound_head(file, begin + at):
                found = _section_at(file, begin + at, size)
                if isinstance(found, Section) and found.name == name:
                    return found
        end = begin
    return None


def _read(file: BinaryIO, path: Path) -> Iterator[Section | Gap]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    begin = file.read(64)
    at, whole = len(HEADER), True
    if not begin.startswith(HEADER):
        if HEADER.startswith(begin):
            yield Gap(0, size, "the file ends within its header", tail=True)
            return
        # Sections behind a damaged header are sound, unless it is the header of another format.
        at = size if _is_of_another_format(begin) else _next_head(file, 0, size)
        if at >= size:
            raise BadKeptFile(_why_not(begin, path))
        yield Gap(0, at, "the header is damaged")
        whole = False
    yield from _sections(file, size, at, whole=whole)


def _sections(file: BinaryIO, size: int, at: int, *, whole: bool) -> Iterator[Section | Gap]:
    """With `whole`, everything before `at` is known, so the number in the end section is checked."""
    sections, ended = 0, False
    while at < size:
        found = _section_at(file, at, size)
        if isinstance(found, Gap):
            yield found
            at, whole, ended = at + found.bytes, False, found.tail
            continue
        if found.name != END:
            sections, ended = sections + 1, False
            yield found
        else:
            ended = True
            if whole and found.body != b"%d" % sections:
                count = found.body.decode("ascii", "replace")
                yield Gap(at, 0, f"the file was closed after {count} sections, and {sections} are here")
        at += _size_of(found)
    if not ended:
        yield Gap(at, 0, "the file has no end: its writer was killed, or is still writing", tail=True)


def _size_of(section: Section) -> int:
    return _HEAD.size + len(section.name.encode()) + _CHECKSUM.size + len(section.body)


def _section_at(file: BinaryIO, at: int, size: int) -> Section | Gap:
    file.seek(at)
    fixed = file.read(_HEAD.size)
    if len(fixed) == _HEAD.size:
        marker, title_bytes, version, body_bytes, body_sum = _HEAD.unpack(fixed)
        title = file.read(title_bytes)
        head_sum = file.read(_CHECKSUM.size)
        whole = len(title) == title_bytes and len(head_sum) == _CHECKSUM.size
        if marker == _MARKER and whole and _CHECKSUM.unpack(head_sum)[0] == crc32(title, crc32(fixed)):
            end = at + _HEAD.size + title_bytes + _CHECKSUM.size + body_bytes
            name = title.decode("utf-8", "replace")
            if end > size:
                return Gap(at, size - at, f"the file ends within a section {name!r}", tail=True)
            body = file.read(body_bytes)
            if crc32(body) != body_sum:
                return Gap(at, end - at, f"the body of a section {name!r} is damaged", tail=False)
            return Section(name, version, body, at)
    following = _next_head(file, at + 1, size)
    if following < size:
        return Gap(at, following - at, "the head of a section is damaged")
    cut = _is_cut_head(file, at, size)
    why = "the file ends within the head of a section" if cut else "the head of a section is damaged, and none follows"
    return Gap(at, size - at, why, tail=True)


def _is_cut_head(file: BinaryIO, at: int, size: int) -> bool:
    """Whether the rest could be the beginning of a head: shorter than one, and it begins as one does."""
    file.seek(at)
    rest = file.read(min(size - at, _HEAD.size + 256 + _CHECKSUM.size))
    if size - at > len(rest) or not (rest.startswith(_MARKER) or _MARKER.startswith(rest)):
        return False
    return len(rest) < _HEAD.size or len(rest) < _HEAD.size + rest[4] + _CHECKSUM.size


def _next_head(file: BinaryIO, at: int, size: int) -> int:
    """The next place at which a sound head begins; `size` if there is none."""
    while at < size:
        file.seek(at)
        chunk = file.read(_SCAN_BYTES + len(_MARKER) - 1)
        found = chunk.find(_MARKER)
        if found < 0:
            at += _SCAN_BYTES
            continue
        at += found
        if _has_sound_head(file, at):
            return at
        at += 1
    return size


def _has_sound_head(file: BinaryIO, at: int) -> bool:
    file.seek(at)
    fixed = file.read(_HEAD.size)
    if len(fixed) < _HEAD.size:
        return False
    title = file.read(fixed[len(_MARKER)])
    head_sum = file.read(_CHECKSUM.size)
    return len(head_sum) == _CHECKSUM.size and _CHECKSUM.unpack(head_sum)[0] == crc32(title, crc32(fixed))


def _is_of_another_format(begin: bytes) -> bool:
    number = begin[len(_ANY_HEADER) :].partition(b"\n")[0]
    return begin.startswith(tuple(older for older, _ in _OLDER)) or (
        begin.startswith(_ANY_HEADER) and number.isdigit() and int(number) != FORMAT_VERSION
    )


def _why_not(begin: bytes, path: Path) -> str:
    for older, name in _OLDER:
        if begin.startswith(older):
            return (
                f"{path} is {name} in the format of an earlier kedge, which this one does not read:"
                " use the build that wrote it, or make the file again"
            )
    if begin.startswith(_ANY_HEADER):
        found = begin[len(_ANY_HEADER) :].partition(b"\n")[0].decode("ascii", "replace")[:12]
        return f"{path} has format version {found}; this build reads version {FORMAT_VERSION}: use a matching kedge"
    begins = HEADER.decode().strip()
    return f"{path} is not a file that kedge kept: it does not begin with {begins!r}; give a file that kedge wrote"

"""Lists on the wire, in parts: each is made and written in a turn of the loop of its own, plain or indented.

A list is one JSON object whose last members are arrays. `ListMember` is such an array with all that stands before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from kedge.api.codec import splice_list
from kedge.api.objects import Object
from kedge.api.requests import ObjectList
from kedge.keys import Origin, Revision
from kedge.server.http.list_blocks import ListBlocks
from kedge.server.service.reads import StoredList

_encode = msgspec.json.Encoder().encode
SLICE_ITEMS: Final = 32
"""Items of a list that are written before other requests get a turn."""
SLICE_BYTES: Final = 256 * 1024
"""As `SLICE_ITEMS`, in bytes: half a millisecond of copying at most. One item may be larger."""
_END: Final = b"]}"
_INDENT: Final = 2
_T = TypeVar("_T")

Convert = Callable[[Object], Object]
"""From the stored version of an object to the one that is served."""


class ListMember(NamedTuple):
    """An array of a list, and how it is opened."""

    opening: bytes
    """The bytes from the end of the previous array, or from the start of the list, up to and with `[`."""
    slices: Iterable[Sequence[bytes]]
    """The elements, several in each slice, separated by commas, in pieces: they are joined once, when they are written.
    No slice is empty."""


def slices_of(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for first in range(0, len(items), SLICE_ITEMS):
        yield items[first : first + SLICE_ITEMS]


async def in_turns(items: Sequence[_T]) -> AsyncIterator[_T]:
    """Every item, with a turn for other requests after each slice."""
    for part in slices_of(items):
        for each in part:
            yield each
        await asyncio.sleep(0)


# -- members ---------------------------------------------------------------------------------------


def object_members(
    found: ObjectList, convert: Convert | None = None, *, origins: bool = False, removed: Sequence[bool] | None = None
) -> Iterator[ListMember]:
    """As `ObjectList.json`."""
    kind = found.kind
    whole = splice_list(kind.api_version, kind.kind, (), found.revision, found.continue_token, found.remaining)
    objects = (each.json() for each in converted(found.objects, convert))
    yield ListMember(whole[: -len(_END)], _byte_slices(objects, SLICE_ITEMS))
    if origins:
        yield ListMember(b'],"kedge":[', _origin_slices(found.objects))
    if removed is not None:
        yield ListMember(b'],"kedgeRemoved":[', ([_encode(part)[1:-1]] for part in slices_of(removed)))


def converted(objects: Iterable[Object], convert: Convert | None) -> Iterable[Object]:
    return objects if convert is None else map(convert, objects)


def document_members(head: dict[str, Any], name: str, items: Iterable[Any]) -> Iterator[ListMember]:
    """A list whose items are encoded: `head` with one more member."""
    yield ListMember(_encode(head)[:-1] + b',"%b":[' % name.encode(), _byte_slices(map(_encode, items), SLICE_ITEMS))


def stored_members(found: StoredList, blocks: ListBlocks, *, origins: bool) -> Iterator[ListMember]:
    """As `object_members`, of stored versions, in slices of about `SLICE_BYTES` where there are so many."""
    kind = found.kind
    whole = splice_list(kind.api_version, kind.kind, (), found.revision, found.continue_token, found.remaining)
    yield ListMember(whole[: -len(_END)], _byte_slices(blocks.blocks(found.entries)))
    if origins:
        yield ListMember(b'],"kedge":[', _origin_slices(found.entries))


def _byte_slices(texts: Iterable[bytes], texts_max: int | None = None) -> Iterator[Sequence[bytes]]:
    """Texts separated by commas, in slices of about `SLICE_BYTES`. A text is made when its slice is."""
    parts: list[bytes] = []
    size, count = 0, 0
    for text in texts:
        if parts and (size + len(text) > SLICE_BYTES or count == texts_max):
            yield parts
            parts, size, count = [], 0, 0
        if parts:
            parts.append(b",")
        parts.append(text)
        size += len(text)
        count += 1
    if parts:
        yield parts


class _WithOrigin(Protocol):
    @property
    def created(self) -> Revision: ...

    @property
    def origin(self) -> Origin: ...


def _origin_slices(versions: Sequence[_WithOrigin]) -> Iterator[Sequence[bytes]]:
    for part in slices_of(versions):
        yield [b",".join([origin_json(each.created, each.origin) for each in part])]


def origin_json(created: Revision, origin: Origin) -> bytes:
    """`[created, operation, decision, caller, groups]` of a version."""
    return _encode((created, *origin))


# -- bytes -----------------------------------------------------------------------------------------


def plain_parts(members: Iterable[ListMember]) -> Iterator[Sequence[bytes]]:
    """The list as JSON, a slice a part."""
    before = b""
    for opening, slices in members:
        before += opening
        for each in slices:
            yield [before, *each]
            before = b","
        before = b"" if before == b"," else before
    yield [before + _END]


def indented_parts(members: Iterable[ListMember]) -> Iterator[Sequence[bytes]]:
    """As `plain_parts`, indented. The parts together are what `msgspec.json.format` makes of the whole list."""
    before = b""
    for number, (opening, slices) in enumerate(members):
        before += _indented_opening(opening, first=number == 0)
        between = b"\n"
        for each in slices:
            # As the only member of an object, so that the elements are at their depth.
            alone = msgspec.json.format(b"".join([_ALONE, *each, _END]), indent=_INDENT)
            yield [before, between, alone[_ALONE_HEAD:_ALONE_TAIL]]
            before, between = b"", b",\n"
        before = before if between == b"\n" else b"\n" + b" " * _INDENT
    yield [before, b"]\n}"]


_ALONE: Final = b'{"x":['
_ALONE_HEAD: Final = len(b'{\n  "x": [\n')
_ALONE_TAIL: Final = -len(b"\n  ]\n}")


def _indented_opening(opening: bytes, *, first: bool) -> bytes:
    if first:
        return msgspec.json.format(opening + _END, indent=_INDENT)[: -len(b"]\n}")]
    whole = msgspec.json.format(_ALONE + opening + _END, indent=_INDENT)
    return whole[len(b'{\n  "x": [') : -len(b"]\n}")]

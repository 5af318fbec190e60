"""Replies on the wire: objects and lists in the form that the client accepts.

Stored bytes are spliced, never encoded again. A long list leaves in slices, so that it holds the loop for one slice
only; a large body is compressed if the client accepts that.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

import msgspec

from kedge.api import http_headers
from kedge.api.objects import Object
from kedge.api.requests import ObjectList, Written
from kedge.api.wellknown import POD_KIND, RESOURCE_QUOTA_KIND, SERVICE_KIND
from kedge.caches import remembered, weighed
from kedge.env import Env
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.list_blocks import ListBlocks
from kedge.server.http.list_parts import (
    SLICE_BYTES,
    SLICE_ITEMS,
    Convert,
    ListMember,
    converted,
    document_members,
    indented_parts,
    object_members,
    plain_parts,
    stored_members,
)
from kedge.server.http.negotiation import ReplyForm, accepts_gzip
from kedge.server.http.reply_head import Header
from kedge.server.http.tables import API_VERSION, definitions, partial, row_of
from kedge.server.service.reads import StoredList

_encode = msgspec.json.Encoder().encode
GZIP_BYTES_MIN = 128 * 1024
"""Smaller bodies are sent as they are, as in Kubernetes."""
CALLERS_MAX: Final = 1024
"""Names of callers whose header is remembered."""
_RETURNED_WHEN_DELETED = frozenset({POD_KIND, SERVICE_KIND, RESOURCE_QUOTA_KIND})
"""Kinds whose deletion returns the object, as Kubernetes' schema declares; that of others returns a `Status`."""
_SHOWN = 200
"""Characters of one warning that are sent; more would not fit beside others into a header."""


class Replier:
    """Writes the reply to one request."""

    def __init__(self, env: Env, request: HttpRequest, exchange: Exchange, query: Any) -> None:
        self._env = env
        self._exchange = exchange
        self._gzip = accepts_gzip(request.headers.get(b"accept-encoding", b""))
        self._pretty = query.get("pretty", "") in ("true", "1")
        self._include = query.get("includeObject", "Metadata")
        self._origins = http_headers.ORIGINS in request.headers or http_headers.OPERATION in request.headers

    def raw(self, body: bytes, code: int = 200, headers: Iterable[Header] = ()) -> None:
        """Send JSON that is encoded already."""
        self._whole(msgspec.json.format(body, indent=2) if self._pretty else body, code, headers)

    def _whole(self, body: bytes, code: int = 200, headers: Iterable[Header] = ()) -> None:
        if self._gzip and len(body) >= GZIP_BYTES_MIN:
            body = gzip.compress(body, compresslevel=1, mtime=0)
            headers = (*headers, (b"Content-Encoding", b"gzip"))
        self._exchange.respond(code, body, headers=headers)

    def value(self, value: Any, code: int = 200) -> None:
        self.raw(_encode(value), code)

    def found(
        self, found: Object, form: ReplyForm, code: int = 200, warnings: Sequence[str] = (), *, removed: bool = False
    ) -> None:
        headers = [warning_header(each) for each in warnings]
        if self._origins:
            headers += origin_headers(found)
            if removed:
                headers.append((http_headers.REMOVED, b"1"))
        match form:
            case ReplyForm.OBJECT:
                self.raw(found.json(), code, headers)
            case ReplyForm.TABLE:
                row = row_of(found.kind, found, self._env.now(), self._include)
                self.raw(_encode(_table(found.kind, [row], str(found.revision))), code, headers)
            case ReplyForm.PARTIAL | ReplyForm.PARTIAL_LIST:
                self.raw(_encode(partial(found.edit(), found)), code, headers)

    def written(self, written: Written, form: ReplyForm, code: int = 200, warnings: Sequence[str] = ()) -> None:
        """The reply to a write. A field that `warnings` report as unknown is not reported again by the service's."""
        if warnings:
            known = {text.partition('"')[2].rstrip('"') for text in warnings}
            kept = [text for text in written.warnings if text.partition(": ")[0] not in known]
            self.found(written.object, form, code, (*kept, *warnings), removed=written.removed)
        else:
            self.found(written.object, form, code, written.warnings, removed=written.removed)

    def removed(self, written: Written, form: ReplyForm) -> None:
        """The reply to a delete: the object while it still ends; once gone a `Status`, or the object for some kinds."""
        if not written.removed:
            self.written(written, form)
            return
        if self._origins:
            headers = [*origin_headers(written.object), (http_headers.REMOVED, b"1")]
            self.raw(written.object.json(), 200, headers)
            return
        found = written.object
        if found.kind.key_kind in _RETURNED_WHEN_DELETED:
            self.found(found, form)
            return
        details = {"name": found.key.name, "group": found.kind.group, "kind": found.kind.plural, "uid": found.uid}
        self.value({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        })  # fmt: skip

    async def deleted(
        self, found: ObjectList, written: Sequence[Written], form: ReplyForm, convert: Convert | None = None
    ) -> None:
        """The reply to deletecollection. kedge's own clients also get which objects are gone."""
        if not self._origins:
            await self.listed(found, form, convert)
            return
        members = object_members(found, convert, origins=True, removed=[each.removed for each in written])
        await self._list(members, len(found.objects))

    async def listed(self, found: ObjectList, form: ReplyForm, convert: Convert | None = None) -> None:
        """Send a list: a short one at once, one of many items or bytes in slices with a turn for others after each."""
        await self._list(self._members(found, form, convert), len(found.objects))

    async def stored(self, found: StoredList, blocks: ListBlocks) -> None:
        """Send a list of stored versions: as `listed` does, and no object is made of them."""
        await self._list(stored_members(found, blocks, origins=self._origins), len(found.entries))

    async def _list(self, members: Iterable[ListMember], count: int) -> None:
        parts = indented_parts(members) if self._pretty else plain_parts(members)
        if count > SLICE_ITEMS:
            await self._stream(parts)
            return
        pieces: list[bytes] = []
        size = 0
        for part in parts:
            pieces += part
            size += sum(map(len, part))
            if size > SLICE_BYTES:
                await self._stream(chain((pieces,), parts))
                return
        self._exchange.streamed_bytes = size
        self._whole(b"".join(pieces))

    def _members(self, found: ObjectList, form: ReplyForm, convert: Convert | None) -> Iterator[ListMember]:
        if form is ReplyForm.OBJECT:
            return object_members(found, convert, origins=self._origins)
        head = _table(found.kind, [], "") if form is ReplyForm.TABLE else _partial_list()
        head["metadata"] = _list_metadata(found)
        items = "rows" if form is ReplyForm.TABLE else "items"
        head.pop(items)
        objects, now = converted(found.objects, convert), self._env.now()
        if form is ReplyForm.TABLE:
            return document_members(head, items, (row_of(found.kind, each, now, self._include) for each in objects))
        return document_members(head, items, (partial(each.edit(), each) for each in objects))

    async def _stream(self, parts: Iterable[Sequence[bytes]]) -> None:
        exchange = self._exchange
        squeeze = zlib.compressobj(1, zlib.DEFLATED, 31) if self._gzip else None
        exchange.start(200, headers=((b"Content-Encoding", b"gzip"),) if squeeze is not None else ())
        for part in parts:
            if squeeze is None:
                exchange.write_pieces(part)
            else:
                whole = b"".join(part)
                exchange.streamed_bytes += len(whole)
                exchange.write(squeeze.compress(whole))
            await exchange.drained()
            await asyncio.sleep(0)
            if exchange.closed:
                return
        if squeeze is not None:
            exchange.write(squeeze.flush())
        exchange.end()


@weighed(entries=CALLERS_MAX, bytes_max=1 << 20)
def _caller_header(caller: str) -> Header:
    return http_headers.CALLER, quote(caller, safe=":@").encode()


@weighed(entries=CALLERS_MAX, bytes_max=1 << 20)
def _groups_header(groups: tuple[str, ...]) -> Header:
    return http_headers.GROUPS, ",".join(quote(each, safe=":@") for each in groups).encode()


def origin_headers(found: Object) -> list[Header]:
    headers: list[Header] = [(http_headers.CREATED, b"%d" % found.created)]
    if found.origin.operation:
        headers.append((http_headers.OPERATION, found.origin.operation.encode("latin-1")))
    if found.origin.decision:
        headers.append((http_headers.DECISION, found.origin.decision.encode("latin-1")))
    if found.origin.caller:
        headers.append(_caller_header(found.origin.caller))
    if found.origin.groups:
        headers.append(_groups_header(found.origin.groups))
    return headers


@remembered(entries=256, entry_bytes=2048, key_length=512)
def warning_header(text: str) -> Header:
    """A `Warning` header. Quotes and controls are escaped: the text may hold what a caller wrote."""
    plain = "".join(each if each.isprintable() and each.isascii() else "?" for each in text[:_SHOWN])
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return b"Warning", f'299 - "{escaped}"'.encode("ascii")


def _table(kind: Any, rows: list[dict[str, Any]], version: str) -> dict[str, Any]:
    return {
        "kind": "Table",
        "apiVersion": API_VERSION,
        "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions(kind),
        "rows": rows,
    }


def _partial_list() -> dict[str, Any]:
    return {"kind": "PartialObjectMetadataList", "apiVersion": API_VERSION, "metadata": {}, "items": []}


def _list_metadata(found: ObjectList) -> dict[str, Any]:
    metadata: dict[str, Any] = {"resourceVersion": str(found.revision)}
    if found.continue_token:
        metadata["continue"] = found.continue_token
    if found.remaining:
        metadata["remainingItemCount"] = found.remaining
    return metadata


def table_event_object(found: Object, env: Env, include: str, *, first: bool) -> dict[str, Any]:
    """The object of a watch event in Table form. Only the first event of a stream repeats the columns."""
    table = _table(found.kind, [row_of(found.kind, found, env.now(), include)], str(found.revision))
    if not first:
        table["columnDefinitions"] = []
    return table

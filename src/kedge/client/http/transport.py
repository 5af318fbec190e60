"""The client contract over HTTP. One request, once, with an honest outcome.

A request that certainly did not reach the server is `Unavailable`; a write whose reply is missing is `OutcomeUnknown`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from kedge.api import http_headers
from kedge.api.kinds import KINDS, Kind, Registry
from kedge.api.objects import Object
from kedge.api.requests import (
    Delete,
    DeleteCollection,
    EventType,
    Get,
    GetScale,
    List,
    OpenWatch,
    Reply,
    Request,
    RequestToken,
    WatchEvent,
    Written,
)
from kedge.api.wellknown import INITIAL_EVENTS_END
from kedge.client.http import wire
from kedge.client.http.batches import WriteBatches
from kedge.client.http.connection import ClientConnection, ConnectionBroken, ConnectionPool, HttpReply, RequestNotSent
from kedge.client.http.kubeconfig import ServerAddress
from kedge.client.http.rest import RestClient
from kedge.errors import NotFound, OperatingError, OutcomeUnknown, Unavailable, from_status
from kedge.keys import NO_REVISION

_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_UNKNOWN_CODES = frozenset({500, 502, 504})
"""Codes after which a write may have been made: the server, or something before it, failed on the way back."""


class HttpTransport:
    """Implements `client.contract.Transport` on one server."""

    def __init__(self, address: ServerAddress, *, kinds: Registry = KINDS, is_kedge: bool = True) -> None:
        """`is_kedge`: the server knows operation ids and fences, so a write may be repeated, and its revisions are of
        one sequence. Kubernetes promises neither."""
        self._pool = ConnectionPool(address)
        self.rest = RestClient(address, on_warning=lambda _: None, pool=self._pool)
        """Plain calls over the connections of this transport."""
        self._writes = WriteBatches(self._pool)
        self._kinds = kinds
        self._is_kedge = is_kedge

    @property
    def kinds(self) -> Registry:
        return self._kinds

    @property
    def repeats_safely(self) -> bool:
        return self._is_kedge

    @property
    def one_history(self) -> bool:
        return self._is_kedge

    async def send(self, request: Request[Reply]) -> Reply:
        call = wire.http_call(request, self._kinds)
        try:
            if self._is_kedge and not request.reads:
                reply, body = await self._writes.send(call)
            else:
                head = self._pool.head(call.method, call.target, call.headers, len(call.body))
                reply, body = await self._pool.request(head, call.body)
        except RequestNotSent as error:
            raise Unavailable(str(error)) from error
        except ConnectionBroken as error:
            raise _unknown(request, str(error)) from error
        if reply.code >= 400:
            raise _failure(request, reply, body, self._kinds)
        found: Reply
        if not self._is_kedge and (status := wire.success_status(body)) is not None:
            found = await self._after_status(request, status)
        else:
            found = await self._decoded(request, reply, body)
        return found

    async def _after_status(self, request: Request[Any], status: Mapping[str, Any]) -> Any:
        """The reply to a write that Kubernetes answers with a bare `Status`: the object is read, unless it is gone.

        Raises:
            OutcomeUnknown: the write was made, and its object cannot be read.
        """
        if isinstance(request, DeleteCollection):
            return []
        key = request.target
        last = wire.name_only(self._kind(request), key, str((status.get("details") or {}).get("uid") or ""))
        if isinstance(request, Delete):
            return Written(last, removed=True)
        try:
            return Written(await self.send(Get(key)))
        except NotFound:
            return Written(last, removed=True)
        except Unavailable as error:
            raise OutcomeUnknown(f"{key} was written, and cannot be read back: {error}", key=key) from error

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        call = wire.http_call(request, self._kinds)
        connection: ClientConnection | None = None
        try:
            connection = await self._pool.take()
            reply = await connection.exchange(self._pool.head(call.method, call.target, call.headers, 0), b"")
            if reply.code >= 400:
                raise _failure(request, reply, await connection.read(reply), self._kinds)
        except BaseException as error:
            if connection is not None:
                connection.abort()
            if isinstance(error, RequestNotSent | ConnectionBroken):
                raise Unavailable(str(error)) from error
            raise
        events = self._events(request.kind, connection, reply)
        await anext(events)  # begun, it closes its connection even if nothing is ever read from it
        return events

    async def close(self) -> None:
        await self._writes.close()
        await self._pool.close()

    async def _events(
        self, kind: Kind, connection: ClientConnection, reply: HttpReply
    ) -> AsyncGenerator[WatchEvent, None]:
        try:
            yield WatchEvent(EventType.BOOKMARK, None, NO_REVISION)  # for `open_watch` alone
            async for line in connection.read_lines(reply):
                if line:
                    yield _event(line, kind)
        except ConnectionBroken as error:
            raise Unavailable(f"the watch broke: {error}") from error
        finally:
            connection.abort()

    async def _decoded(self, request: Request[Any], reply: HttpReply, body: bytes) -> Any:
        match request:
            case Get():
                return wire.single(body, self._kind(request), reply.headers)
            case GetScale():
                return msgspec.json.decode(body)
            case List():
                return await wire.object_list(body, request.kind)
            case DeleteCollection():
                return await wire.deleted(body, request.kind)
            case RequestToken():
                return wire.issued_token(body)
            case _:
                return self._written(request, reply, body)

    def _written(self, request: Request[Any], reply: HttpReply, body: bytes) -> Written:
        warnings = tuple(_WARNING.findall(reply.headers.get(b"warning", b"").decode("latin-1")))
        found: Object = wire.single(body, self._kind(request), reply.headers)
        return Written(found, warnings, removed=reply.headers.get(http_headers.REMOVED) == b"1")

    def _kind(self, request: Request[Any]) -> Kind:
        return self._kinds.of_key_kind(request.target.kind)


def _event(line: bytes, kind: Kind) -> WatchEvent:
    event = wire.decode_event(line)
    if event.type == "ERROR":
        raise from_status(msgspec.json.decode(event.object))
    if event.type == "BOOKMARK":
        metadata: Mapping[str, Any] = msgspec.json.decode(event.object)["metadata"]
        ends = (metadata.get("annotations") or {}).get(INITIAL_EVENTS_END) == "true"
        return WatchEvent(EventType.BOOKMARK, None, int(metadata["resourceVersion"]), initial_end=ends)
    found = wire.object_of(bytes(event.object), kind, *wire.origin_of(event.kedge))
    return WatchEvent(EventType(event.type), found, found.revision)


def _failure(request: Request[Any], reply: HttpReply, body: bytes, kinds: Registry) -> OperatingError:
    try:
        status = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        status = {"code": reply.code, "message": body[:200].decode("latin-1")}
    if not isinstance(status, Mapping) or (reply.code in _UNKNOWN_CODES and not request.reads):
        return _unknown(request, f"the server answered {reply.code}")
    return from_status({"code": reply.code, **status, "details": _with_kind(status.get("details"), kinds)})


def _with_kind(details: Any, kinds: Registry) -> Any:
    """Details of a `Status` with the kind where Kubernetes writes the plural."""
    if not isinstance(details, Mapping):
        return details
    plural, group = details.get("kind"), details.get("group") or ""
    found = next((kind.kind for kind in kinds if kind.plural == plural and kind.group == group), plural)
    return {**details, "kind": found}


def _unknown(request: Request[Any], why: str) -> OperatingError:
    if request.reads:
        return Unavailable(why)
    return OutcomeUnknown(why, key=request.written_key)

"""A transport to a server on which some kinds have histories of their own, with revisions that are not comparable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import msgspec

from kedge.api.objects import Object
from kedge.api.requests import (
    DeleteOptions,
    ListOptions,
    ObjectList,
    OpenWatch,
    Reply,
    Request,
    WatchEvent,
    WatchOptions,
    WriteOptions,
    Written,
)
from kedge.errors import Conflict, Refused
from kedge.keys import Fence, Revision

LEASES = "Lease.coordination.k8s.io"


class SplitHistories:
    """Shifts the revisions of some kinds by an offset, in every request and reply."""

    repeats_safely = True
    one_history = False

    def __init__(self, inner: Any, ahead: Mapping[str, int]) -> None:
        self._inner = inner
        self._ahead = ahead
        self.kinds = inner.kinds

    async def send(self, request: Request[Reply]) -> Reply:
        try:
            reply = await self._inner.send(self._sent(request))
        except (Conflict, Refused) as error:
            if error.key is not None and error.revision:
                error.revision = self._shifted(error.key.kind, error.revision)
            raise
        return cast("Reply", self._answer(reply))

    async def open_watch(self, request: OpenWatch) -> AsyncGenerator[WatchEvent, None]:
        return self._events(request.target.kind, await self._inner.open_watch(self._sent(request)))

    def _sent(self, request: Any) -> Any:
        """A request with the server's own revisions."""
        fields = {
            name: self._asked(request.target.kind, getattr(request, name))
            for name in ("options", "body")
            if hasattr(request, name)
        }
        return msgspec.structs.replace(request, **fields)

    def _shifted(self, kind: str, revision: Revision) -> Revision:
        return revision + self._ahead.get(kind, 0)

    def _server_text(self, kind: str, text: str) -> str:
        return str(int(text) - self._ahead.get(kind, 0)) if text else ""

    def _asked(self, kind: str, value: Any) -> Any:
        """An argument with the server's own revisions."""
        replace = msgspec.structs.replace
        match value:
            case ListOptions() | WatchOptions():
                return replace(value, resource_version=self._server_text(kind, value.resource_version))
            case WriteOptions():
                if value.fence is not None:
                    revision = value.fence.revision - self._ahead.get(LEASES, 0)
                    value = replace(value, fence=Fence(value.fence.key, revision))
                if isinstance(value, DeleteOptions) and value.revision:
                    value = replace(value, revision=value.revision - self._ahead.get(kind, 0))
                return value
            case {"metadata": {"resourceVersion": str(version)}}:
                metadata = {**value["metadata"], "resourceVersion": self._server_text(kind, version)}
                return {**value, "metadata": metadata}
        return value

    def _answer(self, reply: Any) -> Any:
        match reply:
            case Object():
                return self._moved(reply)
            case Written():
                return msgspec.structs.replace(reply, object=self._moved(reply.object))
            case ObjectList():
                objects = tuple(self._moved(each) for each in reply.objects)
                revision = self._shifted(reply.kind.key_kind, reply.revision)
                return msgspec.structs.replace(reply, objects=objects, revision=revision)
        return reply

    async def _events(self, kind: str, stream: Any) -> AsyncGenerator[WatchEvent, None]:
        try:
            async for event in stream:
                found = None if event.object is None else self._moved(event.object)
                yield msgspec.structs.replace(event, object=found, revision=self._shifted(kind, event.revision))
        finally:
            await stream.aclose()

    def _moved(self, found: Object) -> Object:
        kind, key = found.kind, found.key
        created = self._shifted(key.kind, found.created) if found.created else found.created
        revision = self._shifted(key.kind, found.revision)
        return Object(kind, key, found.value, revision=revision, created=created, origin=found.origin)


def split_histories(wire: Any, ahead: Mapping[str, int], *, declared: bool = True) -> None:
    """Put such a server behind a transport. Unless `declared`, clients assume one history for all kinds."""
    wire._inner = SplitHistories(wire._inner, ahead)
    wire.one_history = not declared

"""Watches on the wire: one line of JSON an event, for as long as the client listens.

The stream ends with its timeout, with the client, or with the server: then a bookmark marks how far it came. A start
that is compacted is an event of type ERROR with code 410, as in Kubernetes: clients list again on it. After any other
error the stream just ends, and clients resume after their last event; several take another ERROR for fatal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from kedge.api.kinds import Kind
from kedge.api.requests import EventType, WatchEvent
from kedge.api.wellknown import INITIAL_EVENTS_END
from kedge.env import Env
from kedge.errors import Compacted, OperatingError, to_status
from kedge.keys import NO_REVISION, Revision
from kedge.server.http.connection import Exchange
from kedge.server.http.negotiation import ReplyForm
from kedge.server.http.replies import origin_json, table_event_object
from kedge.server.http.tables import partial
from kedge.server.service.watches import EventStream

_encode = msgspec.json.Encoder().encode
_INITIAL_END = {INITIAL_EVENTS_END: "true"}


class WatchWriter:
    """Writes the events of one stream to one client."""

    def __init__(
        self, env: Env, exchange: Exchange, kind: Kind, form: ReplyForm, include: str, *, origins: bool = False
    ) -> None:
        """With `origins` each event carries the origin of its object, for kedge's own clients."""
        self._origins = origins
        self._env = env
        self._exchange = exchange
        self._kind = kind
        self._form = form
        self._include = include
        self._first = True
        self._revision = NO_REVISION

    async def run(self, stream: EventStream, stopping: asyncio.Event, *, bookmarks: bool) -> None:
        """Write until the stream, the client or the server ends. Closes the stream."""
        exchange = self._exchange
        lost = asyncio.Event()
        exchange.on_lost(lost.set)
        exchange.start(200)
        ends = [asyncio.ensure_future(lost.wait()), asyncio.ensure_future(stopping.wait())]
        try:
            while not exchange.closed and not stopping.is_set():
                batch = asyncio.ensure_future(_next(stream))
                await asyncio.wait([batch, *ends], return_when=asyncio.FIRST_COMPLETED)
                if not batch.done():
                    batch.cancel()
                    await asyncio.gather(batch, return_exceptions=True)
                    break
                events = batch.result()
                if events is None:
                    break
                exchange.write(self.lines(events))
                await exchange.drained()
            if stopping.is_set() and bookmarks and self._revision != NO_REVISION:
                exchange.write(self.lines([WatchEvent(EventType.BOOKMARK, None, self._revision)]))
        except OperatingError as error:
            if self._origins or isinstance(error, Compacted):
                exchange.write(_error_line(error))
        finally:
            stream.close()
            for end in ends:
                end.cancel()
        if not exchange.closed:
            exchange.end()

    def refuse(self, error: Compacted) -> None:
        """The whole reply to a watch whose start is compacted."""
        self._exchange.start(200)
        self._exchange.write(_error_line(error))
        self._exchange.end()

    def lines(self, events: Sequence[WatchEvent]) -> bytes:
        self._revision = events[-1].revision
        return b"".join([self._line(event) for event in events])

    def _line(self, event: WatchEvent) -> bytes:
        found = event.object
        if found is None:
            return _encode({"type": "BOOKMARK", "object": self._bookmark(event.revision, event.initial_end)}) + b"\n"
        if self._form is ReplyForm.OBJECT:
            tail = b',"kedge":' + origin_json(found) if self._origins else b""
            return b'{"type":"%b","object":%b%b}\n' % (event.type.value.encode(), found.json(), tail)
        if self._form is ReplyForm.TABLE:
            shown: Any = table_event_object(found, self._env, self._include, first=self._first)
            self._first = False
        else:
            shown = partial(found.edit(), found)
        return _encode({"type": event.type.value, "object": shown}) + b"\n"

    def _bookmark(self, revision: Revision, initial_end: bool) -> dict[str, Any]:
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = _INITIAL_END
        return {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": metadata}


def _error_line(error: OperatingError) -> bytes:
    return _encode({"type": "ERROR", "object": to_status(error)}) + b"\n"


async def _next(stream: EventStream) -> Sequence[WatchEvent] | None:
    return await anext(stream, None)

"""Watches on the wire: one line of JSON an event, for as long as the client listens.

A commit puts its watches into one queue, and a turn of the loop writes to a slice of them: no task an event, and the
lines of an event are made once for all watches of one form. A client that reads too slowly is not written to; it gets
the rest when it has read, or `Lagged` if history has moved too far on by then.

The stream ends with its timeout, with the client, or with the server: then a bookmark marks how far it came. A start
that is compacted is an event of type ERROR with code 410, as in Kubernetes: clients list again on it. After any other
error the stream just ends, and clients resume after their last event; several take another ERROR for fatal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import EventType, WatchEvent
from kedge.api.wellknown import INITIAL_EVENTS_END
from kedge.env import Env
from kedge.errors import Compacted, OperatingError, to_status
from kedge.keys import NO_REVISION, Key, Revision
from kedge.server.http.exchange import Exchange
from kedge.server.http.list_parts import origin_json
from kedge.server.http.negotiation import ReplyForm
from kedge.server.http.replies import table_event_object
from kedge.server.http.reply_head import as_chunk
from kedge.server.http.tables import partial
from kedge.server.service.watches import EventStream

_encode = msgspec.json.Encoder().encode
_INITIAL_END = {INITIAL_EVENTS_END: "true"}
_NO_EVENTS: Sequence[WatchEvent] = ()
WATCHES_A_TURN = 64
"""Watches that are written to before other requests get a turn: about 2 ms."""
EVENTS_A_TURN = 64
"""Events that one watch writes in its turn; the initial events of a watch are as many as its kind has objects."""
_LINES_MAX = 256
"""Lines kept for other watches. They are dropped as soon as no watch is left in the queue."""

_Form = tuple[ReplyForm, str, str, bool]
"""Form, served version and kind, and whether origins are sent: watches alike in these share lines."""


class _SharedLines:
    """The lines that the watches of one form have written lately."""

    __slots__ = ("chunk", "events", "lines")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.events: Sequence[WatchEvent] | None = None
        self.chunk = b""
        """`events` as one chunk of a reply: watches without selectors get the very same events."""
        self.lines: dict[tuple[EventType, Key, Revision], bytes] = {}
        """Lines of single events, for watches whose selectors make them differ."""


class WatchFeed:
    """The watches of one server, and the queue of those that have something to write."""

    def __init__(self, env: Env) -> None:
        self._ready: deque[WatchWriter] = deque()
        self._open: dict[WatchWriter, None] = {}  # a dict, because the order of a set is not deterministic
        self._turn_due = False
        self._stopped = False
        self._shared: dict[_Form, _SharedLines] = {}
        self.env = env
        env.metrics.gauge("kedge_http_watches", "Open watches", ()).set_function(lambda: len(self._open))

    def add(self, writer: WatchWriter) -> None:
        self._open[writer] = None
        self.queue(writer)
        if self._stopped:
            writer.stop()

    def remove(self, writer: WatchWriter) -> None:
        self._open.pop(writer, None)

    def queue(self, writer: WatchWriter) -> None:
        """Let a watch write in one of the next turns of the loop. The caller sets its `queued`."""
        self._ready.append(writer)
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        """End every watch, also those that are opened later."""
        self._stopped = True
        for writer in tuple(self._open):
            writer.stop()

    def shared(self, form: _Form) -> _SharedLines:
        return self._shared.setdefault(form, _SharedLines())

    def _turn(self) -> None:
        ready = self._ready
        for _ in range(min(len(ready), WATCHES_A_TURN)):
            ready.popleft().write_ready()
        if ready:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._turn_due = False
            for shared in self._shared.values():
                shared.clear()


class WatchWriter:
    """Writes the events of one stream to one client."""

    def __init__(
        self,
        feed: WatchFeed,
        exchange: Exchange,
        kind: Kind,
        form: ReplyForm,
        include: str,
        *,
        origins: bool = False,
        convert: Callable[[Object], Object] | None = None,
    ) -> None:
        """With `origins` each event carries the origin of its object, for kedge's own clients. `convert` makes the
        version that is served from the stored one."""
        self._origins = origins
        self._convert = convert
        self._shared = feed.shared((form, kind.api_version, kind.kind, origins))
        self._feed = feed
        self._exchange = exchange
        self._kind = kind
        self._form = form
        self._include = include
        self._first = True
        self._stream: EventStream | None = None
        self._bookmarks = False
        self._queued = False
        self._rest: Sequence[WatchEvent] = _NO_EVENTS
        """Events of the last batch that are not written yet."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, stream: EventStream, *, bookmarks: bool) -> None:
        """Write until the stream, the client or the server ends. Closes the stream."""
        exchange, feed = self._exchange, self._feed
        self._stream, self._bookmarks = stream, bookmarks
        exchange.start(200)
        timer: asyncio.TimerHandle | None = None
        if stream.deadline_s is not None:
            left_s = max(0.0, stream.deadline_s - feed.env.monotonic())
            timer = asyncio.get_running_loop().call_later(left_s, self._end)
        try:
            exchange.on_lost(self._end)
            exchange.on_writable(self.wake)
            stream.on_ready = self.wake
            self._queued = True
            feed.add(self)
            await self._ended
        finally:
            feed.remove(self)
            stream.on_ready = None
            stream.close()
            if timer is not None:
                timer.cancel()
        if not exchange.closed:
            exchange.end()

    def refuse(self, error: Compacted) -> None:
        """The whole reply to a watch whose start is compacted."""
        self._exchange.start(200)
        self._exchange.write(_error_line(error))
        self._exchange.end()

    def wake(self) -> None:
        """The stream may have events, or the client has read enough for more."""
        if not self._queued and not self._ended.done():
            self._queued = True
            self._feed.queue(self)

    def stop(self) -> None:
        """The server stops: mark how far the stream came, and end it."""
        reached = NO_REVISION if self._stream is None or self._rest else self._stream.revision
        if not self._ended.done() and self._bookmarks and reached != NO_REVISION:
            self._exchange.write(self.lines([WatchEvent(EventType.BOOKMARK, None, reached)]))
        self._end()

    def write_ready(self) -> None:
        """Write the events that are ready, within the bounds of a turn and of the client's buffer."""
        self._queued = False
        if self._ended.done():
            return
        try:
            self._write_ready()
        except StopAsyncIteration:
            self._end()
        except OperatingError as error:
            if self._origins or isinstance(error, Compacted):
                self._exchange.write(_error_line(error))
            self._end()
        except Exception as error:  # noqa: BLE001  # the handler of this watch raises it; other watches go on
            self._ended.set_exception(error)

    def _write_ready(self) -> None:
        stream, exchange = self._stream, self._exchange
        assert stream is not None
        written = 0
        while not exchange.congested:  # it wakes this watch when the client has read
            if written >= EVENTS_A_TURN:
                self.wake()
                return
            rest = self._rest
            events = rest or stream.take_nowait()
            if events is None:
                return
            if len(events) <= EVENTS_A_TURN:
                self._write_all(events)
                self._rest = _NO_EVENTS
            else:  # between the events of one commit there is no place to resume
                exchange.write(self.lines(events[:EVENTS_A_TURN]))
                self._rest = events[EVENTS_A_TURN:]
            if stream.drained and not rest and not self._rest:
                return
            written += len(events)

    def _write_all(self, events: Sequence[WatchEvent]) -> None:
        shared, exchange = self._shared, self._exchange
        if not exchange.chunked or self._form is ReplyForm.TABLE:
            exchange.write(self.lines(events))
            return
        if shared.events is not events:
            shared.chunk = as_chunk(self.lines(events))
            shared.events = events
        exchange.write_chunk(shared.chunk)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def lines(self, events: Sequence[WatchEvent]) -> bytes:
        if self._form is ReplyForm.TABLE:
            return b"".join([self._table_line(event) for event in events])
        return b"".join([self._shared_line(event) for event in events])

    def _shared_line(self, event: WatchEvent) -> bytes:
        found, known = event.object, self._shared.lines
        if found is None:
            return self._bookmark_line(event)
        if len(known) >= _LINES_MAX:
            known.clear()
        place = (event.type, found.key, event.revision)
        line = known.get(place)
        if line is None:
            line = known[place] = self._line(event.type, found if self._convert is None else self._convert(found))
        return line

    def _line(self, event_type: EventType, found: Object) -> bytes:
        if self._form is ReplyForm.OBJECT:
            tail = b',"kedge":' + origin_json(found.created, found.origin) if self._origins else b""
            return b'{"type":"%b","object":%b%b}\n' % (event_type.value.encode(), found.json(), tail)
        return _encode({"type": event_type.value, "object": partial(found.edit(), found)}) + b"\n"

    def _table_line(self, event: WatchEvent) -> bytes:
        found = event.object
        if found is None:
            return self._bookmark_line(event)
        if self._convert is not None:
            found = self._convert(found)
        shown = table_event_object(found, self._feed.env, self._include, first=self._first)
        self._first = False
        return _encode({"type": event.type.value, "object": shown}) + b"\n"

    def _bookmark_line(self, event: WatchEvent) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(event.revision), "creationTimestamp": None}
        if event.initial_end:
            metadata["annotations"] = _INITIAL_END
        shown = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": metadata}
        return _encode({"type": "BOOKMARK", "object": shown}) + b"\n"


def _error_line(error: OperatingError) -> bytes:
    return _encode({"type": "ERROR", "object": to_status(error)}) + b"\n"

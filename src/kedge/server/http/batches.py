"""Batches of writes of kedge's own clients: each call is handled as if it had come alone, and answered when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from kedge.api.access import Caller
from kedge.api.http_batch import BATCH_PATH, BatchAnswer, BatchCall, decode_calls, encode_batch
from kedge.errors import BadRequest
from kedge.limits import Limits
from kedge.server.http.access import IMPERSONATION
from kedge.server.http.exchange import JSON, Exchange, Handler, HttpRequest
from kedge.server.http.reply_head import Header

_PATH = BATCH_PATH.encode()
_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_INHERITED = (b"authorization", IMPERSONATION)
"""Beginnings of the headers of an identity, which is that of the whole batch. A call may act as another user if the
batch does not: it is authorized like a request that comes alone."""


async def serve_batch(
    handler: Handler, request: HttpRequest, exchange: Exchange, limits: Limits, caller: Caller
) -> None:
    """Handle every call of a batch at once, as of `caller`. Nothing is done if a call cannot be read.

    Raises:
        BadRequest: it is no batch, has too many calls, or one that is no write.
    """
    try:
        calls = decode_calls(request.body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not a batch of calls: {error}") from error
    if len(calls) > limits.http_batch_calls_max:
        raise BadRequest(f"a batch has at most {limits.http_batch_calls_max} calls, not {len(calls)}: send several")
    answers = _Answers(exchange, len(calls))
    pairs = [_pair(_request_of(call, request, caller), answers, index) for index, call in enumerate(calls)]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(handler(*pair)) for pair in pairs]
    if tasks:
        await asyncio.wait(tasks)
    answers.end()


def _pair(request: HttpRequest, answers: _Answers, index: int) -> tuple[HttpRequest, _CallExchange]:
    batch = answers.exchange
    connection = batch.connection
    exchange = _CallExchange(
        connection, batch.request, batch.keep_alive, connection.now_s(),
        answers=answers, index=index, method=request.method,
    )  # fmt: skip
    return request, exchange


def _request_of(call: BatchCall, batch: HttpRequest, caller: Caller) -> HttpRequest:
    if call.method not in _METHODS:
        raise BadRequest(f"a batch is of writes, and {call.method} is none: send it alone")
    found = HttpRequest()
    try:
        found.headers = {name.lower().encode("ascii"): text.encode("latin-1") for name, text in call.headers.items()}
        target = call.target.encode("ascii")
    except UnicodeEncodeError as error:
        raise BadRequest("a path or a header of a call is not ASCII: quote it") from error
    acts = any(name.startswith(IMPERSONATION) for name in batch.headers)
    for name in [each for each in found.headers if each.startswith(_INHERITED if acts else _INHERITED[:1])]:
        del found.headers[name]
    found.headers.update({name: sent for name, sent in batch.headers.items() if name.startswith(_INHERITED)})
    found.method = call.method
    found.path, _, found.query = target.partition(b"?")
    if found.path == _PATH:
        raise BadRequest("a batch holds no other batch")
    body = bytes(call.body)
    found.body = b"" if body == b"null" else body
    found.peer, found.caller = batch.peer, caller
    return found


class _Answers:
    """The reply to a batch. Answers of one turn of the loop leave together; all at once, if they end so."""

    def __init__(self, exchange: Exchange, count: int) -> None:
        self.exchange = exchange
        self._missing = count
        self._lines: list[bytes] = []
        self._due = False

    def add(self, answer: BatchAnswer) -> None:
        self._missing -= 1
        self._lines.append(encode_batch(answer))
        if not self._due and self._missing:
            self._due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._due = False
        if self._missing and self._lines:  # else `end` is about to write them
            if not self.exchange.started:
                self.exchange.start(200)
            self.exchange.write(self._taken())

    def end(self) -> None:
        if not self.exchange.started:
            self.exchange.respond(200, self._taken())
            return
        self.exchange.write(self._taken())
        self.exchange.end()

    def _taken(self) -> bytes:
        lines, self._lines = self._lines, []
        return b"".join([line + b"\n" for line in lines])


class _CallExchange(Exchange, kw_only=True):
    """The reply to one call: a line of the batch's reply."""

    answers: _Answers
    index: int
    method: str
    _code: int = 0
    _headers: tuple[Header, ...] = ()
    _parts: list[bytes] = msgspec.field(default_factory=list)

    def respond(self, code: int, body: bytes, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        del content_type  # all writes are answered in JSON
        self.started = self.ended = True
        if self.audit is not None:
            self.audit.answered(code)
        self.connection.answered(self.method, code, self.begun_s)
        named: dict[str, str] = {}
        for name, value in headers:
            text = value.decode("latin-1")
            key = name.decode("ascii").lower()
            named[key] = f"{named[key]}, {text}" if key in named else text
        self.answers.add(BatchAnswer(self.index, code, named, msgspec.Raw(body)))

    def start(self, code: int, *, content_type: bytes = JSON, headers: Iterable[Header] = ()) -> None:
        del content_type
        self.started = True
        self._code, self._headers = code, tuple(headers)

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def write_pieces(self, pieces: Sequence[bytes]) -> None:
        self.streamed_bytes += sum(map(len, pieces))
        self._parts.extend(pieces)

    async def drained(self) -> None:
        return

    def end(self) -> None:
        self.respond(self._code, b"".join(self._parts), headers=self._headers)

    def take_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise BadRequest("a stream cannot be opened in a batch: send the request alone")

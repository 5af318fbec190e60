"""Writes that wait for their turn leave together, in one HTTP request.

A few exchanges are under way at a time. Writes that find a free one leave at the end of this turn of the loop: a write
that is alone in its turn is sent as it is, so a client with few writes never sends a batch. The others wait until an
exchange ends, or for a moment at most, and share the next one: the more writes there are, the less each of them costs
both sides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from kedge.api.http_batch import BATCH_PATH, BATCH_TYPE, BatchCall, decode_answer, encode_batch
from kedge.client.http.connection import ConnectionBroken, ConnectionPool, HttpReply, RequestNotSent
from kedge.client.http.wire import HttpCall
from kedge.errors import KedgeError

EXCHANGES_MAX: Final = 4
"""Exchanges that hold back further writes."""
HELD_S_MAX: Final = 0.005
"""A write is held back no longer than this, however slow the exchanges before it are."""
CALLS_MAX: Final = 64
"""Calls of one batch: what a server accepts."""
BYTES_MAX: Final = 1024 * 1024
"""Bodies of one batch, below what a server accepts."""
_NULL: Final = msgspec.Raw(b"null")
_HEADERS: Final = ((b"Content-Type", BATCH_TYPE),)

Answer = tuple[HttpReply, bytes]


class _Waiting:
    """A write that is not answered yet."""

    __slots__ = ("answer", "call", "sent_with")

    def __init__(self, call: HttpCall) -> None:
        self.call = call
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.sent_with: list[_Waiting] = []
        """The batch that it left with."""


class WriteBatches:
    """The writes of one client to one server."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._waiting: deque[_Waiting] = deque()
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turn_due = False
        self._tasks: dict[asyncio.Task[None], list[_Waiting]] = {}
        """Exchanges of batches that are under way."""

    async def send(self, call: HttpCall) -> Answer:
        """Send one write, alone or with others, and wait for the answer to it.

        Raises:
            RequestNotSent, ConnectionBroken: as `ConnectionPool.request`.
        """
        mine = _Waiting(call)
        self._waiting.append(mine)
        self._send_soon()
        try:
            return await mine.answer
        except asyncio.CancelledError:
            self._given_up(mine)
            raise

    async def close(self) -> None:
        """Answer what waits, and end what is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            _fail(self._waiting.popleft(), RequestNotSent("the client is closed"))
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _given_up(self, waiting: _Waiting) -> None:
        """A caller does not wait any more. An exchange that is awaited by none of its callers is aborted."""
        batch = waiting.sent_with
        if batch and all(each.answer.done() for each in batch):
            for task, sent in self._tasks.items():
                if sent is batch:
                    task.cancel()

    def _send_soon(self) -> None:
        """Send what waits at the end of this turn of the loop, or once an exchange has ended, or after a moment."""
        if self._under_way < EXCHANGES_MAX:
            # Not now: an exchange that ended has woken many callers, and each may be about to write again.
            if not self._turn_due:
                self._turn_due = True
                asyncio.get_running_loop().call_soon(self._turn_over)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HELD_S_MAX, self._held_too_long)

    def _turn_over(self) -> None:
        self._turn_due = False
        self._send_waiting()
        if self._waiting:
            self._send_soon()

    def _held_too_long(self) -> None:
        self._timer = None
        self._send_waiting(anyway=True)

    def _send_waiting(self, *, anyway: bool = False) -> None:
        while self._waiting and (anyway or self._under_way < EXCHANGES_MAX):
            batch = self._next_batch()
            if batch:
                self._under_way += 1
                for each in batch:
                    each.sent_with = batch
                task = asyncio.get_running_loop().create_task(self._exchange(batch))
                self._tasks[task] = batch
                task.add_done_callback(self._tasks.pop)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < CALLS_MAX:
            size += len(self._waiting[0].call.body)
            if batch and size > BYTES_MAX:
                break
            found = self._waiting.popleft()
            if not found.answer.done():  # else its caller was cancelled, and nothing was sent
                batch.append(found)
        return batch

    async def _exchange(self, batch: list[_Waiting]) -> None:
        """One HTTP request. Every write of it is answered, or fails with the exchange."""
        error: KedgeError = ConnectionBroken("the reply to a batch ended before its last answer")
        try:
            if len(batch) == 1:
                call = batch[0].call
                head = self._pool.head(call.method, call.target, call.headers, len(call.body))
                _settle(batch[0], await self._pool.request(head, call.body))
            else:
                await self._exchange_many(batch)
        except KedgeError as failed:
            error = failed
        except asyncio.CancelledError:
            error = ConnectionBroken("the client was closed before the answer")
            raise
        finally:
            for each in batch:
                each.sent_with = []  # a cycle would wait for the collector
                _fail(each, error)
            self._under_way -= 1
            if self._waiting:
                self._send_soon()

    async def _exchange_many(self, batch: list[_Waiting]) -> None:
        body = encode_batch([_encoded(each.call) for each in batch])
        head = self._pool.head("POST", BATCH_PATH, _HEADERS, len(body))
        async with self._pool.lent() as connection:
            reply = await connection.exchange(head, body)
            if reply.code >= 400:  # none of them was begun
                whole = await connection.read(reply)
                for each in batch:
                    _settle(each, (reply, whole))
                return
            async for line in connection.read_lines(reply):
                if line:
                    _take_line(batch, line)


def _take_line(batch: list[_Waiting], line: bytes) -> None:
    try:
        answer = decode_answer(line)
        waiting = batch[answer.index]
    except (msgspec.MsgspecError, IndexError) as error:
        raise ConnectionBroken(f"an answer to a batch cannot be read: {error}") from error
    reply = HttpReply()
    reply.code, reply.ended = answer.code, True
    reply.headers = {name.encode("latin-1"): value.encode("latin-1") for name, value in answer.headers.items()}
    _settle(waiting, (reply, bytes(answer.body)))


def _encoded(call: HttpCall) -> BatchCall:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers}
    return BatchCall(call.method, call.target, headers, msgspec.Raw(call.body) if call.body else _NULL)


def _settle(waiting: _Waiting, answer: Answer) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(answer)


def _fail(waiting: _Waiting, error: KedgeError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(type(error)(str(error)))

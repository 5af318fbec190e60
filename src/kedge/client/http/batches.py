"""Writes that wait for their turn leave together, in one HTTP request.

A few exchanges are under way at a time. Writes that find a free one leave at the end of this turn of the loop, or as
soon as there are enough of them: the server works on these while this process prepares the next ones. A write that is
alone in its turn is sent as it is, so a client with few writes never sends a batch. The others wait until an exchange
ends, or for a moment at most, and share the next one: the more writes there are, the less each of them costs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from kedge.api.http_batch import BATCH_PATH, BATCH_TYPE, BatchCall, decode_answer, encode_batch
from kedge.client.http.connection import ClientConnection, ConnectionBroken, ConnectionPool, HttpReply, RequestNotSent
from kedge.client.http.wire import HttpCall
from kedge.errors import KedgeError

EXCHANGES_MAX: Final = 4
"""Exchanges that hold back further writes."""
HELD_S_MAX: Final = 0.005
"""A write is held back no longer than this, however slow the exchanges before it are."""
CALLS_SOON: Final = 16
"""So many writes do not wait for the end of the turn if a connection is idle. Otherwise the writers of a process fall
into step: all of them write in one turn and wait for one reply, and client and server are never busy together."""
CALLS_MAX: Final = 64
"""Calls of one batch: what a server accepts."""
BYTES_MAX: Final = 1024 * 1024
"""Bodies of one batch, below what a server accepts."""
_NULL: Final = msgspec.Raw(b"null")
_HEADERS: Final = ((b"Content-Type", BATCH_TYPE),)

Answer = tuple[HttpReply, bytes]


class _Waiting:
    """A write that is not answered yet."""

    __slots__ = ("answer", "batch", "call")

    def __init__(self, call: HttpCall) -> None:
        self.call = call
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.batch: _Batch | None = None
        """The batch that it left with."""


class _Batch:
    """Writes of one exchange that is under way."""

    __slots__ = ("connection", "task", "writes")

    def __init__(self, writes: list[_Waiting]) -> None:
        self.writes = writes
        self.connection: ClientConnection | None = None
        """None until the request is written."""
        self.task: asyncio.Task[None] | None = None


class WriteBatches:
    """The writes of one client to one server."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._waiting: deque[_Waiting] = deque()
        self._under_way: dict[_Batch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._turn_due = False

    async def send(self, call: HttpCall) -> Answer:
        """Send one write, alone or with others, and wait for the answer to it.

        Raises:
            RequestNotSent, ConnectionBroken: as `ConnectionPool.request`.
        """
        mine = _Waiting(call)
        self._waiting.append(mine)
        if len(self._waiting) >= CALLS_SOON and len(self._under_way) < EXCHANGES_MAX and self._pool.has_idle:
            self._send_waiting()
        else:
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
        tasks = [each.task for each in self._under_way if each.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _given_up(self, waiting: _Waiting) -> None:
        """A caller does not wait any more. An exchange that is awaited by none of its callers is aborted."""
        batch = waiting.batch
        if batch is not None and batch.task is not None and all(each.answer.done() for each in batch.writes):
            batch.task.cancel()

    def _send_soon(self) -> None:
        """Send what waits at the end of this turn of the loop, or once an exchange has ended, or after a moment."""
        if len(self._under_way) < EXCHANGES_MAX:
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
        while self._waiting and (anyway or len(self._under_way) < EXCHANGES_MAX):
            if writes := self._next_writes():
                self._begin(_Batch(writes))
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_writes(self) -> list[_Waiting]:
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

    def _begin(self, batch: _Batch) -> None:
        """Send a batch: now if a connection is idle, otherwise once there is one."""
        self._under_way[batch] = None
        for each in batch.writes:
            each.batch = batch
        connection = self._pool.take_nowait()
        reply = None if connection is None else self._write(batch, connection)
        batch.task = task = asyncio.get_running_loop().create_task(self._exchange(batch, reply))
        # A task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(lambda _: self._end(batch, ConnectionBroken("the client was closed before the answer")))

    def _write(self, batch: _Batch, connection: ClientConnection) -> HttpReply:
        batch.connection = connection
        writes = batch.writes
        if len(writes) == 1:
            call = writes[0].call
            head, body = self._pool.head(call.method, call.target, call.headers, len(call.body)), call.body
        else:
            body = encode_batch([_encoded(each.call) for each in writes])
            head = self._pool.head("POST", BATCH_PATH, _HEADERS, len(body))
        return connection.begin(head, body)

    async def _exchange(self, batch: _Batch, reply: HttpReply | None) -> None:
        """One HTTP request. Every write of it is answered, or fails with the exchange."""
        error: KedgeError = ConnectionBroken("the reply to a batch ended before its last answer")
        whole = False
        try:
            if reply is None:
                reply = self._write(batch, await self._pool.take())
            await _read_reply(batch, reply)
            whole = True
        except KedgeError as failed:
            error = failed
        except asyncio.CancelledError:
            error = ConnectionBroken("the client was closed before the answer")
            raise
        finally:
            self._end(batch, error, whole=whole)

    def _end(self, batch: _Batch, error: KedgeError, *, whole: bool = False) -> None:
        """An exchange is over. Nothing happens if it has ended before."""
        if batch not in self._under_way:
            return
        del self._under_way[batch]
        if batch.connection is not None:
            if whole:
                self._pool.give_back(batch.connection)
            else:
                batch.connection.abort()
        for each in batch.writes:
            each.batch = None  # a cycle would wait for the collector
            _fail(each, error)
        if self._waiting:
            self._send_soon()


async def _read_reply(batch: _Batch, reply: HttpReply) -> None:
    connection, writes = batch.connection, batch.writes
    assert connection is not None
    await connection.wait_head(reply)
    if len(writes) == 1 or reply.code >= 400:  # of a batch that is refused none was begun
        whole = await connection.read(reply)
        for each in writes:
            _settle(each, (reply, whole))
        return
    async for line in connection.read_lines(reply):
        if line:
            _take_line(writes, line)


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

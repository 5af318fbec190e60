"""Writes of a busy client leave together, and each still has its own honest outcome."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.kit.api_server import Gate, local_api
from tests.kit.loops import eventually, on_loop

from kedge.api.kinds import KINDS
from kedge.api.requests import Create, Written
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, ServerAddress
from kedge.client.http.batches import CALLS_MAX, CALLS_SOON, EXCHANGES_MAX, WriteBatches
from kedge.client.http.connection import ConnectionBroken, ConnectionPool
from kedge.client.http.wire import HttpCall
from kedge.env import system_env
from kedge.errors import AlreadyExists, OutcomeUnknown, Unavailable
from kedge.server.http.server import ApiServer

CONFIG_MAP, NAMESPACE = KINDS.of_key_kind("ConfigMap"), KINDS.of_key_kind("Namespace")
BATCH = b"/kedge/batch"


@asynccontextmanager
async def gated() -> AsyncIterator[tuple[HttpTransport, Gate, ApiServer]]:
    async with local_api() as (server, port):
        server.connections.handler = gate = Gate(server.handler)
        transport = HttpTransport(ServerAddress("127.0.0.1", port))
        await Client(transport, system_env(), component="test").create(NAMESPACE, {"metadata": {"name": "default"}})
        gate.seen.clear()
        yield transport, gate, server
        await transport.close()


def create(name: str) -> Create:
    return Create(CONFIG_MAP, {"metadata": {"name": name}}, "default")


async def occupy(transport: HttpTransport, gate: Gate) -> list[asyncio.Future[Written]]:
    """Writes of single turns, which take every exchange until the gate opens."""
    gate.open.clear()
    sent: list[asyncio.Future[Written]] = []
    for n in range(EXCHANGES_MAX):
        sent.append(asyncio.ensure_future(transport.send(create(f"single{n}"))))
        await eventually(lambda: len(gate.seen) == len(sent))
    return sent


def send_many(transport: HttpTransport, count: int) -> list[asyncio.Future[Written]]:
    return [asyncio.ensure_future(transport.send(create(f"c{n}"))) for n in range(count)]


@on_loop
async def test_few_writes_are_sent_alone() -> None:
    async with gated() as (transport, gate, _):
        sent = await occupy(transport, gate)
        assert BATCH not in gate.seen
        gate.open.set()
        await asyncio.gather(*sent)


@on_loop
async def test_writes_of_one_turn_of_the_loop_leave_in_one_request() -> None:
    async with gated() as (transport, gate, _):
        await asyncio.gather(*send_many(transport, CALLS_SOON))
        assert gate.seen == [BATCH]


@on_loop
async def test_many_writes_of_one_turn_are_spread_over_the_connections_that_are_idle() -> None:
    async with gated() as (transport, gate, _):
        sent = await occupy(transport, gate)
        gate.open.set()
        await asyncio.gather(*sent)
        gate.seen.clear()
        await asyncio.gather(*send_many(transport, CALLS_MAX))
        assert gate.seen == [BATCH] * (CALLS_MAX // CALLS_SOON)


@on_loop
async def test_a_write_that_is_cancelled_in_its_turn_is_never_sent() -> None:
    async with gated() as (transport, gate, _):
        first, second = send_many(transport, 2)
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).object.key.name == "c1"
        assert len(gate.seen) == 1
        assert BATCH not in gate.seen


@on_loop
async def test_many_writes_share_requests_and_each_gets_its_own_answer() -> None:
    async with gated() as (transport, gate, _):
        names = [f"c{n % 150}" for n in range(200)]
        found = await asyncio.gather(*(transport.send(create(name)) for name in names), return_exceptions=True)
        for name, answer in zip(names, found, strict=True):
            assert isinstance(answer, AlreadyExists) or answer.object.key.name == name  # type: ignore[union-attr]
        assert sum(isinstance(each, AlreadyExists) for each in found) == 50
        assert BATCH in gate.seen
        assert len(gate.seen) <= EXCHANGES_MAX + 200 / CALLS_MAX + 4


@on_loop
async def test_a_write_is_not_held_back_by_slow_ones_before_it() -> None:
    async with gated() as (transport, gate, _):
        sent = [*await occupy(transport, gate), *send_many(transport, 3)]
        await eventually(lambda: BATCH in gate.seen)
        assert gate.seen.count(BATCH) == 1
        gate.open.set()
        await asyncio.gather(*sent)


@on_loop
async def test_a_batch_that_is_cut_off_leaves_its_outcomes_unknown() -> None:
    async with gated() as (transport, gate, server):
        gate.cut = BATCH
        found = await asyncio.gather(*(transport.send(create(f"c{n}")) for n in range(20)), return_exceptions=True)
        unknown = [each for each in found if isinstance(each, OutcomeUnknown)]
        assert len(unknown) == 20
        assert all(each.key is not None for each in unknown)
        assert len((await server.handler._service.list(CONFIG_MAP)).objects) == 20  # they were made all the same


@on_loop
async def test_a_write_that_is_cancelled_while_it_waits_is_never_sent() -> None:
    async with gated() as (transport, gate, server):
        before = await occupy(transport, gate)
        late = asyncio.ensure_future(transport.send(create("late")))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        gate.open.set()
        await asyncio.gather(*before)
        names = {each.key.name for each in (await server.handler._service.list(CONFIG_MAP)).objects}
        assert "late" not in names


@on_loop
async def test_an_exchange_that_every_caller_has_given_up_is_aborted() -> None:
    async with gated() as (transport, gate, server):
        sent = [*await occupy(transport, gate), *send_many(transport, 3)]
        await eventually(lambda: BATCH in gate.seen)
        for each in sent[EXCHANGES_MAX:-1]:
            each.cancel()
        await asyncio.sleep(0.02)
        assert len(server.connections.open) == EXCHANGES_MAX + 1  # one caller still waits
        sent[-1].cancel()
        await eventually(lambda: len(server.connections.open) == EXCHANGES_MAX)
        gate.open.set()
        await asyncio.gather(*sent, return_exceptions=True)


@on_loop
async def test_a_server_that_stops_finishes_writes_and_refuses_a_later_batch_whole() -> None:
    async with gated() as (transport, gate, server):
        under_way = await occupy(transport, gate)
        stopping = asyncio.ensure_future(server.stop())
        await eventually(lambda: server.connections.draining)
        late = send_many(transport, 3)
        await eventually(lambda: BATCH in gate.seen)
        gate.open.set()
        assert [written.object.key.name for written in await asyncio.gather(*under_way)]
        found = await asyncio.gather(*late, return_exceptions=True)
        await stopping
        assert all(isinstance(each, Unavailable) for each in found)
        assert not any(isinstance(each, OutcomeUnknown) for each in found)


@on_loop
async def test_closing_answers_every_write() -> None:
    async with gated() as (transport, gate, _):
        sent = [*await occupy(transport, gate), *send_many(transport, 3)]
        await eventually(lambda: BATCH in gate.seen)
        waits = asyncio.ensure_future(transport.send(create("waits")))
        await asyncio.sleep(0)
        await transport.close()
        gate.open.set()
        found = await asyncio.gather(*sent, waits, return_exceptions=True)
        assert isinstance(found[-1], Unavailable)
        assert all(isinstance(each, OutcomeUnknown) for each in found[:-1])


@asynccontextmanager
async def warm() -> AsyncIterator[tuple[WriteBatches, socket.socket]]:
    """Writes to a server that is a bare socket, on a connection that is open and idle."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        pool = ConnectionPool(ServerAddress("127.0.0.1", listener.getsockname()[1]))
        writes = WriteBatches(pool)
        first = asyncio.ensure_future(writes.send(write(0)))
        loop = asyncio.get_running_loop()
        server, _ = await loop.sock_accept(listener)
        with server:
            server.settimeout(0)
            await loop.sock_recv(server, 65536)
            await loop.sock_sendall(server, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await first
            yield writes, server
            await writes.close()
            await pool.close()


def write(n: int) -> HttpCall:
    return HttpCall("POST", f"/w{n}", [], b"{}")


@on_loop
async def test_enough_writes_leave_before_their_turn_of_the_loop_ends() -> None:
    async with warm() as (writes, server):
        sent = [asyncio.ensure_future(writes.send(write(n))) for n in range(CALLS_SOON)]
        read: list[bytes] = []
        asyncio.get_running_loop().call_soon(lambda: read.append(server.recv(65536)))  # last in the turn of the writes
        await asyncio.sleep(0)
        assert read[0].startswith(b"POST /kedge/batch ")
        for each in sent:
            each.cancel()


@on_loop
async def test_closing_answers_writes_whose_exchange_has_just_begun() -> None:
    """The task of the exchange is cancelled before its first step, so that none of its own lines can clean up."""
    async with warm() as (writes, server):
        sent = [asyncio.ensure_future(writes.send(write(n))) for n in range(CALLS_SOON)]
        await asyncio.sleep(0)  # they have left, and the task that reads the reply has not begun
        await writes.close()
        found = await asyncio.wait_for(asyncio.gather(*sent, return_exceptions=True), 20)
        assert {type(each) for each in found} == {ConnectionBroken}
        assert server.recv(65536)
        assert await asyncio.get_running_loop().sock_recv(server, 1) == b""  # a late reply reaches no other write

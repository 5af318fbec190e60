"""A server that stops: requests under way finish, later ones get 503 with Retry-After, watches end with a bookmark."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.kit.api_server import Gate, local_api
from tests.kit.loops import eventually, on_loop
from tests.kit.raw_http import CONFIG_MAPS, create_config_map, sent

from kedge.limits import Limits
from kedge.server.http.server import ApiServer

BODY = b'{"metadata":{"name":"slow"}}'
POST = f"POST {CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
PATIENT = dataclasses.replace(Limits(), http_stopping_s=600.0, http_drain_s=600.0)
HASTY = dataclasses.replace(Limits(), http_stopping_s=0.05)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


class RawClient:
    """One connection, written to and read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        try:
            return await asyncio.wait_for(self._reader.read(), 60)
        finally:
            self._writer.close()

    async def head(self) -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 60)

    async def until(self, text: bytes) -> bytes:
        return await asyncio.wait_for(self._reader.readuntil(text), 60)


@asynccontextmanager
async def stopping(server: ApiServer) -> AsyncIterator[asyncio.Future[None]]:
    """A server that has begun to stop. It must have stopped at the end of the block."""
    stop = asyncio.ensure_future(server.stop())
    await eventually(lambda: server.connections.draining)
    yield stop
    await asyncio.wait_for(stop, 60)


def check_refused(reply: bytes) -> None:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 1" in head
    assert b"Connection: close" in head
    assert json.loads(body)["reason"] == "ServiceUnavailable"


@on_loop
async def test_a_write_under_way_finishes_while_new_requests_get_503() -> None:
    async with local_api(limits=PATIENT) as (server, port):
        await create_config_map(port, "a")
        server.connections.handler = gate = Gate(server.handler)
        gate.open.clear()
        slow, idle = await RawClient.connect(port), await RawClient.connect(port)
        await slow.send(POST + BODY)
        await eventually(lambda: bool(gate.seen) and len(server.connections.open) == 2)
        async with stopping(server) as stop:
            new = await RawClient.connect(port)
            await new.send(get("/readyz"))
            await idle.send(get(f"{CONFIG_MAPS}/a"))
            await eventually(lambda: len(gate.seen) == 3)
            assert not stop.done()
            gate.open.set()
            check_refused(await new.rest())
            check_refused(await idle.rest())
            reply = await slow.rest()
        assert reply.startswith(b"HTTP/1.1 201")
        assert b"Connection: close" in reply


@on_loop
async def test_a_request_of_which_half_has_arrived_is_under_way() -> None:
    async with local_api(limits=PATIENT) as (server, port):
        await create_config_map(port, "a")
        only_head, half_body, half_head = [await RawClient.connect(port) for _ in range(3)]
        await only_head.send(POST)
        await half_body.send(POST.replace(b"Host: x", b"Host: y") + BODY[:10])
        await half_head.send(get(f"{CONFIG_MAPS}/a")[:20])
        await eventually(lambda: sum(each.busy for each in server.connections.open) == 3)
        async with stopping(server) as stop:
            await only_head.send(BODY)
            await half_head.send(get(f"{CONFIG_MAPS}/a")[20:])
            assert (await only_head.rest()).startswith(b"HTTP/1.1 201")
            assert (await half_head.rest()).startswith(b"HTTP/1.1 200")
            assert not stop.done()
            await half_body.send(BODY[10:])
            assert (await half_body.rest()).startswith(b"HTTP/1.1 409")


@on_loop
async def test_half_a_request_that_is_never_completed_gets_408_and_the_server_stops() -> None:
    limits = dataclasses.replace(PATIENT, http_request_s=0.05)
    async with local_api(limits=limits) as (server, port):
        client = await RawClient.connect(port)
        await client.send(POST)
        await eventually(lambda: any(each.busy for each in server.connections.open))
        async with stopping(server):
            assert (await client.rest()).startswith(b"HTTP/1.1 408")


@on_loop
async def test_the_drain_is_bounded() -> None:
    limits = dataclasses.replace(PATIENT, http_drain_s=0.05)
    async with local_api(limits=limits) as (server, port):
        client = await RawClient.connect(port)
        await client.send(POST)
        await eventually(lambda: any(each.busy for each in server.connections.open))
        await asyncio.wait_for(server.stop(), 60)
        with suppress(ConnectionResetError):
            assert await client.rest() == b""


@on_loop
async def test_a_client_with_an_idle_connection_may_still_send_a_request() -> None:
    async with local_api(limits=PATIENT) as (server, port):
        client = await RawClient.connect(port)
        await client.send(get("/livez"))
        await client.until(b"ok")
        async with stopping(server) as stop:
            await asyncio.sleep(0.05)
            assert not stop.done()
            await client.send(get("/livez"))
            check_refused(await client.rest())


@on_loop
async def test_a_client_that_stays_idle_does_not_hold_the_server_up() -> None:
    async with local_api(limits=HASTY) as (server, port):
        client = await RawClient.connect(port)
        await eventually(lambda: bool(server.connections.open))
        await asyncio.wait_for(server.stop(), 60)
        assert await client.rest() == b""


@on_loop
async def test_a_watch_that_is_opened_while_the_server_stops_ends_at_once() -> None:
    async with local_api(limits=PATIENT) as (server, port):
        await create_config_map(port, "a")
        server.connections.handler = gate = Gate(server.handler)
        gate.open.clear()
        client = await RawClient.connect(port)
        await client.send(get(f"{CONFIG_MAPS}?watch=1"))
        await eventually(lambda: bool(gate.seen))
        async with stopping(server):
            gate.open.set()
            reply = await client.rest()
        assert reply.startswith(b"HTTP/1.1 200")
        assert reply.endswith(b"0\r\n\r\n")


@on_loop
async def test_a_watch_ends_with_a_bookmark_of_all_that_it_has_seen_or_selected_away() -> None:
    selected = f"{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&labelSelector=none%3Dsuch"
    async with local_api(limits=HASTY) as (server, port):
        await create_config_map(port, "b")
        await create_config_map(port, "a")
        watches = [await RawClient.connect(port) for _ in range(2)]
        for watch, path in zip(watches, (selected, selected.partition("&label")[0]), strict=True):
            await watch.send(get(path))
            await watch.head()
        await watches[1].until(b'"name":"b"')
        await create_config_map(port, "c")
        await watches[1].until(b'"name":"c"')
        _, _, listed = await sent(port, "GET", CONFIG_MAPS)
        await asyncio.wait_for(server.stop(), 60)
        for watch in watches:
            lines = [line for line in (await watch.rest()).splitlines() if line.startswith(b"{")]
            bookmark = json.loads(lines[-1])
            assert bookmark["type"] == "BOOKMARK"
            assert bookmark["object"]["metadata"]["resourceVersion"] == listed["metadata"]["resourceVersion"]

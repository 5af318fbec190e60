"""Connections by address: how many one address may have, and which connection gives way when all are taken."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.kit.api_server import local_api
from tests.kit.loops import eventually, on_loop

from kedge.limits import Limits
from kedge.server.http.peers import Peers, address_of

GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


class Held:
    """A connection."""

    def __init__(self, peers: Peers, address: str, *, dispensable: bool = True) -> None:
        self._peers, self._address = peers, address
        self.dispensable = dispensable
        self.aborted = False
        peers.add(address, self)

    def abort(self) -> None:
        self.aborted = True
        self._peers.remove(self._address, self)


def test_one_address_has_at_most_its_share() -> None:
    peers = Peers(Limits(http_connections_max=10, http_peer_connections_max=2))
    Held(peers, "a")
    assert peers.has_room("a")
    last = Held(peers, "a")
    assert not peers.has_room("a")
    assert peers.has_room("b")
    last.abort()
    assert peers.has_room("a")


def test_when_all_are_taken_the_largest_gives_up_its_oldest_idle_connection() -> None:
    peers = Peers(Limits(http_connections_max=4))
    held = [Held(peers, "a", dispensable=False), Held(peers, "a"), Held(peers, "a"), Held(peers, "b")]
    assert peers.has_room("b")
    assert [each.aborted for each in held] == [False, True, False, False]
    Held(peers, "b")
    assert not peers.has_room("b"), "both have two"
    assert peers.has_room("c")


def test_connections_in_use_do_not_give_way() -> None:
    peers = Peers(Limits(http_connections_max=2))
    held = [Held(peers, "a", dispensable=False) for _ in range(2)]
    assert not peers.has_room("b")
    assert not any(each.aborted for each in held)


def test_a_connection_is_forgotten_once() -> None:
    peers = Peers(Limits())
    held = Held(peers, "a")
    held.abort()
    held.abort()
    assert peers.count == 0


def test_addresses_of_sockets() -> None:
    assert address_of(("10.0.0.1", 80)) == "10.0.0.1"
    assert address_of(("::1", 80, 0, 0)) == "::1"
    assert address_of(None) == address_of("") == ""


async def connection_from(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


@on_loop
async def test_an_address_that_holds_all_it_may_does_not_stop_another() -> None:
    async with local_api(limits=Limits(http_peer_connections_max=3)) as (server, port):
        held = [await connection_from("127.0.0.2", port) for _ in range(4)]
        await eventually(lambda: len(server.connections.open) == 3)
        assert await asyncio.wait_for(held[3][0].read(), 10) == b""
        reader, writer = await connection_from("127.0.0.1", port)
        writer.write(GET)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
        for each in (writer, *(writer for _, writer in held)):
            each.close()


@on_loop
async def test_a_full_server_closes_an_idle_connection_of_the_address_with_the_most() -> None:
    async with local_api(limits=Limits(http_connections_max=3)) as (server, port):
        held = [await connection_from("127.0.0.2", port) for _ in range(3)]
        await eventually(lambda: len(server.connections.open) == 3)
        reader, writer = await connection_from("127.0.0.1", port)
        writer.write(GET)
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
        assert await asyncio.wait_for(_ended(held[0][0]), 10)
        for each in (writer, *(writer for _, writer in held)):
            each.close()


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def reply_to(port: int, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """The reply to a request that is sent in pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        for each in pieces:
            writer.write(each)
            await asyncio.sleep(pause_s)

    sending = asyncio.ensure_future(send())
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        sending.cancel()
        writer.close()


@on_loop
async def test_a_head_that_comes_byte_by_byte_is_cut_off() -> None:
    async with local_api(limits=Limits(http_head_s=0.3)) as (_, port):
        reply = await reply_to(
            port, *(bytes([each]) for each in b"GET /livez HTTP/1.1\r\nX: " + b"x" * 500), pause_s=0.05
        )
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"the head was not complete" in reply


@on_loop
async def test_a_body_that_comes_byte_by_byte_is_cut_off() -> None:
    async with local_api(limits=Limits(http_body_check_s=0.3)) as (_, port):
        head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        reply = await reply_to(port, head, *([b"x"] * 500), pause_s=0.05)
        assert reply.startswith(b"HTTP/1.1 408")
        assert b"the body arrives too slowly" in reply


@on_loop
async def test_a_body_that_comes_steadily_is_read_to_its_end() -> None:
    limits = Limits(http_body_check_s=0.5, http_body_check_bytes_min=10)
    async with local_api(limits=limits) as (_, port):
        head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3000\r\n\r\n"
        reply = await reply_to(port, head, *([b"x" * 100] * 30), pause_s=0.1)
        assert reply.startswith(b"HTTP/1.1 400")


@on_loop
async def test_a_steady_body_is_cut_off_when_the_whole_request_takes_too_long() -> None:
    limits = Limits(http_body_check_s=0.3, http_body_check_bytes_min=1, http_request_s=1.0)
    async with local_api(limits=limits) as (_, port):
        head = b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        reply = await reply_to(port, head, *([b"x" * 10] * 500), pause_s=0.05)
        assert b"the request was not complete after 1.0 s" in reply


@on_loop
async def test_a_client_that_still_sends_when_it_is_refused_reads_the_refusal_and_then_the_end() -> None:
    limits = Limits(http_body_bytes_max=100, http_lingering_s=30.0)
    async with local_api(limits=limits) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        for _ in range(5):  # each write after a reset would fail
            writer.write(b"x" * 100)
            await writer.drain()
            await asyncio.sleep(0.02)
        async with asyncio.timeout(10):
            body = await reader.read()
        assert head.startswith(b"HTTP/1.1 413")
        assert b"the body is larger than 100 bytes" in body
        writer.close()


@on_loop
async def test_a_client_that_sends_for_ever_after_it_is_refused_is_cut_off() -> None:
    limits = Limits(http_body_bytes_max=100, http_lingering_s=0.1)
    async with local_api(limits=limits) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")

        async def send_for_ever() -> None:
            while True:
                writer.write(b"x" * 100)
                await writer.drain()
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_for_ever(), 10)
        writer.close()


@on_loop
async def test_a_connection_without_a_first_request_is_closed() -> None:
    async with local_api(limits=Limits(http_first_request_s=0.1)) as (_, port):
        silent = socket.create_connection(("127.0.0.1", port))
        silent.setblocking(False)  # noqa: FBT003
        try:
            async with asyncio.timeout(10):
                assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
        finally:
            silent.close()

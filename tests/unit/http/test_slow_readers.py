"""Clients that do not read their replies: the server holds a bounded number of bytes for each, and cuts it off."""

from __future__ import annotations

import asyncio
import dataclasses
import socket

from tests.kit.api_server import local_api
from tests.kit.loops import eventually, on_loop

from kedge.api.kinds import KINDS
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.http.connection import HttpConnection
from kedge.server.http.server import ApiServer
from kedge.server.http.streams import EVENTS_A_TURN
from kedge.server.service import Service
from kedge.store.contract import Put
from kedge.store.memory import MemoryStore

CONFIG_MAP, NAMESPACE = KINDS.of_key_kind("ConfigMap"), KINDS.of_key_kind("Namespace")
PLACE = "/api/v1/namespaces/default/configmaps"
WATCH = f"GET {PLACE}?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
BUFFER = 32 * 1024
OBJECT = 20 * 1024
A = Key("ConfigMap", "default", "a")


async def service_of(server: ApiServer) -> Service:
    """The service behind a server, with one object of `OBJECT` bytes."""
    service = server.handler._service
    await service.create(NAMESPACE, {"metadata": {"name": "default"}})
    body = {"metadata": {"name": "a", "namespace": "default"}, "data": {"filler": "x" * OBJECT}}
    await service.create(CONFIG_MAP, body)
    return service


def small(name: str) -> bytes:
    """A stored object."""
    head = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%b","namespace":"default","uid":"%b"}}'
    return head % (name.encode(), name.encode())


async def connected(port: int) -> socket.socket:
    """A client whose kernel takes few bytes for it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)  # noqa: FBT003
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


def unsent(server: ApiServer) -> int:
    return max((_unsent(each) for each in server.connections.open), default=0)


def _unsent(connection: HttpConnection) -> int:
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()


async def change(service: Service, server: ApiServer, times: int) -> int:
    """Change the object again and again; returns the most bytes that the server held for one client."""
    most = 0
    for number in range(times):
        await service.patch(A, {"data": {"turn": f"turn-{number:05}."}})
        for _ in range(4):
            await asyncio.sleep(0)
        most = max(most, unsent(server))
    return most


@on_loop
async def test_a_watcher_that_never_reads_is_cut_off_and_costs_a_bounded_buffer() -> None:
    limits = dataclasses.replace(Limits(), http_write_buffer_bytes=BUFFER, http_stalled_s=0.1)
    async with local_api(limits=limits) as (server, port):
        service = await service_of(server)
        client = await connected(port)
        await asyncio.get_running_loop().sock_sendall(client, WATCH)
        await eventually(lambda: len(server.connections.open) == 1)
        assert await change(service, server, 400) <= BUFFER + 2 * OBJECT
        await eventually(lambda: not server.connections.open)
        assert server.connections.stalled.value == 1
        client.close()


@on_loop
async def test_a_watcher_that_reads_late_gets_every_event_in_order() -> None:
    limits = dataclasses.replace(Limits(), http_write_buffer_bytes=BUFFER)
    async with local_api(limits=limits) as (server, port):
        service = await service_of(server)
        client, loop = await connected(port), asyncio.get_running_loop()
        await loop.sock_sendall(client, WATCH)
        await eventually(lambda: len(server.connections.open) == 1)
        await asyncio.sleep(0.05)
        assert await change(service, server, 100) <= BUFFER + 2 * OBJECT
        seen = b""
        while b"turn-00099." not in seen:
            piece = await asyncio.wait_for(loop.sock_recv(client, 65_536), 20)
            assert piece, "the server closed the connection"
            seen += piece
        places = [seen.index(b"turn-%05d." % number) for number in range(100)]
        assert places == sorted(places)
        assert seen.count(b'"type":') == 101
        client.close()


@on_loop
async def test_a_change_during_the_turns_of_a_long_batch_is_delivered() -> None:
    async with local_api() as (server, port):
        service = await service_of(server)
        store = service._core.store
        assert isinstance(store, MemoryStore)
        client, loop = await connected(port), asyncio.get_running_loop()
        await loop.sock_sendall(client, WATCH)
        await eventually(lambda: len(server.connections.open) == 1)
        await asyncio.sleep(0.05)
        for number in range(EVENTS_A_TURN + 10):  # in one step: the watch takes all of them as one batch
            store.commit_nowait([], [Put(Key("ConfigMap", "default", f"b{number}"), small(f"b{number}"))])
        await asyncio.sleep(0)  # its first turn; the rest of the batch waits for the next
        late = store.commit_nowait([], [Put(Key("ConfigMap", "default", "late"), small("late"))])
        for _ in range(20):  # turns, and no time: later a progress mark would deliver it as well
            await asyncio.sleep(0)
        (writer,) = server.handler._resources.watches._open
        assert writer._stream is not None
        assert writer._stream.revision == late
        assert not writer._rest
        client.close()


@on_loop
async def test_a_client_that_pipelines_and_reads_late_is_answered_within_the_bound() -> None:
    limits = dataclasses.replace(Limits(), http_write_buffer_bytes=BUFFER)
    async with local_api(limits=limits) as (server, port):
        service = await service_of(server)
        size = 500 * 1024
        await service.patch(A, {"data": {"filler": "x" * size}})
        client, loop = await connected(port), asyncio.get_running_loop()
        asked = f"GET {PLACE}/a HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        most, count = 0, 16
        for _ in range(count):
            await loop.sock_sendall(client, asked)
            for _ in range(4):
                await asyncio.sleep(0)
            most = max(most, unsent(server))
        assert most <= BUFFER + 2 * size
        seen = bytearray()
        while seen.count(b"HTTP/1.1 200 OK") < count:
            piece = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 20)
            assert piece, "the server closed the connection"
            seen += piece
        client.close()


@on_loop
async def test_a_client_that_does_not_read_a_list_is_cut_off() -> None:
    limits = dataclasses.replace(Limits(), http_write_buffer_bytes=BUFFER, http_stalled_s=0.1)
    async with local_api(limits=limits) as (server, port):
        service = await service_of(server)
        for number in range(300):
            body = {"metadata": {"name": f"c{number}", "namespace": "default"}, "data": {"filler": "x" * OBJECT}}
            await service.create(CONFIG_MAP, body)
        client = await connected(port)
        await asyncio.get_running_loop().sock_sendall(client, f"GET {PLACE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await eventually(lambda: len(server.connections.open) == 1)
        await eventually(lambda: not server.connections.open)
        client.close()


@on_loop
async def test_watches_whose_initial_events_are_not_read_fill_a_bound_and_the_next_gets_429() -> None:
    page, count = 16 * 1024, 200
    limits = dataclasses.replace(
        Limits(), http_write_buffer_bytes=BUFFER, watch_initial_page_bytes=page, watch_initial_bytes_max=2 * page
    )
    async with local_api(limits=limits) as (server, port):
        service, loop = await service_of(server), asyncio.get_running_loop()
        store = service._core.store
        assert isinstance(store, MemoryStore)
        for number in range(count):
            name = f"b{number:03}"
            value = small(name)[:-1] + b',"data":{"filler":"%b"}}' % (b"x" * 4_096)
            store.commit_nowait([], [Put(Key("ConfigMap", "default", name), value)])
        clients = [await connected(port) for _ in range(3)]
        for client in clients[:2]:
            await loop.sock_sendall(client, WATCH)
            await loop.sock_recv(client, 1)
        assert service._core.initial_bytes.held == 2 * page
        await loop.sock_sendall(clients[2], WATCH)
        refused = await asyncio.wait_for(loop.sock_recv(clients[2], 4_096), 20)
        assert refused.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 2" in refused.lower()
        seen = b""
        while seen.count(b'"type":"ADDED"') < count + 1:
            piece = await asyncio.wait_for(loop.sock_recv(clients[0], 65_536), 20)
            assert piece, "the server closed the connection"
            seen += piece
        assert [seen.count(b'"name":"b%03d"' % number) for number in range(count)] == [1] * count
        for client in clients:
            client.close()
        await eventually(lambda: service._core.initial_bytes.held == 0)

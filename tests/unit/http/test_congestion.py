"""Connections that are held without use: by a client that reads too slowly, and by one that sends no more."""

from __future__ import annotations

import asyncio

from tests.kit.api_server import local_api
from tests.kit.loops import on_loop

from kedge.limits import Limits


class FullTransport(asyncio.Transport):
    """A transport whose client has not read `unread` bytes."""

    def __init__(self, unread: int) -> None:
        super().__init__()
        self.unread = unread
        self.reads = True
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@on_loop
async def test_a_client_that_does_not_read_sends_no_more_and_is_cut_off_unless_it_reads_some() -> None:
    async with local_api(limits=Limits(http_write_buffer_bytes=4_000)) as (server, _):
        connection, transport = server.connections.protocol(), FullTransport(8_000)
        connection.connection_made(transport)
        connection.pause_writing()
        assert not transport.reads
        transport.unread = 7_000
        connection.expire()
        assert not transport.aborted, "it has read a quarter of the buffer"
        connection.expire()
        assert transport.aborted, "it has read nothing since"
        connection.connection_lost(None)


@on_loop
async def test_a_connection_that_was_answered_is_closed_when_it_stays_idle() -> None:
    async with local_api(limits=Limits(http_idle_s=0.1)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await reader.readline()
        async with asyncio.timeout(20):
            await reader.read()
        writer.close()

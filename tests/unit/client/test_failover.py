"""Several API servers: a request that fails is not repeated by the transport, and the next goes to another server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.etcd_server import free_port
from tests.kit.api_server import local_api
from tests.objects import CONFIG_MAP, NAMESPACE, config_map

from kedge.api.requests import ListOptions, WatchOptions
from kedge.client.contract import Client
from kedge.client.http import FailoverTransport, ServerAddress, with_servers
from kedge.env import system_env
from kedge.errors import NotFound, Terminal, Unavailable
from kedge.keys import Key
from kedge.limits import Limits

LIMITS = replace(Limits(), client_failover_s=0.05)


def address(port: int) -> ServerAddress:
    return ServerAddress("127.0.0.1", port)


def transport_to(*ports: int, first: int) -> FailoverTransport:
    found = FailoverTransport([address(port) for port in ports], system_env(limits=LIMITS))
    found._current = ports.index(first)
    return found


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """Accepts connections and never answers, as a paused process does."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def test_the_request_after_a_refused_one_goes_to_the_next_server() -> None:
    async def run() -> None:
        async with local_api() as (_, alive):
            dead = free_port()
            transport = transport_to(dead, alive, first=dead)
            client = Client(transport, system_env(), component="test")
            assert (await client.list(CONFIG_MAP, ListOptions())).objects == []  # its retry went there
            assert transport.server.port == alive
            await transport.close()

    asyncio.run(run())


def test_a_server_that_does_not_answer_is_left_once_a_request_gave_up() -> None:
    async def run() -> None:
        async with local_api() as (_, alive), silent_server() as silent:
            transport = transport_to(alive, silent, first=silent)
            client = Client(transport, system_env(), component="test")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.list(CONFIG_MAP, ListOptions())
            assert transport.server.port == alive
            assert (await client.list(CONFIG_MAP, ListOptions())).objects == []
            await transport.close()

    asyncio.run(run())


def test_a_watch_that_breaks_is_reopened_on_the_next_server() -> None:
    async def run() -> None:
        async with local_api() as (_, other), local_api() as (server, first):
            transport = transport_to(other, first, first=first)
            options = WatchOptions(resource_version="", allow_bookmarks=True)
            events = await Client(transport, system_env(), component="test").watch(CONFIG_MAP, options)
            reading = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0.05)
            server.connections.abort()
            with pytest.raises((Unavailable, StopAsyncIteration)):
                await reading
            assert transport.server.port == other
            await transport.close()

    asyncio.run(run())


@pytest.mark.parametrize("url", ["server:6443", "http://server:6443", "https://", "https://a:b", "https://a:1/path"])
def test_something_that_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(Terminal, match="--server"):
        with_servers(ServerAddress("localhost", 1), [url])


def test_new_addresses_are_for_the_next_requests_and_a_watch_under_way_goes_on() -> None:
    async def run() -> None:
        async with local_api() as (_, old), local_api() as (_, new):
            transport = transport_to(old, first=old)
            client = Client(transport, system_env(), component="test")
            await client.create(NAMESPACE, {"metadata": {"name": "default"}})
            events = await client.watch(CONFIG_MAP, WatchOptions(resource_version="1"))
            await transport.use([address(new)])
            assert transport.server.port == new
            with pytest.raises(NotFound):
                await client.get(Key("Namespace", "", "default"))  # the other server has another store
            direct = Client(transport_to(old, first=old), system_env(), component="other")
            await direct.create(CONFIG_MAP, config_map(), namespace="default")
            event = await asyncio.wait_for(anext(events), 20)
            assert event.object is not None
            assert event.object.key.name == "settings"
            await events.aclose()
            for port in (old, new, old):  # only one generation of earlier transports is kept
                await transport.use([address(port)])
            assert (await client.get(Key("Namespace", "", "default"))).key.name == "default"
            await transport.close()

    asyncio.run(run())

"""The records of an incident at several servers: merged, with those that do not answer stated."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.e2e.tcp_proxy import Proxy
from tests.kit.loops import on_loop
from tests.objects import CONFIG_MAP

from kedge.api.access import AUTHENTICATED, MASTERS, Caller
from kedge.api.requests import ListOptions
from kedge.cli.incidents.collection import ServerSet, server_set
from kedge.cli.incidents.servers import RemoteIncidents
from kedge.client.contract import Client
from kedge.client.http import FailoverTransport, RestClient, ServerAddress
from kedge.env import system_env
from kedge.errors import Terminal, Unavailable
from kedge.limits import Limits
from kedge.server.http.access import Authenticator
from kedge.server.http.agents import AgentDialer
from kedge.server.http.api import ApiHandler
from kedge.server.http.exchange import HttpRequest
from kedge.server.http.plain_listener import PlainListener
from kedge.server.incidents import IncidentFolder
from kedge.server.service import Service
from kedge.store.memory import MemoryStore


class Everyone(Authenticator):
    def caller(self, request: HttpRequest) -> Caller:
        del request
        return Caller("test", (MASTERS, AUTHENTICATED))


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[IncidentFolder, RestClient]]:
    env = system_env()
    service = Service(MemoryStore(env), env)
    handler = ApiHandler(service, env, Everyone(), AgentDialer(service, env, None))
    handler.incidents = IncidentFolder(folder, env)
    listener = PlainListener(handler, env, serves="a test", option="port")
    port = await listener.start("127.0.0.1", 0)
    client = RestClient(ServerAddress("127.0.0.1", port), on_warning=lambda _: None)
    try:
        yield handler.incidents, client
    finally:
        await client.close()
        await listener.stop()


def address_of(client: RestClient) -> ServerAddress:
    return client._pool._address


def put(folder: IncidentFolder, process: str, part: str, data: bytes, *, done: bool) -> None:
    folder.begin("first", process)
    folder.append("first", process, part, 0, data)
    if done:
        folder.end("first", process)


@on_loop
async def test_parts_of_several_servers_are_merged_and_the_longer_one_wins(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(running(tmp_path / name)) for name in ("one", "two", "three")]
        (one, first), (two, second), (_, third) = servers
        put(one, "agent", "a.log", b"only here", done=True)
        put(one, "scheduler", "s.log", b"half", done=False)  # then this server was cut off
        put(two, "scheduler", "s.log", b"half and the rest", done=True)
        asked = ServerSet({"one": first, "two": second, "three": third})
        held = await asked.held("first")
        assert (held.complete, held.unreachable, held.bytes) == (True, {}, 9 + 17)
        folder = tmp_path / "fetched"
        folder.mkdir()
        parts = await asked.fetch("first", held, folder)
        assert {each.process: [path.read_bytes() for path in each.files] for each in parts} == {
            "agent": [b"only here"],
            "scheduler": [b"half and the rest"],
        }
        assert await asked.delete("first") == 2
        assert await asked.delete("first") == 0


@on_loop
async def test_a_server_that_does_not_answer_is_stated(tmp_path: Path) -> None:
    gone = RestClient(ServerAddress("127.0.0.1", 1), on_warning=lambda _: None)
    async with running(tmp_path) as (folder, client):
        put(folder, "agent", "a.log", b"x", done=True)
        asked = ServerSet({"https://here": client, "https://gone": gone})
        held = await asked.held("first")
        assert held.complete, "the others are used"
        (stated,) = held.gaps
        assert stated.startswith("server https://gone did not answer, so its records are missing: ")
        with pytest.raises(Unavailable):
            await asked.delete("first")


@on_loop
async def test_other_servers_need_an_https_address() -> None:
    with pytest.raises(Terminal):
        async with server_set(ServerAddress("127.0.0.1", 1), ["nonsense"]):
            pass


@on_loop
async def test_records_leave_on_the_connections_that_a_process_works_with(tmp_path: Path) -> None:
    """A process may be unable to open others: after a step of its clock a server's certificate is not yet valid."""
    async with running(tmp_path) as (folder, direct):
        server = address_of(direct)
        proxy = Proxy(f"{server.host}:{server.port}")
        await proxy.listen()
        env = system_env()
        transport = FailoverTransport([ServerAddress("127.0.0.1", proxy.port)], env)
        await Client(transport, env, component="test").list(CONFIG_MAP, ListOptions())
        proxy.refuse_new()
        incidents = RemoteIncidents(transport.rest_clients, env.limits)
        assert await incidents.begin("first", "agent-a")
        assert await incidents.append("first", "agent-a", "part-1", 0, b"abc") == 3
        await incidents.end("first", "agent-a")
        assert [each.done for each in folder.find("first").processes] == [True]
        await transport.close()
        await proxy.close()


@on_loop
async def test_a_process_sends_to_the_next_server_if_one_does_not_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as (folder, direct):
        gone = RestClient(ServerAddress("127.0.0.1", 1), on_warning=lambda _: None)
        await RemoteIncidents(lambda: [gone, direct], Limits()).begin("first", "agent-a")
        assert [each.name for each in folder.find("first").processes] == ["agent-a"]


@on_loop
async def test_a_server_that_never_answers_does_not_hold_the_records(tmp_path: Path) -> None:
    async with running(tmp_path) as (folder, direct):
        with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections, and nothing reads them
            address = ServerAddress("127.0.0.1", listening.getsockname()[1])
            silent = RestClient(address, on_warning=lambda _: None)
            incidents = RemoteIncidents(lambda: [silent, direct], Limits(incident_reply_s=1))
            async with asyncio.timeout(20):
                await incidents.begin("first", "agent-a")
                assert await incidents.append("first", "agent-a", "part-1", 0, b"abc") == 3
            assert [each.name for each in folder.find("first").processes] == ["agent-a"]
            await silent.close()

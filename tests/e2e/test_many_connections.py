"""A client that opens 5,000 connections does not stop others: real sockets, a real server, TLS."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path

import pytest
from tests.kit.api_server import ServerProcess, running_server
from tests.kit.loops import on_loop

from kedge.client.http import read_kubeconfig
from kedge.limits import Limits

COUNT = 5_000
SECONDS_MAX = 120.0


def raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < COUNT + 500:
        pytest.skip(f"{COUNT} connections need {COUNT} open files, and the hard limit is {hard}")
    if soft < COUNT + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (COUNT + 500, hard))


async def seconds_of_a_get(server: ServerProcess) -> float:
    """The time of a get on a new connection from another address."""
    address = read_kubeconfig(server.kubeconfig)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=address.tls, server_hostname=address.host, local_addr=("127.0.0.1", 0)
    )
    writer.write(b"GET /api/v1/namespaces/default HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.transport.abort()
    return loop.time() - began_s


async def open_many(port: int, held: list[socket.socket]) -> None:
    """Open connections that never send a byte."""
    for n in range(COUNT):
        client = socket.socket()
        held.append(client)
        client.setblocking(False)  # noqa: FBT003
        client.bind(("127.0.0.2", 0))
        try:
            async with asyncio.timeout(2.0):
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        except OSError:  # refused, or timed out: it holds no place
            continue
        if n % 50 == 0:
            await asyncio.sleep(0)


@on_loop
async def test_a_client_with_5000_connections_does_not_stop_others(tmp_path: Path) -> None:
    raise_open_files()
    held: list[socket.socket] = []
    with running_server(tmp_path / "state") as server:
        port = read_kubeconfig(server.kubeconfig).port
        try:
            async with asyncio.timeout(SECONDS_MAX):
                flood = asyncio.ensure_future(open_many(port, held))
                meanwhile = [await seconds_of_a_get(server) for _ in range(10)]
                await flood
                after = [await seconds_of_a_get(server) for _ in range(10)]
        finally:
            for each in held:
                each.close()
        assert len(held) == COUNT
        assert max(meanwhile + after) < 10.0
        metrics = await _metrics(server)
        assert COUNT - Limits().http_peer_connections_max <= metrics["kedge_http_connections_refused_total"]


async def _metrics(server: ServerProcess) -> dict[str, float]:
    address = read_kubeconfig(server.kubeconfig)
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=address.tls, server_hostname=address.host
    )
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    lines = [line.split() for line in text.splitlines() if line.startswith("kedge_http_connections")]
    return {line[0]: float(line[1]) for line in lines}

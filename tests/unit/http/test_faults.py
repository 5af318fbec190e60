"""Faults around the server: a full disk, clients that do not read, and an upkeep that fails."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import sqlite3
from pathlib import Path

import pytest
from tests.kit.api_server import TrustingAuthenticator, local_api
from tests.kit.loops import eventually, on_loop
from tests.kit.raw_http import CONFIG_MAPS, MERGE, create_config_map, request, sent
from tests.unit.store.sqlite_faults import Probe

from kedge.env import system_env
from kedge.limits import Limits
from kedge.server.http.server import ApiServer
from kedge.server.service import Service


@on_loop
async def test_a_full_disk_is_a_503_and_leaves_nothing_behind(tmp_path: Path) -> None:
    probe, env = Probe(), system_env()
    store = await probe.open(tmp_path / "kedge.db", env)
    server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
    port = await server.start("127.0.0.1", 0, None)
    await create_config_map(port, "before")
    probe.fail("INSERT", sqlite3.SQLITE_FULL)
    created, head, status = await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": "a"}})
    patched, _, _ = await sent(port, "PATCH", f"{CONFIG_MAPS}/before", {"data": {"x": "1"}}, MERGE)
    _, _, meanwhile = await sent(port, "GET", CONFIG_MAPS)
    probe.end_partition()
    again, _, _ = await sent(port, "POST", CONFIG_MAPS, {"metadata": {"name": "a"}})
    _, _, found = await sent(port, "GET", CONFIG_MAPS)
    await server.stop()
    await store.close()
    assert (created, status["kind"], status["reason"], patched) == (503, "Status", "ServiceUnavailable", 503)
    assert "is full" in status["message"]
    assert "Retry-After" in head
    assert [each["metadata"]["name"] for each in meanwhile["items"]] == ["before"]
    assert "data" not in meanwhile["items"][0]
    assert again == 201
    assert [each["metadata"]["name"] for each in found["items"]] == ["a", "before"]


@on_loop
async def test_a_watch_that_is_not_read_has_bounded_buffers_and_is_cut_off() -> None:
    limits = dataclasses.replace(Limits(), http_stalled_s=0.5, http_write_buffer_bytes=16 * 1024)
    written, largest = 0, 0
    async with local_api(limits=limits) as (server, port):
        await create_config_map(port, "a")
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.sendall(request("GET", f"{CONFIG_MAPS}?watch=1"))
            await eventually(lambda: len(server.connections.open) == 1)
            (watch,) = server.connections.open
            for number in range(60):
                body = {"data": {"x": f"{number}" + "x" * 200_000}}
                assert (await sent(port, "PATCH", f"{CONFIG_MAPS}/a", body, MERGE))[0] == 200
                written += 200_000
                assert watch._transport is not None
                largest = max(largest, watch._transport.get_write_buffer_size())
            await eventually(lambda: watch not in server.connections.open)
    assert written > 10_000_000
    assert largest < 2_000_000


@on_loop
async def test_a_large_reply_that_is_not_read_is_cut_off() -> None:
    limits = dataclasses.replace(Limits(), http_stalled_s=0.5, http_idle_s=0.5)
    async with local_api(limits=limits) as (server, port):
        await create_config_map(port, "a")
        await sent(port, "PATCH", f"{CONFIG_MAPS}/a", {"data": {"x": "x" * 900_000}}, MERGE)
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.sendall(request("GET", f"{CONFIG_MAPS}/a").replace(b"Connection: close\r\n", b"") * 8)
            await eventually(lambda: len(server.connections.open) == 1)
            await eventually(lambda: not server.connections.open)


def test_a_server_whose_upkeep_fails_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without upkeep would collect operation ids for ever, and only seem to be well."""
    from click.testing import CliRunner

    from kedge.cli.server import server

    async def fail(self: Service) -> None:
        del self
        await asyncio.sleep(0.1)
        raise RuntimeError("planted")

    monkeypatch.setattr(Service, "run_upkeep", fail)
    done = CliRunner().invoke(server, ["--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0"])
    assert done.exit_code == 1
    assert "upkeep" in done.output
    assert "planted" in done.output

"""An agent's endpoint and the API server's way to it: each side refuses a peer that is not the one it expects."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import POD, driver_in, start

from kedge.agent.process import ProcessDriver
from kedge.agent.process.endpoint import AgentEndpoint, EndpointAddress
from kedge.api.kinds import KINDS
from kedge.api.requests import Create
from kedge.api.wellknown import AGENT_HOST, API_SERVERS_GROUP
from kedge.cli.membership.certificates import agent_identity, certificate_request
from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.http.agents import AgentDialer, AgentUnreachable, agent_client_context
from kedge.server.http.certificate_signer import AuthoritySigner
from kedge.server.http.certificates import Authority, Certificate
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

SERVER = (API_SERVERS_GROUP,)


def client_context(
    folder: Path, authority: Authority, *groups: str, trusted: Authority | None = None
) -> ssl.SSLContext:
    """TLS of a caller with these groups. It trusts agents of `trusted`, or of the authority that signed for itself."""
    path = folder / f"client-{len(groups)}.pem"
    path.write_bytes(authority.issue_client("someone", groups, datetime.now(UTC)).pem)
    authority_path = folder / "authority.crt"
    authority_path.write_bytes((trusted or authority).own.certificate_pem)
    return agent_client_context(path, authority_path)


def serving(
    authority: Authority, node: str = "n", host: str = AGENT_HOST, *, now: datetime | None = None, valid_s: float = 600
) -> bytes:
    """A serving certificate with its key, as the authority signs it for an agent."""
    key = ec.generate_private_key(ec.SECP256R1())
    body = certificate_request(key, agent_identity(node), (host,))
    signer = AuthoritySigner(authority, lambda: now or datetime.now(UTC))
    signed = x509.load_pem_x509_certificate(signer.sign(body, ("server auth",), valid_s))
    return Certificate(signed, key).pem


@asynccontextmanager
async def endpoint_of(
    driver: ProcessDriver, authority: Authority, env: Env
) -> AsyncIterator[tuple[AgentEndpoint, EndpointAddress]]:
    endpoint = AgentEndpoint(driver, env)
    address = await endpoint.start("127.0.0.1", 0, authority.own.certificate_pem.decode())
    endpoint.use_certificate(serving(authority))
    try:
        yield endpoint, address
    finally:
        await endpoint.stop()


@asynccontextmanager
async def dialer_to(
    address: EndpointAddress, tls: ssl.SSLContext, env: Env, **changes: Any
) -> AsyncIterator[AgentDialer]:
    store = MemoryStore(env)
    service = Service(store, env)
    node = {
        "metadata": {"name": "n"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address.host}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": changes.get("port", address.port)}},
        },
    }
    await service.send(Create(KINDS.of_key_kind("Node"), node))
    try:
        yield AgentDialer(service, env, tls)
    finally:
        await store.close()


async def get(dialer: AgentDialer, path: str) -> bytes:
    reader, writer = await dialer.connect("n")
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
        return await asyncio.wait_for(reader.read(), 20)
    except OSError:
        return b""
    finally:
        writer.transport.abort()


@on_loop
async def test_an_api_server_reads_a_log(tmp_path: Path) -> None:
    env, authority = system_env(), Authority.ensure(tmp_path, datetime.now(UTC))
    async with driver_in(tmp_path / "node") as driver, endpoint_of(driver, authority, env) as (_, address):
        await start(driver, "sh", "-c", "echo hello; exec sleep 600")
        tls = client_context(tmp_path, authority, *SERVER)
        async with dialer_to(address, tls, env) as dialer:

            async def has_log() -> bool:
                return b"hello" in await get(dialer, f"/pods/{POD.pod_uid}/main/log?pod=web")

            await eventually(has_log)
            assert b"not found on its node" in await get(dialer, f"/pods/{POD.pod_uid}/side/log?pod=web")
            assert b" 404 " in await get(dialer, "/secrets")


@on_loop
async def test_the_agent_answers_no_caller_but_an_api_server_of_its_cluster(tmp_path: Path) -> None:
    env, now = system_env(), datetime.now(UTC)
    (tmp_path / "other").mkdir()
    authority, other = Authority.ensure(tmp_path, now), Authority.ensure(tmp_path / "other", now)
    async with driver_in(tmp_path / "node") as driver, endpoint_of(driver, authority, env) as (_, address):
        for tls in (
            client_context(tmp_path, authority, "system:masters"),
            client_context(tmp_path, authority, "system:nodes", "kedge:controllers"),
            client_context(tmp_path / "other", other, *SERVER, trusted=authority),
        ):
            async with dialer_to(address, tls, env) as dialer:
                assert await get(dialer, "/secrets") == b""
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.load_verify_locations(cadata=authority.own.certificate_pem.decode())
        async with dialer_to(address, bare, env) as dialer:
            assert await get(dialer, "/secrets") == b""


@on_loop
async def test_the_api_server_sends_nothing_to_a_program_that_is_not_the_agent(tmp_path: Path) -> None:
    env, authority = system_env(), Authority.ensure(tmp_path, datetime.now(UTC))
    tls = client_context(tmp_path, authority, *SERVER)
    async with driver_in(tmp_path / "node") as driver, endpoint_of(driver, authority, env) as (endpoint, address):
        async with dialer_to(address, tls, env, port=0) as dialer:
            with pytest.raises(AgentUnreachable, match="has no endpoint"):
                await dialer.connect("n")
        async with dialer_to(address, tls, env) as dialer:
            with pytest.raises(AgentUnreachable, match="node absent is gone"):
                await dialer.connect("absent")
            await endpoint.stop()
            with pytest.raises(AgentUnreachable, match="cannot be reached"):
                await dialer.connect("n")


@on_loop
async def test_the_api_server_refuses_a_certificate_that_is_not_of_the_node(tmp_path: Path) -> None:
    """Of another node, without the name of agents, of another authority, of a client, and an old one."""
    env, now = system_env(), datetime.now(UTC)
    (tmp_path / "other").mkdir()
    authority, other = Authority.ensure(tmp_path, now), Authority.ensure(tmp_path / "other", now)
    tls = client_context(tmp_path, authority, *SERVER)
    refused = {
        "is not the agent of node n: its certificate is of another one": serving(authority, "m"),
        "Hostname mismatch": serving(authority, host="n"),
        "unable to get local issuer|signature failure|self-signed": serving(other),
        "unsuitable certificate purpose|unsupported certificate purpose": authority.issue_client(
            "system:node:n", ("system:nodes",), now
        ).pem,
        "certificate has expired": serving(authority, now=now - timedelta(days=1)),
    }
    async with (
        driver_in(tmp_path / "node") as driver,
        endpoint_of(driver, authority, env) as (endpoint, address),
        dialer_to(address, tls, env) as dialer,
    ):
        for why, pem in refused.items():
            endpoint.use_certificate(pem)
            with pytest.raises(AgentUnreachable, match=why) as caught:
                await dialer.connect("n")
            assert "is not the agent of node n" in str(caught.value)
        endpoint.use_certificate(serving(authority))
        assert b" 404 " in await get(dialer, "/secrets"), "a renewed certificate is used without a restart"


@on_loop
async def test_an_endpoint_without_a_certificate_serves_no_caller(tmp_path: Path) -> None:
    env, authority = system_env(), Authority.ensure(tmp_path, datetime.now(UTC))
    tls = client_context(tmp_path, authority, *SERVER)
    async with driver_in(tmp_path / "node") as driver:
        endpoint = AgentEndpoint(driver, env)
        address = await endpoint.start("127.0.0.1", 0, authority.own.certificate_pem.decode())
        try:
            async with dialer_to(address, tls, env) as dialer:
                with pytest.raises(AgentUnreachable, match="cannot be reached"):
                    await dialer.connect("n")
        finally:
            await endpoint.stop()


def handshake(path: str, protocol: str = "v5.channel.k8s.io") -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", "Host: agent", "Connection: Upgrade", "Upgrade: websocket"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Protocol: {protocol}"]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
@on_loop
async def test_the_last_message_of_a_command_is_its_status(protocol: str, tmp_path: Path) -> None:
    env, authority = system_env(), Authority.ensure(tmp_path, datetime.now(UTC))
    async with driver_in(tmp_path / "node") as driver, endpoint_of(driver, authority, env) as (_, address):
        await start(driver, "sleep", "600")
        async with dialer_to(address, client_context(tmp_path, authority, *SERVER), env) as dialer:
            reader, writer = await dialer.connect("n")
            query = "command=sh&command=-c&command=exit+3&stdout=true&stderr=true"
            writer.write(handshake(f"/pods/{POD.pod_uid}/main/exec?{query}", protocol))
            reply = await asyncio.wait_for(reader.read(), 20)
            writer.transport.abort()
    head, _, frames = reply.partition(b"\r\n\r\n")
    assert b" 101 " in head
    assert protocol.encode() in head
    status = json.loads(frames[frames.index(b"{") : frames.rindex(b"}") + 1])
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]


@on_loop
async def test_one_stream_too_many_is_refused(tmp_path: Path) -> None:
    env = system_env(limits=replace(Limits(), agent_streams_max=1))
    authority = Authority.ensure(tmp_path, datetime.now(UTC))
    async with driver_in(tmp_path / "node") as driver, endpoint_of(driver, authority, env) as (_, address):
        await start(driver, "sleep", "600")
        async with dialer_to(address, client_context(tmp_path, authority, *SERVER), env) as dialer:
            reader, writer = await dialer.connect("n")
            writer.write(handshake(f"/pods/{POD.pod_uid}/main/exec?command=sleep&command=600&stdout=true"))
            assert b" 101 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            assert b" 429 " in await get(dialer, f"/pods/{POD.pod_uid}/main/log")
            writer.transport.abort()

            async def is_free() -> bool:
                return b" 429 " not in await get(dialer, f"/pods/{POD.pod_uid}/main/log")

            await eventually(is_free)


@on_loop
async def test_an_idle_stream_is_pinged_so_that_a_client_that_is_gone_is_noticed(tmp_path: Path) -> None:
    """The client neither answers nor closes: only bytes that are sent to it can show that it is gone."""
    env = system_env(limits=replace(Limits(), stream_ping_s=0.05))
    authority = Authority.ensure(tmp_path, datetime.now(UTC))
    async with driver_in(tmp_path / "node") as driver, endpoint_of(driver, authority, env) as (_, address):
        await start(driver, "sleep", "600")
        async with dialer_to(address, client_context(tmp_path, authority, *SERVER), env) as dialer:
            for query in ("exec?command=sleep&command=600&stdout=true", "attach?stdout=true"):
                reader, writer = await dialer.connect("n")
                writer.write(handshake(f"/pods/{POD.pod_uid}/main/{query}"))
                assert b" 101 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
                assert await asyncio.wait_for(reader.readexactly(4), 20) == b"\x89\x00" * 2, "two pings"
                writer.transport.abort()

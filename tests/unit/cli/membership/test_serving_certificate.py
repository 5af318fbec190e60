"""The serving certificate of an agent's endpoint: requested for its own node alone, and renewed before it ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.kit.join_world import JoinWorld, join_world
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import driver_in

from kedge.agent.process.endpoint import AgentEndpoint
from kedge.api.access import NODES
from kedge.api.wellknown import API_SERVERS_GROUP, NODE_KIND, SIGNING_REQUEST_KIND
from kedge.cli.membership.serving_certificate import ServingCertificate
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.limits import Limits
from kedge.server.http.agents import AgentDialer, AgentUnreachable, agent_client_context

QUICK = Limits(certificate_check_s=0.05, agent_retry_s=0.05)
HOST = "127.0.0.1"


def agent_client(world: JoinWorld, node: str) -> Client:
    transport = DirectTransport(world.service, caller=f"system:node:{node}", groups=(NODES,), authorized=True)
    return Client(transport, world.env, component=f"agent-{node}")


async def register(world: JoinWorld, name: str, port: int, address: str = HOST) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    kind = world.client.kinds.of_key_kind(NODE_KIND)
    await world.client.create(kind, {"metadata": {"name": name}, "status": status})


async def requests(world: JoinWorld) -> int:
    return len((await world.client.list(world.client.kinds.of_key_kind(SIGNING_REQUEST_KIND))).objects)


def dialer(world: JoinWorld, folder: Path) -> AgentDialer:
    """The way of a server whose own certificate is valid now, whatever the clock of the cluster."""
    authority = world.identity.authority
    own, trusted = folder / "server.pem", folder / "authority.crt"
    own.write_bytes(authority.issue_client("server", (API_SERVERS_GROUP,), datetime.now(UTC)).pem)
    trusted.write_bytes(authority.own.certificate_pem)
    return AgentDialer(world.service, world.env, agent_client_context(own, trusted))


@asynccontextmanager
async def serving(world: JoinWorld, node: str, endpoint: AgentEndpoint, user: str = "") -> AsyncIterator[None]:
    made = ServingCertificate(
        agent_client(world, user or node),
        world.env,
        node,
        use=endpoint.use_certificate,
        notify=world.notes.append,
    )
    task = asyncio.ensure_future(made.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def connects(way: AgentDialer, node: str) -> bool:
    try:
        _, writer = await way.connect(node)
    except AgentUnreachable:
        return False
    writer.transport.abort()
    return True


@asynccontextmanager
async def endpoint_in(world: JoinWorld, folder: Path) -> AsyncIterator[tuple[AgentEndpoint, int]]:
    async with driver_in(folder) as driver:
        endpoint = AgentEndpoint(driver, world.env)
        authority = world.identity.authority.own.certificate_pem.decode()
        address = await endpoint.start(HOST, 0, authority)
        try:
            yield endpoint, address.port
        finally:
            await endpoint.stop()


@on_loop
async def test_an_expired_certificate_is_refused_and_a_renewed_one_is_used_without_a_restart(tmp_path: Path) -> None:
    """The clock of the cluster is behind, so the first certificate has ended for TLS, which has the real time."""
    async with (
        join_world(tmp_path, QUICK, ahead=timedelta(days=-366)) as world,
        endpoint_in(world, tmp_path / "node") as (endpoint, port),
        serving(world, "node-a", endpoint),
    ):
        way = dialer(world, tmp_path)
        await asyncio.sleep(0.2)
        assert await requests(world) == 0, "without a Node a request would wait for a person"
        await register(world, "node-a", port)

        async def is_requested() -> bool:
            return await requests(world) == 1

        await eventually(is_requested)

        async def is_expired() -> bool:
            with pytest.raises(AgentUnreachable) as caught:
                await way.connect("node-a")
            return "certificate has expired" in str(caught.value)

        await eventually(is_expired)
        left = world.env.metrics.registry.get_sample_value
        assert (left("kedge_agent_certificate_left_seconds", {"node": "node-a"}) or 0) > 0, "by the clock of the agent"
        assert await requests(world) == 1, "no renewal is due"
        world.ahead = timedelta()

        async def is_renewed() -> bool:
            return await connects(way, "node-a")

        await eventually(is_renewed)
        assert await requests(world) == 2


@on_loop
async def test_an_agent_gets_no_certificate_of_another_node_and_its_own_is_refused_there(tmp_path: Path) -> None:
    async with (
        join_world(tmp_path, QUICK) as world,
        endpoint_in(world, tmp_path / "node") as (endpoint, port),
    ):
        way = dialer(world, tmp_path)
        await register(world, "node-a", port)
        await register(world, "node-b", port)
        async with serving(world, "node-b", endpoint, user="node-a"):

            async def waits() -> bool:
                return any("waits for approval" in each for each in world.notes)

            await eventually(waits)
            assert not await connects(way, "node-b")
        async with serving(world, "node-a", endpoint):

            async def is_served() -> bool:
                return await connects(way, "node-a")

            await eventually(is_served)
            with pytest.raises(AgentUnreachable, match="is not the agent of node node-b"):
                await way.connect("node-b")


@on_loop
async def test_a_certificate_of_an_agent_does_not_pass_for_that_of_a_server(tmp_path: Path) -> None:
    """The agent listens on the address of the server, and its Node and its name claim that address too."""
    async with (
        join_world(tmp_path, QUICK) as world,
        endpoint_in(world, tmp_path / "node") as (endpoint, port),
        serving(world, "localhost", endpoint),
    ):
        await register(world, "localhost", port)
        way = dialer(world, tmp_path)

        async def is_served() -> bool:
            return await connects(way, "localhost")

        await eventually(is_served)
        client = ssl.create_default_context(cadata=world.identity.authority.own.certificate_pem.decode())
        for name in (HOST, "localhost"):
            with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
                await asyncio.open_connection(HOST, port, ssl=client, server_hostname=name)

"""Services on a node: addresses that stay, proxies that follow endpoints, and names for processes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.loops import eventually, on_loop
from tests.kit.process_nodes import driver_in, log_of, start

from kedge.agent.process.services import ServiceProxies
from kedge.agent.process.services.addresses import ServiceAddresses, service_subnet
from kedge.agent.process.services.names import hosts_text, service_variables
from kedge.agent.process.services.plan import ServiceName, ServicePortPlan, plan_ports
from kedge.api.kinds import KINDS
from kedge.api.views import EndpointSliceView, ServiceView, decode_view
from kedge.api.wellknown import ENDPOINT_SLICE_KIND, NODE_KIND, SERVICE_KIND, SERVICE_NAME_LABEL
from kedge.client.contract import Client
from kedge.client.direct import DirectTransport
from kedge.env import Env, system_env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.server.service import Service
from kedge.store.memory import MemoryStore

FEATURES = ServiceName("default", "features")
BOOT = "this-machine"


def service_body(name: str = "features", port: int = 18190, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": port, "targetPort": 9}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": ports, **spec}}


def slice_body(*endpoints: tuple[str, bool], port: int, node: str = "n", service: str = "features") -> dict[str, Any]:
    return {
        "metadata": {"name": f"{service}-0", "namespace": "default", "labels": {SERVICE_NAME_LABEL: service}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": ready}, "nodeName": node} for address, ready in endpoints
        ],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


class NodeServices:
    """Proxies of one node on a real service of the API."""

    def __init__(self, client: Client, proxies: ServiceProxies) -> None:
        self.client = client
        self.proxies = proxies

    async def create(self, kind: str, body: dict[str, Any]) -> None:
        await self.client.create(KINDS.of_key_kind(kind), body)

    async def endpoints(self, *endpoints: tuple[str, bool], port: int) -> None:
        key = Key(ENDPOINT_SLICE_KIND, "default", "features-0")
        body = slice_body(*endpoints, port=port)
        if await self.client.find(key) is None:
            await self.create(ENDPOINT_SLICE_KIND, body)
        else:
            await self.client.patch(key, {"endpoints": body["endpoints"]})

    @property
    def address(self) -> str:
        return self.proxies.variables("default").get("FEATURES_SERVICE_HOST", "")


@asynccontextmanager
async def node_services(folder: Path, *, limits: Limits | None = None) -> AsyncIterator[NodeServices]:
    env: Env = system_env(limits=limits)
    store = MemoryStore(env)
    client = Client(DirectTransport(Service(store, env)), env, component="test")
    await client.create(KINDS.of_key_kind("Namespace"), {"metadata": {"name": "default"}})
    for name, boot in (("n", BOOT), ("far", "another-machine")):
        await client.create(
            KINDS.of_key_kind(NODE_KIND), {"metadata": {"name": name}, "status": {"nodeInfo": {"bootID": boot}}}
        )
    proxies = ServiceProxies(client, env, folder, boot_id=BOOT)
    running = env.spawn(proxies.run(), name="services")
    try:
        yield NodeServices(client, proxies)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await store.close()


@asynccontextmanager
async def backends(*addresses: str) -> AsyncIterator[int]:
    """Servers that answer with their address and then echo. Returns their port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(f"{writer.get_extra_info('sockname')[0]}\n".encode())
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    port = 0
    async with AsyncExitStack() as stack:
        for address in addresses:
            server = await asyncio.start_server(serve, address, port)
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
        yield port


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def answer(address: str, port: int) -> str:
    """The name that the endpoint behind a Service answers with; empty if the connection is refused or cut."""
    try:
        reader, writer = await asyncio.open_connection(address, port)
        line = await asyncio.wait_for(reader.readline(), 10)
        writer.close()
    except OSError:
        return ""
    return line.decode().strip()


def answers(node: NodeServices, port: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return bool(node.address) and bool(await answer(node.address, port))

    return look


# -- proxies -----------------------------------------------------------------------------------------


@on_loop
async def test_connections_go_to_ready_endpoints_in_turn(tmp_path: Path) -> None:
    port = free_port()
    async with node_services(tmp_path) as node, backends("127.63.9.1", "127.63.9.2", "127.63.9.3") as target:
        await node.create(SERVICE_KIND, service_body(port=port))
        await node.endpoints(("127.63.9.1", True), ("127.63.9.2", True), ("127.63.9.3", False), port=target)
        await eventually(answers(node, port))
        assert node.address.startswith(service_subnet(tmp_path))
        found = [await answer(node.address, port) for _ in range(4)]
        assert sorted(found) == ["127.63.9.1", "127.63.9.1", "127.63.9.2", "127.63.9.2"]


@on_loop
async def test_bytes_pass_unchanged_and_a_half_closed_connection_stays_one(tmp_path: Path) -> None:
    port, many = free_port(), os.urandom(3 * 1024 * 1024)
    async with node_services(tmp_path) as node, backends("127.63.9.1") as target:
        await node.create(SERVICE_KIND, service_body(port=port))
        await node.endpoints(("127.63.9.1", True), port=target)
        await eventually(answers(node, port))
        reader, writer = await asyncio.open_connection(node.address, port)
        await reader.readline()

        async def send() -> None:
            writer.write(many)
            await writer.drain()
            writer.write_eof()

        _, found = await asyncio.gather(send(), reader.read(-1))
        assert found == many
        writer.close()


@on_loop
async def test_an_endpoint_that_goes_takes_its_connections_along(tmp_path: Path) -> None:
    port = free_port()
    async with node_services(tmp_path) as node, backends("127.63.9.1", "127.63.9.2") as target:
        await node.create(SERVICE_KIND, service_body(port=port))
        await node.endpoints(("127.63.9.1", True), port=target)
        await eventually(answers(node, port))
        reader, writer = await asyncio.open_connection(node.address, port)
        await reader.readline()

        await node.endpoints(("127.63.9.1", False), ("127.63.9.2", True), port=target)

        async def moved() -> bool:
            return await answer(node.address, port) == "127.63.9.2"

        await eventually(moved)
        writer.write(b"still\n")
        assert await asyncio.wait_for(reader.readline(), 10) == b"still\n", "an unready endpoint keeps what it has"

        await node.endpoints(("127.63.9.2", True), port=target)
        with suppress(OSError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert await answer(node.address, port) == "127.63.9.2"


@on_loop
async def test_a_service_without_endpoints_refuses_and_one_dead_endpoint_is_skipped(tmp_path: Path) -> None:
    port = free_port()
    async with node_services(tmp_path) as node, backends("127.63.9.2") as target:
        await node.create(SERVICE_KIND, service_body(port=port))
        await eventually(lambda: node.address != "")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(node.address, port)
        await node.endpoints(("127.63.9.1", True), ("127.63.9.2", True), port=target)
        await eventually(answers(node, port))
        assert {await answer(node.address, port) for _ in range(4)} == {"127.63.9.2"}
        await node.endpoints(port=target)

        async def refused() -> bool:
            return await answer(node.address, port) == ""

        await eventually(refused)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(node.address, port)


@on_loop
async def test_one_connection_too_many_is_cut(tmp_path: Path) -> None:
    port = free_port()
    limits = replace(Limits(), service_connections_max=1)
    async with node_services(tmp_path, limits=limits) as node, backends("127.63.9.1") as target:
        await node.create(SERVICE_KIND, service_body(port=port))
        await node.endpoints(("127.63.9.1", True), port=target)
        await eventually(answers(node, port))

        async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
            reader, writer = await asyncio.open_connection(node.address, port)
            with suppress(OSError):
                if await reader.readline():
                    return reader, writer
            writer.close()
            return None

        first: list[Any] = []

        async def has_first() -> bool:  # the look before has to end
            first.append(await opened())
            return first[-1] is not None

        await eventually(has_first)
        assert await opened() is None
        first[-1][1].close()
        await eventually(answers(node, port))


@on_loop
async def test_an_address_survives_a_restart_and_goes_with_its_service(tmp_path: Path) -> None:
    port = free_port()
    async with node_services(tmp_path) as node:
        await node.create(SERVICE_KIND, service_body("first", port))
        await node.create(SERVICE_KIND, service_body(port=port))
        await eventually(lambda: node.address != "")
        before = node.address
    assert ServiceAddresses(tmp_path, services_max=250).held[FEATURES] == before
    async with node_services(tmp_path) as node:
        await node.create(SERVICE_KIND, service_body(port=port))
        await eventually(lambda: node.address != "")
        assert node.address == before
        await node.client.delete(Key(SERVICE_KIND, "default", "features"))
        await eventually(lambda: node.address == "")


# -- plans, addresses, names -------------------------------------------------------------------------


def view_of(kind: str, body: dict[str, Any]) -> Any:
    return decode_view(KINDS.of_key_kind(kind), msgspec.json.encode(body))


def planned(service: dict[str, Any], *slices: dict[str, Any]) -> tuple[ServicePortPlan, ...]:
    found: ServiceView = view_of(SERVICE_KIND, service)
    views: list[EndpointSliceView] = [view_of(ENDPOINT_SLICE_KIND, each) for each in slices]
    return plan_ports([found], views, {"n": BOOT, "far": "another-machine"}, BOOT)


def test_a_loopback_endpoint_of_another_machine_is_not_used() -> None:
    far = slice_body(("127.70.0.1", True), port=8080, node="far")
    (plan,) = planned(service_body(), far)
    assert plan.ready == ()
    assert plan.known == frozenset()
    (plan,) = planned(service_body(), slice_body(("10.0.0.7", True), port=8080, node="far"))
    assert plan.ready == (("10.0.0.7", 8080),)


def test_headless_services_aliases_and_other_protocols_have_no_port() -> None:
    assert planned(service_body(clusterIP="None")) == ()
    assert planned(service_body(type="ExternalName", externalName="example.org")) == ()
    assert planned(service_body(ports=[{"port": 53, "protocol": "UDP"}])) == ()


def test_addresses_are_distinct_and_bounded(tmp_path: Path) -> None:
    names = [ServiceName("default", f"s{number:03}") for number in range(300)]
    addresses = ServiceAddresses(tmp_path, services_max=250)
    left_out = addresses.keep(names)
    assert len(set(addresses.held.values())) == 250
    assert len(left_out) == 50
    kept = dict(addresses.held)
    addresses.keep([*names[:10], *left_out])
    assert {name: addresses.held[name] for name in names[:10]} == {name: kept[name] for name in names[:10]}


def test_an_unreadable_file_of_addresses_costs_only_the_choice(tmp_path: Path) -> None:
    addresses = ServiceAddresses(tmp_path, services_max=250)
    addresses.keep([FEATURES])
    chosen = addresses.held[FEATURES]
    (tmp_path / "services.json").write_text('{"half')
    again = ServiceAddresses(tmp_path, services_max=250)
    assert again.held == {}
    again.keep([FEATURES])
    assert again.held[FEATURES] == chosen


def test_names_are_those_of_kubernetes() -> None:
    plan = ServicePortPlan(ServiceName("default", "risk-api"), "http-x", 80, (), frozenset())
    addresses = {plan.service: "127.200.0.1", ServiceName("other", "db"): "127.200.0.2"}
    assert service_variables("default", [plan], addresses) == {
        "RISK_API_SERVICE_HOST": "127.200.0.1",
        "RISK_API_SERVICE_PORT": "80",
        "RISK_API_SERVICE_PORT_HTTP_X": "80",
    }
    assert service_variables("other", [plan], addresses) == {}
    lines = hosts_text("default", addresses).splitlines()
    assert lines[-2] == "127.200.0.1\trisk-api risk-api.default.svc.cluster.local risk-api.default.svc risk-api.default"
    assert lines[-1] == "127.200.0.2\tdb.other.svc.cluster.local db.other.svc db.other"


@on_loop
async def test_processes_get_variables_and_a_hosts_file(tmp_path: Path) -> None:
    port = free_port()
    folder = tmp_path / "node"
    async with node_services(folder) as node, driver_in(folder, services=node.proxies) as driver:
        await node.create(SERVICE_KIND, service_body(port=port))
        await eventually(lambda: node.address != "")
        await start(driver, "sh", "-c", "echo $FEATURES_SERVICE_HOST:$FEATURES_SERVICE_PORT; cat /etc/hosts; sleep 600")
        await eventually(lambda: "localhost" in log_of(tmp_path / "node"))
        assert f"{node.address}:{port}" in log_of(tmp_path / "node")
        hosts = (tmp_path / "node" / "hosts" / "default").read_text()
        assert f"{node.address}\tfeatures " in hosts
        if os.geteuid() == 0:
            assert f"{node.address}\tfeatures " in log_of(tmp_path / "node")

"""The HTTP server and transport, unchanged, over simulated connections that stall and break between any two bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.kit.api_server import TrustingAuthenticator

from kedge.api.kinds import KINDS
from kedge.api.requests import EventType, ListOptions, WatchOptions
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, ServerAddress
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.sim.kernel import Host, Simulation, run
from kedge.store.memory import MemoryStore

CONFIG_MAP, NAMESPACE = KINDS.of_key_kind("ConfigMap"), KINDS.of_key_kind("Namespace")
PORT = 8080
WANTED = 12


async def serve(host: Host) -> Service:
    """An API server on one host. Its store outlives nothing: no fault kills this host."""
    env = host.env()
    service = Service(MemoryStore(env), env)
    await service.create(NAMESPACE, {"metadata": {"name": "default"}})
    server = ApiServer(service, env, authenticator=TrustingAuthenticator())
    await server.start("", PORT, None)
    return service


def client_on(host: Host, name: str) -> Client:
    return Client(HttpTransport(ServerAddress("api", PORT)), host.env(), component=name)


async def operator(client: Client, seen: dict[str, int]) -> None:
    """The traffic of an operator: list, watch from there, patch every object once; list again when a watch breaks."""
    while True:
        with suppress(OperatingError):
            listed = await client.list(CONFIG_MAP, ListOptions(namespace="default"))
            seen.clear()
            seen.update({each.key.name: each.revision for each in listed.objects})
            options = WatchOptions(
                namespace="default", resource_version=str(listed.revision), allow_bookmarks=True, timeout_s=60
            )
            for name in list(seen):
                await handle(client, name)
            async for event in await client.watch(CONFIG_MAP, options):
                if event.object is None:
                    continue
                if event.type is EventType.DELETED:
                    seen.pop(event.object.key.name, None)
                else:
                    seen[event.object.key.name] = event.object.revision
                    await handle(client, event.object.key.name)
        await asyncio.sleep(1)


async def handle(client: Client, name: str) -> None:
    """Mark an object as handled; safe to repeat."""
    await client.patch(Key("ConfigMap", "default", name), {"metadata": {"annotations": {"operator/handled": "yes"}}})


async def user(client: Client) -> None:
    for number in range(WANTED):
        while True:
            with suppress(OperatingError):
                await client.ensure(CONFIG_MAP, {"metadata": {"name": f"c{number}"}}, namespace="default")
                break
            await asyncio.sleep(1)


async def program(sim: Simulation) -> None:
    api, worker, person = sim.host("api"), sim.host("worker"), sim.host("person")
    service = await api.run(serve(api))
    seen: dict[str, int] = {}
    worker.spawn(operator(client_on(worker, "operator"), seen), name="operator")
    working = person.spawn(user(client_on(person, "user")), name="user")
    await asyncio.sleep(60)
    sim.heal()
    await working

    async def committed() -> dict[str, int]:
        listed = await service.list(CONFIG_MAP)
        return {each.key.name: each.revision for each in listed.objects}

    for _ in range(300):
        found = await committed()
        handled = [each for each in (await service.list(CONFIG_MAP)).objects if b"operator/handled" in each.value]
        if len(found) == len(handled) == WANTED and found == seen:
            return
        await asyncio.sleep(1)
    sim.violate("the operator converges", f"committed {await committed()}, seen {seen}")


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_an_operator_converges_over_connections_that_break_between_bytes(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = run(program, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


def test_faults_do_strike_between_bytes() -> None:
    struck = sum("bytes of" in each.text for seed in range(10) for each in run(program, seed).faults)
    assert struck > 5


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in range(3):
        assert run(program, seed).hash == run(program, seed).hash

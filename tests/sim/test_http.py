"""The HTTP server and transport, unchanged, over simulated connections that stall and break between any two bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest
from tests.kit.api_server import TrustingAuthenticator

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Create, EventType, ListOptions, WatchOptions
from kedge.client.contract import Client
from kedge.client.http import HttpTransport, ServerAddress
from kedge.errors import AlreadyExists, NotFound, OperatingError, Unavailable
from kedge.keys import Key
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.sim.kernel import Host, Simulation, run
from kedge.store.memory import MemoryStore

CONFIG_MAP, NAMESPACE = KINDS.of_key_kind("ConfigMap"), KINDS.of_key_kind("Namespace")
EVENT = KINDS.of_key_kind("Event")
PORT = 8080
WANTED = 12
FINALIZER, HANDLED = "operator/finalizer", "operator/handled"
_T = TypeVar("_T")


async def serve(host: Host) -> Service:
    """An API server on one host. Its store outlives nothing: no fault kills this host."""
    env = host.env()
    service = Service(MemoryStore(env), env)
    await service.create(NAMESPACE, {"metadata": {"name": "default"}})
    await start(host, service)
    return service


async def start(host: Host, service: Service) -> ApiServer:
    server = ApiServer(service, host.env(), authenticator=TrustingAuthenticator())
    await server.start("", PORT, None)
    return server


def client_on(host: Host, name: str) -> Client:
    return Client(HttpTransport(ServerAddress("api", PORT)), host.env(), component=name)


async def operator(client: Client, seen: dict[str, int]) -> None:
    """The traffic of an operator on kopf: list, watch from there, write Events, patch in a finalizer and a mark,
    release objects that are being deleted; list again when a watch breaks."""
    while True:
        with suppress(OperatingError):
            listed = await client.list(CONFIG_MAP, ListOptions(namespace="default"))
            seen.clear()
            seen.update({each.key.name: each.revision for each in listed.objects})
            options = WatchOptions(
                namespace="default", resource_version=str(listed.revision), allow_bookmarks=True, timeout_s=60
            )
            for each in listed.objects:
                await handle(client, each)
            async for event in await client.watch(CONFIG_MAP, options):
                if event.object is None:
                    continue
                if event.type is EventType.DELETED:
                    seen.pop(event.object.key.name, None)
                else:
                    seen[event.object.key.name] = event.object.revision
                    await handle(client, event.object)
        await asyncio.sleep(1)


async def handle(client: Client, found: Object) -> None:
    """Take an object over, or release it if it is being deleted. Each step is safe to repeat."""
    metadata = found.edit()["metadata"]
    finalizers = metadata.get("finalizers", [])
    with suppress(NotFound):
        if "deletionTimestamp" in metadata:
            if FINALIZER in finalizers:
                await write_event(client, found, "Released")
                kept = [each for each in finalizers if each != FINALIZER]
                await client.patch(found.key, {"metadata": {"finalizers": kept}})
        elif FINALIZER not in finalizers or HANDLED not in metadata.get("annotations", {}):
            wanted = {"finalizers": [FINALIZER], "annotations": {HANDLED: "yes"}}
            await write_event(client, found, "Handled")
            await client.patch(found.key, {"metadata": wanted})


async def write_event(client: Client, about: Object, reason: str) -> None:
    reference = {"kind": "ConfigMap", "namespace": "default", "name": about.key.name, "uid": about.uid}
    body = {"metadata": {"name": f"{about.key.name}.{reason.lower()}"}, "involvedObject": reference, "reason": reason}
    with suppress(AlreadyExists):
        await client.create(EVENT, body, namespace="default")


async def user(client: Client) -> None:
    """Create objects; delete every third once the operator has taken it over."""
    for number in range(WANTED):
        key = Key("ConfigMap", "default", f"c{number}")
        await until_done(partial(client.ensure, CONFIG_MAP, {"metadata": {"name": key.name}}, namespace="default"))
        if number % 3:
            continue
        await until_done(partial(get_finalized, client, key))
        with suppress(NotFound):
            await until_done(partial(client.delete, key))


async def get_finalized(client: Client, key: Key) -> Object:
    found = await client.get(key)
    if FINALIZER.encode() not in found.value:
        raise Unavailable(f"the operator has not taken {key} over yet")
    return found


async def until_done(send: Callable[[], Awaitable[_T]]) -> _T:
    while True:
        try:
            return await send()
        except NotFound:
            raise
        except OperatingError:
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

    names = {f"c{number}" for number in range(WANTED)}
    kept = {f"c{number}" for number in range(WANTED) if number % 3}
    events = {f"{name}.handled" for name in names} | {f"{name}.released" for name in names - kept}
    for _ in range(300):
        objects = (await service.list(CONFIG_MAP)).objects
        written = {each.key.name for each in (await service.list(EVENT)).objects}
        handled = {each.key.name for each in objects if HANDLED.encode() in each.value}
        if (
            {each.key.name: each.revision for each in objects} == seen
            and handled == {each.key.name for each in objects} == kept
            and written == events
        ):
            return
        await asyncio.sleep(1)
    sim.violate("the operator converges", f"committed {objects}, seen {seen}, events {written ^ events} differ")


@pytest.mark.parametrize("first", range(0, 50, 10))
def test_an_operator_converges_over_connections_that_break_between_bytes(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = run(program, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


async def busy_program(sim: Simulation) -> None:
    """Many writers at once on one client, so that their writes leave in batches."""
    api, worker = sim.host("api"), sim.host("worker")
    service = await api.run(serve(api))
    client = client_on(worker, "worker")
    made: list[str] = []

    async def writer(number: int) -> None:
        for turn in range(3):
            while True:
                with suppress(OperatingError):
                    body = {"metadata": {"name": f"c{number}-{turn}"}}
                    made.append((await client.ensure(CONFIG_MAP, body, namespace="default")).object.key.name)
                    break
                await asyncio.sleep(1)

    working = [worker.spawn(writer(number), name=f"writer {number}") for number in range(24)]
    await asyncio.sleep(60)
    sim.heal()
    for each in working:
        await each
    committed = sorted(each.key.name for each in (await service.list(CONFIG_MAP)).objects)
    if committed != sorted(made):
        sim.violate("every acknowledged write is there, once", f"committed {committed}, acknowledged {sorted(made)}")


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_batches_of_writes_lose_nothing_over_connections_that_break_between_bytes(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = run(busy_program, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


async def restarted_program(sim: Simulation) -> None:
    """Servers stop and start again under steady writes, on a network without faults: every write has an outcome."""
    sim.heal()
    api, worker = sim.host("api"), sim.host("worker")
    env = api.env()
    service = Service(MemoryStore(env), env)
    await api.run(service.create(NAMESPACE, {"metadata": {"name": "default"}}))
    transport = HttpTransport(ServerAddress("api", PORT))
    made: list[str] = []
    refused: list[str] = []

    async def writer(number: int) -> None:
        for turn in range(40):
            name = f"c{number}-{turn}"
            try:
                await transport.send(Create(CONFIG_MAP, {"metadata": {"name": name}}, "default"))
                made.append(name)
            except Unavailable:
                refused.append(name)
            await asyncio.sleep(0.05)

    async def restarts() -> None:
        for _ in range(3):
            server = await start(api, service)
            await asyncio.sleep(0.3)
            await server.stop()
        await start(api, service)

    served = api.spawn(restarts(), name="restarts")
    working = [worker.spawn(writer(number), name=f"writer {number}") for number in range(3)]
    for each in working:
        await each
    await served
    committed = sorted(each.key.name for each in (await service.list(CONFIG_MAP)).objects)
    if committed != sorted(made) or not refused:
        sim.violate("a stopping server answers", f"committed {committed}, acknowledged {sorted(made)}")


def test_a_server_that_stops_leaves_no_write_without_an_outcome() -> None:
    for seed in range(10):
        outcome = run(restarted_program, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-3000:]}"


def test_faults_do_strike_between_bytes() -> None:
    struck = sum("bytes of" in each.text for seed in range(10) for each in run(program, seed).faults)
    assert struck > 5


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in range(3):
        assert run(program, seed).hash == run(program, seed).hash

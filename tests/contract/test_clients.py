"""The client contract on every transport: in process, over HTTP, and both kinds of simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.kit.api_server import TrustingAuthenticator

from kedge.client.conformance import ClientSubject, MakeSubject, check_client, client_check_names
from kedge.client.direct import DirectTransport
from kedge.client.http import HttpTransport, ServerAddress
from kedge.env import Env, system_env
from kedge.limits import Limits
from kedge.server.http.server import ApiServer
from kedge.server.service import Service
from kedge.sim.cluster.links import API, RemoteTransport, Served
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run
from kedge.store.memory import MemoryStore

LIMITS = Limits(client_backoff_s=0.01, client_backoff_s_max=0.02, breaker_failures_max=100)
PORT = 8080
TRUSTED = "test", ("system:masters",)
"""The user of `TrustingAuthenticator`."""


@asynccontextmanager
async def direct() -> AsyncIterator[ClientSubject]:
    env = system_env(limits=LIMITS)
    store = MemoryStore(env)
    service = Service(store, env)
    yield ClientSubject(DirectTransport(service), DirectTransport(service), env, lambda: forget(store))
    await store.close()


async def forget(store: MemoryStore) -> None:
    await store.compact(await store.revision())


@asynccontextmanager
async def served(env: Env, store: MemoryStore) -> AsyncIterator[int]:
    server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
    port = await server.start("127.0.0.1", 0, None)
    try:
        yield port
    finally:
        await server.stop()
        await store.close()


@asynccontextmanager
async def over_http() -> AsyncIterator[ClientSubject]:
    env = system_env(limits=LIMITS)
    store = MemoryStore(env)
    async with served(env, store) as port:
        one, other = (HttpTransport(ServerAddress("127.0.0.1", port)) for _ in range(2))
        yield ClientSubject(one, other, env, lambda: forget(store), *TRUSTED)
        await one.close()
        await other.close()


def simulated(api: Host, client: Host) -> MakeSubject:
    """The simulator's own transport between hosts."""

    @asynccontextmanager
    async def make() -> AsyncIterator[ClientSubject]:
        env = api.env(limits=LIMITS)
        store = MemoryStore(env)
        api.serve(API, Served(Service(store, env)))
        remote, other = (RemoteTransport(client.remote(api, API)) for _ in range(2))
        yield ClientSubject(remote, other, client.env(limits=LIMITS), lambda: forget(store))

    return make


def simulated_http(api: Host, client: Host) -> MakeSubject:
    """The HTTP server and transport over simulated connections."""

    @asynccontextmanager
    async def make() -> AsyncIterator[ClientSubject]:
        env = api.env(limits=LIMITS)
        store = MemoryStore(env)
        server = ApiServer(Service(store, env), env, authenticator=TrustingAuthenticator())
        await api.run(server.start("", PORT, None))
        one, other = (HttpTransport(ServerAddress("api", PORT)) for _ in range(2))
        yield ClientSubject(one, other, client.env(limits=LIMITS), lambda: forget(store), *TRUSTED)

    return make


@pytest.mark.parametrize("check", client_check_names())
def test_the_direct_transport_keeps_the_contract(check: str) -> None:
    asyncio.run(check_client(direct, only=[check]))


@pytest.mark.parametrize("check", client_check_names())
def test_the_http_transport_keeps_the_contract(check: str) -> None:
    asyncio.run(check_client(over_http, only=[check]))


@pytest.mark.parametrize("check", client_check_names())
@pytest.mark.parametrize("make", [simulated, simulated_http])
def test_the_simulated_transports_keep_the_contract(make: Callable[[Host, Host], MakeSubject], check: str) -> None:
    async def program(sim: Simulation) -> None:
        api, client = sim.host("api"), sim.host("client")
        await client.run(check_client(make(api, client), only=[check]))

    for seed in range(3):
        outcome = run(program, seed, faults=NO_FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"

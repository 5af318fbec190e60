"""A world of the SQLite store: its machine loses power during syncs, its process crashes, and its disk is full.

The store is in the process of a server, as in `kedge up`. In the other worlds it is in memory, and survives.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.wellknown import CONFIG_MAP_KIND, NAMESPACE_KIND
from kedge.client.contract import Client
from kedge.errors import OperatingError
from kedge.keys import Key, Revision
from kedge.runtime.cache import Cache, CacheSet
from kedge.server.service import Service
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.links import API, RemoteTransport, Served
from kedge.sim.cluster.sqlite_machine import SqliteMachine
from kedge.sim.kernel import Host, Simulation, simulate
from kedge.sim.zoo.worlds.base import QUIET

CONFIG_MAP = KINDS.of_key_kind(CONFIG_MAP_KIND)
SURVIVES = "acknowledged commits survive"
HONEST = "an honest disk raises no alarm"
LIMITS = replace(QUIET, wal_pages_max=12, store_reserve_bytes=16_384)
SIZES = (200, 4_000, 40_000)
"""Characters of an object. The largest ones need pages of their own."""
CUT, TORN, FULL = "the power was cut during a sync", "a part of a sync was left", "the disk was full"
REOPENED = "a store was opened again after a crash of its process"


class WrittenObjects:
    """The requests of all users, and those that were acknowledged. Each name is created and deleted at most once."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.created: dict[str, None] = {}
        """Acknowledged creates, without the objects whose deletion was requested."""
        self.deleted: dict[str, None] = {}
        """Acknowledged deletes."""
        self.revision: Revision = 0

    def check(self, names: set[str], revision: Revision, alarms: tuple[str, ...]) -> None:
        """Compare with a store that was just opened."""
        lost = next((name for name in self.created if name not in names), "")
        back = next((name for name in self.deleted if name in names), "")
        if lost or back:
            which = f"{lost} was created" if lost else f"{back} was deleted"
            self._sim.violate(SURVIVES, f"{which} and acknowledged, and the store that was opened again differs")
        if revision < self.revision:
            self._sim.violate(SURVIVES, f"revision {self.revision} was acknowledged, and the store is at {revision}")
        if any("lost" in each for each in alarms):
            self._sim.violate(HONEST, "the store reports lost commits after a power cut", cause="false alarm")


@simulate(faults=ClusterSwarm(), marks=(CUT, TORN, FULL, REOPENED))
async def disks(sim: Simulation) -> None:
    """Two users create and delete objects, and a cache follows, while the server and its disk fail."""
    server = sim.host("api-0")
    machine, written = SqliteMachine(sim, server), WrittenObjects(sim)
    server.boot(lambda host: _serve(host, machine, written, sim))
    reader = sim.host("reader")
    cache = CacheSet(_client(reader, server), reader.env(limits=LIMITS)).cache(CONFIG_MAP)
    async with asyncio.TaskGroup() as group:
        for n in range(2):
            host = sim.host(f"user-{n}")
            group.create_task(_churn(sim, host, _client(host, server), written))
    sim.heal()
    if machine.store is not None:
        machine.free_disk(machine.store)
    host = sim.host("last-user")
    await _last_write(host, _client(host, server))
    _expect_equal_views(sim, machine, cache)
    await sim.converge(within_s=200, every_s=1.0, stays_s=2.0)


async def _serve(host: Host, machine: SqliteMachine, written: WrittenObjects, sim: Simulation) -> None:
    env = host.env(limits=LIMITS)
    reopened = machine.store is not None
    store = await machine.open_store(env)
    sim.sometimes(REOPENED, reopened)
    found = await store.list(CONFIG_MAP_KIND)
    statistics = store.statistics()
    written.check({each.key.name for each in found.entries}, found.revision, statistics.alarms)
    service = Service(store, env)
    if await store.revision() == 0:
        await service.create(KINDS.of_key_kind(NAMESPACE_KIND), {"metadata": {"name": "default"}})
    host.serve(API, Served(service))
    await service.run_upkeep()


def _client(host: Host, server: Host) -> Client:
    return Client(RemoteTransport(host.remote(server, API)), host.env(limits=LIMITS), component=host.name)


async def _churn(sim: Simulation, host: Host, client: Client, written: WrittenObjects) -> None:
    mine: list[str] = []
    for n in range(sim.choose_int("steps", 4, 10)):
        if mine and sim.choose("step", ("create", "create", "delete")) == "delete":
            name = mine.pop(0)
            written.created.pop(name, None)
            reply = await _try(host, client.delete(Key(CONFIG_MAP_KIND, "default", name)))
            if reply is not None:
                written.deleted[name] = None
        else:
            name = f"{host.name}-{n}"
            reply = await _try(host, client.create(CONFIG_MAP, _map(name, sim.choose("size", SIZES))))
            if reply is not None:
                mine.append(name)
                written.created[name] = None
                written.revision = max(written.revision, reply.object.revision)
        await asyncio.sleep(sim.choose("pause", (0.2, 3, 0.01, 10)))


async def _try(host: Host, request: Any) -> Any:
    """The reply, or None if the outcome is unknown or nothing was written."""
    try:
        return await host.run(request)
    except OperatingError:
        return None


async def _last_write(host: Host, client: Client) -> None:
    """Without faults a write succeeds, after some attempts."""
    for n in range(60):
        if await _try(host, client.create(CONFIG_MAP, _map(f"last-{n}", SIZES[0]))) is not None:
            return
        await asyncio.sleep(2)


def _expect_equal_views(sim: Simulation, machine: SqliteMachine, cache: Cache) -> None:
    def the_store_takes_writes_again() -> bool:
        store = machine.store
        return store is not None and any(name.startswith("last-") for name in _names(store))

    def the_cache_equals_the_store() -> bool:
        store = machine.store
        if store is None or not cache.synced:
            return False
        return {each.key.name for each in cache.list().value} == _names(store)

    sim.check_eventually(the_store_takes_writes_again, the_cache_equals_the_store)


def _names(store: Any) -> set[str]:
    return {each.key.name for each in store.newest_versions() if each.key.kind == CONFIG_MAP_KIND}


def _map(name: str, size: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"text": "x" * size},
    }

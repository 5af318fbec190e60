"""Three planted bugs, each of a kind that real control planes shipped, and one correct program."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import Host, Simulation, safety, simulate


@dataclass(frozen=True)
class Commit:
    """One change of the register, as invariants see it."""

    names: tuple[str, ...]
    value: int
    acknowledged: int


class Register:
    """A tiny store: a number and a list of names. It is correct; the bugs are in its clients."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.value = 0
        self.revision = 0
        self.names: list[str] = []
        self.acknowledged = 0

    def _committed(self) -> None:
        self.revision += 1
        self.sim.commit(Commit(tuple(self.names), self.value, self.acknowledged))

    async def read(self) -> tuple[int, int]:
        return self.value, self.revision

    async def write(self, value: int) -> None:
        self.value = value
        self._committed()

    async def write_at(self, value: int, revision: int) -> bool:
        if revision != self.revision:
            return False
        self.value = value
        self._committed()
        return True

    async def create(self, name: str) -> None:
        self.names.append(name)
        self._committed()

    async def list(self) -> list[str]:
        return list(self.names)


@simulate(seeds=1_000)
async def lost_update(sim: Simulation) -> None:
    """Two clients read, add one and write back, without a check of the revision they read."""
    register = Register(sim)
    server = sim.host("server")
    server.serve("register", register)
    added = [0]

    async def add(host: Host) -> None:
        remote = host.remote(server, "register")
        for _ in range(sim.choose_int(f"adds of {host.name}", 1, 5)):
            try:
                value, _ = await remote.read()
                await remote.write(value + 1)
                added[0] += 1
            except (OutcomeUnknown, Unavailable):
                return
            await asyncio.sleep(1)

    clients = [sim.host(name) for name in ("a", "b")]
    await asyncio.gather(*[host.run(add(host)) for host in clients])
    if register.value < added[0]:
        sim.violate("no acknowledged add is lost", f"{added[0]} adds, and the register holds {register.value}")


@safety
def no_name_is_taken_twice(step: Commit) -> Iterator[tuple[str, str]]:
    """A name belongs to one object."""
    for name in sorted(set(step.names)):
        if step.names.count(name) > 1:
            yield "duplicate", f"{name} was created {step.names.count(name)} times"


@simulate(seeds=1_000, marks=("a reply was lost",))
async def duplicate_create(sim: Simulation) -> None:
    """A client treats a timeout as a failure and creates again."""
    register = Register(sim)
    sim.check_always(no_name_is_taken_twice)
    server, client = sim.host("server"), sim.host("client")
    server.serve("register", register)
    remote = client.remote(server, "register", timeout_s=1.0)

    async def ensure(name: str) -> None:
        while True:
            try:
                await remote.create(name)
            except (OutcomeUnknown, Unavailable):
                sim.sometimes("a reply was lost", name in register.names)
                await asyncio.sleep(1)
                continue
            return

    async def work() -> None:
        for index in range(sim.choose_int("objects", 1, 8)):
            await ensure(f"pod-{index}")

    await client.run(work())


@simulate(seeds=1_000)
async def deadlock(sim: Simulation) -> None:
    """Two workers take two locks in opposite orders."""
    host, other = sim.host("worker"), sim.host("other")
    quota, node = asyncio.Lock(), asyncio.Lock()

    async def bind(first: asyncio.Lock, second: asyncio.Lock, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        async with first:
            await asyncio.sleep(0)
            async with second:
                await asyncio.sleep(0)

    pauses_s = (0.0, 0.1, 0.2, 0.3)
    one = host.spawn(bind(quota, node, sim.choose("pause of one", pauses_s)), name="bind")
    two = other.spawn(bind(node, quota, sim.choose("pause of two", pauses_s)), name="repair")
    await asyncio.gather(one, two)


@simulate(seeds=1_000, marks=("a conflict was read again",))
async def sound(sim: Simulation) -> None:
    """The same work done correctly: conditional writes, and a read after every unknown outcome."""
    register = Register(sim)
    server = sim.host("server")
    server.serve("register", register)
    done = [0]

    async def add(host: Host) -> None:
        remote = host.remote(server, "register")
        for _ in range(sim.choose_int(f"adds of {host.name}", 1, 5)):
            try:
                value, revision = await remote.read()
                if await remote.write_at(value + 1, revision):
                    done[0] += 1
                else:
                    sim.sometimes("a conflict was read again")
            except (OutcomeUnknown, Unavailable):
                continue

    await asyncio.gather(*[host.run(add(host)) for host in (sim.host("a"), sim.host("b"))])
    if register.value < done[0]:
        sim.violate("no acknowledged add is lost", f"{done[0]} adds, and the register holds {register.value}")

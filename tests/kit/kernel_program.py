"""One sound program that uses all of the kernel: connections, calls, streams, messages, crashes, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from kedge.errors import OutcomeUnknown, Unavailable
from kedge.sim.kernel import Host, Simulation, Swarm, simulate


class Board:
    """The state of the server. It survives the server's crashes, as a disk would."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.changed = asyncio.Event()

    async def post(self, line: str) -> int:
        await asyncio.sleep(0)
        self.lines.append(line)
        self.changed.set()
        self.changed = asyncio.Event()
        return len(self.lines)

    async def follow(self) -> AsyncIterator[str]:
        return self._lines()

    async def _lines(self) -> AsyncIterator[str]:
        sent = 0
        while True:
            while sent < len(self.lines):
                sent += 1
                yield self.lines[sent - 1]
            await self.changed.wait()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@simulate(faults=Swarm(without=()), marks=("posted", "echoed", "gossiped"))
async def everything(sim: Simulation) -> None:
    """Two clients post, follow, echo and gossip with a server that may crash at any message."""
    board = Board()
    server = sim.host("server")
    clients = [sim.host(name) for name in ("a", "b")]

    async def boot_server(host: Host) -> None:
        host.serve("board", board)
        listening = await asyncio.start_server(_echo, None, 7)
        async with listening:
            await asyncio.sleep(10_000)

    async def follow(host: Host) -> None:
        while True:
            try:
                async for line in await host.remote(server, "board").follow():
                    sim.sometimes("posted")
                    sim.note("posted", f"{host.name} {line}")
            except (OutcomeUnknown, Unavailable):
                await asyncio.sleep(host.env().random.uniform(0.1, 2.0))

    async def post(host: Host) -> None:
        for number in range(sim.choose_int(f"posts of {host.name}", 1, 6)):
            try:
                await host.remote(server, "board", timeout_s=2.0).post(f"{host.name}-{number}")
            except (OutcomeUnknown, Unavailable):
                sim.note("gave up", f"{host.name}-{number}")

    async def echo() -> None:
        try:
            reader, writer = await asyncio.open_connection("server", 7)
            writer.write(b"hello\n")
            sim.sometimes("echoed", await reader.readline() == b"hello\n")
            writer.close()
        except OSError as error:
            sim.note("no echo", type(error).__name__)

    async def boot_client(host: Host) -> None:
        other = clients[1 - clients.index(host)]
        host.on_message("gossip", lambda text: sim.sometimes("gossiped", text))
        host.send(other, "gossip", f"from {host.name}")
        following = asyncio.create_task(follow(host), name=f"follow {host.name}")
        async with asyncio.TaskGroup() as group:
            group.create_task(post(host))
            group.create_task(echo())
        await asyncio.wait({following}, timeout=30)
        following.cancel()

    server.boot(boot_server)
    for client in clients:
        client.boot(boot_client)
    await asyncio.sleep(60)
    sim.heal()
    await asyncio.sleep(120)

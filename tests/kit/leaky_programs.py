"""Programs that depend on hash order or entropy, for `check_determinism` to catch."""

from __future__ import annotations

import asyncio
import os

from kedge.sim.kernel import NO_FAULTS, Simulation, simulate


@simulate(faults=NO_FAULTS)
async def hash_order(sim: Simulation) -> None:
    """Iterates a set of strings, in the order of their hashes."""
    hosts = [sim.host(name) for name in ("a", "b")]
    await asyncio.sleep(1)
    for name in {"pod-1", "pod-2", "pod-3", "pod-4", "pod-5"}:
        sim.note("visit", name)
    await hosts[0].run(asyncio.sleep(1))


@simulate(faults=NO_FAULTS)
async def hash_order_of_tasks(sim: Simulation) -> None:
    """The same leak without a note in the trace: only the order of the tasks differs."""
    names = {"pod-1", "pod-2", "pod-3", "pod-4", "pod-5"}
    host = sim.host("a")
    tasks = {name: host.spawn(_nap(index), name=name) for index, name in enumerate(sorted(names))}
    await asyncio.sleep(5)
    for name in names:
        tasks[name].cancel()
    await asyncio.sleep(1)


async def _nap(index: int) -> None:
    await asyncio.sleep(100 + index)


@simulate(faults=NO_FAULTS)
async def entropy(sim: Simulation) -> None:
    """Reads entropy of the machine."""
    await asyncio.sleep(int.from_bytes(os.urandom(4), "big") / 1e6)
    sim.note("slept", "a while")


@simulate(faults=NO_FAULTS)
async def sets_of_tasks(sim: Simulation) -> None:
    """Ordinary asyncio code, with sets of tasks and futures. Deterministic: their hashes are serial numbers."""
    loop = asyncio.get_running_loop()
    host = sim.host("a")

    async def nap(index: int) -> int:
        await asyncio.sleep(1 + index % 3)
        return index

    tasks = {asyncio.create_task(nap(index), name=f"nap-{index}") for index in range(40)}
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            sim.note("done", task.get_name())
    futures = {loop.create_future() for _ in range(40)}
    for index, future in enumerate(futures):
        loop.call_later(index % 5, future.set_result, index)
    await asyncio.wait(futures)
    for future in futures:
        sim.note("future", str(future.result()))
    background = [host.spawn(nap(index), name=f"background-{index}") for index in range(40)]
    await asyncio.sleep(0.5)
    for task in asyncio.all_tasks():
        sim.note("alive", task.get_name())
    for first in asyncio.as_completed(background):
        sim.note("completed", str(await first))

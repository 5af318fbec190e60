"""Watch fan-out: the server's CPU for one event to many watchers, beside a bare write to as many connections."""

from __future__ import annotations

import asyncio
import time

import msgspec

from benchmarks.http.load import WAIT_S, ServerUnderLoad, close, connect, open_watches, request, send_all
from benchmarks.http.verbs import MERGE_PATCH, Beside
from benchmarks.store import pod_body

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class Deliveries:
    """Counts lines of all watches, and waits for a number of them."""

    def __init__(self) -> None:
        self._missing = 0
        self._all = asyncio.Event()

    def expect(self, count: int) -> None:
        self._missing = count
        self._all.clear()

    def took(self, count: int) -> None:
        self._missing -= count
        if self._missing <= 0:
            self._all.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._all.wait(), WAIT_S)


async def fan_out(ours: ServerUnderLoad, bare: ServerUnderLoad, watchers: int, events: int, rounds: int) -> Beside:
    """CPU microseconds for each delivered event. The events come one by one: a burst would share its costs."""
    changed, name = await connect(ours, 1), f"watched-{time.monotonic_ns()}"
    data = msgspec.json.encode({"metadata": {"name": name}, "data": {"pod": str(pod_body("example"))}})
    await send_all(changed, [request("POST", CONFIG_MAPS, data)])
    emitter = await connect(bare, 1)
    seen = Deliveries()
    query = f"{CONFIG_MAPS}?watch=true&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
    mine = await open_watches(ours, query, watchers, seen.took)
    other = await open_watches(bare, "/stream", watchers, seen.took)

    def patch(n: int) -> bytes:
        body = msgspec.json.encode({"data": {"turn": f"{n:06}"}})
        return request("PATCH", f"{CONFIG_MAPS}/{name}", body, MERGE_PATCH)

    numbers = iter(range(1_000_000))

    async def one(of: ServerUnderLoad) -> None:
        seen.expect(watchers)
        if of is ours:
            await send_all(changed, [patch(next(numbers))])
        else:
            await send_all(emitter, [request("POST", f"/emit/{size}")])
        await seen.wait()

    async def cost_us(of: ServerUnderLoad) -> float:
        began_s = of.cpu_s
        for _ in range(events):
            await one(of)
        return (of.cpu_s - began_s) / (events * watchers) * 1e6

    await one(ours)
    mine[0].size = 0
    await one(ours)
    head = len(b"%x\r\n\r\n" % mine[0].size)
    size = mine[0].size - head
    await one(bare)
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        found[0].append(await cost_us(ours))
        found[1].append(await cost_us(bare))
    close([*mine, *other, *changed, *emitter])
    return Beside(tuple(found[0]), tuple(found[1]))

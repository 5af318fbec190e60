"""The scheduler and the API server as processes of their own, over HTTPS, with every bind durable in SQLite.

The shape is `basic` of `benchmarks.scheduler`; the time is from the first create to the last bind, as a watch sees it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from benchmarks.http.fan_out import Deliveries
from benchmarks.http.load import close, connect, cpu_s, kedge_server, open_watches, request, send_all, started
from benchmarks.http.verbs import PODS
from benchmarks.scheduler import CREATORS, SHAPES, node

_PATHS = "/api/v1/nodes"


async def schedule(folder: Path, *, nodes: int, part: float, event_loop: str) -> dict[str, float]:
    """Pods a second, and the CPU of both processes for each pod, with both on an event loop."""
    shape = SHAPES["basic"]
    before, measured = (int(count * part) for count in shape.counts)
    state, loop_option = folder / f"scheduled-{event_loop}", ("--event-loop", event_loop)
    with kedge_server(state, *loop_option) as server:
        connections = await connect(server, CREATORS)
        bodies = (msgspec.json.encode(node(n)) for n in range(nodes))
        await send_all(connections, (request("POST", _PATHS, body) for body in bodies))
        bound = Deliveries()
        bound.expect(before)
        query = f"{PODS}?watch=true&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
        watches = await open_watches(server, query, 1, bound.took, wanted=lambda line: b'"nodeName":"' in line)
        command = ("-m", "kedge", "scheduler", "--kubeconfig", str(state / "admin.kubeconfig"), *loop_option)
        with started(*command, log=folder / "scheduler.log") as scheduler:
            await send_all(connections, (request("POST", PODS, msgspec.json.encode(b)) for b in shape.before(before)))
            await bound.wait()
            requests = [request("POST", PODS, msgspec.json.encode(body)) for body in shape.measured(measured)]
            await asyncio.sleep(0.5)
            bound.expect(measured)
            cpu = server.cpu_s, cpu_s(scheduler.pid)
            began_s = time.perf_counter()
            await send_all(connections, requests)
            created_s = time.perf_counter() - began_s
            await bound.wait()
            wall_s = time.perf_counter() - began_s
            used = server.cpu_s - cpu[0], cpu_s(scheduler.pid) - cpu[1]
        close([*connections, *watches])
    return {
        "pods_per_second": measured / wall_s,
        "creates_per_second": measured / created_s,
        "server_us": used[0] / measured * 1e6,
        "scheduler_us": used[1] / measured * 1e6,
    }

"""Reconciles a second of an operator on kopf and of the same operator on kedge's runtime, over the same API server.

The CPU time of operator and server for each reconcile stands beside.

Each runs in a process of its own and follows a namespace of its own; rounds alternate between them. Objects are created
while the operator is stopped, so that it has as much work as it can take: a round begins when it goes on, and ends when
a watch has shown every object handled. Only then does the other one have its turn, once this one is idle.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import subprocess
import time
from pathlib import Path

import msgspec

from benchmarks.http.fan_out import Deliveries
from benchmarks.http.load import (
    LoadConnection,
    ServerUnderLoad,
    close,
    connect,
    cpu_s,
    open_watches,
    request,
    send_all,
    started,
)

CREATORS = 16
KOPF = Path(__file__).with_name("kopf_operator.py")


class Operated:
    """A namespace with its operator."""

    def __init__(self, server: ServerUnderLoad, name: str, process: subprocess.Popen[str]) -> None:
        self._server = server
        self._place = f"/api/v1/namespaces/{name}/configmaps"
        self._process = process
        self._handled = Deliveries()
        self._made = 0
        self.rates: list[float] = []
        self.costs_us: list[float] = []
        self.server_costs_us: list[float] = []

    async def follow(self) -> None:
        query = "watch=true&resourceVersion=0&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
        self._watches = await open_watches(
            self._server, f"{self._place}?{query}", 1, self._handled.took,
            wanted=lambda line: b'"example/handled":' in line,
        )  # fmt: skip

    async def run(self, connections: list[LoadConnection], count: int, *, measured: bool = True) -> None:
        bodies = [
            msgspec.json.encode({"metadata": {"name": f"made-{self._made + n}"}, "data": {"turn": str(n)}})
            for n in range(count)
        ]
        self._made += count
        self._handled.expect(count)
        self._process.send_signal(signal.SIGSTOP)
        try:
            await send_all(connections, [request("POST", self._place, body) for body in bodies])
        finally:
            self._process.send_signal(signal.SIGCONT)
        cpu, server_cpu, began_s = cpu_s(self._process.pid), self._server.cpu_s, time.perf_counter()
        await self._handled.wait()
        taken_s = time.perf_counter() - began_s
        await self._idle()  # its own changes come back to it, which is a part of the cost
        if measured:
            self.rates.append(count / taken_s)
            self.costs_us.append((cpu_s(self._process.pid) - cpu) / count * 1e6)
            self.server_costs_us.append((self._server.cpu_s - server_cpu) / count * 1e6)

    async def _idle(self) -> None:
        """Wait until the operator uses next to no CPU."""
        used_s = -1.0
        while (now_s := cpu_s(self._process.pid)) - used_s > 0.01:
            used_s = now_s
            await asyncio.sleep(0.3)

    def close(self) -> None:
        close(self._watches)


async def reconcile(server: ServerUnderLoad, folder: Path, state: Path, count: int, rounds: int) -> dict[str, float]:
    kubeconfig = str(state / "admin.kubeconfig")
    connections = await connect(server, CREATORS)
    names = ("kopf", "kedge")
    spaces = [msgspec.json.encode({"metadata": {"name": name}}) for name in names]
    await send_all(connections[:1], [request("POST", "/api/v1/namespaces", body) for body in spaces])
    kopf_command = ("-m", "kopf", "run", "--standalone", "--quiet", "--namespace", "kopf", str(KOPF))
    kedge_command = ("-m", "benchmarks.http.kedge_operator", kubeconfig, "kedge")
    environment = {"KUBECONFIG": kubeconfig}
    with (
        started(*kopf_command, log=folder / "kopf.log", environment=environment) as on_kopf,
        started(*kedge_command, log=folder / "kedge.log") as on_kedge,
    ):
        kopf, kedge = Operated(server, "kopf", on_kopf), Operated(server, "kedge", on_kedge)
        for each in (kopf, kedge):
            await each.follow()
            await each.run(connections, 8, measured=False)
        for _ in range(rounds):
            await kopf.run(connections, count)
            await kedge.run(connections, count)
        kopf.close()
        kedge.close()
    close(connections)
    ratios = [ours / theirs for ours, theirs in zip(kedge.rates, kopf.rates, strict=True)]
    return {
        "ratio": statistics.median(ratios),
        "kedge": statistics.median(kedge.rates),
        "kopf": statistics.median(kopf.rates),
        "kedge_us": statistics.median(kedge.costs_us),
        "kopf_us": statistics.median(kopf.costs_us),
        "kedge_server_us": statistics.median(kedge.server_costs_us),
        "kopf_server_us": statistics.median(kopf.server_costs_us),
    }

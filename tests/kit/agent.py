"""Harnesses of the agent: simulated nodes with real agents, and a driver for tests in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.objects import pod_key

from kedge.agent.core import Consumption, ContainerProcess, Identity
from kedge.api.requests import Binding
from kedge.api.views import Container, PodView, Probe
from kedge.keys import Key
from kedge.limits import Limits
from kedge.sim.cluster import Cluster
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import NO_FAULTS, RunOutcome, Simulation, run

CALM = Limits(watch_probe_s=30.0, agent_audit_s=20.0)
NODE = Key("Node", "", "node-a")
LEDGER = Key("NodeAllocation.kedge.dev", "", "node-a")


async def new_cluster(sim: Simulation, *nodes: str, hostile: bool = False, limits: Limits = CALM) -> Cluster:
    """A cluster with agents on `nodes`, checked by the invariants."""
    cluster = Cluster(sim, servers=2, hostile=hostile, limits=limits)
    await cluster.set_up()
    Judge(cluster)
    for name in nodes:
        cluster.add_node(name)
    await until(lambda: len(cluster.all("Node")) == len(nodes))
    return cluster


async def until(holds: Callable[[], bool], *, within_s: float = 300.0) -> None:
    for _ in range(int(within_s * 4)):
        if holds():
            return
        await asyncio.sleep(0.25)
    raise AssertionError(f"the condition did not hold within {within_s:.0f} s")


async def bind(cluster: Cluster, body: dict[str, Any], node: str = "node-a") -> str:
    """Create a pod and bind it. Returns its uid."""
    made = await cluster.create(body)
    await cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node=node))
    return made.uid


def is_ready(cluster: Cluster, name: str = "web-0") -> bool:
    found = cluster.find(pod_key(name))
    return found is not None and any(c.type == "Ready" and c.status == "True" for c in found.view.status.conditions)


def live(cluster: Cluster, node: str = "node-a") -> list[str]:
    return [process.pod for process in cluster.nodes[node].driver.live()]


def claims(cluster: Cluster) -> list[str]:
    ledger = cluster.find(LEDGER)
    return [] if ledger is None else [entry.name for entry in ledger.view.status.entries.values()]


def without_faults(program: Callable[[Simulation], Any]) -> RunOutcome:
    """Run a program in a simulation without faults, and fail on a violation."""
    outcome = run(program, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.violation.detail}\n{outcome.timeline()[-2000:]}"
    return outcome


# -- in real time ----------------------------------------------------------------------------------


class TableDriver:
    """A driver in real time: processes are table entries and run until stopped; the command `true` ends at once."""

    def __init__(self) -> None:
        self._table: dict[Identity, ContainerProcess] = {}
        self._listener: Callable[[str], None] = lambda _: None
        self.cores = 0.0
        """The cores that each process uses."""

    async def pull(self, image: str) -> None:
        del image

    async def start(self, identity: Identity, pod: PodView, container: Container, *, keep_s: float | None) -> None:
        del keep_s
        ends = tuple(container.command) == ("true",)
        if identity not in self._table:
            now = datetime.now(UTC)
            self._table[identity] = ContainerProcess(
                identity=identity,
                namespace=pod.namespace,
                pod=pod.name,
                running=not ends,
                started_at=now,
                ended_at=now if ends else None,
                since_s=time.monotonic(),
            )
            self._listener(identity.pod_uid)

    async def keep(self, identity: Identity, for_s: float) -> None:
        del identity, for_s

    async def stop(self, identity: Identity, *, grace_s: float) -> None:
        del grace_s
        process = self._table.get(identity)
        if process is not None and process.running:
            self._table[identity] = replace(process, running=False, ended_at=datetime.now(UTC))
            self._listener(identity.pod_uid)

    async def processes(self) -> Sequence[ContainerProcess]:
        return tuple(self._table.values())

    async def forget(self, identity: Identity) -> None:
        self._table.pop(identity, None)

    async def probe(self, identity: Identity, probe: Probe) -> bool:
        del probe
        return identity in self._table and self._table[identity].running

    async def consumption(self) -> Mapping[Identity, Consumption]:
        now_s = time.monotonic()
        return {
            identity: Consumption(self.cores * (now_s - process.since_s))
            for identity, process in self._table.items()
            if process.running
        }

    def address(self, pod_uid: str) -> str:
        return f"10.0.0.{int(pod_uid[:2], 16) or 1}"

    def listen(self, on_change: Callable[[str], None]) -> None:
        self._listener = on_change

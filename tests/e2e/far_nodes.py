"""Agents in processes of their own, each behind a link that a test can cut."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tests.e2e.bare_pods import is_ready, key_of, make, node_key
from tests.e2e.tcp_proxy import Proxy, proxy_to
from tests.e2e.torture_cluster import Part, TortureCluster
from tests.e2e.up_cluster import condition, config_of, eventually
from tests.e2e.up_workload import processes_below
from tests.kit.process_nodes import alive

from kedge.client.http import read_kubeconfig


def zone_of(name: str) -> str:
    return f"zone-of-{name}"


@dataclass
class FarNode:
    """An agent in a process of its own, behind a link, in a zone of its own."""

    name: str
    part: Part
    link: Proxy
    cluster: TortureCluster

    @property
    def zone(self) -> str:
        return zone_of(self.name)

    async def run_pod(self) -> None:
        """Run a pod of the node's name, which only this node may run. A second process of it reports itself."""
        program = f"{self.cluster.locking(self.name)}; exec sleep 100000"
        await make(self.cluster.client, self.name, program, zone=self.zone)
        await eventually(self.cluster.client, key_of(self.name), is_ready, "the pod runs")

    async def silence(self) -> None:
        """By its name: kill its agent, pause it, or cut its link."""
        if self.name == "killed":
            await asyncio.to_thread(self.part.kill)
        elif self.name == "paused":
            self.part.signal(signal.SIGSTOP)
        else:
            await self.link.refuse()

    async def resume(self) -> None:
        """Undo `silence`."""
        if self.name == "killed":
            self.part.start()
        elif self.name == "paused":
            self.part.signal(signal.SIGCONT)
        else:
            await self.link.listen()

    def pid(self) -> int:
        (found,) = [pid for pid in self.processes().values() if alive(pid)]
        return found

    def processes(self) -> dict[str, int]:
        every = processes_below(self.cluster.folder)
        own = self.cluster.folder / "nodes" / self.name / "processes"
        return {name: pid for name, pid in every.items() if (own / f"{name}.json").exists()}

    def ended(self, pod: str) -> bool:
        """Whether the keeper has the end of a pod's process on record."""
        folder = self.cluster.folder / "nodes" / self.name / "processes"
        records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        return any(each["pod"] == pod and each["ended"] for each in records)

    async def is_silent(self) -> None:
        key = node_key(self.name)
        await eventually(self.cluster.client, key, lambda b: condition(b, "Ready") == "Unknown", "its state is unknown")
        await eventually(self.cluster.client, key_of(self.name), lambda b: not is_ready(b), "its pod gets no work")

    async def is_back(self) -> None:
        await eventually(self.cluster.client, node_key(self.name), is_ready, "the node is back")
        await eventually(self.cluster.client, key_of(self.name), is_ready, "its pod is ready again")


@asynccontextmanager
async def far_nodes(cluster: TortureCluster, *names: str) -> AsyncIterator[list[FarNode]]:
    """Agents that are ready. Their processes end with the cluster."""
    kubeconfig = cluster.folder / "admin.kubeconfig"
    server = read_kubeconfig(kubeconfig).url.removeprefix("https://")
    nodes = []
    async with AsyncExitStack() as stack:
        for name in names:
            link = await stack.enter_async_context(proxy_to(server))
            state = cluster.folder / "nodes" / name
            arguments = ("agent", "--kubeconfig", str(kubeconfig), "--server", f"https://{link.endpoint}")
            options = ("--name", name, "--zone", zone_of(name), "--state", str(state))
            part = Part(name, (*arguments, *options, *config_of(cluster.folder)), cluster.folder / f"{name}.log")
            part.start()
            stack.callback(part.kill)
            nodes.append(FarNode(name, part, link, cluster))
        for each in nodes:
            await eventually(cluster.client, node_key(each.name), is_ready, "the node is ready")
        yield nodes

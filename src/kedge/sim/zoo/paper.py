"""Machines on paper: stand-ins for scheduler and agents in worlds that are about neither.

They place, start and end pods past every link and fault, each after a while that the seed draws. No leases, no watches,
no processes: a seed costs a quarter of one with real agents, and the controllers cannot tell the difference.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions, WriteOptions
from kedge.api.views import PodView
from kedge.errors import OperatingError
from kedge.runtime.status import plan_status
from kedge.sim.facts import is_ready
from kedge.sim.standard import World

NODES = ("paper-0", "paper-1")
LOOK_S = 0.4
STARTS_S, STOPS_S = (0.5, 4.0, 15.0), (0.5, 6.0)
STUCK = "stuck:1"
"""An image that never becomes ready."""
CAPACITY = {"cpu": "32", "memory": "64Gi", "pods": "110"}


class PaperMachines:
    """Nodes with nobody behind them, and whoever plays their part."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sim = world.sim
        self._uids: dict[str, str] = {}
        self._due_s: dict[tuple[str, str], float] = {}
        """By pod's uid and what happens to it next: when."""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        for name in NODES:
            ready = {"type": "Ready", "status": "True", "reason": "OnPaper"}
            status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
            self._uids[name] = (await self._world.cluster.create(body)).uid
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for pod in list(self._world.judge.facts.pods.values()):
                with suppress(OperatingError):  # it has changed since: look again
                    await self._look(pod)
            for uid, held in list(self._world.judge.facts.claims.items()):
                if uid not in self._world.judge.facts.pods and self._is_due(uid, "end", STOPS_S):
                    for node in list(held):
                        with suppress(OperatingError):
                            await self._confirm(node, uid)

    async def _look(self, pod: Object) -> None:
        view, authority = pod.as_view(PodView), self._world.cluster.authority
        if view.terminating:
            if self._is_due(pod.uid, "stop", STOPS_S):
                await authority.delete(pod.key, DeleteOptions(uid=pod.uid, grace_s=0))
                if view.spec.node_name:
                    await self._confirm(view.spec.node_name, pod.uid)
        elif not view.spec.node_name:
            node = NODES[len(self._due_s) % len(NODES)]
            await authority.bind(Binding(pod=pod.key, pod_uid=pod.uid, node=node, node_uid=self._uids[node]))
        elif not view.status.pod_ip:
            await authority.patch(pod.key, self._said(pod, ready=False), subresource="status")
        elif is_ready(view) or view.finished or view.spec.containers[0].image == STUCK:
            return
        elif self._is_due(pod.uid, "start", STARTS_S):
            await authority.patch(pod.key, self._said(pod, ready=True), subresource="status")

    def _said(self, pod: Object, *, ready: bool) -> dict[str, Any]:
        conditions = [
            {"type": each, "status": str(ready), "reason": "OnPaper"} for each in ("ContainersReady", "Ready")
        ]
        said = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}
        return plan_status(pod, said, self._sim.driver.now()) or {}

    async def _confirm(self, node: str, uid: str) -> None:
        await self._world.cluster.authority.confirm_ended(
            node=node, node_uid=self._uids[node], pod_uid=uid, options=WriteOptions()
        )

    def _is_due(self, uid: str, what: str, after_s: tuple[float, ...]) -> bool:
        """Whether something has waited for as long as the seed says. At the end of a run nothing takes long."""
        found = self._due_s.get((uid, what))
        if found is None:
            wait_s = self._sim.choose(f"long it takes to {what}", after_s)
            found = self._due_s[uid, what] = self._sim.now_s + wait_s
        return self._sim.now_s >= found

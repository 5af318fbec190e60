"""Hollow nodes: stand-ins for the scheduler, for agents or for both, in worlds that do not test them.

They place, start and end pods without links and faults, each after a delay that the seed draws. They have no leases,
watches or processes, so a seed costs a fraction of one with real agents. Controllers cannot detect the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.quantity import Quantity
from kedge.api.requests import Binding, DeleteOptions, WriteOptions
from kedge.api.timestamps import format_micro_time
from kedge.api.usage import format_usage
from kedge.api.views import NodeAllocationView, PodView
from kedge.api.wellknown import (
    HOSTNAME_LABEL,
    LEASE_KIND,
    NODE_ALLOCATION_KIND,
    NODE_KIND,
    NODE_LEASE_NAMESPACE,
    USAGE,
    ZONE_LABEL,
)
from kedge.controllers import CONTROLLERS
from kedge.errors import OperatingError
from kedge.keys import Key
from kedge.runtime.status import plan_status
from kedge.sim.cluster import Component, ProcessContext
from kedge.sim.judges.pod_facts import is_ready
from kedge.sim.standard import JudgedCluster

LOOK_S = 0.4
STARTS_S, STOPS_S = (0.5, 4.0, 15.0), (0.5, 6.0)
HOLLOW_NODES = {"hollow-0": "zone-a", "hollow-1": "zone-b"}
"""Two nodes, by name and zone."""
STUCK = "stuck:1"
"""An image that never becomes ready."""
UNKNOWN = "unknown:1"
"""An image of unknown readiness."""
RENEW_S = 4.0


class HollowNodes:
    """Writes the bindings and statuses that a scheduler and agents would write."""

    def __init__(self, world: JudgedCluster, *, places: bool = True, runs: bool = True) -> None:
        """`places`: in place of the scheduler. `runs`: in place of the agents."""
        self._cluster = world.cluster
        self._facts = world.judge.facts
        self._sim = world.sim
        self.places, self._runs = places, runs
        self.load_milli: int | None = None
        """CPU use of all ready pods together; None if nodes send no heartbeats and no usage."""
        self.fixed_ready: dict[str, str] = {STUCK: "False", UNKNOWN: "Unknown"}
        """By image: the status of the Ready condition of its pods, which never changes."""
        self._turn = 0
        self._due_s: dict[tuple[str, str], float] = {}
        """When the next transition of a pod is due, by its uid and the transition."""
        self._task = asyncio.ensure_future(self._run())

    async def add_nodes(self, zones: Mapping[str, str], *, cpu: str = "32") -> None:
        """Create nodes without a machine, by name and zone."""
        for name, zone in zones.items():
            room = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
            ready = {"type": "Ready", "status": "True", "reason": "Hollow"}
            status = {"capacity": room, "allocatable": room, "conditions": [ready]}
            metadata = {"name": name, "labels": {ZONE_LABEL: zone, HOSTNAME_LABEL: name}}
            await self._cluster.create({"apiVersion": "v1", "kind": NODE_KIND, "metadata": metadata, "status": status})

    async def _run(self) -> None:
        renewed_s = -RENEW_S
        while True:
            await asyncio.sleep(LOOK_S)
            if self.load_milli is not None and self._sim.now_s >= renewed_s + RENEW_S:
                renewed_s = self._sim.now_s
                await self._renew(self.load_milli)
            for pod in list(self._facts.pods.values()):
                with suppress(OperatingError):  # it has changed since: retried in the next round
                    await self._look(pod)
            if self._runs:
                for uid in [each for each in self._facts.claims if each not in self._facts.pods]:
                    if self._is_due(uid, "end", STOPS_S):
                        await self._confirm(uid)

    async def _look(self, pod: Object) -> None:
        view = pod.as_view(PodView)
        if not view.spec.node_name and not view.terminating:
            if self.places:
                await self._place(pod)
        elif self._runs:
            await self._run_pod(pod, view)

    async def _place(self, pod: Object) -> None:
        """Try the next node; the bind rejects an unsuitable one."""
        nodes = [key.name for key in self._facts.objects if key.kind == NODE_KIND]
        if nodes:
            self._turn += 1
            await place(self._cluster.authority, pod, nodes[self._turn % len(nodes)])

    async def _run_pod(self, pod: Object, view: PodView) -> None:
        authority = self._cluster.authority
        if view.terminating:
            if self._is_due(pod.uid, "stop", STOPS_S):
                await authority.delete(pod.key, DeleteOptions(uid=pod.uid, grace_s=0))
                await self._confirm(pod.uid)
        elif not view.status.pod_ip:
            ready = self.fixed_ready.get(view.spec.containers[0].image, "False")
            await authority.patch(pod.key, self._status(pod, ready), subresource="status")
        elif is_ready(view) or view.finished or view.spec.containers[0].image in self.fixed_ready:
            return
        elif self._is_due(pod.uid, "start", STARTS_S):
            await authority.patch(pod.key, self._status(pod, "True"), subresource="status")

    def _status(self, pod: Object, ready: str) -> dict[str, Any]:
        conditions = [{"type": each, "status": ready, "reason": "Hollow"} for each in ("ContainersReady", "Ready")]
        status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions}
        return plan_status(pod, status, self._sim.driver.now()) or {}

    async def _renew(self, load_milli: int) -> None:
        """Renew the lease of every node, with the usage of its pods."""
        serving = [pod for pod in self._facts.pods.values() if is_ready(pod.as_view(PodView))]
        share = {"main": {"cpu": Quantity(load_milli * 1_000_000 // max(1, len(serving)))}}
        now = self._sim.driver.now()
        for node in [key.name for key in self._facts.objects if key.kind == NODE_KIND]:
            here = {pod.uid: share for pod in serving if pod.as_view(PodView).spec.node_name == node}
            metadata = {
                "name": node,
                "namespace": NODE_LEASE_NAMESPACE,
                "annotations": {USAGE: format_usage(now, 1, here)},
            }
            spec = {"holderIdentity": node, "renewTime": format_micro_time(now)}
            body, key = {"metadata": metadata, "spec": spec}, Key(LEASE_KIND, NODE_LEASE_NAMESPACE, node)
            with suppress(OperatingError):
                if self._cluster.find(key) is None:
                    await self._cluster.authority.create(KINDS.of_key_kind(LEASE_KIND), body)
                else:
                    await self._cluster.authority.patch(key, body)

    async def _confirm(self, uid: str) -> None:
        for node in list(self._facts.claims.get(uid, ())):
            ledger = self._facts.objects[Key(NODE_ALLOCATION_KIND, "", node)].as_view(NodeAllocationView)
            with suppress(OperatingError):
                await self._cluster.authority.confirm_ended(
                    node=node, node_uid=ledger.spec.node_uid, pod_uid=uid, options=WriteOptions()
                )

    def _is_due(self, uid: str, what: str, after_s: tuple[float, ...]) -> bool:
        """Whether a transition is due, after a delay that the seed draws."""
        found = self._due_s.get((uid, what))
        if found is None:
            wait_s = self._sim.choose(f"long it takes to {what}", after_s)
            found = self._due_s[uid, what] = self._sim.now_s + wait_s
        return self._sim.now_s >= found


async def place(authority: Any, pod: Object, node: str) -> None:
    """Bind a pod without links and faults, with all checks of a bind."""
    await authority.bind(Binding(pod=pod.key, pod_uid=pod.uid, node=node))


def manage(world: JudgedCluster, *names: str) -> None:
    """Boot one process with these controllers. It needs no lease: other worlds test leadership."""

    def make_all(context: ProcessContext) -> list[Component]:
        return [CONTROLLERS[name](context.runtime()) for name in names]

    world.cluster.boot("manager", make_all)

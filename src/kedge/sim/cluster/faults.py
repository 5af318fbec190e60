"""Faults at API semantics and of whole clusters; lost messages and crashed hosts are faults of the kernel.

Stale lists, compaction under a watch, late status writes, conflicting writes and a slow disk (`FaultyService`); and now
and then a fault of the cluster as a whole (`ClusterFaults`). They are declared in `fault_points`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from kedge.api.requests import (
    Delete,
    List,
    ListOptions,
    ObjectList,
    OpenWatch,
    Patch,
    Reply,
    Request,
    Update,
    WatchEvent,
)
from kedge.api.wellknown import LEASE_KIND, NODE_LEASE_NAMESPACE, SIM_TOUCHED
from kedge.errors import Compacted, KedgeError, OperatingError
from kedge.keys import Key
from kedge.server.service import Service
from kedge.server.service.watches import EventStream
from kedge.sim.cluster.fault_points import CHANGE, CLUSTER_EVENT, DISK, LIST, STATUS, WATCH
from kedge.sim.cluster.links import Served
from kedge.sim.kernel import FAULTS, Faults, Placement, Simulation, Swarm

if TYPE_CHECKING:
    from kedge.sim.cluster import Cluster

SLOW_S = (0.05, 0.5, 4.0)
LATE_S = (0.5, 3.0, 10.0)
STALE_REVISIONS = (3, 20, 100)
LIVES = (3, 0, 10)
"""How many batches a watch delivers before it stalls."""
OUTAGES_S = (2.0, 30.0, 90.0, 240.0)
CLUSTER_FAULTS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class ClusterSwarm:
    """A swarm for whole clusters. A write there passes many fault points, so each must strike less often.

    At the rates of `Swarm` no ReplicaSet was made within two minutes in six of seven seeds, and an idle cluster breaks
    no invariant.
    """

    swarm: Swarm = field(default_factory=lambda: Swarm(without=FAULTS.not_placed_by(Placement.CLUSTER_SWARM)))
    share: float = 0.25

    def rate(self, point: str, kind: str, faults: Faults) -> float:
        return self.swarm.rate(point, kind, faults) * self.share


def disk_slowness(sim: Simulation) -> Callable[[], float]:
    """How long a commit waits for the disk."""
    point = sim.faults.point(DISK, "commit", FAULTS.kinds_at(DISK))

    def slowness_s() -> float:
        return sim.faults.pick("slow the disk is", SLOW_S) if point.draw_fault() else 0.0

    return slowness_s


class FaultyService(Served):
    """The service of a server with faults at the semantics of its verbs. Verbs without a fault pass through."""

    def __init__(
        self,
        service: Service,
        sim: Simulation,
        touch: Callable[[Key, Mapping[str, Any]], Coroutine[Any, Any, None]],
        compact: Callable[[], Coroutine[Any, Any, None]],
        server: str,
    ) -> None:
        super().__init__(service)
        self._touch = touch
        self._compact = compact
        self._sim = sim
        self._list = sim.faults.point(LIST, server, FAULTS.kinds_at(LIST))
        self._watch = sim.faults.point(WATCH, server, FAULTS.kinds_at(WATCH))
        self._status = sim.faults.point(STATUS, server, FAULTS.kinds_at(STATUS))
        self._change = sim.faults.point(CHANGE, server, FAULTS.kinds_at(CHANGE))

    async def send(self, request: Request[Reply]) -> Reply:
        match request:
            case List():
                return cast("Reply", await self._send_list(request))
            case Update() | Patch() | Delete():
                await self._before_change(request.target, request.subresource)
        return await self._service.send(request)

    async def watch(self, request: OpenWatch) -> AsyncIterator[Sequence[WatchEvent]]:
        fault = self._watch.draw_fault()
        if fault == "compact":
            await self._compact()
        stream = await self._service.open_event_stream(request)
        return _stalled(stream, self._sim.faults.pick("long it lives", LIVES)) if fault == "stall" else stream

    async def _send_list(self, request: List) -> ObjectList:
        # Only a list that fills a cache, page by page, may be old: any other list is of the newest revision.
        options = request.options
        if options.limit > 1 and not options.continue_token and self._list.draw_fault():
            newest = (await self._service.list(request.kind, ListOptions(limit=1))).revision
            old = max(1, newest - self._sim.faults.pick("old the list is", STALE_REVISIONS))
            with suppress(Compacted):
                stale = msgspec.structs.replace(options, resource_version=str(old), resource_version_match="Exact")
                return await self._service.list(request.kind, stale)
        return await self._service.send(request)

    async def _before_change(self, key: Key, subresource: str) -> None:
        if subresource == "status" and self._status.draw_fault():
            await asyncio.sleep(self._sim.faults.pick("late the status is", LATE_S))
        if self._change.draw_fault():
            # Another client writes first, so that a conditional write meets a true conflict.
            stamp = {"metadata": {"annotations": {SIM_TOUCHED: f"{self._sim.now_s:.3f}"}}}
            with suppress(OperatingError):
                await self._touch(key, stamp)


async def _stalled(stream: EventStream, lives: int) -> AsyncGenerator[Sequence[WatchEvent], None]:
    """A stream that stalls after some batches and never ends: its reader gets no error."""
    try:
        async for batch in stream:
            if lives == 0:
                await asyncio.get_running_loop().create_future()
            lives -= 1
            yield batch
    finally:
        await stream.aclose()


class ClusterFaults:
    """Faults of the cluster as a whole: a machine dies, a leader is deposed, a node shrinks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sim = cluster.sim

    async def run(self) -> None:
        """Draw a fault every few seconds until faults have stopped. Run it on the driver host."""
        sim = self._sim
        point = sim.faults.point(CLUSTER_EVENT, "cluster", FAULTS.kinds_at(CLUSTER_EVENT))
        while sim.faults.active:
            await asyncio.sleep(CLUSTER_FAULTS_EVERY_S)
            kind = point.draw_fault()
            if kind:
                with suppress(OperatingError):
                    await self._strike(kind)

    async def _strike(self, kind: str) -> None:
        cluster, sim = self._cluster, self._sim
        if kind == "depose":
            await self._depose()
            return
        if kind == "compact":
            await cluster.compact()
            return
        nodes = list(cluster.nodes.values())
        if not nodes:
            return
        node = sim.faults.pick("it strikes", nodes)
        match kind:
            case "node death" | "reboot":
                node.power_off(for_s=2.0 if kind == "reboot" else sim.faults.pick("long it is off", OUTAGES_S))
            case "shrink" | "grow":
                await self._resize(node.key, grow=kind == "grow")
            case "crash process":
                for process in list(node.driver.live())[:1]:
                    node.driver.crash_process(process.identity.pod_uid)
            case "remove node":
                await cluster.authority.delete(node.key)
            case _:
                raise KedgeError(f"no action for the cluster fault {kind!r}: add a case")

    async def _resize(self, key: Key, *, grow: bool) -> None:
        node = await self._cluster.authority.get(key)
        capacity = dict(node.view.status.capacity)
        cpu = capacity["cpu"] if grow else self._sim.faults.pick("little is left", ("1", "500m", "0"))
        patch = {"status": {"allocatable": {"cpu": str(cpu)}}}
        await self._cluster.authority.patch(key, patch, subresource="status")

    async def _depose(self) -> None:
        """Clear the holder of a lease. The holder does not know it yet, so it overlaps with the next leader."""
        leases = [
            each
            for each in self._cluster.all(LEASE_KIND)
            if each.key.namespace != NODE_LEASE_NAMESPACE and each.view.spec.holder_identity
        ]
        if leases:
            lease = self._sim.faults.pick("it strikes", leases)
            await self._cluster.authority.patch(lease.key, {"spec": {"holderIdentity": ""}})

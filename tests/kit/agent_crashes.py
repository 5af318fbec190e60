"""An agent that crashes before or after its n-th action: a request to the API, or a call of its driver."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from kedge.api.requests import ConfirmEnded, Create, Reply, Request
from kedge.sim.cluster import API, Cluster, Node, RemoteTransport
from kedge.sim.kernel import Host, Simulation

DOWN_S = 3.0


class AgentAction(NamedTuple):
    """One action of an agent."""

    what: str
    about: str


@dataclass
class CrashPlan:
    """The actions of an agent, and its crash: before or after its n-th action, counted over all its runs."""

    crashes_at: int = -1
    before: bool = False
    acts: list[AgentAction] = field(default_factory=list)
    crashes: int = 0

    async def perform(self, host: Host, sim: Simulation, act: AgentAction, work: Any) -> Any:
        number = len(self.acts)
        self.acts.append(act)
        if number == self.crashes_at and self.before:
            work.close()
            await self._crash(host, sim)
        reply = await work
        if number == self.crashes_at:
            await self._crash(host, sim)
        return reply

    async def _crash(self, host: Host, sim: Simulation) -> None:
        self.crashes += 1
        world = sim.world
        world.loop.call_later(DOWN_S, host.restart, context=world.context)
        host.crash()
        await asyncio.sleep(0)  # it crashes here


class CrashingTransport(RemoteTransport):
    """Counts every request except heartbeats to leases."""

    def __init__(self, crash_plan: CrashPlan, sim: Simulation, host: Host, remote: Any) -> None:
        super().__init__(remote)
        self._crash_plan, self._sim, self._host = crash_plan, sim, host

    async def send(self, request: Request[Reply]) -> Reply:
        if request.reads or request.target.kind.startswith("Lease"):
            return await super().send(request)
        about = request.pod_uid if isinstance(request, ConfirmEnded) else str(request.target)
        if isinstance(request, Create):
            about = request.kind.key_kind
        act = AgentAction(request.label, about)
        return cast("Reply", await self._crash_plan.perform(self._host, self._sim, act, super().send(request)))


def crash_at_requests(cluster: Cluster, crash_plan: CrashPlan) -> None:
    """Count the writes of every agent that is added from now on."""

    def transport(host: Host, *, server: int = 0) -> RemoteTransport:
        remote = host.remote(cluster.servers[server], API)
        return CrashingTransport(crash_plan, cluster.sim, host, remote)

    cluster.transport = transport  # type: ignore[method-assign]


def crash_at_notes(node: Node, crash_plan: CrashPlan, notes: Sequence[str]) -> None:
    """Count these calls of a node's driver."""
    for note in notes:
        call = partial(_noted, crash_plan, node.sim, node.host, note, getattr(node.driver, note))
        setattr(node.driver, note, call)


async def _noted(
    crash_plan: CrashPlan, sim: Simulation, host: Host, what: str, note: Any, identity: Any, *args: Any, **named: Any
) -> None:
    await crash_plan.perform(
        host, sim, AgentAction(what, str(getattr(identity, "container", identity))), note(identity, *args, **named)
    )

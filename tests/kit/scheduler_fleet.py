"""Several schedulers under faults: two of one name and one of another, with a substitute for node agents.

`SchedulerFleet` keeps every process, so that each attempt can be rechecked. `scheduler_users` disturbs it;
`scheduler_invariants` checks committed state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tests.kit.committed import State
from tests.kit.scheduler_invariants import NODES, could_be_bound

from kedge.api.requests import Bind, DeleteOptions, Reply, Request, Written
from kedge.client.contract import Client
from kedge.controllers.quota.controller import quota_controller
from kedge.errors import Fenced, OperatingError, OutcomeUnknown, Refused
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.placement.ledger import ClaimState
from kedge.runtime import ControllerRuntime
from kedge.scheduler import Scheduler
from kedge.scheduler.report.recheck import recheck_attempts
from kedge.sim.cluster import Cluster, RemoteTransport
from kedge.sim.kernel import Host, Simulation

LIMITS = Limits(
    lease_s=4.0,
    lease_renew_s=2.5,
    lease_retry_s=1.0,
    relist_every_s=1e6,
    watch_probe_s=20.0,
    cache_wait_s=1.0,
    watch_request_s=3.0,
    watch_backoff_s_max=2.0,
    client_backoff_s_max=1.0,
    watch_progress_s=5.0,
    scheduler_flush_s=1e6,
    scheduler_assumed_s=6.0,
    scheduler_quarantine_s=15.0,
    scheduler_explained_s=1.0,
    gang_wait_s=10.0,
    floor_wait_s=5.0,
    decisions_sample_every=1,
)
"""Leaders change within a run; safety nets do not act: a pod that is not woken is never tried."""


# -- schedulers ------------------------------------------------------------------------------------


class ObservedTransport(RemoteTransport):
    """A transport that records the outcome of binds."""

    def __init__(self, sim: Simulation, host: Host, remote: Any, holds: tuple[str, ...]) -> None:
        super().__init__(remote)
        self._sim = sim
        self._host = host
        self._holds = holds
        self.binds_out: dict[Key, str] = {}
        """By pod: the uids of binds in flight."""
        self.on_bind: Callable[[], None] = lambda: None

    def stop_the_host(self) -> None:
        """Pause the host for longer than its lease, in the middle of a bind: it is sent when another process leads."""
        host, process, world = self._host, self._host.process, self._sim.world
        host.pause()
        self._sim.sometimes("a scheduler was stopped in the middle of a bind")

        def go_on() -> None:
            if host.process is process:
                host.resume()

        world.loop.call_later(3 * LIMITS.lease_s, go_on, context=world.context)

    async def send(self, request: Request[Reply]) -> Reply:
        if isinstance(request, Bind):
            return cast("Reply", await self._bind(request))
        return await super().send(request)

    async def _bind(self, request: Bind) -> Written:
        binding = request.binding
        self.binds_out[binding.pod] = binding.pod_uid
        if self._sim.faults.active:
            held = self._sim.choose("a bind is held up", self._holds)
            if held == "stopped":
                self.stop_the_host()
            if held:
                await asyncio.sleep(self._sim.choose("for", (0.5, 2.5)))
        try:
            return await super().send(request)
        except Refused as error:
            self._sim.sometimes("a bind was refused")
            self._sim.sometimes(f"refused: {error.refusal}")
            raise
        except Fenced:
            self._sim.sometimes("a bind was fenced off")
            raise
        except OutcomeUnknown:
            self._sim.sometimes("a bind's outcome was unknown")
            raise
        finally:
            self.binds_out.pop(binding.pod, None)
            self.on_bind()


@dataclass
class SchedulerProcess:
    """One run of one scheduler process."""

    host: Host
    number: int
    scheduler: Scheduler
    recorder: Recorder
    wire: ObservedTransport


@dataclass
class SchedulerFleet:
    """A cluster, and every scheduler process that ever ran on it."""

    sim: Simulation
    cluster: Cluster
    limits: Limits = LIMITS
    processes: list[SchedulerProcess] = field(default_factory=list)
    make: Callable[..., Scheduler] = Scheduler
    holds: tuple[str, ...] = ("", "", "", "", "late", "late", "late", "stopped")
    """The delays to choose from for each bind, before it is sent."""

    def boot(self, host_name: str, name: str) -> Host:
        host = self.sim.host(host_name)
        host.skew(rate=self.sim.choose("clock rate", (1.0, 0.8, 1.3)))
        host.boot(lambda host: self._run(host, name))
        return host

    async def _run(self, host: Host, name: str) -> None:
        env = host.env(limits=self.limits)
        server = self.cluster.servers[len(self.processes) % len(self.cluster.servers)]
        wire = ObservedTransport(self.sim, host, host.remote(server, "api", timeout_s=2.0), self.holds)
        recorder = Recorder(env)
        scheduler = self.make(Client(wire, env, component=host.name), env, name=name, recorder=recorder)
        life = SchedulerProcess(host, host.process.number, scheduler, recorder, wire)
        self.processes.append(life)
        wire.on_bind = lambda: self._bind_ended(life)
        await scheduler.run()

    def boot_quotas(self) -> Host:
        """Boot the controller that counts quotas."""
        host = self.sim.host("quotas")
        host.boot(
            lambda host: quota_controller(ControllerRuntime(self.client(host, 1), host.env(limits=self.limits))).run()
        )
        return host

    def client(self, host: Host, server: int) -> Client:
        remote = host.remote(self.cluster.servers[server % 2], "api", timeout_s=2.0)
        return Client(RemoteTransport(remote), host.env(limits=self.limits), component=host.name)

    def living(self) -> list[SchedulerProcess]:
        return [each for each in self.processes if each.host.up and each.number == each.host.process.number]

    def _bind_ended(self, life: SchedulerProcess) -> None:
        others = (each for each in self.living() if each is not life and each.scheduler.name == life.scheduler.name)
        if any(each.scheduler.leading for each in others):
            self.sim.sometimes("a standby took over with binds in flight")

    async def wait_bind(self) -> SchedulerProcess | None:
        """Wait for a scheduler with a bind in flight; None if there is none for a while."""
        for _ in range(600):
            life = next((each for each in self.living() if each.wire.binds_out and not each.host.paused), None)
            if life is not None:
                return life
            await asyncio.sleep(0.05)
        return None

    def recheck(self) -> int:
        """Recheck every kept attempt of every process. Returns their number."""
        return sum(
            recheck_attempts(reversed(list(life.recorder.decisions())), life.scheduler.caches, life.scheduler._env)
            for life in self.processes
        )


# -- agents and the end of a run -------------------------------------------------------------------


async def confirm(client: Any, node_name: str, uid: str) -> None:
    if node_name:
        owner = await client.get(Key("Node", "", node_name))
        await client.confirm_ended(node=node_name, node_uid=owner.uid, pod_uid=uid)


async def run_agents(fleet: SchedulerFleet) -> None:
    """In place of node agents: terminating pods end some time later."""
    authority, sim = fleet.cluster.authority, fleet.sim
    while True:
        await asyncio.sleep(sim.choose("agents look after", (1.0, 3.0)))
        for found in State(fleet.cluster.store).of("Pod").values():
            if found.view.terminating:
                try:
                    await authority.delete(found.key, DeleteOptions(uid=found.uid, grace_s=0))
                    sim.sometimes("a victim left", found.view.spec.node_name)
                    await confirm(authority, found.view.spec.node_name, found.uid)
                except OperatingError:
                    continue


async def settle(fleet: SchedulerFleet) -> None:
    """Without faults, every pod that fits is bound, and then there are no more writes."""
    sim, cluster = fleet.sim, fleet.cluster
    sim.heal()
    for name in NODES:  # the ends of force-deleted pods are confirmed now
        ledger = State(cluster.store).live_ledgers().get(name)
        pods = {found.uid for found in State(cluster.store).of("Pod").values()}
        for uid, claim in () if ledger is None else tuple(ledger.claims.items()):
            if uid not in pods and claim.state is ClaimState.BOUND and sim.choose("confirmed late", (True, False)):
                await confirm(cluster.authority, name, uid)
    for _ in range(40):
        before = written(cluster)
        await asyncio.sleep(6)
        moved, left = written(cluster) - before, could_be_bound(State(cluster.store))
        if not moved and not left:
            return
    if left:
        sim.violate("what fits is bound", f"{left} could be bound, and are not")
    sim.violate("then silence", f"writes after everything was done: {sorted(map(str, moved))}")


def written(cluster: Cluster) -> set[tuple[Key, int]]:
    theirs = ("Lease.coordination.k8s.io", "Fence.kedge.dev", "Operation.kedge.dev")
    return {(entry.key, entry.modified) for entry in cluster.store.entries() if entry.key.kind not in theirs}

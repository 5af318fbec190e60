"""One scheduler and one controller manager with watches an hour late lead; the rest of the cluster is on time.

For an hour their caches receive only their own reads; then they are an hour behind. Their writes are proved at each
commit. Periods are long here, so that hours are cheap; none is near an hour.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.kit.cluster import seeds
from tests.kit.late_watches import HOUR_S, Delay, LateTransport

from kedge.keys import Key
from kedge.limits import Limits
from kedge.sim.cluster import API, RemoteTransport
from kedge.sim.kernel import NO_FAULTS, Host, Simulation, run
from kedge.sim.standard import LIMITS, JudgedCluster, Size, service, workload

WEB, LEDGER = Key("Deployment.apps", "default", "web"), Key("ReplicaSet.apps", "default", "ledger")
LATE = ("manager-0", "default-scheduler-0")
ON_TIME = ("manager-1", "default-scheduler-1")
SLOW = replace(
    LIMITS,
    lease_s=150.0,
    lease_renew_s=100.0,
    lease_retry_s=40.0,
    node_renew_s=60.0,
    node_lease_s=240.0,
    node_suspect_s=130.0,
    node_unknown_s=250.0,
    node_blind_s=300.0,
    node_lost_s=700.0,
    agent_contact_s=200.0,
    agent_audit_s=600.0,
    agent_usage_s=60.0,
    watch_progress_s=300.0,
    store_silence_s=300.0,
    repair_every_s=600.0,
    orphan_s=240.0,
)
BLIND = replace(
    SLOW, relist_every_s=1e6, watch_probe_s=1e6, watch_silence_s=1e6, resync_every_s=1e6, scheduler_flush_s=1e6
)
"""No safety net but a key's own reads: without a watch event nothing changes."""
NETS = replace(SLOW, relist_every_s=900.0, watch_probe_s=400.0, watch_silence_s=900.0, resync_every_s=900.0)


class LateComponents:
    """The components with late watches."""

    def __init__(self, world: JudgedCluster) -> None:
        self.delay = Delay()
        cluster = world.cluster

        def transport(host: Host, *, server: int = 0) -> RemoteTransport:
            remote = host.remote(cluster.servers[server], API)
            return LateTransport(remote, self.delay) if host.name in LATE else RemoteTransport(remote)

        cluster.transport = transport  # type: ignore[method-assign]


async def an_hour_behind(sim: Simulation, limits: Limits) -> int:
    """Ninety minutes of rollouts, scales, deletions and a lost machine. Returns the number of commits."""
    plane = Size(nodes=3, zones=1, servers=1, schedulers=2, cpu="2", limits=limits)
    world = JudgedCluster(sim, plane, lag_s=3 * HOUR_S)
    lag = LateComponents(world)
    await world.open(cluster_faults=False)
    user, hosts = world.user, {host.name: host for host in sim.world.hosts.values()}
    await user.apply(service("web", "web"))
    await user.apply(workload("Deployment", "web", 3))
    await user.apply(workload("ReplicaSet", "ledger", 2, at_most_one=True))
    await asyncio.sleep(60)
    lag.delay.become(HOUR_S)
    for name in ON_TIME:  # the components with late watches take over the lead
        await asyncio.sleep(sim.choose("steps down after", (1.0, 400.0)))
        hosts[name].crash()
    before, images = world.commits, 1
    for _ in range(6):
        match sim.choose("step", ("roll out", "more", "fewer", "lose", "delete", "cordon")):
            case "roll out":
                images += 1
                await user.roll_out(WEB, f"web:{images}")
            case "more" | "fewer" as size:
                await user.scale(sim.choose("whom", (WEB, LEDGER)), 4 if size == "more" else 1)
            case "lose":
                node = world.pick_node()
                if node.host.up:
                    node.power_off(for_s=sim.choose("outage", (1500.0, 300.0)))
            case "delete":
                pods = [each.key for each in world.cluster.all("Pod")]
                if pods:
                    await user.delete(sim.choose("pod", pods), force=sim.choose("force", (False, True)))
            case "cordon":
                node = world.pick_node()
                found = world.cluster.find(node.key)
                if found is not None:
                    await user.cordon(node.name, cordoned=not found.view.spec.unschedulable)
        await asyncio.sleep(sim.choose("pause", (900.0, 60.0, 1500.0)))
        sim.sometimes("a cache was behind", is_behind(world))
    done = world.commits - before
    for node in world.cluster.nodes.values():
        await user.cordon(node.name, cordoned=False)
    lag.delay.become(0.0)
    for name in ON_TIME:
        if sim.choose("comes back", (True, False)):
            hosts[name].restart()
    await world.close(within_s=4 * HOUR_S, stays_s=30, silence_s=900)
    return done


def is_behind(world: JudgedCluster) -> bool:
    """Whether a component with late watches has an outdated view of pods."""
    cluster = world.cluster
    now = {each.key: each.revision for each in cluster.all("Pod")}
    late = (each for each in cluster.processes if each.host.name in LATE and each.host.up)
    held = [cache.list().value for each in late for cache in each.context.caches.of_kind("Pod")]
    return any({each.key: each.revision for each in pods} != now for pods in held)


def judge(seeds: range, limits: Limits) -> int:
    """Run every seed without a violation. Returns how often a cache was seen to be behind."""
    done = behind = 0
    for seed in seeds:
        outcome = run(lambda sim: an_hour_behind(sim, limits), seed, faults=NO_FAULTS)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        done += outcome.result or 0
        behind += outcome.marks.get("a cache was behind", 0)
    assert done > 10 * len(seeds)
    return behind


@seeds(7, 60)
def test_a_leader_that_is_an_hour_behind_breaks_no_invariant_and_catches_up(seeds: range) -> None:
    assert judge(seeds, BLIND) > len(seeds)


def test_a_condition_may_be_as_old_as_the_state_that_its_writer_had() -> None:
    """In this seed the controller counts replicas that were ready more than a minute before, and are not any more."""
    outcome = run(lambda sim: an_hour_behind(sim, BLIND), 15, faults=NO_FAULTS)
    assert outcome.violation is None, outcome.violation


@seeds(3, 60)
def test_a_leader_with_late_watches_and_lists_breaks_no_invariant(seeds: range) -> None:
    assert judge(seeds, NETS) > 0

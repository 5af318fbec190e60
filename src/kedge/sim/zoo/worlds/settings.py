"""Worlds of settings that change in mid-run: quotas, admission policies, and the clocks of hosts.

In the other worlds quotas stay as they are, all servers have the same policies, and a wrong clock is wrong from birth.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    POD_KIND,
    REPLICA_SET_KIND,
    RESOURCE_QUOTA_KIND,
    ZONE_QUOTA_KIND,
)
from kedge.errors import NotFound
from kedge.keys import Key
from kedge.server.service import AdmissionChain
from kedge.sim.cluster.admission import PolicyPlan, chain_of
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.kernel import Host, Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size, quota, workload, zone_quota
from kedge.sim.zoo.worlds.agents import NODE_LIMITS
from kedge.sim.zoo.worlds.base import QUIET, SETTLES_S
from kedge.sim.zoo.worlds.hollow_nodes import HOLLOW_NODES, HollowNodes, manage
from kedge.sim.zoo.worlds.invariants import expect, quota_status_equals_usage

WEB = Key(DEPLOYMENT_KIND, "default", "web")
QUOTA = Key(RESOURCE_QUOTA_KIND, "default", "all")
ZONES = Key(ZONE_QUOTA_KIND, "default", "zones")

# -- policies: quotas and admission policies --------------------------------------------------------------

QUOTA_REFUSED, POLICY_REFUSED = "a quota refused a pod", "a policy refused a pod"
SERVERS_DIFFERED, LABELLED = "two servers had different policies", "a policy changed a pod"
SEASON = "zoo.example/season"
CHANGES = ("quota", "policies", "scale", "zone quota", "roll out")


@simulate(faults=ClusterSwarm(), marks=(QUOTA_REFUSED, POLICY_REFUSED, SERVERS_DIFFERED, LABELLED))
async def policies(sim: Simulation) -> None:
    """Quotas shrink and grow, and admission policies change on one server before the other, during rollouts."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    expect(world, quota_status_equals_usage)
    await HollowNodes(world).add_nodes(HOLLOW_NODES)
    manage(world, "deployment", "replicaset", "quota")
    cluster, user = world.cluster, world.user
    await user.apply(quota("all", pods="4", requests__cpu="4"))
    await user.apply(workload("Deployment", "web", 2))
    await asyncio.sleep(sim.choose("first", (10, 2)))
    for n in range(sim.choose_int("steps", 3, 6)):
        match sim.choose("change", CHANGES):
            case "quota" if (
                cluster.find(QUOTA) is not None and sim.choose("quota", ("changes", "is deleted")) != "changes"
            ):
                await user.delete(QUOTA)
            case "quota":
                await user.apply(quota("all", pods=sim.choose("pods", ("1", "3", "6")), requests__cpu="4"))
            case "zone quota" if cluster.find(ZONES) is None:
                await user.apply(zone_quota("zones", {"zone-a": {"cpu": sim.choose("cpu", ("1", "500m", "0"))}}))
            case "zone quota":
                await user.delete(ZONES)
            case "policies":
                _change_policies(world, n)
            case "scale":
                await user.scale(WEB, sim.choose("size", (1, 3, 5)))
            case _:
                await user.roll_out(WEB, f"web:{n + 2}")
        await asyncio.sleep(sim.choose("pause", (8, 1, 20)))
        _mark_refusals(world)
    await world.heal()
    cluster.admit_by(AdmissionChain())
    for key in (QUOTA, ZONES):
        await user.delete(key)
    await user.scale(WEB, 2)
    # Nothing wakes a controller that an admission policy refused: it retries after a backoff.
    await world.close(within_s=600, silence_s=0, stays_s=5)


def _change_policies(world: JudgedCluster, n: int) -> None:
    """Change the policies of one server, or of both."""
    sim, servers = world.sim, [host.name for host in world.cluster.servers]
    kinds = (POD_KIND, REPLICA_SET_KIND)
    label = PolicyPlan("season", kinds, {"metadata": {"labels": {SEASON: f"s{n}"}}}, verbs=("create",))
    refuse = PolicyPlan("closed", (POD_KIND,), refuse="closed for the season", verbs=("create",))
    plans = sim.choose("policies", ((label,), (refuse,), (label, refuse), ()))
    scope = sim.choose("scope", ((servers[1],), (servers[0],), tuple(servers)))
    world.cluster.admit_by(chain_of(plans, revision=n + 1), servers=scope)
    sim.sometimes(SERVERS_DIFFERED, len(scope) == 1)


def _mark_refusals(world: JudgedCluster) -> None:
    for found in world.cluster.all(REPLICA_SET_KIND):
        failures = [each.message for each in found.view.status.conditions if each.type == "ReplicaFailure"]
        world.sim.sometimes(QUOTA_REFUSED, any("exceeded quota" in each for each in failures))
        world.sim.sometimes(POLICY_REFUSED, any("closed for the season" in each for each in failures))
    world.sim.sometimes(LABELLED, any(SEASON in pod.metadata.labels for pod in world.cluster.all(POD_KIND)))


# -- clocks: wall clocks that jump, and clocks that drift ----------------------------------------------------

JUMPED_BACK, JUMPED_FORWARD, DRIFTED = "a clock jumped back", "a clock jumped forward", "a clock changed its rate"
JUMPS_S = (-1.0, 40.0, -40.0, 3_600.0, -86_400.0)
RATES = (1.001, 0.999, 1.05, 0.95)


@simulate(faults=ClusterSwarm(), marks=(JUMPED_BACK, JUMPED_FORWARD, DRIFTED))
async def clocks(sim: Simulation) -> None:
    """The clocks of all components jump and drift, while pods are replaced and a machine is off."""
    size = Size(
        nodes=3,
        zones=1,
        servers=2,
        schedulers=2,
        managers=2,
        controllers=("replicaset", "node-lifecycle"),
        limits=replace(NODE_LIMITS, node_lost_s=60.0),
    )
    world = JudgedCluster(sim, size)
    await world.open()
    cluster, user = world.cluster, world.user
    await user.apply(workload("ReplicaSet", "ledger", 2, at_most_one=True))
    await user.apply(workload("ReplicaSet", "web", 2))
    await asyncio.sleep(10)
    hosts = [host for name, host in sim.world.hosts.items() if host.restartable and not name.startswith("driver")]
    for _ in range(sim.choose_int("steps", 2, 5)):
        match sim.choose("step", ("jump", "drift", "jump", "delete a pod", "node is off")):
            case "jump":
                _jump(sim, sim.choose("host", hosts))
            case "drift":
                sim.choose("host", hosts).skew(rate=sim.choose("rate", RATES))
                sim.sometimes(DRIFTED)
            case "node is off":
                world.pick_node().power_off(for_s=sim.choose("for", (10.0, 40.0)))
            case _:
                with suppress(NotFound):
                    if pods := cluster.all(POD_KIND):
                        await user.delete(sim.choose("pod", pods).key)
        await asyncio.sleep(sim.choose("pause", (6, 1, 25)))
    await world.heal()
    await asyncio.sleep(SETTLES_S)
    await world.close(within_s=300, silence_s=10, stays_s=5)


def _jump(sim: Simulation, host: Host) -> None:
    """Set the wall clock of a host: an offset from the true time."""
    offset_s = sim.choose("offset", JUMPS_S)
    before = host.now()
    host.skew(offset_s=offset_s)
    sim.sometimes(JUMPED_BACK if host.now() < before else JUMPED_FORWARD)

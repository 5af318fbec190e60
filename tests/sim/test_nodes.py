"""Nodes that fall silent and return or not; an observer whose watch breaks; budgets that a drain must keep."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.kit.cluster import seeds
from tests.kit.controllers import REPLICA_SET, replica_set
from tests.kit.nodes import (
    NODES,
    cluster_with_agents,
    find,
    has_condition,
    new_cluster,
    objects,
    ready_pods,
    settle,
)
from tests.objects import BUDGET

from kedge.api.conditions import is_true
from kedge.controllers.node.controller import NodeLifecycle, lifecycle_controller
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.judges.facts import LAG_S
from kedge.sim.kernel import NO_FAULTS, Simulation, run


def all_ready(cluster: Cluster, *, but: str = "") -> bool:
    """Every node is ready, without taints, and the statuses are up to date."""
    nodes = [each.view for each in objects(cluster.store, "Node") if each.key.name != but]
    sets = [each.view.status for each in objects(cluster.store, "ReplicaSet.apps")]
    claims = [each.view for each in objects(cluster.store, "NodeAllocation.kedge.dev") if each.key.name != but]
    pods = {each.uid for each in objects(cluster.store, "Pod") if not each.view.finished}
    return (
        all(is_true(each.status.conditions, "Ready") and not each.spec.taints for each in nodes)
        and not any(is_true(each.status.conditions, what) for each in nodes for what in ("Suspect", "Lost"))
        and all(each.ready_replicas == each.replicas == 4 for each in sets)
        and all(uid in pods for each in claims for uid in each.status.entries)
    )


async def one_fails(sim: Simulation) -> int:
    """A node fails for good. Each of its pods is replaced once, on another node, and its claims stay."""
    cluster, fleet, _, agents = await cluster_with_agents(sim)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 4))
    await asyncio.sleep(30)
    victim = sim.choose("victim", NODES)
    agents[victim].dead = True
    await asyncio.sleep(300)

    def recovered() -> bool:
        homes = ready_pods(cluster)
        return (
            len(homes) == 4
            and victim not in homes.values()
            and has_condition(cluster, victim, "Lost")
            and all_ready(cluster, but=victim)
        )

    await settle(sim, cluster, recovered, within_s=600)
    ledger = find(cluster.store, Key("NodeAllocation.kedge.dev", "", victim))
    pods = {each.uid for each in objects(cluster.store, "Pod")}
    sim.note("ledger", f"{len(ledger.view.status.entries) if ledger else 0} claims left, {len(pods)} pods")
    return await fleet.recheck({"node-lifecycle": NodeLifecycle})


@seeds(3, 24)
def test_the_pods_of_a_failed_node_are_replaced_once_and_every_decision_rechecks(seeds: range) -> None:
    rechecked = 0
    for seed in seeds:
        outcome = run(one_fails, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result is not None
        rechecked += outcome.result
    assert rechecked > len(seeds) * 20


def test_a_write_that_was_in_flight_when_the_faults_ended_may_delay_the_goal() -> None:
    """An API server that was paused then writes a condition which was true when it was sent."""

    async def program(sim: Simulation, lost_from_s: float) -> None:
        cluster = await new_cluster(sim)
        begin_s = sim.now_s

        def goal() -> bool:
            since_s = sim.now_s - begin_s
            return since_s >= lost_from_s - 1 and not lost_from_s <= since_s < lost_from_s + 1

        await settle(sim, cluster, goal)

    assert run(partial(program, lost_from_s=0.25), 1, faults=NO_FAULTS).violation is None
    late = run(partial(program, lost_from_s=2 * LAG_S), 1, faults=NO_FAULTS).violation
    assert late is not None
    assert "came true and did not stay true" in str(late)


async def one_is_partitioned(sim: Simulation, away_s: float) -> tuple[dict[str, str], dict[str, str], bool]:
    cluster, _, hosts, _ = await cluster_with_agents(sim, copies=1)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 4))
    await asyncio.sleep(30)
    before = ready_pods(cluster)
    assert len(before) == 4
    victim = next(iter(before.values()))
    sim.network.partition([hosts[victim]], cluster.servers)
    await asyncio.sleep(away_s)
    marked = has_condition(cluster, victim, "Suspect") or has_condition(cluster, victim, "Lost")
    sim.network.heal()
    await settle(sim, cluster, lambda: len(ready_pods(cluster)) == 4 and all_ready(cluster))
    return before, ready_pods(cluster), marked


def test_a_node_that_returns_before_it_is_lost_keeps_its_pods() -> None:
    for away_s in (5.0, 30.0, 60.0, 90.0):
        outcome = run(partial(one_is_partitioned, away_s=away_s), 1, faults=NO_FAULTS)
        assert outcome.violation is None, f"{away_s}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result is not None
        before, after, marked = outcome.result
        assert before == after
        assert marked == (away_s >= 30.0)


def test_a_node_that_was_lost_returns_and_nothing_runs_twice() -> None:
    outcome = run(partial(one_is_partitioned, away_s=200.0), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-2500:]}"
    assert outcome.result is not None
    before, after, _ = outcome.result
    assert before != after
    assert len(after) == 4


async def partitioned(sim: Simulation, part: str) -> tuple[dict[str, str], dict[str, str]]:
    """All nodes are alive: the observer is partitioned, or the nodes are."""
    cluster, fleet, hosts, _ = await cluster_with_agents(sim, copies=0)
    (observer,) = fleet.boot(sim, lifecycle_controller)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 4))
    await asyncio.sleep(30)
    before = ready_pods(cluster)
    assert len(before) == 4
    cut = [observer] if part == "observer" else list(hosts.values()) if part == "nodes" else cluster.servers
    sim.network.partition(cut, [cluster.store_host] if part == "servers" else cluster.servers)
    await asyncio.sleep(400)
    assert fleet.processes
    sim.network.heal()
    await asyncio.sleep(60)
    await settle(sim, cluster, lambda: len(ready_pods(cluster)) == 4 and all_ready(cluster))
    return before, ready_pods(cluster)


def test_a_blind_observer_or_zone_evicts_no_pods() -> None:
    for part in ("observer", "nodes", "servers"):
        outcome = run(partial(partitioned, part=part), 1, faults=NO_FAULTS)
        assert outcome.violation is None, f"{part}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result is not None
        before, after = outcome.result
        assert before == after, part


async def drained(sim: Simulation) -> None:
    """A drain empties a node; a budget that allows no disruption stops it for as long."""
    cluster, *_ = await cluster_with_agents(sim, copies=1)
    await cluster.authority.create(REPLICA_SET, replica_set("web", 4))
    budget = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "web"}}},
    }
    await cluster.authority.create(BUDGET, budget)
    key = Key("PodDisruptionBudget.policy", "default", "web")
    status = {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 4, "currentHealthy": 4}
    await cluster.authority.patch(key, {"status": status}, subresource="status")
    await asyncio.sleep(20)
    victim = Key("Node", "", "node-0")
    before = ready_pods(cluster)
    assert "node-0" in before.values()
    await cluster.authority.patch(victim, {"metadata": {"annotations": {"kedge.dev/drain": "disks"}}})
    await asyncio.sleep(30)
    assert ready_pods(cluster) == before
    found = find(cluster.store, victim)
    assert found is not None
    assert found.view.spec.unschedulable
    await cluster.authority.patch(key, {"status": {"disruptionsAllowed": 4}}, subresource="status")

    def empty() -> bool:
        homes = ready_pods(cluster).values()
        return len(homes) == 4 and "node-0" not in homes and has_condition(cluster, "node-0", "Drained")

    await settle(sim, cluster, empty)


def test_a_drain_empties_a_node_as_budgets_allow() -> None:
    outcome = run(drained, 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-2500:]}"

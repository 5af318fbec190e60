"""Worlds of operators: processes that are stopped gracefully, drained nodes, priorities, and edits by a person.

In the other worlds components only crash, and users only apply, scale and delete.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.requests import DeleteOptions, Evict
from kedge.api.views import PodView
from kedge.api.wellknown import (
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    DRAIN_NODE,
    POD_KIND,
    PRIORITY_CLASS_KIND,
    REPLICA_SET_KIND,
)
from kedge.errors import Invalid, NotFound, OperatingError
from kedge.keys import Key
from kedge.sim.cluster import Node
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.graceful_stops import restart_gracefully
from kedge.sim.judges.invariants import Judge
from kedge.sim.kernel import Host, Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size, budget, service, workload
from kedge.sim.zoo.worlds.agents import NODE_LIMITS
from kedge.sim.zoo.worlds.base import QUIET, SETTLES_S
from kedge.sim.zoo.worlds.hollow_nodes import HOLLOW_NODES, HollowNodes, manage
from kedge.sim.zoo.worlds.invariants import expect

WEB = Key(DEPLOYMENT_KIND, "default", "web")

# -- maintenance: graceful stops, cordons and drains ---------------------------------------------------

RESTARTED = "a {} was stopped gracefully"
DRAINED_BY_EVICTIONS, DRAINED_BY_NOTE = "a node was drained by evictions", "a node was drained by its annotation"
COMPONENTS = ("server", "manager", "scheduler", "agent")
DRAIN_TRIES = 25


@simulate(
    faults=ClusterSwarm(),
    marks=(*(RESTARTED.format(each) for each in COMPONENTS), DRAINED_BY_EVICTIONS, DRAINED_BY_NOTE),
)
async def maintenance(sim: Simulation) -> None:
    """An upgrade: processes are stopped gracefully and started again, nodes are cordoned and drained before."""
    size = Size(
        nodes=3,
        servers=2,
        schedulers=2,
        managers=2,
        controllers=("deployment", "replicaset", "disruption", "node-lifecycle"),
        limits=replace(NODE_LIMITS, node_lost_s=120.0),
    )
    world = JudgedCluster(sim, size)
    await world.open()
    cluster, user = world.cluster, world.user
    await cluster.create(budget("web", "web", 1))
    await user.apply(workload("Deployment", "web", 3))
    await asyncio.sleep(sim.choose("first", (15, 5)))
    hosts: dict[str, list[Host]] = {
        "server": cluster.servers,
        "manager": [sim.world.hosts[f"manager-{n}"] for n in range(size.managers)],
        "scheduler": [sim.world.hosts[f"default-scheduler-{n}"] for n in range(size.schedulers)],
    }
    for n in range(sim.choose_int("steps", 2, 4)):
        kind = sim.choose("component", ("agent", *hosts))
        after_s = sim.choose("down", (1.0, 0.0, 8.0))
        if kind == "agent":
            node = world.pick_node()
            await _drain(world, node)
            stopped = await restart_gracefully(cluster, node.host, after_s=after_s)
            await _uncordon(world, node)
        else:
            stopped = await restart_gracefully(cluster, sim.choose("host", hosts[kind]), after_s=after_s)
        sim.sometimes(RESTARTED.format(kind), stopped)
        if sim.choose("roll out", (False, True)):
            await user.roll_out(WEB, f"web:{n + 2}")
        await asyncio.sleep(sim.choose("pause", (5, 1, 15)))
    await world.heal()
    for node in cluster.nodes.values():
        await _uncordon(world, node)
    await asyncio.sleep(SETTLES_S)
    await world.close(within_s=300, silence_s=10, stays_s=5)


async def _drain(world: JudgedCluster, node: Node) -> None:
    """Cordon the node and empty it: by evictions, as `kedge drain` does, or by the annotation for a controller."""
    sim, cluster = world.sim, world.cluster
    by = sim.choose("drain", ("evictions", "annotation", "none"))
    if by == "none":
        return
    with suppress(NotFound):  # the node was removed, and registers again
        if by == "evictions":
            await world.user.cordon(node.name)
        else:
            await world.user.patch(node.key, {"metadata": {"annotations": {DRAIN_NODE: "true"}}})
    transport = cluster.transport(world.user.host, server=1)
    for _ in range(DRAIN_TRIES):
        pods = [pod for pod in cluster.all(POD_KIND) if pod.view.spec.node_name == node.name]
        if not pods:
            sim.sometimes(DRAINED_BY_EVICTIONS if by == "evictions" else DRAINED_BY_NOTE)
            return
        if by == "evictions":
            for pod in pods:
                with suppress(OperatingError):  # the budget allows it later
                    await world.user.host.run(transport.send(Evict(pod.key, DeleteOptions(uid=pod.uid))))
        await asyncio.sleep(1)


async def _uncordon(world: JudgedCluster, node: Node) -> None:
    with suppress(NotFound):
        await world.user.patch(
            node.key, {"metadata": {"annotations": {DRAIN_NODE: None}}, "spec": {"unschedulable": None}}
        )


# -- priorities: preemption between several classes ------------------------------------------------------

PREEMPTED = "a pod was preempted"
WAITED = "a pod that never preempts waited"
CLASSES = {"low": 10, "middle": 50, "high": 100, "patient": 100}
"""Values by class. Pods of the last one never preempt."""
ROOM = 3
"""One pod fits on each of the nodes."""


def higher_priorities_are_bound(judge: Judge) -> bool:
    """No pod that may preempt waits for a node while a pod of lower priority has one. All pods have the same size."""
    pods = [pod.as_view(PodView) for pod in judge.facts.pods.values()]
    placed = [pod.spec.priority or 0 for pod in pods if pod.spec.node_name and not pod.finished]
    waiting = [
        pod.spec.priority or 0 for pod in pods if not pod.spec.node_name and pod.spec.preemption_policy != "Never"
    ]
    free = len(placed) < ROOM
    return not waiting or (not free and max(waiting) <= min(placed))


@simulate(faults=ClusterSwarm(), marks=(PREEMPTED, WAITED))
async def priorities(sim: Simulation) -> None:
    """ReplicaSets of four priorities want more than there is, are scaled, and a class is replaced by a lower one."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=2, managers=0, limits=QUIET))
    await world.open()
    zones = {**HOLLOW_NODES, "hollow-2": "zone-a"}
    await HollowNodes(world, places=False).add_nodes(zones, cpu="1")
    manage(world, "replicaset", "disruption")
    cluster, user = world.cluster, world.user
    for name, value in CLASSES.items():
        await cluster.create(_class(name, value))
    await cluster.create(budget("low", "low", sim.choose("budget", (1, 0))))
    sim.check_always(_PreemptionsSeen(world))
    names = ("low", *(sim.choose("class", tuple(CLASSES)) for _ in range(sim.choose_int("steps", 2, 5))))
    for name in names:
        await user.apply(workload("ReplicaSet", name, 0, cpu="700m", priorityClassName=name))
        await user.scale(Key(REPLICA_SET_KIND, "default", name), sim.choose("replicas", (2, 3, 1, 0)))
        if sim.choose("class falls", (False, False, True)):
            await user.delete(Key(PRIORITY_CLASS_KIND, "", "middle"))
            await user.apply(_class("middle", 5))
        await asyncio.sleep(sim.choose("pause", (6, 1, 15)))
    await world.heal()
    await user.delete(Key(DISRUPTION_BUDGET_KIND, "default", "low"))  # its pods may be evicted without a bound
    expect(world, higher_priorities_are_bound)
    await sim.converge(within_s=200, every_s=1.0, stays_s=2, unrest_s=30)
    for name in dict.fromkeys(names):
        await user.scale(Key(REPLICA_SET_KIND, "default", name), int(name == names[-1]))
    await world.close(within_s=200, silence_s=0, stays_s=2)


class _PreemptionsSeen:
    """Marks a run in which the story of this world happens."""

    __name__ = "preemptions seen"

    def __init__(self, world: JudgedCluster) -> None:
        self._sim, self._facts = world.sim, world.judge.facts

    def __call__(self, commit: Any) -> None:
        for key in commit.keys:
            found = self._facts.objects.get(key) if key.kind == POD_KIND else None
            if found is None:
                continue
            view = found.as_view(PodView)
            by_scheduler = "scheduler" in commit.origin.decision
            self._sim.sometimes(PREEMPTED, by_scheduler and view.terminating)
            reported = any(each.type == "PodScheduled" and each.status == "False" for each in view.status.conditions)
            self._sim.sometimes(WAITED, reported and view.spec.preemption_policy == "Never")


def _class(name: str, value: int) -> dict[str, Any]:
    kind = KINDS.of_key_kind(PRIORITY_CLASS_KIND)
    policy = "Never" if name == "patient" else "PreemptLowerPriority"
    metadata = {"name": name}
    return {
        "apiVersion": kind.api_version,
        "kind": "PriorityClass",
        "metadata": metadata,
        "value": value,
        "preemptionPolicy": policy,
    }


# -- edits: a person changes in mid-run what controllers own ---------------------------------------------

HELD = "a finalizer held the deletion of a {}"
FINALIZER = "zoo.example/hold"
HOLDS = ("pod", "ReplicaSet", "Deployment")
EDITS = (
    "relabel a pod",
    "pause",
    "scale the ReplicaSet",
    "hold a deletion",
    "delete the ReplicaSet",
    "change the strategy",
    "roll out",
    "hold a deletion",
)


@simulate(faults=ClusterSwarm(), marks=(*(HELD.format(each) for each in HOLDS), *EDITS[:3], *EDITS[4:6]))
async def edits(sim: Simulation) -> None:
    """A person edits objects that controllers own, in the middle of rollouts, and holds deletions by finalizers."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    await HollowNodes(world).add_nodes(HOLLOW_NODES)
    manage(world, "deployment", "replicaset", "endpoints", "garbage")
    user = world.user
    await user.apply(service("web", "web"))
    await user.apply(workload("Deployment", "web", sim.choose("replicas", (2, 1, 3))))
    await asyncio.sleep(sim.choose("first", (20, 5)))
    for n in range(sim.choose_int("steps", 2, 4)):
        with suppress(NotFound, Invalid):  # it is gone or being deleted by now: a controller was faster
            await _edit(world, sim.choose("edit", EDITS), n)
        await asyncio.sleep(sim.choose("pause", (6, 0.5, 15)))
    await world.heal()
    await _tidy(world)
    await world.close(within_s=300, silence_s=20, stays_s=30)


async def _edit(world: JudgedCluster, what: str, n: int) -> None:
    sim, cluster, user = world.sim, world.cluster, world.user
    pods, sets = cluster.all(POD_KIND), cluster.all(REPLICA_SET_KIND)
    match what:
        case "relabel a pod" if pods:
            label = sim.choose("label", ("stray", "web"))
            pod = sim.choose("pod", pods)
            await user.patch(pod.key, {"metadata": {"labels": {"app": label}}})
            sim.sometimes(what, label == "stray")
        case "pause":
            await user.patch(WEB, {"spec": {"paused": True}})
            await user.roll_out(WEB, f"web:{n + 2}")
            await asyncio.sleep(sim.choose("paused for", (5, 15)))
            await user.patch(WEB, {"spec": {"paused": None}})
            sim.sometimes(what)
        case "scale the ReplicaSet" if sets:
            await user.scale(sim.choose("set", sets).key, sim.choose("size", (0, 1, 4)))
            sim.sometimes(what)
        case "delete the ReplicaSet" if sets:
            propagation = sim.choose("propagation", ("Background", "Foreground", "Orphan"))
            await user.delete(sim.choose("set", sets).key, propagation=propagation)
            sim.sometimes(what)
        case "change the strategy":
            surge = {"maxSurge": sim.choose("surge", (1, 2)), "maxUnavailable": sim.choose("unavailable", (0, 1))}
            await user.patch(WEB, {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": surge}}})
            sim.sometimes(what)
        case "hold a deletion":
            await _hold(world)
        case _:
            await user.roll_out(WEB, f"web:{n + 2}")


async def _hold(world: JudgedCluster) -> None:
    """Delete an object that a finalizer holds, and remove the finalizer later. A Deployment is then applied again."""
    sim, cluster, user = world.sim, world.cluster, world.user
    what = sim.choose("held", HOLDS)
    kind = {"pod": POD_KIND, "ReplicaSet": REPLICA_SET_KIND, "Deployment": DEPLOYMENT_KIND}[what]
    found = cluster.all(kind)
    if not found:
        return
    held = sim.choose("which", found)
    await user.patch(held.key, {"metadata": {"finalizers": [FINALIZER]}})
    await user.delete(held.key, propagation=sim.choose("propagation", ("Background", "Foreground")))
    await asyncio.sleep(sim.choose("held for", (3, 12)))
    there = cluster.find(held.key)
    sim.sometimes(HELD.format(what), there is not None and there.metadata.deletion_timestamp is not None)
    with suppress(NotFound):
        await _release(world, held.key)
    if kind == DEPLOYMENT_KIND:
        while cluster.find(held.key) is not None:  # noqa: ASYNC110  in virtual time it costs nothing
            await asyncio.sleep(1)
        await user.apply(workload("Deployment", "web", 2))


async def _release(world: JudgedCluster, key: Key) -> None:
    """Remove the finalizer of the person, and no other."""
    found = world.cluster.find(key)
    left = [each for each in (found.metadata.finalizers if found is not None else ()) if each != FINALIZER]
    await world.user.patch(key, {"metadata": {"finalizers": left}})


async def _tidy(world: JudgedCluster) -> None:
    """The person leaves: no deletion is held, nothing is paused, and relabelled pods are gone."""
    cluster, user = world.cluster, world.user
    for kind in (POD_KIND, REPLICA_SET_KIND, DEPLOYMENT_KIND):
        for each in cluster.all(kind):
            if FINALIZER in each.metadata.finalizers:
                with suppress(NotFound):
                    await _release(world, each.key)
    for pod in cluster.all(POD_KIND):
        if pod.metadata.labels.get("app") == "stray":
            await user.delete(pod.key, force=True)
    await user.apply(workload("Deployment", "web", 2))
    await user.patch(WEB, {"spec": {"paused": None}})

"""Worlds of orphaned state: claims and reservations without a pod, and evictions that a stale cache does not show.

On hollow nodes. Orphans result only from what users may do, such as marking a machine out of service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import DeleteOptions, Evict
from kedge.api.timestamps import format_time
from kedge.api.wellknown import NODE_KIND, OUT_OF_SERVICE, POD_KIND, RESERVATION_KIND
from kedge.controllers.repair.controller import BINDINGS, LEDGERS, RESERVATIONS
from kedge.errors import Invalid, NotFound, OperatingError
from kedge.keys import Key
from kedge.sim.cluster.faults import ClusterSwarm
from kedge.sim.cluster.links import Commit, RemoteTransport
from kedge.sim.cluster.users import User
from kedge.sim.judges.invariants import Judge
from kedge.sim.judges.pod_facts import is_healthy
from kedge.sim.kernel import Host, Simulation, simulate
from kedge.sim.standard import JudgedCluster, Size, workload
from kedge.sim.zoo.worlds.base import QUIET, plain_pod
from kedge.sim.zoo.worlds.hollow_nodes import HOLLOW_NODES, HollowNodes, manage, place
from kedge.sim.zoo.worlds.invariants import bound_pods_have_claims, expect

DEADLINES_S = (8, 2, 20)
REPLICAS = 3
NOTED = "no request fails for the change of another"
GRANTED = "allowed evictions are granted"
EVICTION_TRIES = 60


# -- orphans: unused reservations, machines out of service, replaced nodes -----------------------------


def reservations_end(judge: Judge) -> bool:
    """No reservation is left: in this world all have a deadline, and their pods are never bound."""
    return not any(key.kind == RESERVATION_KIND for key in judge.facts.objects)


@simulate(faults=ClusterSwarm())
async def orphans(sim: Simulation) -> None:
    """Pods reserve, are bound, and are deleted by force; a machine is replaced by another of the same name."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    expect(world, bound_pods_have_claims, reservations_end)
    machines = HollowNodes(world, places=False, runs=False)
    await machines.add_nodes(HOLLOW_NODES)
    manage(world, RESERVATIONS, LEDGERS, BINDINGS)
    cluster, user = world.cluster, world.user
    for n in range(sim.choose_int("steps", 2, 5)):
        node = sim.choose("node", tuple(HOLLOW_NODES))
        bound = [pod for pod in cluster.all(POD_KIND) if pod.view.spec.node_name]
        match sim.choose("step", ("bind", "reserve", "bind", "force delete", "replace the node")):
            case "force delete" if bound:
                await user.delete(sim.choose("pod", bound).key, force=True)
            case "replace the node" if bound:
                with suppress(NotFound):
                    await cluster.authority.delete(Key(NODE_KIND, "", node))
                await asyncio.sleep(sim.choose("until it comes", (0.1, 5)))
                await machines.add_nodes({node: HOLLOW_NODES[node]})
            case "reserve":
                made = await user.apply(plain_pod(f"pod-{n}"), namespace="default")
                until_s = sim.choose("deadline", DEADLINES_S)
                body = _reservation(made, node, format_time(sim.driver.now() + timedelta(seconds=until_s)))
                with suppress(OperatingError):
                    await cluster.authority.create(KINDS.of_key_kind(RESERVATION_KIND), body)
            case _:
                made = await user.apply(plain_pod(f"pod-{n}"), namespace="default")
                with suppress(OperatingError):
                    await place(cluster.authority, made, node)
        await asyncio.sleep(sim.choose("pause", (4, 0.3, 12)))
    await world.heal()
    # An operator has confirmed that nothing runs on the machines that hold claims of deleted pods.
    taint = {"key": OUT_OF_SERVICE, "effect": "NoExecute"}
    for node in dict.fromkeys(
        name for uid, held in world.judge.facts.claims.items() if uid not in world.judge.facts.pods for name in held
    ):
        await user.patch(Key(NODE_KIND, "", node), {"spec": {"taints": [taint]}})
    await asyncio.sleep(DEADLINES_S[-1])
    await world.close(within_s=200, silence_s=0, stays_s=2)


def _reservation(pod: Object, node: str, deadline: str) -> dict[str, Any]:
    about = {"name": pod.key.name, "uid": pod.uid}
    metadata = {"name": pod.uid, "namespace": pod.key.namespace}
    return {"metadata": metadata, "spec": {"pod": about, "nodeName": node, "generation": 1, "deadline": deadline}}


# -- evictions: repeated evictions against a budget ------------------------------------------------------


class EvictionsRespectTheBudget:
    """Once all replicas were healthy, evictions leave at least as many as the budget requires."""

    __name__ = "evictions respect the budget"

    def __init__(self, judge: Judge) -> None:
        self._facts = judge.facts
        self._begun = False
        judge.cluster.sim.check_always(self)

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if not any(key.kind == POD_KIND for key in commit.keys):
            return
        healthy = sum(is_healthy(pod.view) for pod in self._facts.pods.values())
        self._begun = self._begun or healthy == REPLICAS
        if self._begun and healthy < REPLICAS - 1:
            yield "too many at once", f"{healthy} of {REPLICAS} are healthy, and the budget requires {REPLICAS - 1}"


@simulate(faults=ClusterSwarm())
async def evictions(sim: Simulation) -> None:
    """Two clients evict every pod and retry when refused; a third annotates the pods."""
    world = JudgedCluster(sim, Size(nodes=0, servers=2, schedulers=0, managers=0, limits=QUIET))
    await world.open()
    EvictionsRespectTheBudget(world.judge)
    await HollowNodes(world).add_nodes(HOLLOW_NODES)
    manage(world, "replicaset", "disruption")
    await world.user.apply(_budget("web", least=REPLICAS - 1))
    await world.user.apply(workload("ReplicaSet", "web", REPLICAS))
    await asyncio.sleep(sim.choose("first", (10, 20)))
    rounds = sim.choose_int("rounds", 4, 12)
    async with asyncio.TaskGroup() as group:
        for name in ("evictor-0", "evictor-1"):
            group.create_task(_evict(world, name, rounds))
        group.create_task(_write_notes(world, rounds))
    await world.close(within_s=200, silence_s=0, stays_s=2)
    await _evict_all(world)


async def _evict(world: JudgedCluster, name: str, rounds: int) -> None:
    sim, host = world.sim, world.sim.host(name)
    transport = world.cluster.transport(host, server=1)  # without the retries and backoff of a client
    for _ in range(rounds):
        for pod in world.cluster.all(POD_KIND):
            if pod.view.spec.node_name and pod.metadata.deletion_timestamp is None:
                with suppress(OperatingError):
                    await host.run(transport.send(Evict(pod.key, DeleteOptions(uid=pod.uid))))
        await asyncio.sleep(sim.choose("pause", (0.5, 0.1, 3)))


async def _evict_all(world: JudgedCluster) -> None:
    """Once all replicas are healthy, the budget allows the eviction of each in turn: none is refused for ever."""
    host = world.sim.host("drainer")
    transport = world.cluster.transport(host, server=1)
    for pod in world.cluster.all(POD_KIND):
        refused = await _refusal(host, transport, Evict(pod.key, DeleteOptions(uid=pod.uid)))
        if refused and world.sim.world.violation is None:
            world.sim.violate(GRANTED, f"{pod.key} could not be evicted in {2 * EVICTION_TRIES} s of rest: {refused}")


async def _refusal(host: Host, transport: RemoteTransport, request: Evict) -> str:
    """The last refusal of an eviction; empty if it was granted at last, or the pod is gone."""
    refused = ""
    for _ in range(EVICTION_TRIES):
        try:
            await host.run(transport.send(request))
        except NotFound:
            return ""
        except OperatingError as error:
            refused = error.message
        else:
            return ""
        await asyncio.sleep(2)
    return refused


async def _write_notes(world: JudgedCluster, rounds: int) -> None:
    user = User(world.cluster, "bob", server=1)
    for n in range(rounds):
        for pod in world.cluster.all(POD_KIND):
            try:
                note = {"annotations": {"zoo.example/round": str(n)}}
                await user.patch(pod.key, {"metadata": note, "spec": {}})  # a spec, for the path of any other patch
            except NotFound:
                continue
            except Invalid as error:
                world.sim.violate(NOTED, f"a note on {pod.key} was refused: {error.message}")
        await asyncio.sleep(world.sim.choose("until the next notes", (0.3, 2)))


def _budget(app: str, *, least: int) -> dict[str, Any]:
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": app}}}
    metadata = {"name": app, "namespace": "default"}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}

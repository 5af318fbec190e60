"""A small controller in a hostile world, for simulations of the runtime: replicas kept, status said, everything recorded.

`Replicas` is what a user would write. `Plant` runs it on hosts that crash, and keeps every process's caches and records,
so that each decision can be run again when the world is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.objects import NAMESPACE

from kedge import Action, Context, Controller
from kedge.api.conditions import condition, is_true
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.client.contract import Client
from kedge.env import Env
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recorder import Recorder
from kedge.runtime import ReceivedEvidence, Reconciler, recheck
from kedge.runtime.cache import CacheSet
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Host, Simulation

POD = KINDS.of_key_kind("Pod")
REPLICA_SET = KINDS.of_key_kind("ReplicaSet.apps")
LEASE = Key("Lease.coordination.k8s.io", "default", "replicas")


class Replicas:
    """Keeps a ReplicaSet's pods, one a slot, and says how many there are."""

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is None or owner.metadata.deletion_timestamp is not None:
            return Action.await_change()
        want = owner.view.spec.replicas
        pods = ctx.owned(POD, owner)
        names = {pod.key.name for pod in pods}
        for slot in range(want):
            if f"{key.name}-{slot}" not in names:
                await ctx.ensure(POD, pod_of(owner, slot))
        for pod in pods:
            if int(pod.key.name.rpartition("-")[2]) >= want and pod.metadata.deletion_timestamp is None:
                await ctx.delete(pod)
        there = condition("Complete", status=len(pods) == want, reason="Counted", message=f"{len(pods)} of {want}")
        await ctx.write_status(owner, {"replicas": len(pods), "conditions": [there]})
        return Action.await_change(condition="Complete", reason="Counted")


def pod_of(owner: Object, slot: int) -> dict[str, Any]:
    reference = {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner.key.name, "uid": owner.uid, "controller": True,
    }  # fmt: skip
    return {
        "metadata": {
            "name": f"{owner.key.name}-{slot}",
            "namespace": owner.key.namespace,
            "labels": {"app": owner.key.name},
            "ownerReferences": [reference],
        },
        "spec": {"containers": [{"name": "main", "image": "app:1"}]},
    }


def replica_set(name: str, replicas: int, *, namespace: str = "default") -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "app:1"}]},
    }
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


QUICK = Limits(relist_every_s=30.0, resync_every_s=20.0, queue_resync_spread_s=5.0, decisions_sample_every=1)
"""The safety nets come round within a run."""


@dataclass
class Process:
    """One life of one controller process: what it was given, and what it decided."""

    controller: Controller
    caches: CacheSet
    recorder: Recorder
    env: Env


@dataclass
class Plant:
    """Controllers on hosts, and every process they ever were."""

    sim: Simulation
    cluster: Cluster
    make: Callable[[], Reconciler] = Replicas
    lease: Key | None = LEASE
    limits: Limits = QUICK
    processes: list[Process] = field(default_factory=list)

    async def start(self, host: Host) -> None:
        env = host.env(limits=self.limits)
        client = Client(self.cluster.transport(host, server=len(self.processes) % len(self.cluster.servers)), env,
                        component=host.name)  # fmt: skip
        process = self.process(client, env)
        self.processes.append(process)
        await process.controller.run()

    def process(self, client: Client, env: Env) -> Process:
        caches = CacheSet(client, env)
        recorder = Recorder(env)
        controller = Controller(
            self.make(), client, env, name="replicas", kind=REPLICA_SET, owns=(POD,), lease=self.lease, caches=caches,
            recorder=recorder,
        )  # fmt: skip
        return Process(controller, caches, recorder, env)

    async def recheck(self) -> int:
        """Run every decision of every process again. How many there were."""
        count = 0
        for process in self.processes:
            evidence = ReceivedEvidence.of(process.caches)
            for decision in reversed(list(process.recorder.decisions())):
                await recheck(decision, self.make(), evidence, process.env)
                count += 1
        return count


def pods_of(store: Any, name: str) -> list[str]:
    return sorted(
        each.key.name for each in store.entries() if each.key.kind == "Pod" and each.key.name.startswith(f"{name}-")
    )


def is_complete(cluster: Cluster, name: str, replicas: int) -> bool:
    """The pods are there, and the status says so of the newest generation."""
    if pods_of(cluster.store, name) != [f"{name}-{slot}" for slot in range(replicas)]:
        return False
    for entry in cluster.store.entries():
        if entry.key == Key("ReplicaSet.apps", "default", name):
            view = Object(REPLICA_SET, entry.key, entry.value, revision=entry.modified).view
            said = view.status.observed_generation == view.metadata.generation
            return said and is_true(view.status.conditions, "Complete")
    return False


class NeverMore:
    """A ReplicaSet never has a pod beyond the most it ever asked for."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if any(key.kind == "Pod" for key in commit.keys):
            pods = pods_of(commit.store, "web")
            if len(pods) > self._most:
                yield "too many pods", f"{pods} at revision {commit.revision}"


async def stage(sim: Simulation, *, servers: int = 2) -> Cluster:
    cluster = Cluster(sim, servers=servers)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    return cluster


async def settle(sim: Simulation, cluster: Cluster, goal: Callable[[], bool], *, within_s: float = 300.0) -> None:
    """No more faults: the goal is reached, stays, and then nobody writes any more."""
    sim.heal()
    sim.check_eventually(goal)
    await sim.converge(within_s=within_s, stays_s=5)
    before = written(cluster)
    await asyncio.sleep(60)
    assert written(cluster) == before, f"writes after everything was done: {written(cluster) - before}"


def written(cluster: Cluster) -> set[tuple[Key, int]]:
    """Every version there is, but those of leases, which change hands and are renewed for ever."""
    theirs = ("Lease.coordination.k8s.io", "Fence.kedge.dev", "Operation.kedge.dev")
    return {(entry.key, entry.modified) for entry in cluster.store.entries() if entry.key.kind not in theirs}

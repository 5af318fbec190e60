"""The workload controllers under faults, with a reliable stand-in for scheduler, agents and endpoints.

`FakeNodes` binds, starts, lists, stops and ends pods, directly at the service. The controllers run on hosts that crash,
over links that lose replies, and every decision is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.kit.controllers import QUICK
from tests.objects import NAMESPACE, NODE, node

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions
from kedge.api.wellknown import DRAINING
from kedge.client.contract import Client
from kedge.controllers.deployment.controller import DeploymentReconciler, deployment_controller
from kedge.controllers.job.controller import JobReconciler, job_controller
from kedge.controllers.replicaset.controller import ReplicaSetReconciler, replica_set_controller
from kedge.env import Env
from kedge.errors import Conflict, NotFound
from kedge.keys import Key
from kedge.limits import Limits
from kedge.observe.recording.recorder import Recorder
from kedge.runtime import ControllerRuntime, ReceivedEvidence, recheck
from kedge.runtime.cache import CacheSet
from kedge.sim.cluster import Cluster, Commit
from kedge.sim.kernel import Host, Simulation
from kedge.store import Entry
from kedge.store.memory import MemoryStore

SLICE = KINDS.of_key_kind("EndpointSlice.discovery.k8s.io")
RECONCILERS: dict[str, Callable[[Env], Any]] = {
    "deployment": DeploymentReconciler,
    "replicaset": ReplicaSetReconciler,
    "job": JobReconciler,
}
MAKERS = (deployment_controller, replica_set_controller, job_controller)


@dataclass
class WorkloadManager:
    """All workload controllers in one process on one host, as in production; all of its processes are kept."""

    sim: Simulation
    cluster: Cluster
    limits: Limits = QUICK
    lives: list[tuple[CacheSet, Recorder, Env]] = field(default_factory=list)

    async def start(self, host: Host) -> None:
        env = host.env(limits=self.limits)
        transport = self.cluster.transport(host, server=len(self.lives) % len(self.cluster.servers))
        client = Client(transport, env, component=host.name)
        caches, recorder = CacheSet(client, env), Recorder(env)
        self.lives.append((caches, recorder, env))
        controllers = [
            make(
                ControllerRuntime(
                    client,
                    env,
                    caches=caches,
                    recorder=recorder,
                    lease=Key("Lease.coordination.k8s.io", "default", make.__name__.replace("_", "-")),
                )
            )
            for make in MAKERS
        ]
        async with asyncio.TaskGroup() as tasks:
            for controller in controllers:
                tasks.create_task(controller.run(), name=controller.name)

    async def recheck(self) -> int:
        """Recheck every decision. Returns their number."""
        count = 0
        for caches, recorder, env in self.lives:
            evidence = ReceivedEvidence.of(caches)
            for decision in reversed(list(recorder.decisions())):
                await recheck(decision, RECONCILERS[decision.controller](env), evidence, env)
                count += 1
        return count


@dataclass
class FakeNodes:
    """The work of nodes, scheduler and endpoints, done reliably once a second."""

    cluster: Cluster
    nodes: int = 3
    starts: Callable[[Object], bool] = lambda _: True
    """Whether a pod ever becomes ready."""
    phase_of: Callable[[Object], str] = lambda _: "Succeeded"
    """The phase in which the pod of a Job ends."""
    reader: StoreReader = field(init=False)
    turn: int = 0
    ended: dict[str, str] = field(default_factory=dict)
    """Pods of Jobs by uid, and how they ended."""

    def __post_init__(self) -> None:
        self.reader = StoreReader(self.cluster.store)

    async def run(self) -> None:
        while True:
            await self.work()
            await asyncio.sleep(1.0)

    async def work(self) -> None:
        for pod in self.reader.pods():
            try:
                await self._handle(pod)
            except (Conflict, NotFound):
                continue  # changed meanwhile: retried in the next round
        await self._list_ready()

    async def _handle(self, pod: Object) -> None:
        service, view = self.cluster.authority, pod.view
        if view.finished:
            return
        if view.terminating:
            if view.spec.node_name:
                await self._report(pod, {"phase": "Failed"})
                self._note(pod, "Failed")
                await service.delete(pod.key, DeleteOptions(uid=pod.uid, grace_s=0))
        elif not view.spec.node_name:
            self.turn += 1
            await service.bind(Binding(pod=pod.key, pod_uid=pod.uid, node=f"node-{self.turn % self.nodes}"))
        elif view.spec.restart_policy != "Always":
            if view.status.phase == "Pending":
                await self._report(pod, {"phase": "Running"})
            else:
                phase = self.phase_of(pod)
                await self._report(pod, {"phase": phase})
                self._note(pod, phase)
        elif not any(each.type == "Ready" for each in view.status.conditions) and self.starts(pod):
            ready = [*pod.edit()["status"].get("conditions", []), {"type": "Ready", "status": "True"}]
            await self._report(pod, {"phase": "Running", "conditions": ready})

    def _note(self, pod: Object, phase: str) -> None:
        if pod.view.spec.restart_policy != "Always":
            self.ended[pod.uid] = phase

    async def _report(self, pod: Object, status: dict[str, Any]) -> None:
        body = {"metadata": {"resourceVersion": str(pod.revision)}, "status": status}
        await self.cluster.authority.patch(pod.key, body, subresource="status")

    async def _list_ready(self) -> None:
        """One EndpointSlice with the pods that are ready and do not drain."""
        ready = [pod for pod in self.reader.pods() if is_serving(pod)]
        endpoints = [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": pod.key.name, "uid": pod.uid},
            }
            for pod in ready
        ]
        await self.cluster.authority.patch(Key(SLICE.key_kind, "default", "web"), {"endpoints": endpoints})


class StoreReader:
    """Objects of a store, each version decoded once."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._known: dict[Key, Object] = {}

    def objects(self, kind: str) -> list[Object]:
        """All of a kind, in key order."""
        found = [self._decoded(entry) for entry in self._store.entries() if entry.key.kind == kind]
        return sorted(found, key=lambda each: each.key)

    def pods(self) -> list[Object]:
        return self.objects("Pod")

    def get(self, key: Key) -> Object | None:
        return next((each for each in self.objects(key.kind) if each.key == key), None)

    def _decoded(self, entry: Entry) -> Object:
        known = self._known.get(entry.key)
        if known is None or known.revision != entry.modified:
            kind = KINDS.of_key_kind(entry.key.kind)
            known = self._known[entry.key] = Object(kind, entry.key, entry.value, revision=entry.modified)
        return known


def is_serving(pod: Object) -> bool:
    """Ready, and neither draining nor being deleted."""
    view = pod.view
    return (
        not view.finished
        and not view.terminating
        and DRAINING not in view.metadata.annotations
        and any(each.type == "Ready" and each.status == "True" for each in view.status.conditions)
    )


class RolloutBounds:
    """The bounds of a rollout, checked on committed state at every commit."""

    def __init__(self, reader: StoreReader, *, copies_max: int, serving_min: int) -> None:
        self.reader = reader
        self.copies_max = copies_max
        self.serving_min = serving_min
        self.armed = False
        """The lower bound applies once that many have served."""

    def __call__(self, commit: Commit) -> Iterator[tuple[str, str]]:
        if not any(key.kind == "Pod" for key in commit.keys):
            return
        pods = self.reader.pods()
        copies = [pod.key.name for pod in pods if not pod.view.finished]
        serving = [pod.key.name for pod in pods if is_serving(pod)]
        if len(copies) > self.copies_max:
            yield "too many copies", f"{copies} at revision {commit.revision}, and at most {self.copies_max} may run"
        self.armed = self.armed or len(serving) >= self.serving_min
        if self.armed and len(serving) < self.serving_min:
            yield "too few serve", f"{serving} at revision {commit.revision}, and at least {self.serving_min} must"


async def new_cluster(sim: Simulation, *, nodes: int = 3) -> Cluster:
    cluster = Cluster(sim, servers=2)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    for n in range(nodes):
        await cluster.authority.create(NODE, node(f"node-{n}"))
    body = {"metadata": {"name": "web", "namespace": "default"}, "addressType": "IPv4", "endpoints": []}
    await cluster.authority.create(SLICE, body)
    return cluster

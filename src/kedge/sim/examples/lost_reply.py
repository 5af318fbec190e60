"""A reply lost after the commit: one controller treats a timeout as a failure, the other does not.

Both want three pods for one ReplicaSet. `careless` creates a pod under a generated name and, without a reply, tries
again; `careful` ensures a pod for each slot, through the client that every component uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.requests import Create
from kedge.api.wellknown import NAMESPACE_KIND, POD_KIND, REPLICA_SET_KIND
from kedge.errors import OutcomeUnknown
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec
from kedge.sim.cluster import Cluster, Commit, RemoteTransport
from kedge.sim.kernel import Simulation
from kedge.store.memory import MemoryStore

POD = KINDS.of_key_kind(POD_KIND)
REPLICA_SET = KINDS.of_key_kind(REPLICA_SET_KIND)
NAMESPACE = KINDS.of_key_kind(NAMESPACE_KIND)
WANTED = 3
OWNER = Key(REPLICA_SET_KIND, "default", "risk-api")


class CarefulReconciler:
    """The slot fixes the name, so an existing pod is found, not duplicated."""

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is None:
            return Action.await_change()
        for slot in range(owner.view.spec.replicas):
            await ctx.ensure(POD, pod_of(owner.uid, name=f"{key.name}-{slot}"))
        return Action.await_change()


class CarelessReconciler:
    """Counts pods, creates the missing ones, and tries again when a create times out."""

    def __init__(self, transport: RemoteTransport) -> None:
        self._transport = transport

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        owner = ctx.get(key)
        if owner is None:
            return Action.await_change()
        # A fresh read from the API server, so that only a lost reply can mislead it.
        missing = owner.view.spec.replicas - len(await ctx.fresh_list(POD, namespace=key.namespace))
        for _ in range(missing):
            await self._create(pod_of(owner.uid, generate_name=f"{key.name}-"))
        return Action.await_change()

    async def _create(self, body: dict[str, Any]) -> None:
        while True:
            try:
                await self._transport.send(Create(POD, body, "default"))
                return
            except OutcomeUnknown:
                await asyncio.sleep(0.1)  # "it failed, so try again": the bug


def pod_of(owner_uid: str, *, name: str = "", generate_name: str = "") -> dict[str, Any]:
    named = {"name": name} if name else {"generateName": generate_name}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": OWNER.name, "uid": owner_uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**named, "namespace": "default", "labels": {"app": "risk-api"}, "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "main", "image": "risk-api:1"}]},
    }


def count_pods(store: MemoryStore) -> int:
    return sum(entry.key.kind == POD.key_kind for entry in store.entries())


def never_more_pods_than_requested(commit: Commit) -> Iterator[tuple[str, str]]:
    """A ReplicaSet never has more pods than it requests."""
    count = count_pods(commit.store)
    if count > WANTED:
        yield "too many pods", f"{count} pods for {WANTED} replicas at revision {commit.revision}"


async def careful(sim: Simulation) -> None:
    """Three pods, whatever messages are lost."""
    await _run(sim, careless=False)


async def careless(sim: Simulation) -> None:
    """Three pods, or four."""
    await _run(sim, careless=True)


async def _run(sim: Simulation, *, careless: bool) -> None:
    cluster = Cluster(sim)
    sim.check_always(never_more_pods_than_requested)
    sim.check_eventually(lambda: count_pods(cluster.store) == WANTED)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    template = pod_of("")
    await cluster.authority.create(
        REPLICA_SET,
        {
            "metadata": {"name": OWNER.name, "namespace": OWNER.namespace},
            "spec": {
                "replicas": WANTED,
                "selector": {"matchLabels": {"app": "risk-api"}},
                "template": {"metadata": {"labels": {"app": "risk-api"}}, "spec": template["spec"]},
            },
        },
    )
    host = sim.host("controller")
    client = cluster.client(host)
    reconciler = CarelessReconciler(cluster.transport(host)) if careless else CarefulReconciler()
    controller = Controller(
        ControllerSpec(kind=REPLICA_SET, owns=(POD,)), reconciler, ControllerRuntime(client, host.env())
    )
    host.spawn(controller.run(), name="controller")
    await asyncio.sleep(20)
    sim.heal()
    await sim.converge(within_s=120)

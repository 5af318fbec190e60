"""A small world for an exhaustive search: one ReplicaSet, and two controllers that both act as leader.

`careful` names a pod by its slot, so the second create collides; `careless` counts the pods in its cache. A random hunt
may miss the one order that hurts; `kedge hunt --exhaustive` runs them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kedge.api.requests import Create
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec
from kedge.sim.cluster import Cluster, Commit, RemoteTransport
from kedge.sim.examples.lost_reply import NAMESPACE, OWNER, POD, REPLICA_SET, CarefulReconciler, count_pods, pod_of
from kedge.sim.kernel import Simulation


class CountingReconciler:
    """Creates the pods that its cache lacks. The other controller's pods may not be in the cache yet."""

    def __init__(self, transport: RemoteTransport) -> None:
        self._transport = transport

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        if (owner := ctx.get(key)) is None:
            return Action.await_change()
        missing = owner.view.spec.replicas - len(ctx.list(POD, namespace=key.namespace))
        for _ in range(missing):
            await self._transport.send(Create(POD, pod_of(owner.uid, generate_name=f"{key.name}-"), "default"))
        return Action.await_change()


def never_two_pods(commit: Commit) -> Iterator[tuple[str, str]]:
    """A ReplicaSet of one replica never has two pods."""
    if (count := count_pods(commit.store)) > 1:
        yield "too many pods", f"{count} pods for 1 replica at revision {commit.revision}"


async def careful(sim: Simulation) -> None:
    """One pod in every order."""
    await _run(sim, careless=False)


async def careless(sim: Simulation) -> None:
    """Two pods, if the second controller decides before it sees the first one's pod."""
    await _run(sim, careless=True)


async def _run(sim: Simulation, *, careless: bool) -> None:
    cluster = Cluster(sim)
    sim.check_always(never_two_pods)
    sim.check_eventually(lambda: count_pods(cluster.store) == 1)
    await cluster.authority.create(NAMESPACE, {"metadata": {"name": "default"}})
    for name in ("first", "second"):
        host = sim.host(name)
        client = cluster.client(host)
        reconciler: Any = CountingReconciler(cluster.transport(host)) if careless else CarefulReconciler()
        spec = ControllerSpec(kind=REPLICA_SET, owns=(POD,))
        host.spawn(Controller(spec, reconciler, ControllerRuntime(client, host.env())).run(), name="controller")
    await asyncio.sleep(1)  # until the caches have their first lists
    template = {"metadata": {"labels": {"app": "risk-api"}}, "spec": pod_of("")["spec"]}
    selector = {"matchLabels": {"app": "risk-api"}}
    body = {
        "metadata": {"name": OWNER.name, "namespace": OWNER.namespace},
        "spec": {"replicas": 1, "selector": selector, "template": template},
    }
    await cluster.authority.create(REPLICA_SET, body)
    sim.explore_orders()
    await asyncio.sleep(20)
    sim.heal()
    await sim.converge(within_s=120)

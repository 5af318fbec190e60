"""Repair checks at the API server what it finds in the cache: each check, and the damage without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kit.nodes import QUICK, ControllerFleet, claimed_uids, find, new_cluster, node_body
from tests.kit.safeguards import replaced
from tests.objects import NODE, POD, RESERVATION, pod, reservation

from kedge.api.requests import Binding, DeleteOptions
from kedge.api.wellknown import OUT_OF_SERVICE
from kedge.controllers.repair.controller import (
    binding_repair_controller,
    ledger_repair_controller,
    reservation_repair_controller,
)
from kedge.keys import Key
from kedge.runtime import Context, Controller
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import NO_FAULTS, Simulation, run

PATIENT = replace(QUICK, relist_every_s=100_000.0)
"""No cache relists by itself."""
HOME = Key("Node", "", "node-a")
WAITS = Key("Pod", "default", "waits")
Steps = Callable[[Cluster, ControllerFleet], Coroutine[Any, Any, bool]]


async def hidden_pod(cluster: Cluster, fleet: ControllerFleet) -> bool:
    """The cache has a reservation but not its pod. Returns whether the reservation stays."""
    await cluster.authority.create(NODE, node_body("node-a"))
    fleet.hidden.add(WAITS)
    made = (await cluster.authority.create(POD, pod("waits"))).object
    body = reservation(made, "node-a")
    body["spec"]["deadline"] = "2100-01-01T00:00:00Z"
    await cluster.authority.create(RESERVATION, body)
    await asyncio.sleep(30)
    return find(cluster.store, Key("Reservation.kedge.dev", "default", made.uid)) is not None


async def hidden_return_to_service(cluster: Cluster, fleet: ControllerFleet) -> bool:
    """A node was out of service; the cache misses that it returned. Returns whether the claim of a pod there stays."""
    service = cluster.authority
    await service.create(NODE, node_body("node-a"))
    made = (await service.create(POD, pod("waits"))).object
    await service.bind(Binding(pod=made.key, node="node-a"))
    taint = {"key": OUT_OF_SERVICE, "effect": "NoExecute"}
    await service.patch(HOME, {"spec": {"taints": [taint]}})
    await asyncio.sleep(5)
    fleet.hidden.add(HOME)
    await service.patch(HOME, {"spec": {"taints": []}})
    await service.delete(made.key, DeleteOptions(grace_s=0))
    await asyncio.sleep(30)
    return made.uid in claimed_uids(cluster, "node-a")


async def hidden_node(cluster: Cluster, fleet: ControllerFleet) -> bool:
    """A pod is bound to a node that the cache does not have. Returns whether the pod stays."""
    fleet.hidden.add(HOME)
    await cluster.authority.create(NODE, node_body("node-a"))
    made = (await cluster.authority.create(POD, pod("waits"))).object
    await cluster.authority.bind(Binding(pod=made.key, node="node-a"))
    await asyncio.sleep(30)
    return find(cluster.store, made.key) is not None


PROGRAMS: dict[Steps, Callable[..., Controller]] = {
    hidden_pod: reservation_repair_controller,
    hidden_return_to_service: ledger_repair_controller,
    hidden_node: binding_repair_controller,
}


async def run_program(sim: Simulation, program: Steps) -> bool:
    cluster = await new_cluster(sim)
    fleet = ControllerFleet(cluster, limits=PATIENT)
    fleet.boot(sim, PROGRAMS[program])
    await asyncio.sleep(5)
    return await program(cluster, fleet)


async def from_cache(ctx: Context, key: Key) -> Any:
    return ctx.get(key)


@pytest.mark.parametrize("proved", [True, False], ids=["proved", "by cache alone"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_only_the_api_server_proves_an_orphan(program: Steps, *, proved: bool) -> None:
    with nullcontext() if proved else replaced(Context, "fresh", from_cache):
        outcome = run(partial(run_program, program=program), 1, faults=NO_FAULTS)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.timeline()[-1500:]}"
    assert outcome.result is proved

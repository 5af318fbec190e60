"""Orphaned records are found and repaired, and a pod that may still run keeps its claim."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.cluster import seeds
from tests.kit.controllers import REPLICA_SET, pod_of, replica_set
from tests.kit.nodes import ControllerFleet, claimed_uids, find, new_cluster, node_body, objects, settle
from tests.objects import (
    NODE,
    POD,
    RESERVATION,
    RESOURCE_QUOTA,
    ZONE_QUOTA,
    pod,
    reservation,
    resource_quota,
    zone_quota,
)

from kedge.api.codec import encode_object
from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions
from kedge.controllers.quota.controller import QuotaReconciler, quota_controller
from kedge.controllers.repair.controller import (
    BindingRepair,
    LedgerRepair,
    ReservationRepair,
    binding_repair_controller,
    ledger_repair_controller,
    reservation_repair_controller,
)
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.kernel import Simulation, run
from kedge.store import Put


async def tamper(cluster: Cluster, found: Object, edit: Any) -> None:
    """Write to the store directly, as a bug or a broken disk would."""
    document = found.edit()
    edit(document)
    await cluster.store.commit([], [Put(found.key, encode_object(document))])


async def left_behind(sim: Simulation) -> int:
    cluster = await new_cluster(sim)
    fleet = ControllerFleet(cluster)
    fleet.boot(sim, reservation_repair_controller, copies=2)
    fleet.boot(sim, ledger_repair_controller)
    fleet.boot(sim, binding_repair_controller)
    fleet.boot(sim, quota_controller)
    service = cluster.authority
    for name in ("node-a", "node-b"):
        await service.create(NODE, node_body(name))
    await service.create(RESOURCE_QUOTA, resource_quota(pods="50"))
    await service.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "3"}))
    made = {name: (await service.create(POD, pod(name))).object for name in ("kept", "forced", "waits", "ghost")}
    for name in ("kept", "forced"):
        await service.bind(Binding(pod=made[name].key, node="node-a"))
    for name in ("waits", "ghost"):
        body = reservation(made[name], "node-a")
        body["spec"]["deadline"] = "2100-01-01T00:00:00Z"
        await service.create(RESERVATION, body)
    # Its pod disappears without an event: the reservation and its claim are orphans.
    await service.delete(made["ghost"].key)
    orphan = reservation(made["ghost"], "node-a")
    orphan["metadata"]["uid"] = "orphan"
    key = Key("Reservation.kedge.dev", "default", made["ghost"].uid)
    await cluster.store.commit([], [Put(key, encode_object(orphan))])
    # A pod deleted by force may still run: its claim stays until a person frees it.
    await service.delete(made["forced"].key, DeleteOptions(grace_s=0))
    for kind, field in ((RESOURCE_QUOTA, "used"), (ZONE_QUOTA, "zones")):
        (found,) = objects(cluster.store, kind.key_kind)
        wrong = {"pods": "40"} if field == "used" else {"zone-a": {"used": {"cpu": "2900m"}}}
        await tamper(
            cluster, found, lambda d, field=field, wrong=wrong: d.setdefault("status", {}).update({field: wrong})
        )
    # An owned pod whose node returns as a new incarnation: its owner must release it.
    owner = (await service.create(REPLICA_SET, replica_set("web", 1))).object
    moved = (await service.create(POD, pod_of(owner, 0))).object
    await service.bind(Binding(pod=moved.key, node="node-b"))
    await asyncio.sleep(sim.choose_int("pause", 0, 30))
    await service.delete(Key("Node", "", "node-b"))
    await service.create(NODE, node_body("node-b"))
    await asyncio.sleep(60)
    assert made["forced"].uid in claimed_uids(cluster, "node-a")

    def repaired() -> bool:
        (quota,), (zone,) = objects(cluster.store, "ResourceQuota"), objects(cluster.store, "ZoneQuota.kedge.dev")
        lost = find(cluster.store, moved.key)
        return (
            find(cluster.store, key) is None
            and find(cluster.store, key._replace(name=made["waits"].uid)) is not None
            and claimed_uids(cluster, "node-a") == {made["kept"].uid, made["waits"].uid, made["forced"].uid}
            and {name: str(amount) for name, amount in quota.view.status.used.items()} == {"pods": "3"}
            and str(zone.view.status.zones["zone-a"].used["cpu"]) == "300m"
            and lost is not None
            and any(each.reason == "NodeLost" for each in lost.view.status.conditions)
        )

    await settle(sim, cluster, repaired)
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    await service.patch(Key("Node", "", "node-a"), {"spec": {"taints": [taint]}})
    await asyncio.sleep(30)
    assert claimed_uids(cluster, "node-a") == {made["kept"].uid, made["waits"].uid}
    count = await fleet.recheck({"reservation-repair": ReservationRepair, "ledger-repair": LedgerRepair})
    return count + await fleet.recheck({"binding-repair": BindingRepair, "quota": QuotaReconciler})


@seeds(6, 40)
def test_orphans_are_repaired_and_pods_that_may_run_keep_their_claims(seeds: range) -> None:
    for seed in seeds:
        outcome = run(left_behind, seed)
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}\n{outcome.timeline()[-2500:]}"
        assert outcome.result

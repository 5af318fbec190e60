"""The bind: its proofs, its refusals, and its entries in the ledger."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.objects import POD, World, asynchronous, make_env, make_world, node, pod, pod_key, reservation, zone_quota

from kedge.api.quantity import units
from kedge.api.requests import Binding, DeleteOptions, WatchOptions, WriteOptions
from kedge.api.views.decode import decode_view
from kedge.errors import AlreadyExists, Conflict, Fenced, Invalid, NotFound, Refused
from kedge.keys import Fence, Key
from kedge.placement.reasons import Reason
from kedge.store import Put
from kedge.store.sqlite import SqliteStore

NODE_A = Key("Node", "", "node-a")


async def small_cluster(pods: int = 1, **node_fields: Any) -> World:
    world = await make_world()
    await world.create(node(**node_fields))
    await world.create(node("node-b", zone="zone-b"))
    for n in range(pods):
        await world.create(pod(f"web-{n}"))
    return world


async def bind(world: World, name: str = "web-0", to: str = "node-a", **options: Any) -> Any:
    return (await world.service.bind(Binding(pod=pod_key(name), node=to), options=WriteOptions(**options))).object


async def refusal(world: World, reason: Reason, about: Key, **binding: Any) -> Refused:
    before = await world.store.revision()
    with pytest.raises(Refused) as caught:
        await world.service.bind(Binding(**{"pod": pod_key(), "node": "node-a", **binding}))
    assert caught.value.refusal == reason
    assert caught.value.key == about
    assert await world.store.revision() == before
    return caught.value


async def check_ledgers(world: World, *nodes: str) -> None:
    """Totals are the sum of entries, and entries are the pods bound there."""
    listing = await world.store.list("Pod")
    pods = [world.service._core.object_of(entry) for entry in listing.entries]
    for name in nodes:
        status = await world.ledger(name)
        for resource in {r for entry in status.entries.values() for r in entry.requests} | set(status.allocated):
            total = sum(
                units(resource, e.requests[resource]) for e in status.entries.values() if resource in e.requests
            )
            assert units(resource, status.allocated[resource]) == total
        bound = {p.uid for p in pods if p.view.spec.node_name == name and not p.view.finished}
        assert {uid for uid, entry in status.entries.items() if entry.state == "Bound"} == bound


# -- what it does ----------------------------------------------------------------------------------


@asynchronous
async def test_a_bind_places_the_pod_and_claims_its_resources() -> None:
    world = await small_cluster()
    bound = await bind(world)
    assert bound.view.spec.node_name == "node-a"
    assert [(c.type, c.status) for c in bound.view.status.conditions] == [("PodScheduled", "True")]
    status = await world.ledger("node-a")
    assert {r: str(q) for r, q in status.allocated.items()} == {"cpu": "100m", "memory": "64Mi", "pods": "1"}
    entry = status.entries[bound.uid]
    assert (entry.name, entry.state, entry.zone) == ("web-0", "Bound", "zone-a")
    await check_ledgers(world, "node-a")


@asynchronous
async def test_a_bind_counts_the_resources_of_the_pod_itself() -> None:
    """A pod that requests 16Gi as a whole does not fit a node of 8Gi, whatever its containers request."""
    world = await make_world()
    small = node("small")
    small["status"]["allocatable"] = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    for body in (small, node("large")):
        await world.create(body)
    await world.create(pod(resources={"requests": {"memory": "16Gi"}}))
    with pytest.raises(Refused) as caught:
        await world.service.bind(Binding(pod=pod_key(), node="small"))
    assert caught.value.refusal == "Resource"
    await world.service.bind(Binding(pod=pod_key(), node="large"))
    allocated = (await world.ledger("large")).allocated
    assert {r: str(q) for r, q in allocated.items()} == {"cpu": "100m", "memory": "16Gi", "pods": "1"}


@asynchronous
async def test_both_sides_of_the_staleness_boundary_are_recorded() -> None:
    world = await small_cluster()
    node_object = await world.get(NODE_A)
    written = await world.service.bind(
        Binding(pod=pod_key(), node="node-a", decided_on={"Node/node-a": node_object.revision - 1})
    )
    record = json.loads(written.object.metadata.annotations["kedge.dev/bind"])
    assert record["decidedOn"] == {"Node/node-a": node_object.revision - 1}
    assert record["provedOn"]["Node/node-a"] == node_object.revision


@asynchronous
async def test_a_watch_shares_the_view_of_an_object_that_this_server_wrote(tmp_path: Path) -> None:
    """On sqlite, where watches receive a commit before its writer does."""
    world = await make_world(store=await SqliteStore.open(tmp_path / "kedge.db", make_env()))
    await world.create(node())
    stream = await world.service.watch(POD, WatchOptions(resource_version=str(await world.store.revision())))

    async def follow() -> list[tuple[Any, bytes]]:
        """The next two changes, as they were on arrival."""
        seen = []
        async for event in stream:
            if event.object is not None:
                seen.append((event.object.known_view, event.object.value))
            if len(seen) == 2:
                break
        return seen

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    made = await world.create(pod())
    bound = await bind(world)
    for (view, value), written in zip(await following, (made, bound), strict=True):
        assert view == decode_view(POD, value) == written.view
        assert view is written.view
    await stream.aclose()
    await world.store.close()


@asynchronous
async def test_a_repeated_bind_is_the_same_bind() -> None:
    world = await small_cluster()
    first = await bind(world)
    before = await world.store.revision()
    assert (await bind(world)).revision == first.revision
    assert await world.store.revision() == before


@asynchronous
async def test_a_repeated_bind_succeeds_only_for_the_same_pod_and_node() -> None:
    """A new pod or node of the same name must not count as the one that was bound."""
    world = await small_cluster()
    old, home = await world.get(pod_key()), await world.get(NODE_A)
    first = await bind(world)
    meant = Binding(pod=pod_key(), pod_uid=old.uid, node="node-a", node_uid=home.uid)
    assert (await world.service.bind(meant)).object.revision == first.revision
    await world.service.delete(NODE_A)
    await world.create(node())
    reborn = await world.get(NODE_A)
    await refusal(world, Reason.POD_BOUND, pod_key(), pod_uid=old.uid, node_uid=reborn.uid)
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    await world.create(pod())
    await bind(world)
    await refusal(world, Reason.POD_REPLACED, pod_key(), pod_uid=old.uid)
    await refusal(world, Reason.POD_REPLACED, pod_key(), pod_uid=old.uid, node_uid=reborn.uid)


# -- what it refuses -------------------------------------------------------------------------------


@asynchronous
async def test_a_bound_pod_is_refused_for_another_node() -> None:
    world = await small_cluster()
    bound = await bind(world)
    caught = await refusal(world, Reason.POD_BOUND, pod_key(), node="node-b")
    assert caught.revision == bound.revision


@asynchronous
async def test_a_new_pod_of_the_same_name_is_another_pod() -> None:
    world = await small_cluster()
    old = await world.get(pod_key())
    await world.service.delete(pod_key())
    await world.create(pod())
    await refusal(world, Reason.POD_REPLACED, pod_key(), pod_uid=old.uid)


@asynchronous
async def test_a_new_incarnation_of_a_node_is_another_node() -> None:
    world = await small_cluster()
    old = await world.get(NODE_A)
    await world.service.delete(NODE_A)
    await world.create(node())
    await refusal(world, Reason.NODE_REPLACED, NODE_A, node_uid=old.uid)
    await refusal(world, Reason.NODE_GONE, Key("Node", "", "node-z"), node="node-z")


@asynchronous
async def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    world = await small_cluster(pods=0)
    body = pod()
    body["metadata"]["finalizers"] = ["example.dev/hold"]
    await world.create(body)
    await world.service.delete(pod_key())
    await refusal(world, Reason.POD_TERMINATING, pod_key())


@asynchronous
async def test_a_gated_pod_is_not_bound() -> None:
    world = await small_cluster(pods=0)
    await world.create(pod(schedulingGates=[{"name": "example.dev/budget"}]))
    await refusal(world, Reason.POD_GATED, pod_key())


@asynchronous
async def test_cordon_and_suspicion_stop_new_placement() -> None:
    world = await small_cluster(pods=2)
    await bind(world, "web-1")
    await world.service.patch(NODE_A, {"spec": {"unschedulable": True}})
    caught = await refusal(world, Reason.NODE_CORDONED, NODE_A)
    assert caught.revision == (await world.get(NODE_A)).revision
    await world.service.patch(NODE_A, {"spec": {"unschedulable": None}})
    suspect = {"status": {"conditions": [{"type": "Suspect", "status": "True"}]}}
    await world.service.patch(NODE_A, suspect, subresource="status")
    await refusal(world, Reason.NODE_SUSPECT, NODE_A)
    assert (await world.get(pod_key("web-1"))).view.spec.node_name == "node-a"


@pytest.mark.parametrize(
    ("spec", "node_spec", "reason"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, {}, Reason.NODE_SELECTOR),
        ({}, {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}, Reason.TAINT),
        ({"cpu": "5"}, {}, Reason.RESOURCE),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {
                                            "key": "topology.kubernetes.io/zone",
                                            "operator": "In",
                                            "values": ["zone-x"],
                                        }
                                    ]
                                }
                            ]
                        }
                    }
                }
            },
            {},
            Reason.NODE_AFFINITY,
        ),
    ],
)
def test_node_local_predicates_are_proved_on_committed_state(
    spec: dict[str, Any], node_spec: dict[str, Any], reason: Reason
) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        await world.create(node(**node_spec))
        await world.create(pod(**spec))
        await refusal(world, reason, NODE_A)

    run()


@asynchronous
async def test_a_host_port_is_taken_once() -> None:
    world = await small_cluster(pods=0)
    for name in ("web-0", "web-1"):
        body = pod(name)
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
        await world.create(body)
    await bind(world, "web-1")
    await refusal(world, Reason.PORT, Key("NodeAllocation.kedge.dev", "", "node-a"))


@asynchronous
async def test_many_binds_at_once_fill_a_node_exactly() -> None:
    world = await small_cluster(pods=30, cpu="1")  # room for ten
    outcomes = await asyncio.gather(*(bind(world, f"web-{n}") for n in range(30)), return_exceptions=True)
    bound = [o for o in outcomes if not isinstance(o, BaseException)]
    refused = [o for o in outcomes if isinstance(o, Refused)]
    assert (len(bound), len(refused)) == (10, 20)
    assert {o.refusal for o in refused} == {Reason.RESOURCE}
    await check_ledgers(world, "node-a")


@asynchronous
async def test_a_deposed_scheduler_binds_nothing() -> None:
    world = await small_cluster()
    fence_key = Key("Fence.kedge.dev", "", "scheduler")
    first = await world.store.commit([], [Put(fence_key, b"a")])
    await world.store.commit([], [Put(fence_key, b"b")])
    with pytest.raises(Fenced):
        await bind(world, fence=Fence(fence_key, first))
    assert not (await world.get(pod_key())).view.spec.node_name


# -- release ---------------------------------------------------------------------------------------


@asynchronous
async def test_a_recorded_end_releases_the_claim_and_is_final() -> None:
    world = await small_cluster()
    await bind(world)
    await world.record_end(pod_key())
    status = await world.ledger("node-a")
    assert (dict(status.allocated), dict(status.entries)) == ({}, {})
    with pytest.raises(Invalid, match="cannot run again"):
        await world.record_end(pod_key(), phase="Running")


@asynchronous
async def test_a_forced_deletion_keeps_the_claim_until_the_agent_confirms() -> None:
    world = await small_cluster()
    bound = await bind(world)
    node_uid = (await world.get(NODE_A)).uid
    with pytest.raises(Conflict, match="still exists"):
        await world.service.confirm_ended(node="node-a", node_uid=node_uid, pod_uid=bound.uid)
    assert (await world.service.delete(pod_key(), DeleteOptions(grace_s=0))).removed
    assert bound.uid in (await world.ledger("node-a")).entries
    with pytest.raises(Conflict, match="another incarnation"):
        await world.service.confirm_ended(node="node-a", node_uid="older", pod_uid=bound.uid)
    await world.service.confirm_ended(node="node-a", node_uid=node_uid, pod_uid=bound.uid)
    assert not (await world.ledger("node-a")).entries
    await world.service.confirm_ended(node="node-a", node_uid=node_uid, pod_uid=bound.uid)  # safe to repeat


@asynchronous
async def test_a_new_incarnation_of_a_node_starts_with_an_empty_ledger() -> None:
    world = await small_cluster(pods=2)
    await world.create(zone_quota(zone_a={"pods": "5"}))
    await bind(world)
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    await world.service.delete(NODE_A)
    await world.create(node())
    await bind(world, "web-1")
    await check_ledgers(world, "node-a")
    assert await zone_use(world) == {"zone-a": "1"}


# -- zone quota ------------------------------------------------------------------------------------


async def zone_use(world: World, resource: str = "pods") -> dict[str, str]:
    quota = await world.get(Key("ZoneQuota.kedge.dev", "default", "zones"))
    return {zone: str(use.used.get(resource, 0)) for zone, use in quota.view.status.zones.items()}


@asynchronous
async def test_a_zone_quota_limits_its_zone_only() -> None:
    world = await small_cluster(pods=4)
    await world.create(zone_quota(zone_a={"pods": "2"}))
    await bind(world, "web-0")
    await bind(world, "web-1")
    quota = Key("ZoneQuota.kedge.dev", "default", "zones")
    caught = await refusal(world, Reason.ZONE_QUOTA, quota, pod=pod_key("web-2"))
    assert caught.revision == (await world.get(quota)).revision
    await bind(world, "web-2", to="node-b")
    await world.record_end(pod_key("web-0"))
    await bind(world, "web-3")
    assert await zone_use(world) == {"zone-a": "2"}


@asynchronous
async def test_a_zone_quota_counts_earlier_claims() -> None:
    world = await small_cluster(pods=3)
    await bind(world, "web-0")
    await world.create(zone_quota(zone_a={"pods": "2"}))
    await bind(world, "web-1")
    assert await zone_use(world) == {"zone-a": "2"}
    await refusal(world, Reason.ZONE_QUOTA, Key("ZoneQuota.kedge.dev", "default", "zones"), pod=pod_key("web-2"))


@asynchronous
async def test_a_zone_that_returns_to_a_quota_is_recounted() -> None:
    world = await small_cluster(pods=3)
    await world.create(zone_quota(zone_a={"pods": "5"}))
    quota = Key("ZoneQuota.kedge.dev", "default", "zones")
    await bind(world, "web-0")
    await world.service.patch(quota, {"spec": {"zones": {"zone-a": None}}})
    await bind(world, "web-1")
    await world.service.patch(quota, {"spec": {"zones": {"zone-a": {"hard": {"pods": "5"}}}}})
    await bind(world, "web-2")
    assert await zone_use(world) == {"zone-a": "3"}


@asynchronous
async def test_binds_across_nodes_of_a_zone_never_exceed_its_quota() -> None:
    world = await make_world()
    await world.create(zone_quota(zone_a={"cpu": "700m"}))
    for n in range(5):
        await world.create(node(f"n{n}"))
    for n in range(20):
        await world.create(pod(f"web-{n}"))
    outcomes = await asyncio.gather(
        *(bind(world, f"web-{n}", to=f"n{n % 5}") for n in range(20)), return_exceptions=True
    )
    assert sum(not isinstance(o, BaseException) for o in outcomes) == 7
    assert await zone_use(world, "cpu") == {"zone-a": "700m"}


# -- reservations ----------------------------------------------------------------------------------


@asynchronous
async def test_a_reservation_holds_resources_that_only_its_pod_can_use() -> None:
    world = await small_cluster(pods=2, cpu="150m")
    first = await world.get(pod_key("web-0"))
    held = await world.create(reservation(first, "node-a"))
    assert (await world.ledger("node-a")).entries[first.uid].state == "Reserved"
    await refusal(world, Reason.RESOURCE, Key("NodeAllocation.kedge.dev", "", "node-a"), pod=pod_key("web-1"))
    await refusal(world, Reason.RESERVED_ELSEWHERE, held.key, node="node-b")
    await bind(world, "web-0")
    assert (await world.ledger("node-a")).entries[first.uid].state == "Bound"
    with pytest.raises(NotFound):
        await world.get(held.key)
    await check_ledgers(world, "node-a")


@asynchronous
async def test_a_pod_has_at_most_one_reservation() -> None:
    world = await small_cluster()
    found = await world.get(pod_key())
    await world.create(reservation(found, "node-a"))
    with pytest.raises(AlreadyExists):
        await world.create(reservation(found, "node-b"))
    stray = reservation(found, "node-b")
    stray["metadata"]["name"] = "another-name"
    with pytest.raises(Invalid, match=r"metadata\.name"):
        await world.create(stray)


@asynchronous
async def test_a_new_generation_supersedes_the_reservation_in_one_commit() -> None:
    world = await small_cluster()
    found = await world.get(pod_key())
    held = await world.create(reservation(found, "node-a", generation=1))
    with pytest.raises(Refused, match="newer generation") as caught:
        await world.service.update(held.key, reservation(found, "node-b", generation=1))
    assert (caught.value.refusal, caught.value.revision) == (Reason.RESERVED_ELSEWHERE, held.revision)
    moved = await world.service.update(held.key, reservation(found, "node-b", generation=2))
    assert not (await world.ledger("node-a")).entries
    assert found.uid in (await world.ledger("node-b")).entries
    assert (await world.get(Key("NodeAllocation.kedge.dev", "", "node-b"))).revision == moved.object.revision
    assert (await world.get(Key("NodeAllocation.kedge.dev", "", "node-a"))).revision == moved.object.revision


@asynchronous
async def test_a_removed_reservation_releases_its_claim() -> None:
    for end in ("delete reservation", "delete pod", "end pod"):
        world = await small_cluster()
        await world.create(zone_quota(zone_a={"pods": "5"}))
        found = await world.get(pod_key())
        held = await world.create(reservation(found, "node-a"))
        assert await zone_use(world) == {"zone-a": "1"}
        if end == "delete reservation":
            await world.service.delete(held.key)
        elif end == "delete pod":
            await world.service.delete(pod_key())
        else:
            await world.record_end(pod_key(), "Failed")
        assert not (await world.ledger("node-a")).entries, end
        assert await zone_use(world) in ({"zone-a": "0"}, {"zone-a": ""}), end
        with pytest.raises(NotFound):
            await world.get(held.key)

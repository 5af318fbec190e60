"""Accounts stay correct under every change: ledgers, quotas and zone quotas."""

from __future__ import annotations

from typing import Any

import pytest
from tests.objects import (
    NAMESPACE,
    POD,
    ZONE_QUOTA,
    World,
    asynchronous,
    make_world,
    node,
    pod,
    pod_key,
    reservation,
    resource_quota,
    zone_quota,
)

from kedge.api.requests import Binding, DeleteOptions, WriteOptions
from kedge.errors import Forbidden, Invalid, Refused
from kedge.keys import Key
from kedge.limits import Limits
from kedge.placement.reasons import Reason
from kedge.store import Put

QUOTA = Key("ResourceQuota", "default", "limits")
ZONES = Key("ZoneQuota.kedge.dev", "default", "zones")
NODE_A = Key("Node", "", "node-a")


async def bind(world: World, name: str, to: str = "node-a", namespace: str = "default", **binding: Any) -> Any:
    return (await world.service.bind(Binding(pod=pod_key(name, namespace), node=to, **binding))).object


async def zone_use(world: World, key: Key = ZONES) -> dict[str, str]:
    return {zone: str(use.used.get("pods", 0)) for zone, use in (await world.get(key)).view.status.zones.items()}


# -- what a quota counts ---------------------------------------------------------------------------


@asynchronous
async def test_a_resource_that_a_quota_limits_again_is_recounted() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="9"))
    await world.create(pod("a"))
    await world.service.patch(QUOTA, {"spec": {"hard": {"pods": None, "configmaps": "9"}}})
    await world.create(pod("b"))  # not counted: the quota does not limit pods now
    await world.service.patch(QUOTA, {"spec": {"hard": {"pods": "9", "configmaps": None}}})
    await world.create(pod("c"))
    assert {r: str(q) for r, q in (await world.get(QUOTA)).view.status.used.items()} == {"pods": "3"}


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize("status", [{}, None, "junk", {"used": {}}, {"used": None}, {"zones": {}}, {"hard": {}}])
def test_no_shape_of_status_loosens_a_quota(subresource: str, status: Any) -> None:
    @asynchronous
    async def run() -> None:
        world = await make_world()
        await world.create(node())
        await world.create(resource_quota(pods="2"))
        await world.create(zone_quota(zone_a={"pods": "1"}))
        for name in ("a", "b"):
            await world.create(pod(name))
        await bind(world, "a")
        for key in (QUOTA, ZONES):
            body = {**(await world.get(key)).edit(), "status": status}
            await world.service.update(key, body, subresource=subresource)
        with pytest.raises(Forbidden):
            await world.create(pod("c"))
        with pytest.raises(Refused):
            await bind(world, "b")

    run()


@asynchronous
async def test_a_new_quota_is_uncounted_even_if_its_manifest_has_a_status() -> None:
    world = await make_world()
    await world.create(node())
    for name in ("a", "b", "c"):
        await world.create(pod(name))
    await bind(world, "a")
    full = zone_quota(zone_a={"pods": "1"})
    full["status"] = {"zones": {"zone-a": {"used": {"pods": "0"}}}}
    await world.service.create(ZONE_QUOTA, full)
    with pytest.raises(Refused):
        await bind(world, "b")
    tenant = {"metadata": {"name": "default"}, "status": {"zoneQuotas": [], "resourceQuotas": []}}
    await world.service.update(Key("Namespace", "", "default"), tenant)
    with pytest.raises(Refused):
        await bind(world, "c")


@asynchronous
async def test_a_namespace_has_no_more_quotas_than_a_commit_can_charge() -> None:
    limits = Limits()
    world = await make_world()
    await world.create(node())
    for n in range(limits.namespace_quotas_max):
        hard = {"pods": "99", "count/pods": "99"}
        await world.create(resource_quota(f"q{n}", **hard))
        await world.create(zone_quota(f"z{n}", zone_a={"pods": "99"}))
    for one_more in (resource_quota("more", pods="1"), zone_quota("more", zone_a={"pods": "1"})):
        with pytest.raises(Forbidden, match="such objects already"):
            await world.create(one_more)
    await world.create(pod("born-there", nodeName="node-a"))
    await world.create(pod("a"))
    made = await world.get(pod_key("a"))
    await world.create(reservation(made, "node-a"))
    await bind(world, "a")
    await world.service.delete(QUOTA._replace(name="q0"))
    await world.create(resource_quota("more", pods="1"))


# -- what a ledger holds ---------------------------------------------------------------------------


@asynchronous
async def test_the_claim_of_a_pod_without_requests_is_released() -> None:
    world = await make_world()
    await world.create(node())
    await world.create(pod("zero", cpu="0", memory="0"))
    plain = pod("plain")
    del plain["spec"]["containers"][0]["resources"]
    await world.create(plain)
    await bind(world, "zero")
    await bind(world, "plain")
    await world.record_end(pod_key("plain"))
    await world.record_end(pod_key("zero"))
    assert not (await world.ledger("node-a")).entries


@asynchronous
async def test_a_new_incarnation_of_a_node_releases_the_claims_of_the_old_one() -> None:
    """At once, not at the next bind there: until then the zone quota would refuse binds to other nodes."""
    world = await make_world()
    await world.create(zone_quota(zone_a={"pods": "1"}))
    await world.create(node())
    await world.create(node("node-b"))
    await world.create(pod("lost"))
    await world.create(pod("next"))
    await bind(world, "lost")
    await world.service.delete(pod_key("lost"), DeleteOptions(grace_s=0))
    await world.service.delete(NODE_A)
    with pytest.raises(Refused) as caught:  # the end is not proved yet
        await bind(world, "next", to="node-b")
    assert caught.value.refusal == Reason.ZONE_QUOTA
    again = await world.create(node())
    ledger = await world.get(Key("NodeAllocation.kedge.dev", "", "node-a"))
    assert (ledger.revision, ledger.view.spec.node_uid) == (again.revision, again.uid)
    assert not ledger.view.status.entries
    await bind(world, "next", to="node-b")


async def crowded_node(tenants: int, zone_quotas: int) -> tuple[World, list[str]]:
    """A node with a claim of each of many tenants, which is then replaced by a new incarnation."""
    world = await make_world()
    await world.create(node(pods="500", cpu="500"))
    names = [f"tenant-{n:03}" for n in range(tenants)]
    for name in names:
        await world.service.create(NAMESPACE, {"metadata": {"name": name}})
        for n in range(zone_quotas):
            quota = zone_quota(f"z{n}", zone_a={"pods": "1"})
            quota["metadata"]["namespace"] = name
            await world.create(quota)
        body = pod()
        body["metadata"]["namespace"] = name
        await world.service.create(POD, body)
        await bind(world, "web-0", namespace=name)
    return world, names


@pytest.mark.parametrize("zone_quotas", [0, 1, 16])
def test_claims_of_many_tenants_on_a_replaced_node_are_released_in_bounded_commits(zone_quotas: int) -> None:
    @asynchronous
    async def run() -> None:
        world, tenants = await crowded_node(70 if zone_quotas < 16 else 12, zone_quotas)
        await world.service.delete(NODE_A)
        await world.create(node(pods="500", cpu="500"))
        await world.create(pod("first"))
        before = await world.store.revision()
        await world.service.bind(Binding(pod=pod_key("first"), node="node-a"), options=WriteOptions(dry_run=True))
        assert await world.store.revision() == before
        await bind(world, "first")
        assert [entry.name for entry in (await world.ledger("node-a")).entries.values()] == ["first"]
        for name in tenants if zone_quotas else []:
            assert await zone_use(world, ZONES._replace(namespace=name, name="z0")) == {"zone-a": "0"}

    run()


@asynchronous
async def test_a_bind_to_an_earlier_incarnation_does_not_count_for_the_new_one() -> None:
    world = await make_world()
    first = await world.create(node())
    await world.create(pod("a"))
    await bind(world, "a", node_uid=first.uid)
    await bind(world, "a", node_uid=first.uid)
    await world.service.delete(NODE_A)
    second = await world.create(node())
    with pytest.raises(Refused) as caught:
        await bind(world, "a", node_uid=second.uid)
    assert caught.value.refusal == Reason.POD_BOUND


@asynchronous
async def test_no_write_moves_a_bound_pod_or_restarts_an_ended_one() -> None:
    world = await make_world()
    await world.create(node())
    await world.create(node("node-b"))
    await world.create(pod("a"))
    bound = await bind(world, "a")
    for node_name in (None, "", "node-b"):
        body = bound.edit()
        body["spec"]["nodeName"] = node_name
        if node_name is None:
            del body["spec"]["nodeName"]
        with pytest.raises(Invalid):
            await world.service.update(bound.key, body)
    await world.service.patch(bound.key, {"spec": {"nodeName": "node-b"}}, subresource="status")
    assert (await world.get(bound.key)).view.spec.node_name == "node-a"
    await world.record_end(bound.key, "Failed")
    for status in ({"phase": "Running"}, {"phase": "Pending"}, {}, None):
        with pytest.raises(Invalid, match="cannot run again"):
            await world.service.update(bound.key, {**bound.edit(), "status": status}, subresource="status")


# -- nulls -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_null_where_the_service_writes_counts_as_empty() -> None:
    world = await make_world()
    await world.create(node())
    body = pod("a", terminationGracePeriodSeconds=2**62)
    body["metadata"].update(annotations=None, labels={"app": "web"}, finalizers=None)
    made = await world.create(body)
    await world.service.update(
        made.key, {**made.edit(), "status": {"phase": "Pending", "conditions": None}}, subresource="status"
    )
    await bind(world, "a")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    planned = await world.create(budget)
    status = {"observedGeneration": 1, "disruptionsAllowed": 1, "disruptedPods": None}
    await world.service.update(planned.key, {**planned.edit(), "status": status}, subresource="status")
    evicted = await world.service.evict(made.key)  # with a grace period past the last timestamp
    assert evicted.object.edit()["metadata"]["deletionTimestamp"].startswith("9999-")
    quota = await world.create(resource_quota(pods="9"))
    await world.service.update(quota.key, {**quota.edit(), "status": None}, subresource="status")
    await world.create(pod("b"))
    assert {r: str(q) for r, q in (await world.get(QUOTA)).view.status.used.items()} == {"pods": "2"}


@asynchronous
async def test_internal_keys_are_not_reachable_through_the_api() -> None:
    """The service's own keys are not objects: no verb reaches them."""
    world = await make_world()
    await world.store.commit([], [Put(Key("Fence.kedge.dev", "", "x"), b"{}")])
    for kind in ("Fence.kedge.dev", "Operation.kedge.dev", "DefaultPriority.kedge.dev", "DisruptionBudgets.kedge.dev"):
        key = Key(kind, "", "x")
        for verb in (world.service.get, world.service.delete, lambda key: world.service.patch(key, {"a": "b"})):
            with pytest.raises(Exception, match="there is no kind"):
                await verb(key)

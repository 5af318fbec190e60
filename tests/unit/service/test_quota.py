"""Resource quotas: charged in the commit of the write, refunded in the commit that ends or removes the object."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.objects import World, asynchronous, config_map, make_world, node, pod, pod_key, resource_quota

from kedge.api.requests import Binding, DeleteOptions
from kedge.errors import AlreadyExists, Forbidden, Invalid
from kedge.keys import Key

QUOTA = Key("ResourceQuota", "default", "limits")


async def used(world: World) -> dict[str, str]:
    return {name: str(amount) for name, amount in (await world.get(QUOTA)).view.status.used.items()}


@asynchronous
async def test_a_create_past_the_limit_is_forbidden_and_names_the_quota() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="2", requests__cpu="250m"))
    await world.create(pod("a"))
    await world.create(pod("b"))
    assert await used(world) == {"pods": "2", "requests.cpu": "200m"}
    with pytest.raises(Forbidden) as caught:
        await world.create(pod("c"))
    for words in ("exceeded quota: limits", "requested: pods=1,requests.cpu=100m", "used: pods=2", "limited: pods=2"):
        assert words in caught.value.message
    assert await used(world) == {"pods": "2", "requests.cpu": "200m"}


@asynchronous
async def test_a_failed_create_charges_nothing() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="5"))
    await world.create(resource_quota("small", **{"requests.cpu": "1"}))
    await world.create(pod("a"))
    with pytest.raises(AlreadyExists):
        await world.create(pod("a"))
    with pytest.raises(Invalid):
        await world.create(pod("Not A Name"))
    with pytest.raises(Forbidden):
        await world.create(pod("b", cpu="9"))
    assert await used(world) == {"pods": "1"}


@asynchronous
async def test_an_end_refunds_the_running_pod_and_a_removal_refunds_the_rest() -> None:
    world = await make_world()
    await world.create(resource_quota(**{"pods": "5", "count/pods": "5"}))
    await world.create(pod("a"))
    assert await used(world) == {"pods": "1", "count/pods": "1"}
    await world.record_end(pod_key("a"))
    assert await used(world) == {"pods": "0", "count/pods": "1"}
    await world.service.delete(pod_key("a"))
    assert await used(world) == {"pods": "0", "count/pods": "0"}


@asynchronous
async def test_a_quota_counts_earlier_objects() -> None:
    world = await make_world()
    for n in range(3):
        await world.create(pod(f"p{n}"))
    await world.create(resource_quota(pods="4"))
    await world.create(pod("p3"))
    assert await used(world) == {"pods": "4"}
    with pytest.raises(Forbidden):
        await world.create(pod("p4"))


@asynchronous
async def test_a_quota_that_limits_more_resources_is_recounted() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="9"))
    await world.create(pod("a"))
    await world.service.patch(QUOTA, {"spec": {"hard": {"requests.memory": "1Gi"}}})
    await world.create(pod("b"))
    assert await used(world) == {"pods": "2", "requests.memory": "128Mi"}


@asynchronous
async def test_any_kind_can_be_counted() -> None:
    world = await make_world()
    await world.create(resource_quota(**{"count/configmaps": "1", "configmaps": "1"}))
    await world.create(config_map("a"))
    with pytest.raises(Forbidden, match="configmaps"):
        await world.create(config_map("b"))
    await world.service.delete(Key("ConfigMap", "default", "a"))
    await world.create(config_map("b"))
    assert await used(world) == {"count/configmaps": "1", "configmaps": "1"}


@asynchronous
async def test_scopes_select_the_pods_that_are_counted() -> None:
    world = await make_world()
    quota = resource_quota(pods="1")
    quota["spec"]["scopes"] = ["BestEffort"]
    await world.create(quota)
    await world.create(pod("guaranteed-something"))
    best_effort = pod("nothing-asked")
    del best_effort["spec"]["containers"][0]["resources"]
    await world.create(best_effort)
    assert await used(world) == {"pods": "1"}
    best_effort["metadata"]["name"] = "another"
    with pytest.raises(Forbidden):
        await world.create(best_effort)


@asynchronous
async def test_only_the_service_writes_a_quotas_use() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="1"))
    await world.create(pod("a"))
    await world.service.patch(QUOTA, {"status": {"used": {"pods": "0"}}}, subresource="status")
    assert await used(world) == {"pods": "1"}
    await world.service.patch(Key("Namespace", "", "default"), {"status": {"resourceQuotas": []}}, subresource="status")
    with pytest.raises(Forbidden):
        await world.create(pod("b"))


@asynchronous
async def test_a_deleted_quota_limits_nothing() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="0"))
    with pytest.raises(Forbidden):
        await world.create(pod())
    await world.service.delete(QUOTA)
    await world.create(pod())


@asynchronous
async def test_concurrent_creates_fill_a_quota_exactly() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="10"))
    outcomes = await asyncio.gather(*(world.create(pod(f"p{n}")) for n in range(40)), return_exceptions=True)
    assert sum(isinstance(o, Forbidden) for o in outcomes) == 30
    assert await used(world) == {"pods": "10"}
    deleted = [world.service.delete(o.key) for o in outcomes if not isinstance(o, BaseException)]
    await asyncio.gather(*deleted)
    assert await used(world) == {"pods": "0"}


@asynchronous
async def test_a_create_in_flight_is_charged_to_a_new_quota() -> None:
    """A create that read its namespace before the quota was created must read again."""
    for head_start in range(12):
        world = await make_world()

        async def quota_after(turns: int, world: World = world) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            await world.create(resource_quota(pods="3"))

        outcomes: list[Any] = await asyncio.gather(
            quota_after(head_start), *(world.create(pod(f"p{n}")) for n in range(8)), return_exceptions=True
        )
        made = sum(not isinstance(o, BaseException) for o in outcomes[1:])
        await world.service.delete(pod_key("p0")) if not isinstance(outcomes[1], BaseException) else None
        left = made - (not isinstance(outcomes[1], BaseException))
        if left < 3:
            await world.create(pod("one-more"))
            left += 1
        if (await world.get(QUOTA)).view.status.used:
            assert await used(world) == {"pods": str(left)}, head_start


@asynchronous
async def test_a_forced_deletion_refunds_the_tenant_but_not_the_node() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="1"))
    await world.create(node())
    await world.create(pod())
    await world.service.bind(Binding(pod=pod_key(), node="node-a"))
    await world.service.delete(pod_key(), DeleteOptions(grace_s=0))
    assert await used(world) == {"pods": "0"}
    assert str((await world.ledger("node-a")).allocated["pods"]) == "1"


@asynchronous
async def test_a_quota_of_one_priority_class_charges_its_pods_alone() -> None:
    world = await make_world()
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    await world.create(high)
    quota = resource_quota(pods="1")
    requirement = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    quota["spec"]["scopeSelector"] = {"matchExpressions": [requirement]}
    await world.create(quota)
    await world.create(pod("plain"))
    await world.create(pod("first", priorityClassName="high"))
    with pytest.raises(Forbidden, match="exceeded quota"):
        await world.create(pod("second", priorityClassName="high"))
    assert await used(world) == {"pods": "1"}


def affine(name: str, **term: Any) -> dict[str, Any]:
    selector = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname", **term}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}
    return pod(name, affinity={"podAffinity": required})


@asynchronous
async def test_a_quota_may_forbid_affinity_to_pods_of_other_namespaces() -> None:
    world = await make_world()
    quota = resource_quota(pods="0")
    quota["spec"]["scopes"] = ["CrossNamespacePodAffinity"]
    await world.create(quota)
    await world.create(pod("plain"))
    await world.create(affine("near"))
    for name, term in (("far", {"namespaces": ["other"]}), ("any", {"namespaceSelector": {}})):
        with pytest.raises(Forbidden, match="exceeded quota: limits"):
            await world.create(affine(name, **term))
    assert await used(world) == {"pods": "0"}


@asynchronous
async def test_a_quota_charges_the_resources_of_the_pod_itself() -> None:
    """They replace the sum of the containers'."""
    world = await make_world()
    await world.create(resource_quota(requests__memory="20Gi"))
    await world.create(pod("a", resources={"requests": {"memory": "16Gi"}}))
    assert await used(world) == {"requests.memory": "16Gi"}
    with pytest.raises(Forbidden, match=r"requested: requests\.memory=5Gi"):
        await world.create(pod("b", resources={"requests": {"memory": "5Gi"}}))
    await world.service.delete(pod_key("a"))
    assert await used(world) == {"requests.memory": "0"}

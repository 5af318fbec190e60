"""Eviction: a deletion that a disruption budget allows and counts."""

from __future__ import annotations

import asyncio

import pytest
from tests.objects import NAMESPACE, World, asynchronous, make_world, node, pod, pod_key

from kedge.api.requests import Binding, DeleteOptions
from kedge.errors import BadRequest, Conflict, NotFound, OperatingError, TooManyRequests
from kedge.keys import Key

BUDGET = Key("PodDisruptionBudget.policy", "default", "web")


async def cluster(*, allowed: int, pods: int = 3) -> World:
    world = await make_world()
    await world.create(node())
    for n in range(pods):
        await world.create(pod(f"web-{n}"))
        await world.service.bind(Binding(pod=pod_key(f"web-{n}"), node="node-a"))
    await add_budget(world, "web", allowed)
    return world


async def add_budget(world: World, name: str, allowed: int, *, namespace: str = "default") -> None:
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    made = await world.create(body)
    status = {
        "disruptionsAllowed": allowed,
        "currentHealthy": 3,
        "desiredHealthy": 2,
        "expectedPods": 3,
        "observedGeneration": made.metadata.generation,
    }
    await world.service.patch(made.key, {"status": status}, subresource="status")


@asynchronous
async def test_an_eviction_is_charged_to_the_budget_in_its_own_commit() -> None:
    world = await cluster(allowed=1)
    evicted = (await world.service.evict(pod_key("web-0"))).object
    assert evicted.metadata.deletion_timestamp is not None
    budget = await world.get(BUDGET)
    assert budget.revision == evicted.revision
    assert budget.view.status.disruptions_allowed == 0
    assert "web-0" in budget.edit()["status"]["disruptedPods"]


@asynchronous
async def test_the_last_allowed_eviction_changes_the_condition_in_its_own_commit() -> None:
    world = await cluster(allowed=2)
    known = {"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods", "observedGeneration": 1}
    await world.service.patch(BUDGET, {"status": {"conditions": [known]}}, subresource="status")
    for name, status in (("web-0", "True"), ("web-1", "False")):
        evicted = (await world.service.evict(pod_key(name))).object
        budget = await world.get(BUDGET)
        assert budget.revision == evicted.revision
        assert [(each.type, each.status) for each in budget.view.status.conditions] == [("DisruptionAllowed", status)]
        assert budget.view.status.conditions[0].observed_generation == 1


@asynchronous
async def test_the_key_of_a_namespaces_budgets_is_removed_with_it() -> None:
    world = await make_world()
    await world.service.create(NAMESPACE, {"metadata": {"name": "short"}})
    await add_budget(world, "web", 1, namespace="short")
    namespace = Key("Namespace", "", "short")
    await world.service.delete(namespace)
    await world.service.delete(BUDGET._replace(namespace="short"))
    assert (await world.store.list("DisruptionBudgets.kedge.dev")).entries
    await world.service.update(namespace, {"spec": {"finalizers": []}}, subresource="finalize")
    assert not (await world.store.list("DisruptionBudgets.kedge.dev")).entries


@asynchronous
async def test_an_exhausted_budget_rejects_with_a_retry_time() -> None:
    world = await cluster(allowed=0)
    with pytest.raises(TooManyRequests, match="disruption budget web") as caught:
        await world.service.evict(pod_key("web-0"))
    assert caught.value.retry_after_s > 0
    assert (await world.get(pod_key("web-0"))).metadata.deletion_timestamp is None


@asynchronous
async def test_concurrent_evictions_never_exceed_the_budget() -> None:
    world = await cluster(allowed=1)
    outcomes = await asyncio.gather(
        *(world.service.evict(pod_key(f"web-{n}")) for n in range(3)), return_exceptions=True
    )
    assert sum(isinstance(o, TooManyRequests) for o in outcomes) == 2
    assert (await world.get(BUDGET)).view.status.disruptions_allowed == 0


@asynchronous
async def test_a_pod_that_is_being_deleted_is_not_charged_again() -> None:
    world = await cluster(allowed=1)
    await world.service.evict(pod_key("web-0"))
    await world.service.evict(pod_key("web-0"))


@asynchronous
async def test_a_budget_whose_status_lags_its_spec_allows_nothing() -> None:
    world = await cluster(allowed=1)
    await world.service.patch(BUDGET, {"spec": {"maxUnavailable": 2}})
    with pytest.raises(TooManyRequests, match="processed by its controller"):
        await world.service.evict(pod_key("web-0"))


@asynchronous
async def test_an_unbound_pod_is_not_charged_to_a_budget() -> None:
    world = await cluster(allowed=0)
    await world.create(pod("pending"))
    assert (await world.service.evict(pod_key("pending"))).removed
    await world.record_end(pod_key("web-0"), "Failed")
    assert (await world.service.evict(pod_key("web-0"))).removed


@asynchronous
async def test_two_budgets_for_one_pod_are_an_error() -> None:
    world = await cluster(allowed=1)
    await add_budget(world, "second", 1)
    with pytest.raises(OperatingError, match="second, web"):
        await world.service.evict(pod_key("web-0"))


@asynchronous
async def test_preconditions_apply_to_evictions() -> None:
    world = await cluster(allowed=1)
    with pytest.raises(Conflict):
        await world.service.evict(pod_key("web-0"), DeleteOptions(uid="of-another"))
    with pytest.raises(NotFound):
        await world.service.evict(pod_key("absent"))
    assert (await world.get(BUDGET)).view.status.disruptions_allowed == 1


@asynchronous
async def test_an_eviction_rejects_an_unknown_propagation_policy() -> None:
    world = await cluster(allowed=1)
    with pytest.raises(BadRequest, match="Sideways"):
        await world.service.evict(pod_key("web-0"), DeleteOptions(propagation="Sideways"))

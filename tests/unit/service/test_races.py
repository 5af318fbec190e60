"""Races between a verb's reads and its commit: each test changes one object there.

The commit proves every read of the attempt, so the verb must notice the change, read again and decide on the new state.
Every test here fails if that one key is left out of the checks.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.kit.races import RacingStore, another_server, racing_world
from tests.objects import (
    CONFIG_MAP,
    World,
    asynchronous,
    config_map,
    gang_record,
    make_env,
    make_world,
    node,
    pod,
    pod_key,
    reservation,
    resource_quota,
    zone_quota,
)

from kedge.api.requests import Binding, ListOptions, WriteOptions
from kedge.errors import AlreadyExists, Forbidden, Refused, TooManyRequests, Unavailable
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.placement.reasons import Reason
from kedge.server.service import AdmissionChain, FunctionPolicy
from kedge.server.service.core import Proof
from kedge.store import Check, Put, Write
from kedge.store.memory import MemoryStore

NODE_A = Key("Node", "", "node-a")
DEFAULT = Key("Namespace", "", "default")
SETTINGS = Key("ConfigMap", "default", "settings")


@asynchronous
async def test_a_namespace_that_starts_to_terminate_accepts_no_create() -> None:
    world, store = await racing_world()
    store.interfere = lambda: world.service.delete(DEFAULT)
    with pytest.raises(Forbidden, match="being terminated"):
        await world.create(config_map())


@asynchronous
async def test_a_quota_that_appears_counts_the_create_in_flight() -> None:
    world, store = await racing_world()
    store.interfere = lambda: world.create(resource_quota(pods="0"))
    with pytest.raises(Forbidden, match="exceeded quota"):
        await world.create(pod())


@asynchronous
async def test_a_name_taken_meanwhile_already_exists() -> None:
    world, store = await racing_world()
    store.interfere = lambda: world.create(config_map())
    with pytest.raises(AlreadyExists):
        await world.create(config_map())


@asynchronous
async def test_a_change_meanwhile_is_not_overwritten() -> None:
    world, store = await racing_world()
    await world.create(config_map(a="1"))
    store.interfere = lambda: world.service.patch(SETTINGS, {"data": {"b": "2"}})
    await world.service.patch(SETTINGS, {"data": {"c": "3"}})
    assert (await world.get(SETTINGS)).edit()["data"] == {"a": "1", "b": "2", "c": "3"}


async def refused_bind(
    world: World, store: RacingStore, interfere: Callable[[], Awaitable[Any]], **binding: Any
) -> Refused:
    store.interfere = interfere
    with pytest.raises(Refused) as caught:
        await world.service.bind(Binding(pod=pod_key(), node="node-a", **binding))
    assert store.interfere is None
    return caught.value


@pytest.mark.parametrize(
    ("patch", "subresource", "reason"),
    [
        ({"spec": {"unschedulable": True}}, "", Reason.NODE_CORDONED),
        ({"spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}}, "", Reason.TAINT),
        ({"status": {"conditions": [{"type": "Suspect", "status": "True"}]}}, "status", Reason.NODE_SUSPECT),
        ({"status": {"allocatable": {"cpu": "50m"}}}, "status", Reason.RESOURCE),
    ],
)
def test_a_bind_is_checked_on_the_node_as_changed_meanwhile(
    patch: dict[str, Any], subresource: str, reason: Reason
) -> None:
    @asynchronous
    async def run() -> None:
        world, store = await racing_world()
        await world.create(node())
        await world.create(pod())
        caught = await refused_bind(world, store, lambda: world.service.patch(NODE_A, patch, subresource=subresource))
        assert caught.refusal == reason
        assert caught.revision == (await world.get(NODE_A)).revision

    run()


@asynchronous
async def test_a_node_replaced_meanwhile_is_another_node() -> None:
    world, store = await racing_world()
    made = await world.create(node())
    await world.create(pod())

    async def replace() -> None:
        await world.service.delete(NODE_A)
        await world.create(node())

    caught = await refused_bind(world, store, replace, node_uid=made.uid)
    assert caught.refusal == Reason.NODE_REPLACED


@asynchronous
async def test_resources_claimed_meanwhile_are_not_available() -> None:
    world, store = await racing_world()
    await world.create(node(cpu="150m"))
    await world.create(pod())
    await world.create(pod("web-1"))
    caught = await refused_bind(world, store, lambda: world.service.bind(Binding(pod=pod_key("web-1"), node="node-a")))
    assert caught.refusal == Reason.RESOURCE


@asynchronous
async def test_a_lost_race_for_a_ledger_with_room_is_retried() -> None:
    world, store = await racing_world()
    await world.create(node())
    await world.create(pod())
    await world.create(pod("web-1"))
    store.interfere = lambda: world.service.bind(Binding(pod=pod_key("web-1"), node="node-a"))
    await world.service.bind(Binding(pod=pod_key(), node="node-a"))
    assert str((await world.ledger("node-a")).allocated["pods"]) == "2"


@asynchronous
async def test_a_zone_quota_that_appears_counts_the_bind_in_flight() -> None:
    world, store = await racing_world()
    await world.create(node())
    await world.create(pod())
    caught = await refused_bind(world, store, lambda: world.create(zone_quota(zone_a={"pods": "0"})))
    assert caught.refusal == Reason.ZONE_QUOTA


@asynchronous
async def test_quota_used_meanwhile_is_not_available() -> None:
    world, store = await racing_world()
    await world.create(zone_quota(zone_a={"pods": "1"}))
    await world.create(node())
    await world.create(node("node-b"))
    await world.create(pod())
    await world.create(pod("web-1"))
    rival = another_server(world).service
    caught = await refused_bind(world, store, lambda: rival.bind(Binding(pod=pod_key("web-1"), node="node-b")))
    assert caught.refusal == Reason.ZONE_QUOTA


@asynchronous
async def test_a_claim_that_ends_while_a_zone_is_first_counted_is_not_counted() -> None:
    """1. A bind finds the zone uncounted and counts it. 2. A claim on another node ends. 3. The bind commits."""
    world, store = await racing_world()
    await world.create(node())
    await world.create(node("node-b"))
    await world.create(pod())
    await world.create(pod("web-1"))
    await world.service.bind(Binding(pod=pod_key("web-1"), node="node-b"))
    quota = await world.create(zone_quota(zone_a={"pods": "9"}))
    store.interfere = lambda: another_server(world).record_end(pod_key("web-1"))
    await world.service.bind(Binding(pod=pod_key(), node="node-a"))
    assert str((await world.get(quota.key)).view.status.zones["zone-a"].used["pods"]) == "1"


@asynchronous
async def test_a_collection_delete_skips_an_object_that_is_no_longer_selected() -> None:
    for change in (relabel, replace_by_another):
        world, store = await racing_world()
        await world.create(labelled_map("settings"))
        store.interfere = functools.partial(change, world)
        await world.service.delete_collection(CONFIG_MAP, ListOptions(label_selector="app=x"))
        assert (await world.service.list(CONFIG_MAP)).objects[0].metadata.labels["app"] == "y"


def labelled_map(name: str, app: str = "x") -> dict[str, Any]:
    body = config_map(name)
    body["metadata"]["labels"] = {"app": app}
    return body


async def relabel(world: World) -> None:
    await world.service.patch(SETTINGS, {"metadata": {"labels": {"app": "y"}}})


async def replace_by_another(world: World) -> None:
    await world.service.delete(SETTINGS)
    await world.create(labelled_map("settings", "y"))


@asynchronous
async def test_a_reservation_on_another_node_made_meanwhile_forbids_the_bind() -> None:
    world, store = await racing_world()
    await world.create(node())
    await world.create(node("node-b"))
    made = await world.create(pod())
    caught = await refused_bind(world, store, lambda: world.create(reservation(made, "node-b")))
    assert caught.refusal == Reason.RESERVED_ELSEWHERE


@asynchronous
async def test_a_gang_aborted_meanwhile_is_not_bound() -> None:
    world, store = await racing_world()
    await world.create(node())
    body = pod()
    body["metadata"]["labels"]["kedge.dev/gang"] = "gang-1"
    made = await world.create(body)
    record = await world.create(gang_record("gang-1", size=1))
    await world.create(reservation(made, "node-a", gang="gang-1"))
    await world.service.patch(record.key, {"status": {"phase": "Committed"}}, subresource="status")
    world.clock.advance(3600)

    async def clear() -> None:
        """Past the deadline a reservation that cannot be bound is removed, and then it could be bound again."""
        home = Key("Node", "", "node-a")
        await world.service.patch(home, {"spec": {"unschedulable": True}})
        await world.service.delete(record.key)
        await world.service.patch(home, {"spec": {"unschedulable": False}})

    caught = await refused_bind(world, store, clear, pod_uid=made.uid)
    assert caught.refusal == Reason.GANG_NOT_COMMITTED


PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "usual"},
    "value": 50,
}


@asynchronous
async def test_a_default_class_created_meanwhile_counts() -> None:
    world, store = await racing_world()
    store.interfere = lambda: world.create({**PRIORITY_CLASS, "globalDefault": True})
    assert (await world.create(pod())).view.spec.priority == 50


@asynchronous
async def test_a_priority_class_replaced_meanwhile_gives_its_new_value() -> None:
    world, store = await racing_world()
    made = await world.create(PRIORITY_CLASS)

    async def replace() -> None:
        await world.service.delete(made.key)
        await world.create({**PRIORITY_CLASS, "value": 70})

    store.interfere = replace
    assert (await world.create(pod(priorityClassName="usual"))).view.spec.priority == 70


@asynchronous
async def test_a_pod_replaced_meanwhile_is_another_pod() -> None:
    world, store = await racing_world()
    await world.create(node())
    made = await world.create(pod())

    async def replace() -> None:
        await world.service.delete(pod_key())
        await world.create(pod())

    caught = await refused_bind(world, store, replace, pod_uid=made.uid)
    assert caught.refusal == Reason.POD_REPLACED


@asynchronous
async def test_an_input_of_a_policy_that_changes_meanwhile_is_read_again() -> None:
    def frozen(_request: Any, inputs: Any) -> list[str]:
        return ["the namespace is frozen"] if inputs[SETTINGS] is not None else []

    policy = FunctionPolicy("freeze", kinds=["Pod"], inputs=lambda _: [SETTINGS], validate=frozen)
    world, store = await racing_world(AdmissionChain([], [policy]))
    store.interfere = lambda: world.create(config_map())
    with pytest.raises(Forbidden, match="frozen"):
        await world.create(pod())


def budget(name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": labels}},
    }


@asynchronous
async def test_a_disruption_budget_created_meanwhile_protects() -> None:
    world, store = await racing_world()
    await world.create(node())
    await world.create(pod())
    await world.service.bind(Binding(pod=pod_key(), node="node-a"))
    store.interfere = lambda: world.create(budget("web", app="web"))
    with pytest.raises(TooManyRequests):
        await world.service.evict(pod_key())


@asynchronous
async def test_a_disruption_budget_extended_meanwhile_protects() -> None:
    world, store = await racing_world()
    await world.create(node())
    await world.create(pod())
    await world.service.bind(Binding(pod=pod_key(), node="node-a"))
    made = await world.create(budget("web", app="other"))
    wider = {"spec": {"selector": {"matchLabels": {"app": "web"}}}}
    store.interfere = lambda: world.service.patch(made.key, wider)
    with pytest.raises(TooManyRequests):
        await world.service.evict(pod_key())


@asynchronous
async def test_a_disruption_budget_exhausted_meanwhile_rejects() -> None:
    world, store = await racing_world()
    await world.create(node())
    for name in ("web-0", "web-1"):
        await world.create(pod(name))
        await world.service.bind(Binding(pod=pod_key(name), node="node-a"))
    made = await world.create(budget("web", app="web"))
    status = {
        "disruptionsAllowed": 1,
        "observedGeneration": 1,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "expectedPods": 2,
    }
    await world.service.patch(made.key, {"status": status}, subresource="status")
    store.interfere = lambda: world.service.evict(pod_key("web-1"))
    with pytest.raises(TooManyRequests):
        await world.service.evict(pod_key("web-0"))


@asynchronous
async def test_a_late_operation_takes_effect_once() -> None:
    """The first attempt is slow and its repeat overtakes it: the second commit must see the first."""
    world, store = await racing_world()
    body = config_map()
    body["metadata"] = {"generateName": "m-", "namespace": "default"}
    options = WriteOptions(origin=Origin(operation="op-1"))
    store.interfere = lambda: world.service.create(CONFIG_MAP, body, options=options)
    await world.service.create(CONFIG_MAP, body, options=options)
    assert len((await world.service.list(CONFIG_MAP)).objects) == 1


@asynchronous
async def test_a_write_that_always_loses_its_race_fails_with_the_key() -> None:
    store = RacingStore(make_env(seed=2))
    world = await make_world(store=store, limits=Limits(proof_attempts_max=3))
    await world.create(config_map())
    turns = 0

    async def interfere() -> None:
        nonlocal turns
        turns += 1
        await MemoryStore.commit(store, [], [(await rewritten(world))])
        store.interfere = interfere

    store.interfere = interfere
    with pytest.raises(Unavailable, match="changed by other writes 3 times"):
        await world.service.patch(SETTINGS, {"data": {"x": "y"}})
    assert turns == 3


async def rewritten(world: World) -> Write:
    return Put(SETTINGS, (await world.get(SETTINGS)).value)


# -- the safeguards themselves ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("race", "unchecked"),
    [
        (test_a_namespace_that_starts_to_terminate_accepts_no_create, "Namespace"),
        (test_a_quota_that_appears_counts_the_create_in_flight, "Namespace"),
        (test_a_name_taken_meanwhile_already_exists, "ConfigMap"),
        (test_a_change_meanwhile_is_not_overwritten, "ConfigMap"),
        (test_a_node_replaced_meanwhile_is_another_node, "Node"),
        (test_resources_claimed_meanwhile_are_not_available, "NodeAllocation.kedge.dev"),
        (test_a_zone_quota_that_appears_counts_the_bind_in_flight, "Namespace"),
        (test_quota_used_meanwhile_is_not_available, "ZoneQuota.kedge.dev"),
        (test_a_claim_that_ends_while_a_zone_is_first_counted_is_not_counted, "ZoneQuota.kedge.dev"),
        (test_a_collection_delete_skips_an_object_that_is_no_longer_selected, "ConfigMap"),
        (test_a_reservation_on_another_node_made_meanwhile_forbids_the_bind, "Reservation.kedge.dev"),
        (test_a_default_class_created_meanwhile_counts, "DefaultPriority.kedge.dev"),
        (test_a_priority_class_replaced_meanwhile_gives_its_new_value, "PriorityClass.scheduling.k8s.io"),
        (test_a_pod_replaced_meanwhile_is_another_pod, "Pod"),
        (test_an_input_of_a_policy_that_changes_meanwhile_is_read_again, "ConfigMap"),
        (test_a_disruption_budget_created_meanwhile_protects, "DisruptionBudgets.kedge.dev"),
        (test_a_disruption_budget_extended_meanwhile_protects, "DisruptionBudgets.kedge.dev"),
        (test_a_disruption_budget_exhausted_meanwhile_rejects, "PodDisruptionBudget.policy"),
        (test_a_late_operation_takes_effect_once, "Operation.kedge.dev"),
    ],
)
def test_without_its_check_each_race_goes_wrong(
    race: Callable[[], None], unchecked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that would pass without the safeguard tests nothing."""
    every_check = Proof.checks

    def all_but_one(proof: Proof) -> list[Check]:
        return [check for check in every_check(proof) if check.key.kind != unchecked]

    monkeypatch.setattr(Proof, "checks", all_but_one)
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        race()

"""Pods created with a node's name: stored and charged unproved, admitted by the commit that reports their start."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.races import another_server, racing_world
from tests.objects import World, asynchronous, make_world, node, pod, pod_key, reservation, zone_quota

from kedge.api.objects import Object
from kedge.api.requests import Binding, DeleteOptions
from kedge.errors import NotFound, Refused, TooManyRequests
from kedge.limits import Limits
from kedge.placement.reasons import Reason

START = "2030-01-01T00:00:00Z"


async def report_start(world: World, name: str, at: str = START) -> Object:
    """The write of an agent that is about to start a pod."""
    return (await world.service.patch(pod_key(name), {"status": {"startTime": at}}, subresource="status")).object


async def states(world: World, node_name: str = "node-a") -> dict[str, str]:
    return {entry.name: entry.state for entry in (await world.ledger(node_name)).entries.values()}


async def assigned(world: World, name: str, **spec: Any) -> Object:
    return await world.create(pod(name, nodeName="node-a", **spec))


TAINT = {"key": "gone", "effect": "NoSchedule"}


@pytest.mark.parametrize("spec", [{}, {"unschedulable": True}, {"taints": [TAINT]}])
@asynchronous
async def test_a_pod_created_with_a_node_is_stored_past_its_checks(spec: dict[str, Any]) -> None:
    world = await make_world()
    await world.create(node(cpu="1", **spec))
    await assigned(world, "a", cpu="800m")
    await assigned(world, "b", cpu="800m")
    assert await states(world) == {"a": "Unadmitted", "b": "Unadmitted"}
    assert str((await world.ledger("node-a")).allocated["cpu"]) == "1600m"


@asynchronous
async def test_its_claim_counts_against_binds_and_reservations_at_once() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    await assigned(world, "a", cpu="800m")
    waiting = await world.create(pod("b", cpu="800m"))
    with pytest.raises(Refused) as caught:
        await world.service.bind(Binding(pod=waiting.key, node="node-a"))
    assert caught.value.refusal == Reason.RESOURCE
    with pytest.raises(Refused):
        await world.create(reservation(waiting, "node-a"))


@asynchronous
async def test_a_plain_binding_is_proved_and_names_an_existing_node() -> None:
    world = await make_world()
    waiting = await world.create(pod("a"))
    with pytest.raises(Refused) as caught:
        await world.service.bind(Binding(pod=waiting.key, node="node-a"))
    assert caught.value.refusal == Reason.NODE_GONE


@asynchronous
async def test_the_report_of_its_start_admits_a_pod_that_fits_beside_the_proved_claims() -> None:
    world = await make_world()
    await world.create(node(cpu="1"))
    for name in ("a", "b"):
        await assigned(world, name, cpu="800m")
    await report_start(world, "b")
    assert await states(world) == {"a": "Unadmitted", "b": "Bound"}
    await report_start(world, "a")
    assert await states(world) == {"a": "Unadmitted", "b": "Bound"}, "the first to start has the room"
    await world.record_end(pod_key("b"))
    await report_start(world, "a", "2030-01-01T00:00:05Z")
    assert await states(world) == {"a": "Bound"}


@pytest.mark.parametrize(
    ("spec", "change"),
    [
        ({"cpu": "8"}, {}),
        ({"nodeSelector": {"disk": "ssd"}}, {}),
        ({}, {"spec": {"taints": [{"key": "gone", "effect": "NoExecute"}]}}),
    ],
)
@asynchronous
async def test_a_pod_that_does_not_fit_stays_unadmitted(spec: dict[str, Any], change: dict[str, Any]) -> None:
    world = await make_world()
    made = await world.create(node())
    if change:
        await world.service.patch(made.key, change)
    await assigned(world, "a", **spec)
    await report_start(world, "a")
    assert await states(world) == {"a": "Unadmitted"}


@asynchronous
async def test_capacity_that_shrinks_while_a_pod_is_admitted_is_seen() -> None:
    """1. An agent reports a start that fits. 2. The node's capacity shrinks. 3. The report admits nothing."""
    world, store = await racing_world()
    made = await world.create(node(cpu="1"))
    await assigned(world, "a", cpu="800m")

    async def shrink() -> None:
        await another_server(world).service.patch(
            made.key, {"status": {"allocatable": {"cpu": "500m"}}}, subresource="status"
        )

    store.interfere = shrink
    await report_start(world, "a")
    assert await states(world) == {"a": "Unadmitted"}


@asynchronous
async def test_a_node_that_registers_takes_over_the_pods_that_name_it() -> None:
    world = await make_world()
    for name in ("a", "b"):
        await assigned(world, name)
    assert await states(world) == {"a": "Unadmitted", "b": "Unadmitted"}
    made = await world.create(node())
    assert (await world.service.get(made.key._replace(kind="NodeAllocation.kedge.dev"))).view.spec.node_uid == made.uid
    await report_start(world, "a")
    assert await states(world) == {"a": "Bound", "b": "Unadmitted"}
    assert str((await world.ledger("node-a")).allocated["pods"]) == "2"


@asynchronous
async def test_a_node_that_registers_while_a_pod_is_created_has_its_claim() -> None:
    """1. A create finds no node. 2. The node registers. 3. The create commits."""
    world, store = await racing_world()
    store.interfere = lambda: another_server(world).create(node())
    await assigned(world, "a")
    await report_start(world, "a")
    assert await states(world) == {"a": "Bound"}


@asynchronous
async def test_a_replaced_node_releases_bound_claims_and_keeps_those_that_wait() -> None:
    world = await make_world(limits=Limits(commit_ops_max=20))
    made = await world.create(node())
    for n in range(30):
        bound = await world.create(pod(f"bound-{n}"))
        await world.service.bind(Binding(pod=bound.key, node="node-a"))
    await assigned(world, "waits")
    await world.service.delete(made.key)
    await world.create(node())
    other = await world.create(pod("other"))
    await world.service.bind(Binding(pod=other.key, node="node-a"))
    assert await states(world) == {"waits": "Unadmitted", "other": "Bound"}
    assert str((await world.ledger("node-a")).allocated["pods"]) == "2"


@asynchronous
async def test_the_claim_of_a_pod_that_never_started_goes_with_it() -> None:
    world = await make_world()
    for name in ("a", "b", "c"):
        await assigned(world, name)
    await world.service.delete(pod_key("a"), DeleteOptions(grace_s=0))
    await world.record_end(pod_key("b"), "Failed")
    await world.service.delete(pod_key("c"))  # it waits for its grace period
    assert await states(world) == {"c": "Unadmitted"}


async def has_ledger(world: World) -> bool:
    try:
        await world.ledger("node-a")
    except NotFound:
        return False
    return True


@asynchronous
async def test_the_ledger_of_a_node_that_never_existed_goes_with_its_last_claim() -> None:
    world = await make_world()
    for name in ("a", "b"):
        await assigned(world, name)
    await world.service.delete(pod_key("a"), DeleteOptions(grace_s=0))
    assert await states(world) == {"b": "Unadmitted"}
    await world.service.delete(pod_key("b"), DeleteOptions(grace_s=0))
    assert not await has_ledger(world)
    await assigned(world, "c")
    assert await states(world) == {"c": "Unadmitted"}


@asynchronous
async def test_the_ledger_of_a_node_stays_while_the_node_or_a_claim_does() -> None:
    world = await make_world()
    made = await world.create(node())
    await assigned(world, "a")
    await world.record_end(pod_key("a"))
    assert await states(world) == {}
    await assigned(world, "b")
    await report_start(world, "b")
    await world.service.delete(made.key)
    assert await states(world) == {"b": "Bound"}, "its processes may still run"
    await world.record_end(pod_key("b"))
    assert not await has_ledger(world)


@asynchronous
async def test_the_last_confirmation_for_a_removed_node_removes_its_ledger() -> None:
    world = await make_world()
    made = await world.create(node())
    lost = await assigned(world, "a")
    await report_start(world, "a")
    await world.service.delete(pod_key("a"), DeleteOptions(grace_s=0))
    await world.service.delete(made.key)
    assert await states(world) == {"a": "Bound"}
    written = await world.service.confirm_ended(node="node-a", node_uid=made.uid, pod_uid=lost.uid)
    assert written.removed
    assert not await has_ledger(world)


@asynchronous
async def test_a_bound_claim_of_a_pod_deleted_by_force_stays() -> None:
    world = await make_world()
    await world.create(node())
    await assigned(world, "a")
    await report_start(world, "a")
    await world.service.delete(pod_key("a"), DeleteOptions(grace_s=0))
    assert await states(world) == {"a": "Bound"}


@asynchronous
async def test_an_admission_is_charged_to_the_zone_quota_and_waits_for_room() -> None:
    world = await make_world()
    await world.create(node())
    quota = await world.create(zone_quota(zone_a={"pods": "1"}))
    await world.create(zone_quota("second", zone_a={"pods": "9"}))
    for name in ("a", "b"):
        await assigned(world, name)
        await report_start(world, name)
    assert await states(world) == {"a": "Bound", "b": "Unadmitted"}
    used = (await world.get(quota.key)).view.status.zones["zone-a"].used
    assert str(used["pods"]) == "1"
    second = (await world.get(quota.key._replace(name="second"))).view.status.zones["zone-a"].used
    assert str(second["pods"]) == "1", "a refused admission charges no quota"


@asynchronous
async def test_pods_that_a_node_has_not_admitted_are_bounded() -> None:
    world = await make_world(limits=Limits(unadmitted_pods_max=2))
    await assigned(world, "a")
    await assigned(world, "b")
    with pytest.raises(TooManyRequests, match="node node-a has 2 pods that it has not admitted yet"):
        await assigned(world, "c")


@asynchronous
async def test_only_the_report_of_a_start_admits() -> None:
    world = await make_world()
    await world.create(node())
    await assigned(world, "a")
    await world.service.patch(pod_key("a"), {"status": {"message": "seen"}}, subresource="status")
    await world.service.patch(pod_key("a"), {"metadata": {"labels": {"x": "y"}}})
    assert await states(world) == {"a": "Unadmitted"}

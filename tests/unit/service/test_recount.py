"""Recounts of a quota's use on request, and claims that stay when a node is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.objects import World, asynchronous, make_world, node, pod, pod_key, resource_quota, zone_quota

from kedge.api.requests import Binding
from kedge.api.wellknown import NODE_LOST
from kedge.errors import Conflict
from kedge.keys import Key

QUOTA = Key("ResourceQuota", "default", "limits")
ZONES = Key("ZoneQuota.kedge.dev", "default", "zones")


async def ask(world: World, key: Key, field: str) -> Any:
    return (await world.service.patch(key, {"status": {field: None}}, subresource="status")).object.view.status


@asynchronous
async def test_a_status_without_a_use_is_recounted() -> None:
    world = await make_world()
    await world.create(pod("a"))
    await world.create(resource_quota(pods="5"))
    assert not (await world.get(QUOTA)).view.status.used  # no write since it was created
    assert {name: str(amount) for name, amount in (await ask(world, QUOTA, "used")).used.items()} == {"pods": "1"}
    before = (await world.get(QUOTA)).revision
    await ask(world, QUOTA, "used")
    assert (await world.get(QUOTA)).revision == before  # it was right, so nothing is written


@asynchronous
async def test_a_zone_quota_is_counted_from_the_ledgers() -> None:
    world = await make_world()
    await world.create(node("node-a"))
    await world.create(pod("a"))
    await world.service.bind(Binding(pod=pod_key("a"), node="node-a"))
    await world.create(zone_quota(zone_a={"cpu": "1"}))
    counted = (await ask(world, ZONES, "zones")).zones
    assert str(counted["zone-a"].used["cpu"]) == "100m"


@asynchronous
async def test_a_count_includes_a_create_in_flight() -> None:
    world = await make_world()
    await world.create(resource_quota(pods="50"))
    await asyncio.gather(*(world.create(pod(f"p{n}")) for n in range(20)), *(ask(world, QUOTA, "used") for _ in "123"))
    assert str((await world.get(QUOTA)).view.status.used["pods"]) == "20"


@asynchronous
async def test_a_pod_of_a_lost_node_keeps_its_claim_until_its_end_is_confirmed() -> None:
    world = await make_world()
    home = await world.create(node("node-a"))
    made = await world.create(pod("a"))
    await world.service.bind(Binding(pod=pod_key("a"), node="node-a"))
    lost = {"status": {"phase": "Failed", "reason": NODE_LOST}}
    await world.service.patch(pod_key("a"), lost, subresource="status")
    assert made.uid in (await world.ledger("node-a")).entries  # its processes may still run
    with pytest.raises(Conflict):
        await world.service.confirm_ended(node="node-a", node_uid="another", pod_uid=made.uid)
    await world.service.delete(pod_key("a"))
    assert made.uid in (await world.ledger("node-a")).entries
    await world.service.confirm_ended(node="node-a", node_uid=home.uid, pod_uid=made.uid)
    assert not (await world.ledger("node-a")).entries

"""A new leader on a server whose kinds have separate histories: its fence cannot be compared with its caches."""

from __future__ import annotations

import asyncio

import pytest
from tests.histories import LEASES, split_histories
from tests.kit.controllers import LEASE, ControllerHarness, until, with_harness

from kedge import Action, Context
from kedge.keys import Key

FAR = 1_000_000


async def look(_: Context, __: Key) -> Action:
    return Action.await_change()


@pytest.mark.parametrize("declared", [True, False])
def test_a_leader_begins_although_the_history_of_its_lease_is_far_ahead_of_its_caches(declared: bool) -> None:
    """A wait for a revision of another history would never end."""

    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        split_histories(harness.transport, {LEASES: FAR}, declared=declared)
        controller = harness.open(look, lease=LEASE)
        await asyncio.sleep(120)
        assert controller.statistics().leading is declared
        await harness.create()
        await asyncio.sleep(5)
        assert [each.fence > FAR for each in harness.decisions()] == [True] * declared

    test()


def second_leads_blindly(*, declared: bool) -> bool:
    """1. A leader writes, and its standby gets no event. 2. It stops. 3. The standby's lease has a revision that its
    caches have passed, but in the history of leases, which began later. Returns whether it leads before its caches have
    the write.
    """
    blindly: list[bool] = []

    @with_harness()
    async def test(harness: ControllerHarness) -> None:
        first = harness.controller(look, lease=LEASE)
        leading = harness.start(first)
        await until(lambda: first.statistics().leading)
        await harness.create()
        for n in range(40):
            await harness.scale("web", n)  # while no lease changed
        other = harness.another("other")
        behind = await harness.cluster.store.revision()
        split_histories(other.transport, {LEASES: -behind + 1}, declared=declared)
        second = other.controller(look, lease=LEASE)
        other.start(second)
        await until(lambda: other.caches.of_kind("ReplicaSet.apps"))
        await other.caches.wait_synced()
        await asyncio.sleep(0.2)
        other.transport.mute = True
        await harness.create("unheard")
        await first.stop()
        await leading
        await asyncio.sleep(60)
        blindly.append(second.statistics().leading)
        if blindly[0]:
            return
        other.transport.mute = False
        await until(lambda: second.statistics().leading)
        (cache,) = other.caches.of_kind("ReplicaSet.apps")
        assert {each.key.name for each in cache.list().value} == {"web", "unheard"}

    test()
    return blindly[0]


def test_a_leader_whose_lease_history_is_far_behind_waits_for_the_writes_of_its_predecessor() -> None:
    assert not second_leads_blindly(declared=True)
    assert second_leads_blindly(declared=False)


@with_harness()
async def test_a_controller_that_is_stopped_while_it_waits_for_its_caches_stops_waiting(
    harness: ControllerHarness,
) -> None:
    split_histories(harness.transport, {LEASES: FAR})
    harness.transport.mute = True
    controller = harness.controller(look, lease=LEASE)
    task = harness.start(controller)
    await asyncio.sleep(30)
    assert not controller.statistics().leading
    await controller.stop()
    await until(task.done)

"""A scheduler on a server where each kind has its own revision history."""

from __future__ import annotations

import asyncio

import pytest
from tests.histories import LEASES, split_histories
from tests.kit.controllers import until
from tests.kit.scheduler import SchedulerHarness, with_scheduler
from tests.objects import node

from kedge.api.wellknown import NODE_ALLOCATION_KIND
from kedge.keys import Key, Revision
from kedge.scheduler import Scheduler
from kedge.scheduler.binding.binder import Binder

FAR = 1_000_000


@pytest.mark.parametrize("declared", [True, False])
def test_a_scheduler_leads_though_the_history_of_its_lease_is_far_ahead_of_its_caches(declared: bool) -> None:
    @with_scheduler()
    async def test(harness: SchedulerHarness) -> None:
        split_histories(harness.wire, {LEASES: FAR}, declared=declared)
        harness.scheduler = Scheduler(harness.client, harness.env, caches=harness.caches, recorder=harness.recorder)
        harness.running = harness.host.spawn(harness.scheduler.run(), name="scheduler")
        await asyncio.sleep(120)
        assert harness.scheduler.leading is declared

    test()


def second_leads_blindly(*, declared: bool) -> bool:
    """A standby's cache lacks the latest binds, and the revision of its lease is older than its caches."""
    blindly: list[bool] = []

    @with_scheduler()
    async def test(harness: SchedulerHarness) -> None:
        first = await harness.open_for(node("node-a", cpu="1"))
        for n in range(40):
            await harness.priority(f"class-{n}", n)  # while no lease changed
        other = harness.another_scheduler()
        split_histories(other.wire, {LEASES: -await harness.cluster.store.revision() + 1}, declared=declared)
        await until(lambda: len(other.scheduler.cluster_state.caches) > 0)
        await other.caches.wait_synced()
        await asyncio.sleep(0.2)
        other.wire.pods_unreadable = True
        await harness.pod("web", cpu="800m")
        await until(lambda: harness.place("web"))
        first.stop()
        await harness.running
        await asyncio.sleep(60)
        blindly.append(other.scheduler.leading)
        other.wire.pods_unreadable = False
        await until(lambda: other.scheduler.leading, within_s=120)
        await until(lambda: other.scheduler.cluster_state.snapshot.statistics()["kedge_scheduler_claims"] == 1)

    test()
    return blindly[0]


def test_a_scheduler_with_a_lease_history_far_behind_waits_for_the_binds_of_its_predecessor() -> None:
    assert not second_leads_blindly(declared=True)
    assert second_leads_blindly(declared=False)


def binds_sent_to_a_full_node(ahead: int) -> int:
    """A node is fuller than the scheduler's cache shows, and nodes and ledgers have separate histories."""
    sent: list[int] = []

    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        for n in range(40):
            await harness.priority(f"class-{n}", n)  # so that a cache can be behind
        split_histories(harness.wire, {NODE_ALLOCATION_KIND: ahead, "Node": ahead // 2})
        await harness.open_for(node("node-a", cpu="1"))
        harness.wire.binds_held = True
        await harness.pod("ours", cpu="800m")
        await until(lambda: harness.scheduler.statistics().assumed)
        harness.wire.ledgers_held = harness.wire.pod_watch_held = True
        await harness.pod("theirs", cpu="800m", nodeName="node-a", schedulerName="other")
        harness.wire.binds_held = False
        await asyncio.sleep(60)
        sent.append(sum(verb == "bind" for verb, _ in harness.wire.asked))
        if sent[0] > 1:
            return
        harness.wire.ledgers_held = harness.wire.pod_watch_held = False
        await until(lambda: harness.reason("ours") == "0/1 nodes: 1 cpu")

    scene()
    return sent[0]


def test_a_refusal_waits_for_the_history_of_the_object_that_caused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names a revision of an object; only the cache of that kind can have reached it."""
    assert binds_sent_to_a_full_node(FAR) == 1
    assert binds_sent_to_a_full_node(-30) == 1

    def by_another(self: Binder, _: Key, revision: Revision) -> bool:
        return self._cluster_state.caches["Pod"].reached(revision)

    monkeypatch.setattr(Binder, "_cache_reached", by_another)
    assert binds_sent_to_a_full_node(-30) > 1  # until the pair is quarantined

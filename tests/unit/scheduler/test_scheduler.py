"""The scheduler as a whole: its binds, its reports, its assumptions, and what it forgets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.controllers import until
from tests.kit.scheduler import LIMITS, SchedulerHarness, account_in, attempt_of, choice_in, with_scheduler
from tests.objects import NODE, RESERVATION, ZONE_QUOTA, node, reservation, zone_quota

from kedge.api.requests import Binding
from kedge.keys import Key
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.binding.refusals import Refusals


@with_scheduler()
async def test_only_a_pod_that_names_the_scheduler_is_bound(harness: SchedulerHarness) -> None:
    await harness.open_for()
    await harness.pod("ours")
    await harness.pod("theirs", schedulerName="somebody-else")
    await until(lambda: harness.place("ours"))
    await asyncio.sleep(5)
    assert harness.place("theirs") == ""
    assert harness.nothing_is_left()


@with_scheduler()
async def test_a_gated_pod_waits_for_its_gates_and_no_longer(harness: SchedulerHarness) -> None:
    await harness.open_for()
    await harness.pod("gated", schedulingGates=[{"name": "example.com/later"}])
    await asyncio.sleep(5)
    assert not harness.attempts("gated")
    assert harness.scheduled_condition("gated") == ("False", "SchedulingGated", "remove its scheduling gates first")
    assert not harness.events("FailedScheduling"), "nothing failed"
    await harness.cluster.authority.patch(Key("Pod", "default", "gated"), {"spec": {"schedulingGates": None}})
    await until(lambda: harness.place("gated"))
    assert harness.scheduled_condition("gated")[:2] != ("False", "SchedulingGated")
    assert not harness.scheduler.cluster_state.gated


@with_scheduler()
async def test_the_next_leader_reports_a_gated_pod_that_its_predecessor_did_not(harness: SchedulerHarness) -> None:
    await harness.open_for()
    other = harness.another_scheduler()
    harness.host.pause()
    await harness.pod("gated", schedulingGates=[{"name": "example.com/later"}])
    await harness.pod("theirs", schedulingGates=[{"name": "example.com/later"}], schedulerName="other")
    await until(lambda: other.scheduler.leading)
    await until(lambda: harness.scheduled_condition("gated")[1] == "SchedulingGated")
    written = harness.find("gated")
    harness.host.resume()
    await asyncio.sleep(20)
    found = harness.find("gated")
    assert written is not None
    assert found is not None
    assert found.revision == written.revision, "once is enough"
    assert harness.scheduled_condition("theirs") == ("", "", "")
    await harness.remove("gated")
    await until(lambda: not other.scheduler.cluster_state.gated)


@with_scheduler()
async def test_removed_gates_are_not_reported_any_more(harness: SchedulerHarness) -> None:
    """A report that failed because the pod changed is not repeated when it is no longer true."""
    await harness.open_for()
    harness.wire.pod_watch_held = True
    await harness.pod("gated", cpu="2", schedulingGates=[{"name": "example.com/later"}])
    await asyncio.sleep(1)
    await harness.cluster.authority.patch(Key("Pod", "default", "gated"), {"metadata": {"annotations": {"a": "b"}}})
    harness.wire.pod_watch_held = False
    await asyncio.sleep(0.05)  # the first version is cached, and its report will be rejected
    await harness.cluster.authority.patch(Key("Pod", "default", "gated"), {"spec": {"schedulingGates": None}})
    await until(lambda: harness.scheduled_condition("gated")[1] == "Unschedulable")
    await asyncio.sleep(5)
    assert harness.scheduled_condition("gated")[1] == "Unschedulable"


@with_scheduler()
async def test_an_unschedulable_pod_has_a_reason_and_its_generation(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"), node("node-c", unschedulable=True))
    large = await harness.pod("large", cpu="2")
    await until(lambda: harness.events("FailedScheduling"))
    assert harness.reason("large") == "0/3 nodes: 1 cordoned, 2 cpu"
    found = harness.find("large")
    assert found is not None
    (scheduled_condition,) = [each for each in found.view.status.conditions if each.type == "PodScheduled"]
    assert (scheduled_condition.status, scheduled_condition.reason, scheduled_condition.observed_generation) == (
        "False",
        "Unschedulable",
        large.metadata.generation,
    )
    (event,) = harness.events("FailedScheduling")
    assert event["message"] == "0/3 nodes: 1 cordoned, 2 cpu"
    assert event["involvedObject"]["uid"] == large.uid


@with_scheduler()
async def test_a_message_that_changes_too_soon_is_written_later(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("large", cpu="2")
    await until(lambda: harness.reason("large"))
    await harness.cluster.create(node("node-b", cpu="1"))  # too small: it wakes no pod
    await harness.cluster.create(node("node-c", cpu="4", taints=[{"key": "k", "effect": "NoSchedule"}]))
    await until(lambda: harness.reason("large") == "0/3 nodes: 2 cpu, 1 taint")


@with_scheduler()
async def test_the_record_of_an_attempt_has_an_account_of_every_node(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="3"), node("node-c", unschedulable=True))
    await harness.pod("large", cpu="2", nodeSelector={"kubernetes.io/hostname": "node-a"})
    await harness.pod("small")
    await until(lambda: harness.place("small") and harness.reason("large") and harness.attempts("small"))
    failed, done = harness.attempts("large")[0], harness.attempts("small")[0]
    account, choice = account_in(failed), choice_in(failed)
    assert len(account.first_failing) == choice.nodes == 3
    assert [account.legend[code - 1] for code in account.first_failing] == ["cpu", "node selector", "cordoned"]
    assert account.near_miss is not None
    assert (account.near_miss.node, account.near_miss.blocker) == ("node-b", "node selector")
    assert attempt_of(failed).unblocked_by == ("node", "room")
    assert failed.reason == harness.reason("large")
    assert failed.waited_s >= 0
    assert {mark.cache for mark in failed.marks} >= {"Node", "Pod", "ZoneQuota.kedge.dev"}
    assert all(mark.revision for mark in failed.marks)
    account, choice = account_in(done), choice_in(done)
    assert choice.node == harness.place("small")
    assert account.first_failing.count(0) == choice.feasible == 2
    best = account.top[0]
    assert (best.node, best.total) == (choice.node, choice.score)
    assert set(best.parts) >= {"least-allocated", "balanced-allocation"}
    (bind,) = done.calls
    assert (bind.verb, bind.outcome) == ("bind", "done")
    assert bind.revision == bind.reply[0].revision
    assert harness.recheck_all() == 2


@with_scheduler()
async def test_free_resources_wake_a_pod_that_needs_them(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("first", cpu="800m")
    await until(lambda: harness.place("first"))
    await harness.pod("second", cpu="800m")
    await until(lambda: harness.reason("second"))
    await harness.remove("first", confirm=False)
    await asyncio.sleep(10)
    assert harness.place("second") == "", "the first may still run"
    (owner,) = harness.cluster.all("Node")
    uid = next(iter(harness.cluster.all("NodeAllocation.kedge.dev")[0].view.status.entries))
    await harness.cluster.authority.confirm_ended(node="node-a", node_uid=owner.uid, pod_uid=uid)
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_a_new_incarnation_of_a_node_is_empty(harness: SchedulerHarness) -> None:
    """Pods force-deleted from the last incarnation hold nothing on the new one."""
    await harness.open_for(node("node-a", cpu="1"))
    await harness.pod("first", cpu="800m")
    await until(lambda: harness.place("first"))
    await harness.remove("first", confirm=False)
    await harness.cluster.authority.delete(Key("Node", "", "node-a"))
    await harness.cluster.create(node("node-a", cpu="1"))
    await harness.pod("second", cpu="800m")
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_a_quota_without_a_count_is_counted_by_the_scheduler_too(harness: SchedulerHarness) -> None:
    """Otherwise the bind counts it and is refused, which writes nothing, and so on for ever."""
    await harness.open_for(node("node-a", cpu="4", zone="zone-a"))
    await harness.pod("first", cpu="800m")
    await until(lambda: harness.place("first"))
    await harness.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}))
    await asyncio.sleep(2)
    await harness.pod("second", cpu="800m")
    await until(lambda: harness.reason("second"))
    assert harness.reason("second") == "0/1 nodes: 1 zone quota default/zone-a"
    assert not harness.metric("kedge_scheduler_refusals_total", reason="ZoneQuota")
    await harness.cluster.authority.patch(
        Key("ZoneQuota.kedge.dev", "default", "zones"), {"spec": {"zones": {"zone-a": {"hard": {"cpu": "2"}}}}}
    )
    await until(lambda: harness.place("second"))


@with_scheduler()
async def test_a_reservation_made_before_the_pod_is_tried_decides(harness: SchedulerHarness) -> None:
    for body in (node("node-a", cpu="4"), node("node-b", cpu="1")):
        await harness.cluster.authority.create(NODE, body)
    held = await harness.pod("held", cpu="800m")
    await harness.cluster.authority.create(RESERVATION, reservation(held, "node-b"))
    await harness.open_for(node("node-c", cpu="4"))
    await until(lambda: harness.place("held"))
    assert harness.place("held") == "node-b"
    assert not harness.metric("kedge_scheduler_refusals_total", reason="ReservedElsewhere")


# -- assumptions -----------------------------------------------------------------------------------


def test_an_assumption_outlives_any_timer_until_the_pod_has_been_read() -> None:
    """Bug 7 (kubernetes#106361): an assumption expires by timer, the late bind succeeds, the node is overcommitted."""
    assert refusals_after_an_unknown_bind() == 0


def test_an_assumption_that_a_timer_ends_sends_others_to_a_full_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 7 finds it: with the safeguard removed it fails."""

    async def expire(self: Binder, assumption: Any) -> None:
        await asyncio.sleep(self._env.limits.scheduler_assumed_s)
        self._cluster_state.forget(assumption.uid)

    monkeypatch.setattr(Binder, "settle", expire)
    assert refusals_after_an_unknown_bind() > 0


def refusals_after_an_unknown_bind() -> float:
    seen: list[float] = []

    @with_scheduler(replace(LIMITS, breaker_failures_max=10_000))  # only watches of pods are lost: it keeps its lease
    async def scene(harness: SchedulerHarness) -> None:
        await harness.open_for(node("node-a", cpu="1"))
        harness.wire.binds_held = True
        await harness.pod("first", cpu="800m")
        await until(lambda: harness.scheduler.statistics().assumed)
        await harness.pod("second", cpu="800m")
        await until(lambda: harness.reason("second"))
        harness.wire.pods_unreadable = harness.wire.binds_lost = (
            True  # the bind is committed, and neither its reply nor a watch event arrives
        )
        harness.wire.binds_held = False
        await asyncio.sleep(20)
        assert harness.place("first")
        harness.wire.binds_lost = False
        await asyncio.sleep(120)
        harness.wire.pods_unreadable = False
        await until(lambda: not harness.scheduler.statistics().assumed)
        seen.append(harness.metric("kedge_scheduler_refusals_total", reason="Resource"))

    scene()
    return seen[0]


@with_scheduler(replace(LIMITS, watch_probe_s=3600.0, watch_silence_s=3600.0))
async def test_a_bind_that_no_cache_shows_is_read_from_the_server(harness: SchedulerHarness) -> None:
    await harness.open_for()
    harness.wire.pod_watch_held = True
    await harness.pod("web")
    harness.wire.pod_watch_held = False
    await until(lambda: harness.scheduler.statistics().assumed)
    harness.wire.pod_watch_held = True
    await until(lambda: harness.place("web"))
    await asyncio.sleep(3 * LIMITS.scheduler_assumed_s)
    (assumed,) = harness.scheduler.cluster_state.assumed.values()
    assert assumed.since_s > 0
    assert assumed.node == "node-a"
    harness.wire.pod_watch_held = False
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_version_from_before_its_bind_does_not_queue_a_pod_again(harness: SchedulerHarness) -> None:
    """1. A pod has no node. 2. It changes. 3. It is bound. 4. Only then the cache shows version 2."""
    await harness.open_for(node("node-a", unschedulable=True))
    await harness.pod("web")
    await until(lambda: harness.reason("web"))
    await asyncio.sleep(5)
    harness.wire.pod_watch_held, harness.wire.pod_watch_delay_s = True, 5.0
    await harness.cluster.authority.patch(Key("Pod", "default", "web"), {"metadata": {"labels": {"a": "b"}}})
    await harness.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": False}})
    await until(lambda: harness.scheduler.bound)
    harness.wire.pod_watch_held = False
    await until(harness.nothing_is_left)
    assert sum(verb == "bind" for verb, _ in harness.wire.asked) == 1


# -- refusals --------------------------------------------------------------------------------------


def binds_sent_to_a_full_node() -> int:
    """A node is fuller than the scheduler's cache shows, for a long time."""
    sent: list[int] = []

    @with_scheduler()
    async def scene(harness: SchedulerHarness) -> None:
        await harness.open_for(node("node-a", cpu="1"))
        harness.wire.binds_held = True
        await harness.pod("ours", cpu="800m")
        await until(lambda: harness.scheduler.statistics().assumed)
        harness.wire.ledgers_held = harness.wire.pod_watch_held = True
        await harness.pod("theirs", cpu="800m", nodeName="node-a", schedulerName="other")
        harness.wire.binds_held = False
        await asyncio.sleep(60)
        sent.append(sum(verb == "bind" for verb, _ in harness.wire.asked))
        harness.wire.ledgers_held = harness.wire.pod_watch_held = False
        await until(lambda: harness.reason("ours") == "0/1 nodes: 1 cpu")

    scene()
    return sent[0]


def test_a_refusal_is_remembered_until_the_cache_shows_its_cause() -> None:
    """Bug 8 (nomad#13017): scheduler and applier disagree on feasibility: endless refusals."""
    assert binds_sent_to_a_full_node() == 1


def test_a_forgotten_refusal_repeats_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 8 finds it: with the safeguard removed it fails."""
    monkeypatch.setattr(Refusals, "excluded", lambda *_: ())
    assert binds_sent_to_a_full_node() > 5


@with_scheduler(replace(LIMITS, scheduler_refusals_max=3, scheduler_quarantine_s=100.0))
async def test_a_pair_that_is_refused_again_and_again_is_quarantined_with_an_event(harness: SchedulerHarness) -> None:
    """Bug 8 once more: they disagree for ever, though the scheduler's caches are current."""
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="500m"))
    harness.wire.refusing_node = "node-a"
    await harness.pod("web", cpu="400m", nodeSelector={"kubernetes.io/hostname": "node-a"})
    await until(lambda: harness.events("Quarantined"), within_s=60)
    assert harness.metric("kedge_scheduler_quarantined") == 1
    (event,) = harness.events("Quarantined")
    assert "node-a refused this pod 3 times" in event["message"]
    asked = sum(verb == "bind" for verb, _ in harness.wire.asked)
    assert asked == 3
    await asyncio.sleep(60)
    assert sum(verb == "bind" for verb, _ in harness.wire.asked) == asked
    assert harness.reason("web") == "0/2 nodes: 1 refused lately, 1 node selector"
    harness.wire.refusing_node = ""
    await until(lambda: harness.place("web"), within_s=100)
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_claim_that_only_a_ledger_holds_is_learned_from_the_refusal(harness: SchedulerHarness) -> None:
    """Bug 8 in another way: a claim without a pod, made before this process started."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.pod_watch_held = True
    ghost = await harness.pod("ghost", cpu="800m")
    await harness.cluster.authority.bind(Binding(pod=ghost.key, node="node-a"))
    await harness.remove("ghost", confirm=False)
    harness.wire.pod_watch_held = False
    await harness.pod("web", cpu="800m")
    await until(lambda: harness.reason("web"))
    assert harness.reason("web") == "0/1 nodes: 1 cpu"
    await asyncio.sleep(100)
    assert harness.metric("kedge_scheduler_refusals_total", reason="Resource") <= 1
    ledger = harness.cluster.all("NodeAllocation.kedge.dev")[0].view.status
    await harness.confirm("node-a", next(iter(ledger.entries)))
    await until(lambda: harness.place("web"))


@with_scheduler()
async def test_a_deleted_node_is_tried_once_and_again_when_it_is_back(harness: SchedulerHarness) -> None:
    """Bug 8 with no revision to wait for. The pod must not be woken again and again meanwhile."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.nodes_held = True
    await harness.cluster.authority.delete(Key("Node", "", "node-a"))
    await harness.pod("web")
    await until(lambda: harness.reason("web"))
    await asyncio.sleep(60)
    assert len(harness.attempts("web")) <= 3
    assert sum(verb == "bind" for verb, _ in harness.wire.asked) == 1
    await harness.cluster.create(node("node-a", cpu="1"))
    harness.wire.nodes_held = False
    await until(lambda: harness.place("web"))


# -- pods of the same name -------------------------------------------------------------------------


@with_scheduler()
async def test_a_pod_replaced_in_mid_attempt_leaves_nothing_and_its_replacement_is_bound(
    harness: SchedulerHarness,
) -> None:
    """Bug 9 (kubernetes#138434): a pod replaced by one of the same name in mid-attempt leaks in-flight state."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.binds_held = True
    old = await harness.pod("web", cpu="800m")
    await until(lambda: harness.scheduler.statistics().binding)
    await harness.remove("web")
    new = await harness.pod("web", cpu="800m")
    await until(lambda: harness.scheduler.queue.get(new.uid))
    harness.wire.binds_held = False
    await until(lambda: harness.place("web"))
    found = harness.find("web")
    assert found is not None
    assert found.uid == new.uid
    await until(harness.nothing_is_left)
    assert harness.scheduler.cluster_state.snapshot.claim(old.uid) is None
    assert harness.scheduler.statistics().claims == 1


@with_scheduler()
async def test_refusals_of_a_pod_that_is_gone_are_forgotten(harness: SchedulerHarness) -> None:
    """Bug 9 once more: the memory of a pod ends with it."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.refusing_node = "node-a"
    await harness.pod("web")
    await until(lambda: len(harness.scheduler._binder.refusals))
    await harness.remove("web")
    await until(harness.nothing_is_left)


@with_scheduler()
async def test_a_refusal_that_arrives_after_its_pod_was_deleted_is_not_remembered(harness: SchedulerHarness) -> None:
    """Bug 9 the other way round: the deletion was handled before the refusal."""
    await harness.open_for(node("node-a", cpu="1"))
    harness.wire.binds_held, harness.wire.refusing_node = True, "node-a"
    web = await harness.pod("web")
    await until(lambda: harness.scheduler.statistics().binding)
    await harness.remove("web")
    await until(lambda: harness.scheduler.queue.get(web.uid) is None)
    harness.wire.binds_held = False
    await until(lambda: not harness.scheduler.statistics().binding)
    assert harness.nothing_is_left()


# -- terms -----------------------------------------------------------------------------------------


@with_scheduler()
async def test_a_standby_takes_over_where_the_leader_stopped(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    other = harness.another_scheduler()
    await harness.pod("first", cpu="400m")
    await until(lambda: harness.place("first"))
    assert not other.scheduler.leading
    harness.scheduler.stop()
    await until(lambda: other.scheduler.leading)
    await harness.pod("second", cpu="400m")
    await until(lambda: harness.place("second"))
    await until(lambda: harness.scheduler.bound == other.scheduler.bound == 1)
    assert other.recheck_all() == 1


@with_scheduler(replace(LIMITS, cache_wait_s=10.0, watch_probe_s=3600.0, watch_silence_s=3600.0))
async def test_a_new_leader_waits_for_all_of_its_caches_at_once(harness: SchedulerHarness) -> None:
    """Three of its streams are silent. Their caches relist in parallel."""
    await harness.open_for(node("node-a", cpu="1"))
    other = harness.another_scheduler()
    await until(lambda: other.caches.healthy)
    await asyncio.sleep(1)
    other.wire.nodes_held = other.wire.ledgers_held = other.wire.pod_watch_held = True
    harness.scheduler.stop()
    await harness.running
    await until(lambda: other.scheduler.leading, within_s=2 * harness.limits.cache_wait_s)


@with_scheduler(replace(LIMITS, cache_wait_s=1.0))
async def test_a_leader_that_slept_through_its_term_cannot_send_its_binds(
    harness: SchedulerHarness,
) -> None:
    await harness.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    other = harness.another_scheduler()
    harness.wire.binds_held = True
    await harness.pod("web")
    await until(lambda: harness.scheduler.statistics().binding)
    harness.host.pause()
    await until(lambda: other.scheduler.leading)
    await until(lambda: harness.place("web"))
    before = harness.find("web")
    harness.wire.binds_held = False
    harness.host.resume()
    await until(lambda: not harness.scheduler.leading)
    await until(harness.nothing_is_left)
    after = harness.find("web")
    assert before is not None
    assert after is not None
    assert (after.revision, after.value) == (before.revision, before.value)
    await until(lambda: other.scheduler.bound)
    assert (harness.scheduler.bound, other.scheduler.bound) == (0, 1)


@with_scheduler()
async def test_a_bind_cancelled_before_it_began_is_not_in_flight_for_ever(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    binder = harness.scheduler._binder
    binder.start(asyncio.sleep, 3600)
    await binder.cancel_all()
    assert len(binder) == 0
    await harness.pod("web")
    await until(lambda: harness.place("web") and not len(binder))  # now there is an idle worker
    binder.start(asyncio.sleep, 3600)
    await binder.cancel_all()
    assert len(binder) == 0
    await binder.wait_all()


@with_scheduler()
async def test_two_schedulers_share_a_node_and_the_bind_protects_it(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    other = harness.another_scheduler(name="other")
    await until(lambda: other.scheduler.leading)
    for n in range(4):
        await harness.pod(f"ours-{n}", cpu="300m")
        await harness.pod(f"theirs-{n}", cpu="300m", schedulerName="other")
    await until(lambda: harness.scheduler.bound + other.scheduler.bound == 3)
    await asyncio.sleep(30)
    assert harness.scheduler.bound + other.scheduler.bound == 3
    (ledger,) = harness.cluster.all("NodeAllocation.kedge.dev")
    assert len(ledger.view.status.entries) == 3


# -- preemption ------------------------------------------------------------------------------------


async def crowded(harness: SchedulerHarness, **urgent: Any) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    await harness.priority("urgent", 10, **urgent)
    await harness.pod("low", cpu="800m")
    await until(lambda: harness.place("low"))
    await harness.pod("high", cpu="800m", priorityClassName="urgent")


@with_scheduler()
async def test_a_lower_priority_is_evicted_and_its_room_is_held(harness: SchedulerHarness) -> None:
    await crowded(harness)
    await until(lambda: (found := harness.find("low")) is not None and found.view.terminating)
    high = harness.find("high")
    assert high is not None
    await until(lambda: (found := harness.find("high")) and found.view.status.nominated_node_name == "node-a")
    await harness.pod("late", cpu="800m")
    await asyncio.sleep(3)
    assert harness.place("late") == ""
    await harness.remove("low")
    await until(lambda: harness.place("high"))
    assert harness.events("Preempted")
    assert harness.place("late") == ""
    await until(lambda: not harness.scheduler.statistics().nominated and not harness.scheduler.statistics().binding)
    assert len(harness.attempts("high")) == 2, "it was woken when its room was made, and not before"


@with_scheduler()
async def test_a_pod_has_a_nominated_node_only_while_it_is_nominated(harness: SchedulerHarness) -> None:
    await crowded(harness)
    await until(lambda: harness.nominated("high") == "node-a")
    await harness.remove("low")
    await until(lambda: harness.place("high") and not harness.nominated("high"))


@with_scheduler()
async def test_a_nomination_by_an_earlier_leader_is_cleared(
    harness: SchedulerHarness,
) -> None:
    await harness.cluster.authority.create(NODE, node("node-a", cpu="1"))
    promised = await harness.pod("large", cpu="2")
    await harness.cluster.authority.patch(
        promised.key, {"status": {"nominatedNodeName": "node-a"}}, subresource="status"
    )
    await harness.open_for(node("node-b", cpu="1"))
    await until(lambda: harness.reason("large") and not harness.nominated("large"))


@with_scheduler(replace(LIMITS, scheduler_explained_s=1000.0))
async def test_a_nomination_is_cleared_though_the_message_is_not_repeated(harness: SchedulerHarness) -> None:
    await harness.open_for(node("node-a", cpu="1"))
    large = await harness.pod("large", cpu="2")
    await until(lambda: harness.reason("large"))
    await harness.cluster.authority.patch(large.key, {"status": {"nominatedNodeName": "node-a"}}, subresource="status")
    await harness.cluster.create(node("node-b", cpu="3", unschedulable=True))
    await harness.cluster.authority.patch(Key("Node", "", "node-a"), {"metadata": {"labels": {"a": "b"}}})
    await harness.cluster.authority.patch(large.key, {"metadata": {"labels": {"a": "b"}}})
    await until(lambda: not harness.nominated("large"))


@with_scheduler()
async def test_no_pod_is_evicted_for_one_that_never_preempts(harness: SchedulerHarness) -> None:
    await crowded(harness, preemptionPolicy="Never")
    await until(lambda: harness.reason("high"))
    await asyncio.sleep(20)
    found = harness.find("low")
    assert found is not None
    assert not found.view.terminating


@with_scheduler()
async def test_a_budget_that_is_used_up_protects_its_pods(harness: SchedulerHarness) -> None:
    await harness.budget(0, app="web")
    await crowded(harness)
    await until(lambda: harness.reason("high"))
    await asyncio.sleep(20)
    found = harness.find("low")
    assert found is not None
    assert not found.view.terminating
    assert not harness.scheduler.statistics().nominated


@with_scheduler()
async def test_a_nominated_pod_that_is_deleted_frees_its_room(harness: SchedulerHarness) -> None:
    await crowded(harness)
    await until(lambda: harness.scheduler.statistics().nominated)
    await harness.pod("late", cpu="800m")
    await until(lambda: harness.reason("late"))
    await harness.remove("low")
    await harness.remove("high")
    await until(lambda: harness.place("late"))


@with_scheduler()
async def test_a_higher_priority_takes_room_that_was_held_for_a_lower(harness: SchedulerHarness) -> None:
    await crowded(harness)
    await harness.priority("critical", 20)
    await until(lambda: harness.scheduler.statistics().nominated)
    await harness.pod("highest", cpu="800m", priorityClassName="critical")
    await until(lambda: harness.reason("highest"))
    await harness.remove("low")
    await until(lambda: harness.place("highest"))
    assert harness.place("high") == ""
    await harness.cluster.create(node("node-b", cpu="1"))
    await until(lambda: harness.place("high"))

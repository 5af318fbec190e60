"""The scheduler as a whole: what it binds, what it says, what it keeps in mind, and what it forgets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.kit.controllers import until
from tests.objects import NODE, RESERVATION, ZONE_QUOTA, node, reservation, zone_quota
from tests.unit.scheduler.desk import LIMITS, Desk, account_in, at_a_desk, attempt_of, choice_in

from kedge.keys import Key
from kedge.scheduler.binding.binder import Binder
from kedge.scheduler.binding.refusals import Refusals


@at_a_desk()
async def test_a_pod_that_names_the_scheduler_is_bound_and_another_is_left_alone(desk: Desk) -> None:
    await desk.open_for()
    await desk.pod("ours")
    await desk.pod("theirs", schedulerName="somebody-else")
    await until(lambda: desk.place("ours"))
    await asyncio.sleep(5)
    assert desk.place("theirs") == ""
    assert desk.nothing_is_left()


@at_a_desk()
async def test_a_gated_pod_waits_for_its_gates_and_no_longer(desk: Desk) -> None:
    await desk.open_for()
    await desk.pod("gated", schedulingGates=[{"name": "example.com/later"}])
    await asyncio.sleep(5)
    assert not desk.attempts("gated")
    assert desk.said("gated") == ("False", "SchedulingGated", "its gates have to be removed first")
    assert not desk.events("FailedScheduling"), "nothing failed"
    await desk.cluster.authority.patch(Key("Pod", "default", "gated"), {"spec": {"schedulingGates": None}})
    await until(lambda: desk.place("gated"))
    assert desk.said("gated")[:2] != ("False", "SchedulingGated")
    assert not desk.scheduler.cluster_state.gated


@at_a_desk()
async def test_whoever_leads_next_says_of_a_gated_pod_what_its_predecessor_did_not(desk: Desk) -> None:
    await desk.open_for()
    other = desk.another_scheduler()
    desk.host.pause()
    await desk.pod("gated", schedulingGates=[{"name": "example.com/later"}])
    await desk.pod("theirs", schedulingGates=[{"name": "example.com/later"}], schedulerName="other")
    await until(lambda: other.scheduler.leading)
    await until(lambda: desk.said("gated")[1] == "SchedulingGated")
    written = desk.find("gated")
    desk.host.resume()
    await asyncio.sleep(20)
    found = desk.find("gated")
    assert written is not None
    assert found is not None
    assert found.revision == written.revision, "once is enough"
    assert desk.said("theirs") == ("", "", "")
    await desk.remove("gated")
    await until(lambda: not other.scheduler.cluster_state.gated)


@at_a_desk()
async def test_gates_that_were_removed_are_not_spoken_of_any_more(desk: Desk) -> None:
    """What could not be said in time, because the pod moved on, is not said when it is no longer so."""
    await desk.open_for()
    desk.wire.deaf = True
    await desk.pod("gated", cpu="2", schedulingGates=[{"name": "example.com/later"}])
    await asyncio.sleep(1)
    await desk.cluster.authority.patch(Key("Pod", "default", "gated"), {"metadata": {"annotations": {"a": "b"}}})
    desk.wire.deaf = False
    await asyncio.sleep(0.05)  # the first version has come, and what is said of it will be refused
    await desk.cluster.authority.patch(Key("Pod", "default", "gated"), {"spec": {"schedulingGates": None}})
    await until(lambda: desk.said("gated")[1] == "Unschedulable")
    await asyncio.sleep(5)
    assert desk.said("gated")[1] == "Unschedulable"


@at_a_desk()
async def test_a_pod_that_fits_nowhere_says_why_and_of_which_generation(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"), node("node-c", unschedulable=True))
    large = await desk.pod("large", cpu="2")
    await until(lambda: desk.events("FailedScheduling"))
    assert desk.reason("large") == "0/3 nodes: 2 cpu, 1 cordoned"
    found = desk.find("large")
    assert found is not None
    (said,) = [each for each in found.view.status.conditions if each.type == "PodScheduled"]
    assert (said.status, said.reason, said.observed_generation) == ("False", "Unschedulable", large.metadata.generation)
    (event,) = desk.events("FailedScheduling")
    assert event["message"] == "0/3 nodes: 2 cpu, 1 cordoned"
    assert event["involvedObject"]["uid"] == large.uid


@at_a_desk()
async def test_what_has_changed_too_soon_to_be_said_is_said_later(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    await desk.pod("large", cpu="2")
    await until(lambda: desk.reason("large"))
    await desk.cluster.create(node("node-b", cpu="1"))  # too small: it wakes nobody
    await desk.cluster.create(node("node-c", cpu="4", taints=[{"key": "k", "effect": "NoSchedule"}]))
    await until(lambda: desk.reason("large") == "0/3 nodes: 2 cpu, 1 taint")


@at_a_desk()
async def test_the_record_of_an_attempt_accounts_for_every_node(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"), node("node-b", cpu="3"), node("node-c", unschedulable=True))
    await desk.pod("large", cpu="2", nodeSelector={"kubernetes.io/hostname": "node-a"})
    await desk.pod("small")
    await until(lambda: desk.place("small") and desk.reason("large") and desk.attempts("small"))
    failed, done = desk.attempts("large")[0], desk.attempts("small")[0]
    account, choice = account_in(failed), choice_in(failed)
    assert len(account.first_failing) == choice.nodes == 3
    assert [account.legend[code - 1] for code in account.first_failing] == ["cpu", "node selector", "cordoned"]
    assert account.near_miss is not None
    assert (account.near_miss.node, account.near_miss.blocker) == ("node-b", "node selector")
    assert attempt_of(failed).helped_by == ("node", "room")
    assert failed.reason == desk.reason("large")
    assert failed.waited_s >= 0
    assert {mark.cache for mark in failed.marks} >= {"Node", "Pod", "ZoneQuota.kedge.dev"}
    assert all(mark.revision for mark in failed.marks)
    account, choice = account_in(done), choice_in(done)
    assert choice.node == desk.place("small")
    assert account.first_failing.count(0) == choice.feasible == 2
    best = account.top[0]
    assert (best.node, best.total) == (choice.node, choice.score)
    assert set(best.parts) >= {"least-allocated", "balanced-allocation"}
    (bind,) = done.calls
    assert (bind.verb, bind.outcome) == ("bind", "done")
    assert bind.revision == bind.reply[0].revision
    assert desk.recheck_all() == 2


@at_a_desk()
async def test_room_that_is_made_wakes_who_needs_it(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    await desk.pod("first", cpu="800m")
    await until(lambda: desk.place("first"))
    await desk.pod("second", cpu="800m")
    await until(lambda: desk.reason("second"))
    await desk.remove("first", confirm=False)
    await asyncio.sleep(10)
    assert desk.place("second") == "", "the first may still run"
    (owner,) = desk.cluster.all("Node")
    uid = next(iter(desk.cluster.all("NodeAllocation.kedge.dev")[0].view.status.entries))
    await desk.cluster.authority.confirm_ended(node="node-a", node_uid=owner.uid, pod_uid=uid)
    await until(lambda: desk.place("second"))


@at_a_desk()
async def test_a_node_that_comes_back_as_another_is_free(desk: Desk) -> None:
    """What was removed by force from the last incarnation holds nothing of the new one."""
    await desk.open_for(node("node-a", cpu="1"))
    await desk.pod("first", cpu="800m")
    await until(lambda: desk.place("first"))
    await desk.remove("first", confirm=False)
    await desk.cluster.authority.delete(Key("Node", "", "node-a"))
    await desk.cluster.create(node("node-a", cpu="1"))
    await desk.pod("second", cpu="800m")
    await until(lambda: desk.place("second"))


@at_a_desk()
async def test_a_quota_that_was_never_counted_is_counted_by_the_scheduler_too(desk: Desk) -> None:
    """Else the bind counts what is used and refuses, which writes nothing, and so for ever."""
    await desk.open_for(node("node-a", cpu="4", zone="zone-a"))
    await desk.pod("first", cpu="800m")
    await until(lambda: desk.place("first"))
    await desk.cluster.authority.create(ZONE_QUOTA, zone_quota(zone_a={"cpu": "1"}))
    await asyncio.sleep(2)
    await desk.pod("second", cpu="800m")
    await until(lambda: desk.reason("second"))
    assert desk.reason("second") == "0/1 nodes: 1 zone quota default/zone-a"
    assert not desk.metric("kedge_scheduler_refusals_total", reason="ZoneQuota")
    await desk.cluster.authority.patch(
        Key("ZoneQuota.kedge.dev", "default", "zones"), {"spec": {"zones": {"zone-a": {"hard": {"cpu": "2"}}}}}
    )
    await until(lambda: desk.place("second"))


@at_a_desk()
async def test_a_reservation_made_before_the_pod_is_tried_decides(desk: Desk) -> None:
    for body in (node("node-a", cpu="4"), node("node-b", cpu="1")):
        await desk.cluster.authority.create(NODE, body)
    held = await desk.pod("held", cpu="800m")
    await desk.cluster.authority.create(RESERVATION, reservation(held, "node-b"))
    await desk.open_for(node("node-c", cpu="4"))
    await until(lambda: desk.place("held"))
    assert desk.place("held") == "node-b"
    assert not desk.metric("kedge_scheduler_refusals_total", reason="ReservedElsewhere")


# -- what is assumed -------------------------------------------------------------------------------


def test_an_assumption_outlives_any_clock_until_the_authority_has_been_read() -> None:
    """Bug 7 (kubernetes#106361): an assumption expires by timer, the late bind succeeds, the node is overcommitted."""
    assert refusals_after_an_unknown_bind() == 0


def test_an_assumption_that_a_timer_ends_sends_others_to_a_full_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 7 bites: with the safeguard removed it fails."""

    async def expire(self: Binder, assumption: Any) -> None:
        await asyncio.sleep(self._env.limits.scheduler_assumed_s)
        self._cluster_state.forget(assumption.uid)

    monkeypatch.setattr(Binder, "settle", expire)
    assert refusals_after_an_unknown_bind() > 0


def refusals_after_an_unknown_bind() -> float:
    seen: list[float] = []

    @at_a_desk(replace(LIMITS, breaker_failures_max=10_000))  # only words of pods are lost: its lease it keeps
    async def scene(desk: Desk) -> None:
        await desk.open_for(node("node-a", cpu="1"))
        desk.wire.binds_held = True
        await desk.pod("first", cpu="800m")
        await until(lambda: desk.scheduler.statistics().assumed)
        await desk.pod("second", cpu="800m")
        await until(lambda: desk.reason("second"))
        desk.wire.blind = desk.wire.binds_lost = (
            True  # the bind is made, and neither its reply nor any word of it comes
        )
        desk.wire.binds_held = False
        await asyncio.sleep(20)
        assert desk.place("first")
        desk.wire.binds_lost = False
        await asyncio.sleep(120)
        desk.wire.blind = False
        await until(lambda: not desk.scheduler.statistics().assumed)
        seen.append(desk.metric("kedge_scheduler_refusals_total", reason="Resource"))

    scene()
    return seen[0]


@at_a_desk(replace(LIMITS, watch_probe_s=3600.0, watch_silence_s=3600.0))
async def test_a_bind_that_no_cache_shows_is_read_at_the_authority(desk: Desk) -> None:
    await desk.open_for()
    desk.wire.deaf = True
    await desk.pod("web")
    desk.wire.deaf = False
    await until(lambda: desk.scheduler.statistics().assumed)
    desk.wire.deaf = True
    await until(lambda: desk.place("web"))
    await asyncio.sleep(3 * LIMITS.scheduler_assumed_s)
    (assumed,) = desk.scheduler.cluster_state.assumed.values()
    assert assumed.since_s > 0
    assert assumed.node == "node-a"
    desk.wire.deaf = False
    await until(desk.nothing_is_left)


@at_a_desk()
async def test_a_version_from_before_its_bind_does_not_make_a_pod_wait_again(desk: Desk) -> None:
    """1. A pod has no node. 2. It changes. 3. It is bound. 4. Only then the cache shows what it was at 2."""
    await desk.open_for(node("node-a", unschedulable=True))
    await desk.pod("web")
    await until(lambda: desk.reason("web"))
    await asyncio.sleep(5)
    desk.wire.deaf, desk.wire.pods_late_s = True, 5.0
    await desk.cluster.authority.patch(Key("Pod", "default", "web"), {"metadata": {"labels": {"a": "b"}}})
    await desk.cluster.authority.patch(Key("Node", "", "node-a"), {"spec": {"unschedulable": False}})
    await until(lambda: desk.scheduler.bound)
    desk.wire.deaf = False
    await until(desk.nothing_is_left)
    assert sum(verb == "bind" for verb, _ in desk.wire.asked) == 1


# -- refusals --------------------------------------------------------------------------------------


def binds_sent_to_a_full_node() -> int:
    """A node is fuller than the scheduler's cache can show, for a long while."""
    sent: list[int] = []

    @at_a_desk()
    async def scene(desk: Desk) -> None:
        await desk.open_for(node("node-a", cpu="1"))
        desk.wire.binds_held = True
        await desk.pod("ours", cpu="800m")
        await until(lambda: desk.scheduler.statistics().assumed)
        desk.wire.ledgers_held = desk.wire.deaf = True
        await desk.pod("theirs", cpu="800m", nodeName="node-a", schedulerName="other")
        desk.wire.binds_held = False
        await asyncio.sleep(60)
        sent.append(sum(verb == "bind" for verb, _ in desk.wire.asked))
        desk.wire.ledgers_held = desk.wire.deaf = False
        await until(lambda: desk.reason("ours") == "0/1 nodes: 1 cpu")

    scene()
    return sent[0]


def test_a_refusal_is_remembered_until_the_scheduler_has_seen_why() -> None:
    """Bug 8 (nomad#13017): scheduler and applier disagree on feasibility: endless refusals."""
    assert binds_sent_to_a_full_node() == 1


def test_a_refusal_that_is_forgotten_is_met_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 8 bites: with the safeguard removed it fails."""
    monkeypatch.setattr(Refusals, "excluded", lambda *_: ())
    assert binds_sent_to_a_full_node() > 5


@at_a_desk(replace(LIMITS, scheduler_refusals_max=3, scheduler_quarantine_s=100.0))
async def test_a_pair_that_is_refused_again_and_again_is_quarantined_and_told_of(desk: Desk) -> None:
    """Bug 8 once more: they disagree for good, though the scheduler has seen all there is to see."""
    await desk.open_for(node("node-a", cpu="1"), node("node-b", cpu="500m"))
    desk.wire.refuses = "node-a"
    await desk.pod("web", cpu="400m", nodeSelector={"kubernetes.io/hostname": "node-a"})
    await until(lambda: desk.events("Quarantined"), within_s=60)
    assert desk.metric("kedge_scheduler_quarantined") == 1
    (event,) = desk.events("Quarantined")
    assert "node-a refused this pod 3 times" in event["message"]
    asked = sum(verb == "bind" for verb, _ in desk.wire.asked)
    assert asked == 3
    await asyncio.sleep(60)
    assert sum(verb == "bind" for verb, _ in desk.wire.asked) == asked
    assert desk.reason("web") == "0/2 nodes: 1 node selector, 1 refused lately"
    desk.wire.refuses = ""
    await until(lambda: desk.place("web"), within_s=100)
    await until(desk.nothing_is_left)


@at_a_desk()
async def test_what_only_a_ledger_knows_of_is_learned_from_the_refusal(desk: Desk) -> None:
    """Bug 8 by another way: a claim that no pod stands for, which this process never saw made."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.deaf = True
    await desk.pod("ghost", cpu="800m", nodeName="node-a")
    await desk.remove("ghost", confirm=False)
    desk.wire.deaf = False
    await desk.pod("web", cpu="800m")
    await until(lambda: desk.reason("web"))
    assert desk.reason("web") == "0/1 nodes: 1 cpu"
    await asyncio.sleep(100)
    assert desk.metric("kedge_scheduler_refusals_total", reason="Resource") <= 1
    ledger = desk.cluster.all("NodeAllocation.kedge.dev")[0].view.status
    await desk.confirm("node-a", next(iter(ledger.entries)))
    await until(lambda: desk.place("web"))


@at_a_desk()
async def test_a_node_that_is_gone_is_tried_once_and_again_when_it_is_back(desk: Desk) -> None:
    """Bug 8 with nothing to wait for: an absence has no revision. Nor may the pod be woken over and over meanwhile."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.nodes_held = True
    await desk.cluster.authority.delete(Key("Node", "", "node-a"))
    await desk.pod("web")
    await until(lambda: desk.reason("web"))
    await asyncio.sleep(60)
    assert len(desk.attempts("web")) <= 3
    assert sum(verb == "bind" for verb, _ in desk.wire.asked) == 1
    await desk.cluster.create(node("node-a", cpu="1"))
    desk.wire.nodes_held = False
    await until(lambda: desk.place("web"))


# -- namesakes -------------------------------------------------------------------------------------


@at_a_desk()
async def test_a_namesake_in_mid_attempt_gets_its_own_bind_and_nothing_is_left_of_the_other(desk: Desk) -> None:
    """Bug 9 (kubernetes#138434): a pod replaced by one of the same name in mid-attempt leaks in-flight state."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.binds_held = True
    old = await desk.pod("web", cpu="800m")
    await until(lambda: desk.scheduler.statistics().binding)
    await desk.remove("web")
    new = await desk.pod("web", cpu="800m")
    await until(lambda: desk.scheduler.pending.get(new.uid))
    desk.wire.binds_held = False
    await until(lambda: desk.place("web"))
    found = desk.find("web")
    assert found is not None
    assert found.uid == new.uid
    await until(desk.nothing_is_left)
    assert desk.scheduler.cluster_state.snapshot.claim(old.uid) is None
    assert desk.scheduler.statistics().claims == 1


@at_a_desk()
async def test_refusals_of_a_pod_that_is_gone_are_forgotten(desk: Desk) -> None:
    """Bug 9 once more: what is remembered of a pod goes with it."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.refuses = "node-a"
    await desk.pod("web")
    await until(lambda: len(desk.scheduler._binder.refusals))
    await desk.remove("web")
    await until(desk.nothing_is_left)


@at_a_desk()
async def test_a_refusal_that_comes_after_its_pod_has_gone_is_not_remembered(desk: Desk) -> None:
    """Bug 9 the other way round: who is to forget it has been told already."""
    await desk.open_for(node("node-a", cpu="1"))
    desk.wire.binds_held, desk.wire.refuses = True, "node-a"
    web = await desk.pod("web")
    await until(lambda: desk.scheduler.statistics().binding)
    await desk.remove("web")
    await until(lambda: desk.scheduler.pending.get(web.uid) is None)
    desk.wire.binds_held = False
    await until(lambda: not desk.scheduler.statistics().binding)
    assert desk.nothing_is_left()


# -- terms -----------------------------------------------------------------------------------------


@at_a_desk()
async def test_a_standby_takes_over_where_the_leader_stopped(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    other = desk.another_scheduler()
    await desk.pod("first", cpu="400m")
    await until(lambda: desk.place("first"))
    assert not other.scheduler.leading
    desk.scheduler.stop()
    await until(lambda: other.scheduler.leading)
    await desk.pod("second", cpu="400m")
    await until(lambda: desk.place("second"))
    await until(lambda: desk.scheduler.bound == other.scheduler.bound == 1)
    assert other.recheck_all() == 1


@at_a_desk(replace(LIMITS, cache_wait_s=10.0, watch_probe_s=3600.0, watch_silence_s=3600.0))
async def test_a_new_leader_waits_for_all_of_its_caches_at_once(desk: Desk) -> None:
    """Three of its streams bring nothing. Each cache is asked to list, and none after another."""
    await desk.open_for(node("node-a", cpu="1"))
    other = desk.another_scheduler()
    await until(lambda: other.caches.healthy)
    await asyncio.sleep(1)
    other.wire.nodes_held = other.wire.ledgers_held = other.wire.deaf = True
    desk.scheduler.stop()
    await desk.running
    await until(lambda: other.scheduler.leading, within_s=2 * desk.limits.cache_wait_s)


@at_a_desk(replace(LIMITS, cache_wait_s=1.0))
async def test_a_leader_that_slept_through_its_term_binds_nothing_with_what_it_had_in_hand(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"), node("node-b", cpu="1"))
    other = desk.another_scheduler()
    desk.wire.binds_held = True
    await desk.pod("web")
    await until(lambda: desk.scheduler.statistics().binding)
    desk.host.pause()
    await until(lambda: other.scheduler.leading)
    await until(lambda: desk.place("web"))
    before = desk.find("web")
    desk.wire.binds_held = False
    desk.host.resume()
    await until(lambda: not desk.scheduler.leading)
    await until(desk.nothing_is_left)
    after = desk.find("web")
    assert before is not None
    assert after is not None
    assert (after.revision, after.value) == (before.revision, before.value)
    await until(lambda: other.scheduler.bound)
    assert (desk.scheduler.bound, other.scheduler.bound) == (0, 1)


@at_a_desk()
async def test_what_is_cancelled_before_it_began_is_not_under_way_for_ever(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    binder = desk.scheduler._binder
    binder.start(asyncio.sleep, 3600)
    await binder.cancel_all()
    assert len(binder) == 0
    await desk.pod("web")
    await until(lambda: desk.place("web") and not len(binder))  # now there is somebody who waits for more to do
    binder.start(asyncio.sleep, 3600)
    await binder.cancel_all()
    assert len(binder) == 0
    await binder.wait_all()


@at_a_desk()
async def test_two_names_share_a_node_and_the_bind_keeps_them_apart(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    other = desk.another_scheduler(name="other")
    await until(lambda: other.scheduler.leading)
    for n in range(4):
        await desk.pod(f"ours-{n}", cpu="300m")
        await desk.pod(f"theirs-{n}", cpu="300m", schedulerName="other")
    await until(lambda: desk.scheduler.bound + other.scheduler.bound == 3)
    await asyncio.sleep(30)
    assert desk.scheduler.bound + other.scheduler.bound == 3
    (ledger,) = desk.cluster.all("NodeAllocation.kedge.dev")
    assert len(ledger.view.status.entries) == 3


# -- preemption ------------------------------------------------------------------------------------


async def crowded(desk: Desk, **urgent: Any) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    await desk.priority("urgent", 10, **urgent)
    await desk.pod("low", cpu="800m")
    await until(lambda: desk.place("low"))
    await desk.pod("high", cpu="800m", priorityClassName="urgent")


@at_a_desk()
async def test_a_lower_priority_leaves_and_the_place_is_kept_from_others(desk: Desk) -> None:
    await crowded(desk)
    await until(lambda: (found := desk.find("low")) is not None and found.view.terminating)
    high = desk.find("high")
    assert high is not None
    await until(lambda: (found := desk.find("high")) and found.view.status.nominated_node_name == "node-a")
    await desk.pod("late", cpu="800m")
    await asyncio.sleep(3)
    assert desk.place("late") == ""
    await desk.remove("low")
    await until(lambda: desk.place("high"))
    assert desk.events("Preempted")
    assert desk.place("late") == ""
    await until(lambda: not desk.scheduler.statistics().nominated and not desk.scheduler.statistics().binding)
    assert len(desk.attempts("high")) == 2, "it was woken when its room was made, and not before"


@at_a_desk()
async def test_a_pod_says_that_a_place_is_made_for_it_only_while_one_is(desk: Desk) -> None:
    await crowded(desk)
    await until(lambda: desk.nominated("high") == "node-a")
    await desk.remove("low")
    await until(lambda: desk.place("high") and not desk.nominated("high"))


@at_a_desk()
async def test_a_place_that_an_earlier_leader_promised_and_nobody_makes_is_taken_back(desk: Desk) -> None:
    await desk.cluster.authority.create(NODE, node("node-a", cpu="1"))
    promised = await desk.pod("large", cpu="2")
    await desk.cluster.authority.patch(promised.key, {"status": {"nominatedNodeName": "node-a"}}, subresource="status")
    await desk.open_for(node("node-b", cpu="1"))
    await until(lambda: desk.reason("large") and not desk.nominated("large"))


@at_a_desk(replace(LIMITS, scheduler_explained_s=1000.0))
async def test_a_promise_is_taken_back_though_the_words_are_not_said_again(desk: Desk) -> None:
    await desk.open_for(node("node-a", cpu="1"))
    large = await desk.pod("large", cpu="2")
    await until(lambda: desk.reason("large"))
    await desk.cluster.authority.patch(large.key, {"status": {"nominatedNodeName": "node-a"}}, subresource="status")
    await desk.cluster.create(node("node-b", cpu="3", unschedulable=True))
    await desk.cluster.authority.patch(Key("Node", "", "node-a"), {"metadata": {"labels": {"a": "b"}}})
    await desk.cluster.authority.patch(large.key, {"metadata": {"labels": {"a": "b"}}})
    await until(lambda: not desk.nominated("large"))


@at_a_desk()
async def test_nobody_leaves_for_a_pod_that_does_not_ask_for_it(desk: Desk) -> None:
    await crowded(desk, preemptionPolicy="Never")
    await until(lambda: desk.reason("high"))
    await asyncio.sleep(20)
    found = desk.find("low")
    assert found is not None
    assert not found.view.terminating


@at_a_desk()
async def test_a_budget_that_is_spent_keeps_its_pods(desk: Desk) -> None:
    await desk.budget(0, app="web")
    await crowded(desk)
    await until(lambda: desk.reason("high"))
    await asyncio.sleep(20)
    found = desk.find("low")
    assert found is not None
    assert not found.view.terminating
    assert not desk.scheduler.statistics().nominated


@at_a_desk()
async def test_a_nominee_that_goes_gives_its_place_up(desk: Desk) -> None:
    await crowded(desk)
    await until(lambda: desk.scheduler.statistics().nominated)
    await desk.pod("late", cpu="800m")
    await until(lambda: desk.reason("late"))
    await desk.remove("low")
    await desk.remove("high")
    await until(lambda: desk.place("late"))


@at_a_desk()
async def test_a_higher_priority_takes_a_place_that_was_kept_for_a_lower(desk: Desk) -> None:
    await crowded(desk)
    await desk.priority("critical", 20)
    await until(lambda: desk.scheduler.statistics().nominated)
    await desk.pod("highest", cpu="800m", priorityClassName="critical")
    await until(lambda: desk.reason("highest"))
    await desk.remove("low")
    await until(lambda: desk.place("highest"))
    assert desk.place("high") == ""
    await desk.cluster.create(node("node-b", cpu="1"))
    await until(lambda: desk.place("high"))

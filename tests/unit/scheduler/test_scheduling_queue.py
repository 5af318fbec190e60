"""The scheduling queue: no event is lost, and no pod is woken without a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.objects import Clock, make_env, pod

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.keys import Key, Origin
from kedge.limits import Limits
from kedge.observe.records import WakeCause
from kedge.runtime.cache import CacheChange, ChangeType
from kedge.scheduler.queue.events import ANYTHING, ClusterEvent
from kedge.scheduler.queue.scheduling_queue import QueuedPod, QueueStage, SchedulingQueue

POD = KINDS.of_key_kind("Pod")


class QueueHarness:
    """A queue with a manual clock."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.queue = SchedulingQueue(make_env(clock=self.clock, limits=Limits(**limits)), self._ready)
        self.woken = 0

    def _ready(self) -> None:
        self.woken += 1

    def put(self, name: str, *, priority: int = 0, gang: str = "", uid: str = "") -> None:
        body = pod(name)
        body["metadata"]["uid"] = uid or f"uid-{name}"
        key = Key("Pod", "default", name)
        self.queue.put(Object(POD, key, encode_object(body), revision=1), priority, gang=gang)

    def take(self) -> QueuedPod:
        found = self.queue.take()
        assert found is not None
        return found

    def fails(
        self, name: str, unblocked_by: ClusterEvent = ClusterEvent.ROOM, equivalence: object = "sort", **named: Any
    ) -> None:
        """A pod is added, tried, and unschedulable."""
        self.put(name, **named)
        self.queue.unschedulable(self.take(), unblocked_by, equivalence)

    def active(self) -> list[str]:
        return [each.key.name for each in self.queue if each.stage is QueueStage.ACTIVE]

    def asleep(self) -> list[str]:
        return [each.key.name for each in self.queue if each.stage is QueueStage.UNSCHEDULABLE]


def test_the_highest_priority_is_first_and_equal_ones_are_in_order_of_arrival() -> None:
    harness = QueueHarness()
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        harness.put(name, priority=priority)
    assert [harness.take().key.name for _ in range(4)] == ["b", "d", "a", "c"]
    assert harness.queue.take() is None


def test_a_pod_that_failed_keeps_its_order_in_its_priority() -> None:
    harness = QueueHarness()
    harness.put("first")
    first = harness.take()
    harness.put("second")
    harness.queue.failed(first, pause=False)
    assert [harness.take().key.name for _ in range(2)] == ["first", "second"]


def test_only_an_event_that_may_unblock_it_wakes_a_pod() -> None:
    harness = QueueHarness()
    harness.fails("a", ClusterEvent.ROOM)
    for change in ClusterEvent:
        if change is not ClusterEvent.ROOM:
            harness.queue.notify(change, "something else")
    assert harness.active() == []
    harness.queue.notify(ClusterEvent.ROOM, "too little", lambda _: False)
    assert harness.active() == []
    harness.queue.notify(ClusterEvent.ROOM, "room")
    assert harness.active() == ["a"]
    assert harness.take().woken_by == "room"


def test_an_always_event_does_not_call_the_hint() -> None:
    harness = QueueHarness()
    harness.fails("spread", ClusterEvent.POD_GONE, "spread")
    harness.fails("large", ClusterEvent.ROOM, "large")
    harness.queue.notify(ClusterEvent.ROOM, "a pod is gone", lambda _: False, always=ClusterEvent.POD_GONE)
    assert harness.active() == ["spread"]


def test_one_pod_of_a_class_is_woken_and_the_next_when_it_is_bound() -> None:
    harness = QueueHarness()
    for name in ("a", "b", "c"):
        harness.fails(name)
    harness.queue.notify(ClusterEvent.ROOM, "room")
    assert harness.active() == ["a"]
    harness.queue.done(harness.take())
    assert harness.active() == ["b"]
    harness.queue.unschedulable(harness.take(), ClusterEvent.ROOM, "sort")
    assert harness.active() == []
    assert sorted(harness.asleep()) == ["b", "c"]


def test_each_pod_of_a_class_is_woken_in_turn_while_they_preempt() -> None:
    harness = QueueHarness()
    for name in ("a", "b", "c"):
        harness.fails(name, ClusterEvent.BUDGET)
    harness.queue.notify(ClusterEvent.BUDGET, "a budget allows more")
    for name in ("a", "b", "c"):
        assert harness.active() == [name]
        harness.queue.unschedulable(harness.take(), ClusterEvent.ROOM, "sort", preempts=True)
    assert harness.active() == []
    assert sorted(harness.asleep()) == ["a", "b", "c"]


def test_a_pod_that_preempts_at_its_first_attempt_wakes_no_other() -> None:
    harness = QueueHarness()
    harness.fails("a")
    harness.put("b")
    harness.queue.unschedulable(harness.take(), ClusterEvent.ROOM, "sort", preempts=True)
    assert harness.active() == []


def test_the_next_pod_is_woken_when_the_woken_one_is_deleted() -> None:
    harness = QueueHarness()
    for name in ("a", "b"):
        harness.fails(name)
    harness.queue.notify(ClusterEvent.ROOM, "room")
    harness.queue.remove("uid-a")
    assert harness.active() == ["b"]


def test_the_next_pod_is_woken_when_the_woken_one_changes_class() -> None:
    harness = QueueHarness()
    for name in ("a", "b"):
        harness.fails(name)
    harness.queue.notify(ClusterEvent.ROOM, "room")
    harness.queue.unschedulable(harness.take(), ClusterEvent.ROOM, "another sort")
    assert harness.active() == ["b"]


def test_the_next_pod_is_woken_when_the_woken_one_fails_or_is_held() -> None:
    """Its own bind failed, or it has a hold: neither is a reason for the others to wait."""
    for return_to_queue in (SchedulingQueue.failed, lambda pending, one: pending.pause(one, 1e6, "a hold has ended")):
        harness = QueueHarness()
        for name in ("a", "b"):
            harness.fails(name)
        harness.queue.notify(ClusterEvent.NODE | ClusterEvent.ROOM, "a node came")
        return_to_queue(harness.queue, harness.take())
        assert harness.active() == ["b"]


def test_an_empty_class_is_forgotten() -> None:
    """Classes appear and disappear with shapes of pods: keeping them would leak memory."""
    harness = QueueHarness()
    for n in range(20):
        harness.fails(f"p{n}", equivalence=n)
    harness.queue.notify(ClusterEvent.ROOM, "a node came")
    for n in range(20):
        waiting = harness.take()
        if n % 3 == 0:
            harness.queue.done(waiting)
        elif n % 3 == 1:
            harness.queue.remove(waiting.uid)
        else:
            harness.queue.unschedulable(waiting, ClusterEvent.ROOM, "another sort")
    assert len(harness.queue) == 6
    assert not harness.queue._probed


def test_the_highest_priority_of_a_class_is_woken() -> None:
    harness = QueueHarness()
    harness.fails("low")
    harness.fails("high", priority=7)
    harness.queue.notify(ClusterEvent.ROOM, "room")
    assert harness.active() == ["high"]


def test_a_class_waits_for_the_events_of_all_its_pods() -> None:
    """Pods of a class may fail for different reasons at different times."""
    harness = QueueHarness()
    harness.fails("a", ClusterEvent.ROOM)
    harness.fails("b", ClusterEvent.ROOM | ClusterEvent.QUOTA)
    harness.queue.notify(ClusterEvent.QUOTA, "more quota")
    assert harness.active() == ["a"]


def test_a_wake_of_one_pod_wakes_it_whatever_its_order_in_its_class() -> None:
    harness = QueueHarness()
    harness.fails("a")
    harness.fails("b")
    harness.queue.wake("uid-b", "its own affair")
    assert harness.active() == ["b"]
    harness.queue.wake("uid-nobody", "nobody")


def test_an_event_in_flight_has_the_effect_of_one_after_the_attempt() -> None:
    harness = QueueHarness(scheduler_backoff_s=1.0)
    harness.put("a")
    waiting = harness.take()
    harness.queue.notify(ClusterEvent.ROOM, "room, in mid-attempt")
    harness.queue.unschedulable(waiting, ClusterEvent.ROOM, "sort")
    assert waiting.stage is QueueStage.BACKOFF
    harness.clock.advance(1.0)
    assert harness.take() is waiting
    assert waiting.woken_by == "room, in mid-attempt"


def test_a_wake_up_has_the_change_that_caused_it_also_after_a_backoff() -> None:
    harness = QueueHarness(scheduler_backoff_s=1.0)
    harness.fails("asleep", ClusterEvent.QUOTA, "other")
    harness.put("a")
    waiting = harness.take()
    key = Key("Pod", "default", "freed")
    quota = Object(POD, key, encode_object(pod("freed")), revision=7, origin=Origin("", "quota:p:9"))
    harness.queue.change = CacheChange(ChangeType.CHANGED, quota.key, None, quota, 7)
    harness.queue.notify(ClusterEvent.QUOTA, "a quota changed")
    harness.queue.change = None
    cause = WakeCause(quota.key, 7, "quota")
    woken = harness.take()
    assert (woken.key.name, woken.cause) == ("asleep", cause)
    harness.queue.unschedulable(waiting, ClusterEvent.QUOTA, "sort")
    harness.clock.advance(1.0)
    assert harness.take() is waiting
    assert waiting.cause == cause
    harness.queue.failed(waiting)
    assert waiting.cause is None


def test_an_event_before_the_attempt_has_no_effect() -> None:
    harness = QueueHarness()
    harness.put("other")
    other = harness.take()  # so that events are recorded at all
    harness.queue.notify(ClusterEvent.ROOM, "room, before")
    harness.put("a")
    harness.queue.unschedulable(harness.take(), ClusterEvent.ROOM, "sort")
    assert harness.asleep() == ["a"]
    harness.queue.failed(other)


def test_a_wake_of_one_pod_in_flight_does_not_wake_others() -> None:
    harness = QueueHarness()
    harness.put("a")
    harness.put("b")
    a, b = harness.take(), harness.take()
    harness.queue.wake("uid-b", "changed itself")
    harness.queue.unschedulable(a, ClusterEvent.ROOM, "sort")
    harness.queue.unschedulable(b, ClusterEvent.ROOM, "sort")
    assert (a.stage, b.stage) == (QueueStage.UNSCHEDULABLE, QueueStage.BACKOFF)


def test_too_many_events_wake_every_pod_in_flight() -> None:
    harness = QueueHarness(scheduler_changes_max=4)
    harness.put("a")
    waiting = harness.take()
    for _ in range(6):
        harness.queue.notify(ClusterEvent.NAMESPACE, "nothing to do with it")
    harness.queue.unschedulable(waiting, ClusterEvent.ROOM, "sort")
    assert waiting.stage is QueueStage.BACKOFF


def test_backoff_grows_with_each_failure_up_to_a_bound() -> None:
    harness = QueueHarness(scheduler_backoff_s=1.0, scheduler_backoff_s_max=8.0)
    harness.put("a")
    for most_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        waiting = harness.take()
        harness.queue.failed(waiting)
        due_s = harness.queue.next_s()
        assert due_s is not None
        pause_s = due_s - harness.clock.monotonic()
        assert most_s / 2 <= pause_s <= most_s
        assert harness.queue.take() is None
        assert harness.queue.next_s() == due_s
        harness.clock.advance(pause_s + 0.001)


def test_an_unschedulable_attempt_resets_the_backoff() -> None:
    harness = QueueHarness(scheduler_backoff_s=1.0)
    harness.put("a")
    for _ in range(5):
        harness.queue.failed(harness.take())
        harness.clock.advance(60)
    waiting = harness.take()
    harness.queue.unschedulable(waiting, ClusterEvent.ROOM, "sort")
    assert waiting.failures == 0


def test_a_flush_wakes_pods_that_waited_for_long_and_no_others() -> None:
    harness = QueueHarness(scheduler_flush_s=60.0)
    harness.fails("old")
    harness.clock.advance(40)
    harness.fails("young")
    harness.clock.advance(25)
    assert harness.queue.flush() == 1
    assert harness.active() == ["old"]
    assert harness.queue.flush() == 0


def test_a_pod_that_changed_itself_is_tried_again() -> None:
    harness = QueueHarness()
    harness.fails("a")
    harness.put("a")
    assert harness.active() == ["a"]
    assert len(harness.queue) == 1


def test_a_retry_after_a_failed_preemption_backs_off() -> None:
    harness = QueueHarness()
    harness.fails("a")
    harness.queue.retry("uid-a")
    assert harness.queue.take() is None
    harness.clock.advance(60)
    assert harness.take().key.name == "a"


def test_a_pod_replaced_in_mid_attempt_leaves_nothing_in_flight() -> None:
    """Bug 9 (kubernetes#138434): a pod replaced by one of the same name in mid-attempt leaks in-flight state."""
    harness = QueueHarness()
    harness.put("a", uid="one")
    old = harness.take()
    harness.queue.remove("one")
    harness.put("a", uid="two")
    new = harness.take()
    harness.queue.notify(ClusterEvent.ROOM, "room")
    endings: list[Callable[[], None]] = [
        lambda: harness.queue.failed(old),
        lambda: harness.queue.unschedulable(old, ANYTHING, "sort"),
        lambda: harness.queue.done(old),
    ]
    for end in endings:
        end()
        assert harness.queue.get("two") is new
        assert new.stage is QueueStage.IN_FLIGHT
        assert list(harness.queue._in_flight) == ["two"]
        harness.clock.advance(60)
        assert harness.queue.take() is None, "the one that is gone is tried no more"
    harness.queue.unschedulable(new, ClusterEvent.ROOM, "sort")
    assert new.stage is QueueStage.BACKOFF, "the change while it was in flight was not lost"
    assert not harness.queue._in_flight
    assert not harness.queue._events


def test_a_queue_without_the_uid_check_tries_a_deleted_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 9 finds it: with the safeguard removed it fails."""
    monkeypatch.setattr(SchedulingQueue, "_is_current", lambda *_: True)
    with pytest.raises(AssertionError, match="the one that is gone is tried no more"):
        test_a_pod_replaced_in_mid_attempt_leaves_nothing_in_flight()


def test_a_pod_put_again_in_mid_attempt_is_not_returned_by_the_old_attempt() -> None:
    """A pod that was gated and ungated has the same uid, and is not in flight twice."""
    harness = QueueHarness()
    harness.put("a")
    old = harness.take()
    harness.queue.remove("uid-a")
    harness.put("a")
    new = harness.take()
    harness.queue.failed(old)
    assert list(harness.queue._in_flight.values()) == [new]


def test_a_gang_is_taken_together_except_members_in_flight() -> None:
    harness = QueueHarness()
    for name in ("a", "b", "c"):
        harness.put(name, gang="trio")
    harness.put("alone")
    first = harness.take()
    members = harness.queue.take_gang(first)
    assert [each.key.name for each in members] == ["a", "b", "c"]
    assert all(each.stage is QueueStage.IN_FLIGHT for each in members)
    harness.put("d", gang="trio")
    assert [each.key.name for each in harness.queue.take_gang(harness.take())] == ["alone"]
    assert [each.key.name for each in harness.queue.take_gang(harness.take())] == ["d"]


def test_a_new_member_wakes_its_gang_and_no_other() -> None:
    harness = QueueHarness()
    harness.fails("a", ClusterEvent.GANG, ("gang", "one"), gang="one")
    harness.fails("b", ClusterEvent.GANG, ("gang", "two"), gang="two")
    harness.put("c", gang="one")
    assert sorted(harness.active()) == ["a", "c"]


def test_a_gang_is_woken_by_an_event_that_may_unblock_any_member() -> None:
    """They are one class, and yet their requests may differ."""
    harness = QueueHarness()
    for name in ("a", "b", "c"):
        harness.put(name, gang="crew")
    for member in harness.queue.take_gang(harness.take()):
        harness.queue.unschedulable(member, ClusterEvent.ROOM, ("gang", "crew"))
    harness.queue.notify(ClusterEvent.ROOM, "room", lambda each: each.key.name == "d")
    assert harness.active() == []
    harness.queue.notify(ClusterEvent.ROOM, "room", lambda each: each.key.name == "c")
    assert harness.active() == ["a"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("put", "take", "unschedulable", "failed", "done", "remove", "notify", "wake", "flush", "wait")
        ),
        st.integers(0, 4),
        st.sampled_from((ClusterEvent.ROOM, ClusterEvent.QUOTA, ClusterEvent.ROOM | ClusterEvent.NODE)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_pod_is_in_one_stage_and_no_event_is_lost(steps: list[Any]) -> None:  # noqa: C901
    """A pod waits only if no event since its attempt may unblock it, or another pod of its class is being tried."""
    harness = QueueHarness()
    pending = harness.queue
    flying: list[QueuedPod] = []
    helped: set[str] = set()
    """Pods that an event since their attempt may unblock."""
    for step, n, change in steps:
        if step == "put":
            harness.put(f"p{n}", priority=n % 2)
        elif step == "take":
            taken = pending.take()
            if taken is not None:
                flying.append(taken)
                helped.discard(taken.uid)
        elif step in ("unschedulable", "failed", "done") and flying:
            waiting = flying.pop(n % len(flying))
            if step == "unschedulable":
                pending.unschedulable(waiting, ClusterEvent.ROOM, n % 2)
                if waiting.uid in helped and pending.get(waiting.uid) is waiting:
                    assert waiting.stage is not QueueStage.UNSCHEDULABLE
            elif step == "failed":
                pending.failed(waiting)
            else:
                pending.done(waiting)
        elif step == "remove":
            pending.remove(f"uid-p{n}")
        elif step == "notify":
            pending.notify(change, "it happened")
            if change & ClusterEvent.ROOM:
                helped.update(each.uid for each in flying)
                for equivalence in (0, 1):
                    sort = [
                        each
                        for each in pending
                        if each.stage is QueueStage.UNSCHEDULABLE and each.equivalence == equivalence
                    ]
                    awake = [
                        each for each in pending if each.stage is QueueStage.ACTIVE and each.equivalence == equivalence
                    ]
                    assert not sort or awake, "no pod of a class was woken"
        elif step == "wake":
            pending.wake(f"uid-p{n}", "a word")
        elif step == "flush":
            pending.flush()
        elif step == "wait":
            harness.clock.advance(n)
        here = [each for each in pending if each.stage is QueueStage.IN_FLIGHT]
        assert {id(each) for each in pending._in_flight.values()} == {id(each) for each in here}
        assert len(pending) == sum(pending.count(stage) for stage in QueueStage)
        if not pending._in_flight:
            assert not pending._events
        assert pending._probed.keys() <= {each.equivalence for each in pending}, "an empty class is kept"

"""Who waits for a node: nothing that happens is lost, and nobody is woken for nothing."""

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
from kedge.keys import Key
from kedge.limits import Limits
from kedge.scheduler.queue.events import ANYTHING, ClusterEvent
from kedge.scheduler.queue.pending import Pending, QueuedPod, QueueStage

POD = KINDS.of_key_kind("Pod")


class Desk:
    """A queue on a clock that stands still."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.pending = Pending(make_env(clock=self.clock, limits=Limits(**limits)))
        self.woken = 0
        self.pending.on_ready = self._ready

    def _ready(self) -> None:
        self.woken += 1

    def put(self, name: str, *, priority: int = 0, gang: str = "", uid: str = "") -> None:
        body = pod(name)
        body["metadata"]["uid"] = uid or f"uid-{name}"
        key = Key("Pod", "default", name)
        self.pending.put(Object(POD, key, encode_object(body), revision=1), priority, gang=gang)

    def take(self) -> QueuedPod:
        found = self.pending.take()
        assert found is not None
        return found

    def fails(
        self, name: str, helped_by: ClusterEvent = ClusterEvent.ROOM, alike: object = "sort", **named: Any
    ) -> None:
        """A pod comes, is tried, and fits nowhere."""
        self.put(name, **named)
        self.pending.unschedulable(self.take(), helped_by, alike)

    def active(self) -> list[str]:
        return [each.key.name for each in self.pending if each.stage is QueueStage.ACTIVE]

    def asleep(self) -> list[str]:
        return [each.key.name for each in self.pending if each.stage is QueueStage.UNSCHEDULABLE]


def test_the_highest_priority_goes_first_and_those_alike_in_order_of_coming() -> None:
    desk = Desk()
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        desk.put(name, priority=priority)
    assert [desk.take().key.name for _ in range(4)] == ["b", "d", "a", "c"]
    assert desk.pending.take() is None


def test_a_pod_that_failed_keeps_its_place_among_those_of_its_priority() -> None:
    desk = Desk()
    desk.put("first")
    first = desk.take()
    desk.put("second")
    desk.pending.failed(first, pause=False)
    assert [desk.take().key.name for _ in range(2)] == ["first", "second"]


def test_only_what_could_help_wakes_a_pod() -> None:
    desk = Desk()
    desk.fails("a", ClusterEvent.ROOM)
    for change in ClusterEvent:
        if change is not ClusterEvent.ROOM:
            desk.pending.happened(change, "something else")
    assert desk.active() == []
    desk.pending.happened(ClusterEvent.ROOM, "too little", lambda _: False)
    assert desk.active() == []
    desk.pending.happened(ClusterEvent.ROOM, "room")
    assert desk.active() == ["a"]
    assert desk.take().woken_by == "room"


def test_what_always_helps_asks_no_further() -> None:
    desk = Desk()
    desk.fails("spread", ClusterEvent.POD_GONE, "spread")
    desk.fails("large", ClusterEvent.ROOM, "large")
    desk.pending.happened(ClusterEvent.ROOM, "a pod is gone", lambda _: False, always=ClusterEvent.POD_GONE)
    assert desk.active() == ["spread"]


def test_one_of_a_sort_is_woken_and_the_next_when_that_one_has_a_place() -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.fails(name)
    desk.pending.happened(ClusterEvent.ROOM, "room")
    assert desk.active() == ["a"]
    desk.pending.done(desk.take())
    assert desk.active() == ["b"]
    desk.pending.unschedulable(desk.take(), ClusterEvent.ROOM, "sort")
    assert desk.active() == []
    assert sorted(desk.asleep()) == ["b", "c"]


def test_the_chain_goes_on_when_the_one_that_was_woken_is_deleted() -> None:
    desk = Desk()
    for name in ("a", "b"):
        desk.fails(name)
    desk.pending.happened(ClusterEvent.ROOM, "room")
    desk.pending.remove("uid-a")
    assert desk.active() == ["b"]


def test_the_chain_goes_on_when_the_one_that_was_woken_is_of_another_sort_now() -> None:
    desk = Desk()
    for name in ("a", "b"):
        desk.fails(name)
    desk.pending.happened(ClusterEvent.ROOM, "room")
    desk.pending.unschedulable(desk.take(), ClusterEvent.ROOM, "another sort")
    assert desk.active() == ["b"]


def test_the_chain_goes_on_when_the_one_that_was_woken_fails_or_is_held() -> None:
    """Its own bind failed, or a person holds it: neither is a reason why the others should wait."""
    for give_back in (Pending.failed, lambda pending, one: pending.pause(one, 1e6, "a hold has ended")):
        desk = Desk()
        for name in ("a", "b"):
            desk.fails(name)
        desk.pending.happened(ClusterEvent.NODE | ClusterEvent.ROOM, "a node came")
        give_back(desk.pending, desk.take())
        assert desk.active() == ["b"]


def test_a_sort_of_which_nobody_is_left_is_forgotten() -> None:
    """Sorts come and go with the shapes of pods: what is kept of each for good would fill a scheduler's memory."""
    desk = Desk()
    for n in range(20):
        desk.fails(f"p{n}", alike=n)
    desk.pending.happened(ClusterEvent.ROOM, "a node came")
    for n in range(20):
        waiting = desk.take()
        if n % 3 == 0:
            desk.pending.done(waiting)
        elif n % 3 == 1:
            desk.pending.remove(waiting.uid)
        else:
            desk.pending.unschedulable(waiting, ClusterEvent.ROOM, "another sort")
    assert len(desk.pending) == 6
    assert not desk.pending._hot


def test_the_best_of_a_sort_is_woken() -> None:
    desk = Desk()
    desk.fails("low")
    desk.fails("high", priority=7)
    desk.pending.happened(ClusterEvent.ROOM, "room")
    assert desk.active() == ["high"]


def test_a_sort_is_helped_by_what_helps_any_of_it() -> None:
    """Pods alike may fail for other reasons at other times; the first speaks for all, but not of that."""
    desk = Desk()
    desk.fails("a", ClusterEvent.ROOM)
    desk.fails("b", ClusterEvent.ROOM | ClusterEvent.QUOTA)
    desk.pending.happened(ClusterEvent.QUOTA, "more quota")
    assert desk.active() == ["a"]


def test_a_word_for_one_pod_wakes_it_wherever_it_stands_in_its_sort() -> None:
    desk = Desk()
    desk.fails("a")
    desk.fails("b")
    desk.pending.wake("uid-b", "its own affair")
    assert desk.active() == ["b"]
    desk.pending.wake("uid-nobody", "nobody")


def test_what_happens_in_flight_counts_as_if_it_came_after() -> None:
    desk = Desk(scheduler_backoff_s=1.0)
    desk.put("a")
    waiting = desk.take()
    desk.pending.happened(ClusterEvent.ROOM, "room, in mid-attempt")
    desk.pending.unschedulable(waiting, ClusterEvent.ROOM, "sort")
    assert waiting.stage is QueueStage.BACKOFF
    desk.clock.advance(1.0)
    assert desk.take() is waiting
    assert waiting.woken_by == "room, in mid-attempt"


def test_what_happened_before_the_attempt_does_not_count() -> None:
    desk = Desk()
    desk.put("other")
    other = desk.take()  # so that changes are noted at all
    desk.pending.happened(ClusterEvent.ROOM, "room, before")
    desk.put("a")
    desk.pending.unschedulable(desk.take(), ClusterEvent.ROOM, "sort")
    assert desk.asleep() == ["a"]
    desk.pending.failed(other)


def test_a_word_for_one_pod_in_flight_is_not_one_for_others() -> None:
    desk = Desk()
    desk.put("a")
    desk.put("b")
    a, b = desk.take(), desk.take()
    desk.pending.wake("uid-b", "changed itself")
    desk.pending.unschedulable(a, ClusterEvent.ROOM, "sort")
    desk.pending.unschedulable(b, ClusterEvent.ROOM, "sort")
    assert (a.stage, b.stage) == (QueueStage.UNSCHEDULABLE, QueueStage.BACKOFF)


def test_too_many_changes_to_remember_wake_everybody_in_flight() -> None:
    desk = Desk(scheduler_changes_max=4)
    desk.put("a")
    waiting = desk.take()
    for _ in range(6):
        desk.pending.happened(ClusterEvent.NAMESPACE, "nothing to do with it")
    desk.pending.unschedulable(waiting, ClusterEvent.ROOM, "sort")
    assert waiting.stage is QueueStage.BACKOFF


def test_a_failed_attempt_pauses_for_longer_each_time_up_to_a_bound() -> None:
    desk = Desk(scheduler_backoff_s=1.0, scheduler_backoff_s_max=8.0)
    desk.put("a")
    for most_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        waiting = desk.take()
        desk.pending.failed(waiting)
        due_s = desk.pending.next_s()
        assert due_s is not None
        pause_s = due_s - desk.clock.monotonic()
        assert most_s / 2 <= pause_s <= most_s
        assert desk.pending.take() is None
        assert desk.pending.next_s() == due_s
        desk.clock.advance(pause_s + 0.001)


def test_who_waits_for_something_begins_his_pauses_anew() -> None:
    desk = Desk(scheduler_backoff_s=1.0)
    desk.put("a")
    for _ in range(5):
        desk.pending.failed(desk.take())
        desk.clock.advance(60)
    waiting = desk.take()
    desk.pending.unschedulable(waiting, ClusterEvent.ROOM, "sort")
    assert waiting.failures == 0


def test_a_flush_wakes_all_that_waited_for_long_and_no_others() -> None:
    desk = Desk(scheduler_flush_s=60.0)
    desk.fails("old")
    desk.clock.advance(40)
    desk.fails("young")
    desk.clock.advance(25)
    assert desk.pending.flush() == 1
    assert desk.active() == ["old"]
    assert desk.pending.flush() == 0


def test_a_pod_that_changed_itself_is_tried_again() -> None:
    desk = Desk()
    desk.fails("a")
    desk.put("a")
    assert desk.active() == ["a"]
    assert len(desk.pending) == 1


def test_what_was_begun_for_a_pod_and_failed_is_tried_again_after_a_pause() -> None:
    desk = Desk()
    desk.fails("a")
    desk.pending.retry("uid-a")
    assert desk.pending.take() is None
    desk.clock.advance(60)
    assert desk.take().key.name == "a"


def test_a_namesake_in_mid_attempt_is_another_pod_and_leaves_nothing_in_flight() -> None:
    """Bug 9 (kubernetes#138434): a pod replaced by one of the same name in mid-attempt leaks in-flight state."""
    desk = Desk()
    desk.put("a", uid="one")
    old = desk.take()
    desk.pending.remove("one")
    desk.put("a", uid="two")
    new = desk.take()
    desk.pending.happened(ClusterEvent.ROOM, "room")
    endings: list[Callable[[], None]] = [
        lambda: desk.pending.failed(old),
        lambda: desk.pending.unschedulable(old, ANYTHING, "sort"),
        lambda: desk.pending.done(old),
    ]
    for end in endings:
        end()
        assert desk.pending.get("two") is new
        assert new.stage is QueueStage.IN_FLIGHT
        assert list(desk.pending._in_flight) == ["two"]
        desk.clock.advance(60)
        assert desk.pending.take() is None, "the one that is gone is tried no more"
    desk.pending.unschedulable(new, ClusterEvent.ROOM, "sort")
    assert new.stage is QueueStage.BACKOFF, "the change while it was in flight was not lost"
    assert not desk.pending._in_flight
    assert not desk.pending._changes


def test_a_queue_that_does_not_ask_who_it_is_tries_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of bug 9 bites: with the safeguard removed it fails."""
    monkeypatch.setattr(Pending, "_still_here", lambda *_: True)
    with pytest.raises(AssertionError, match="the one that is gone is tried no more"):
        test_a_namesake_in_mid_attempt_is_another_pod_and_leaves_nothing_in_flight()


def test_the_same_pod_put_again_in_mid_attempt_is_not_given_back_by_the_old_attempt() -> None:
    """A pod that was gated and freed again has the same uid, and is not in flight twice."""
    desk = Desk()
    desk.put("a")
    old = desk.take()
    desk.pending.remove("uid-a")
    desk.put("a")
    new = desk.take()
    desk.pending.failed(old)
    assert list(desk.pending._in_flight.values()) == [new]


def test_a_gang_is_taken_as_one_but_for_those_in_flight() -> None:
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.put(name, gang="trio")
    desk.put("alone")
    first = desk.take()
    members = desk.pending.take_gang(first)
    assert [each.key.name for each in members] == ["a", "b", "c"]
    assert all(each.stage is QueueStage.IN_FLIGHT for each in members)
    desk.put("d", gang="trio")
    assert [each.key.name for each in desk.pending.take_gang(desk.take())] == ["alone"]
    assert [each.key.name for each in desk.pending.take_gang(desk.take())] == ["d"]


def test_a_new_member_wakes_its_gang_and_no_other() -> None:
    desk = Desk()
    desk.fails("a", ClusterEvent.GANG, ("gang", "one"), gang="one")
    desk.fails("b", ClusterEvent.GANG, ("gang", "two"), gang="two")
    desk.put("c", gang="one")
    assert sorted(desk.active()) == ["a", "c"]


def test_a_gang_is_woken_by_what_helps_any_of_its_members() -> None:
    """They are of one sort, and yet each may ask for something else."""
    desk = Desk()
    for name in ("a", "b", "c"):
        desk.put(name, gang="crew")
    for member in desk.pending.take_gang(desk.take()):
        desk.pending.unschedulable(member, ClusterEvent.ROOM, ("gang", "crew"))
    desk.pending.happened(ClusterEvent.ROOM, "room", lambda each: each.key.name == "d")
    assert desk.active() == []
    desk.pending.happened(ClusterEvent.ROOM, "room", lambda each: each.key.name == "c")
    assert desk.active() == ["a"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("put", "take", "unschedulable", "failed", "done", "remove", "happened", "wake", "flush", "wait")
        ),
        st.integers(0, 4),
        st.sampled_from((ClusterEvent.ROOM, ClusterEvent.QUOTA, ClusterEvent.ROOM | ClusterEvent.NODE)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_comes_a_pod_is_in_one_stage_and_no_helpful_change_is_lost(steps: list[Any]) -> None:  # noqa: C901
    """A pod sleeps only if nothing that could help it happened since it was last taken; or one alike is at it."""
    desk = Desk()
    pending = desk.pending
    flying: list[QueuedPod] = []
    helped: set[str] = set()
    """Those that something could have helped since they were taken."""
    for step, n, change in steps:
        if step == "put":
            desk.put(f"p{n}", priority=n % 2)
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
        elif step == "happened":
            pending.happened(change, "it happened")
            if change & ClusterEvent.ROOM:
                helped.update(each.uid for each in flying)
                for alike in (0, 1):
                    sort = [each for each in pending if each.stage is QueueStage.UNSCHEDULABLE and each.alike == alike]
                    awake = [each for each in pending if each.stage is QueueStage.ACTIVE and each.alike == alike]
                    assert not sort or awake, "all of a sort sleep through what could help them"
        elif step == "wake":
            pending.wake(f"uid-p{n}", "a word")
        elif step == "flush":
            pending.flush()
        elif step == "wait":
            desk.clock.advance(n)
        here = [each for each in pending if each.stage is QueueStage.IN_FLIGHT]
        assert {id(each) for each in pending._in_flight.values()} == {id(each) for each in here}
        assert len(pending) == sum(pending.count(stage) for stage in QueueStage)
        if not pending._in_flight:
            assert not pending._changes
        assert pending._hot.keys() <= {each.alike for each in pending}, "a sort of nobody is remembered for good"

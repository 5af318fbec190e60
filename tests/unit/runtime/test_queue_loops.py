"""Loops are found, put down to what wakes them, slowed and told of; honest work is left alone, however much it is."""

from __future__ import annotations

from itertools import count

import pytest
from tests.unit.runtime.queue_desk import Desk, fails

from kedge.limits import Limits
from kedge.runtime.queue import ItemOutcome, LoopKind, RunEffects, WaitReason, Wake

LIMITS = Limits()
OTHER = Wake("Deployment/shop/web", writer="rival")
OWN = Wake("Deployment/shop/web", writer="test")
USER = Wake("Deployment/shop/web", writer="alice")
NOTHING = RunEffects(changed=False)


def wrote(content: object, *, target: str = "web", saw: object = None) -> RunEffects:
    return RunEffects(changed=True, wrote=frozenset({(target, str(content))}), saw=saw)


# -- loops


def test_runs_that_change_nothing_are_slowed_more_and_more_up_to_a_bound() -> None:
    desk = Desk()
    pauses = [desk.run("a", OTHER, facts=NOTHING) for _ in range(40)]
    runs = LIMITS.queue_loop_runs_max
    assert pauses[:runs] == [0.0] * runs
    for n, pause_s in enumerate(pauses[runs:]):
        whole_s = min(LIMITS.queue_loop_hold_s * 2**n, LIMITS.queue_loop_hold_s_max)
        assert 0.75 * whole_s <= pause_s <= whole_s


def test_a_loop_is_told_once_with_what_wakes_it() -> None:
    desk = Desk()
    for _ in range(30):
        desk.run("a", OTHER, facts=NOTHING)
    assert [(loop.key, loop.kind, loop.woken_by, loop.runs) for loop in desk.loops] == [
        ("a", LoopKind.FUTILE, OTHER, LIMITS.queue_loop_runs_max)
    ]
    report = desk.queue.explain("a")
    assert report is not None
    assert report.loop is not None
    assert report.loop.woken_by == OTHER
    assert [loop.key for loop in desk.queue.statistics().loops] == ["a"]
    assert desk.sample("kedge_queue_loops_total", kind="futile") == 1
    assert desk.sample("kedge_queue_holds_total") == 30 - LIMITS.queue_loop_runs_max + 1
    assert desk.sample("kedge_queue_looping") == 1


def test_a_held_key_says_why_it_waits() -> None:
    desk = Desk()
    for _ in range(LIMITS.queue_loop_runs_max):
        desk.run("a", OTHER, facts=NOTHING)
    desk.queue.add("a", OTHER)
    report = desk.queue.explain("a")
    assert report is not None
    assert report.wait_reason is WaitReason.LOOPING


def test_two_controllers_that_undo_each_other_are_slowed_though_both_write_each_time() -> None:
    desk = Desk()
    for _ in range(20):
        desk.run("a", OTHER, facts=wrote("mine"))  # the rival puts its own back, which wakes us
    assert [(loop.kind, loop.woken_by) for loop in desk.loops] == [(LoopKind.OSCILLATION, OTHER)]
    assert desk.run("a", OTHER, facts=wrote("mine")) > 1.0


def test_a_controller_that_writes_one_thing_and_then_the_other_is_slowed() -> None:
    desk = Desk()
    for n in range(30):
        desk.run("a", OWN, facts=wrote("A" if n % 2 else "B"))
    assert [(loop.kind, loop.woken_by) for loop in desk.loops] == [(LoopKind.OSCILLATION, OWN)]


def test_the_echo_that_comes_along_with_a_rival_is_not_blamed_for_the_fight() -> None:
    desk = Desk()
    for _ in range(LIMITS.queue_loop_runs_max + 1):
        desk.queue.add("a", OWN)
        desk.run("a", OTHER, facts=wrote("mine"))
    assert [loop.woken_by for loop in desk.loops] == [OTHER]


def test_a_fight_is_called_a_fight_though_some_of_its_runs_find_nothing_to_do() -> None:
    desk = Desk()
    desk.run("a", OTHER, facts=wrote("mine"))
    for n in range(LIMITS.queue_loop_runs_max):
        desk.run("a", OTHER, facts=NOTHING if n % 2 else wrote("mine"))
    assert [loop.kind for loop in desk.loops] == [LoopKind.OSCILLATION]


def test_a_fight_at_a_slow_pace_is_found_too() -> None:
    desk = Desk()
    for _ in range(LIMITS.queue_loop_runs_max + 1):
        desk.run("a", OTHER, facts=wrote("mine"))
        desk.now_s += 120
    assert len(desk.loops) == 1


def test_a_status_with_the_time_in_it_feeds_itself_and_is_slowed() -> None:
    desk = Desk()
    for _ in range(LIMITS.queue_loop_echoes_max + 5):
        desk.now_s += 0.01
        desk.run("a", OWN, facts=wrote(f"seen at {desk.now_s}", target="status"))
    assert [(loop.kind, loop.woken_by) for loop in desk.loops] == [(LoopKind.ECHO, OWN)]
    assert desk.run("a", OWN, facts=wrote("yet another", target="status")) > 1.0


def test_a_status_with_the_time_in_it_is_found_though_others_wake_the_key_too() -> None:
    desk = Desk()
    for n in range(3 * LIMITS.queue_loop_echoes_max):
        desk.now_s += 0.01
        desk.queue.add("a", OWN)
        if n % 3 == 0:
            desk.queue.add("a", Wake(f"Pod/{n}", writer="agent"))
        item = desk.queue.get_nowait()
        if item is None:
            break
        desk.queue.done(item, facts=wrote(f"seen at {desk.now_s}", target="status"))
    assert [loop.kind for loop in desk.loops] == [LoopKind.ECHO]


def test_a_key_that_asks_to_be_repeated_at_once_and_does_nothing_is_slowed() -> None:
    desk = Desk()
    desk.queue.add("a", "x")
    for _ in range(LIMITS.queue_loop_runs_max + 1):
        desk.queue.done(desk.take(), ItemOutcome.requeue(delay_s=0.0), NOTHING)
    assert desk.queue.get_nowait() is None
    report = desk.queue.explain("a")
    assert report is not None
    assert report.wait_reason is WaitReason.LOOPING


def test_a_failing_key_that_wakes_itself_cannot_get_round_its_backoff() -> None:
    desk = Desk()
    desk.queue.add("a", OWN)
    runs = 0
    while (item := desk.queue.get_nowait()) is not None:
        runs += 1
        assert runs < 100, "at full speed for ever"
        desk.queue.add("a", OWN)  # it writes its failure into its status
        desk.queue.done(item, fails())
    assert runs == LIMITS.queue_loop_runs_max


def test_a_wake_up_that_came_during_the_convicting_run_is_held_too() -> None:
    desk = Desk()
    desk.queue.add("a", OTHER)
    for _ in range(LIMITS.queue_loop_runs_max):
        item = desk.take()
        desk.queue.add("a", OTHER)
        desk.queue.done(item, facts=NOTHING)
    assert desk.queue.get_nowait() is None
    assert len(desk.queue) == 1, "held, not dropped"


# -- the way out


def test_another_cause_passes_at_once_and_brings_the_held_one_along() -> None:
    desk = Desk()
    for _ in range(20):
        desk.run("a", OTHER, facts=NOTHING)
    desk.queue.add("a", OTHER)
    assert desk.queue.get_nowait() is None
    desk.queue.add("a", USER)
    assert desk.take().wakes == (OTHER, USER)


def test_a_run_that_gets_somewhere_ends_the_loop() -> None:
    desk = Desk()
    for _ in range(20):
        desk.run("a", OTHER, facts=NOTHING)
    desk.run("a", OTHER, facts=wrote("something new"))
    assert desk.run("a", OTHER, facts=NOTHING) == 0.0
    assert desk.queue.statistics().loops == ()


def test_silence_ends_the_loop() -> None:
    desk = Desk()
    for _ in range(12):
        desk.run("a", OTHER, facts=NOTHING)
    desk.now_s += LIMITS.queue_loop_gap_s + 2 * LIMITS.queue_loop_hold_s_max
    assert desk.queue.statistics().loops == ()
    assert desk.queue.explain("a") is None
    assert [desk.run("a", OTHER, facts=NOTHING) for _ in range(5)] == [0.0] * 5


# -- honest work


def assert_left_alone(desk: Desk, pauses: list[float]) -> None:
    assert set(pauses) == {0.0}
    assert desk.loops == []


def test_many_keys_woken_by_one_change_are_left_alone() -> None:
    desk = Desk()
    assert_left_alone(desk, [desk.run(f"pod-{n}", OTHER, facts=NOTHING) for n in range(2000)])


def test_one_key_woken_by_many_different_objects_is_left_alone() -> None:
    desk = Desk()
    pauses = [desk.run("web", Wake(f"Pod/shop/web-{n}", writer="agent"), facts=NOTHING) for n in range(2000)]
    assert_left_alone(desk, pauses)


def test_one_key_with_new_inputs_each_time_is_left_alone_though_it_writes_nothing() -> None:
    desk = Desk()
    pauses = [desk.run("web", OTHER, facts=RunEffects(changed=False, saw=n)) for n in range(500)]
    assert_left_alone(desk, pauses)


def test_one_key_with_new_inputs_each_time_is_left_alone_though_it_writes_the_same() -> None:
    desk = Desk()
    assert_left_alone(desk, [desk.run("web", OTHER, facts=wrote("same", saw=n)) for n in range(500)])


def test_one_key_that_writes_something_new_for_each_change_of_others_is_left_alone() -> None:
    desk = Desk()
    assert_left_alone(desk, [desk.run("web", OTHER, facts=wrote(n)) for n in range(500)])


def test_steps_that_each_write_another_object_are_left_alone_though_each_wakes_the_next() -> None:
    desk = Desk()

    def step(n: int) -> RunEffects:
        return RunEffects(changed=True, wrote=frozenset({(f"Pod/web-{n}", "made"), ("status", f"{n} made")}))

    assert_left_alone(desk, [desk.run("web", OWN, facts=step(n)) for n in range(500)])


def test_the_echo_of_an_honest_write_is_left_alone() -> None:
    desk = Desk()
    pauses = []
    for n in range(100):
        pauses.append(desk.run("web", USER, facts=wrote(n)))
        pauses.append(desk.run("web", OWN, facts=NOTHING))
        desk.now_s += 10
    assert_left_alone(desk, pauses)


@pytest.mark.parametrize("every_s", [10.0, 600.0])
def test_a_heartbeat_that_changes_nothing_is_left_alone(every_s: float) -> None:
    desk = Desk()
    pauses = []
    for _ in range(100):
        pauses.append(desk.run("node", Wake("Node/n1", writer="agent"), facts=NOTHING))
        desk.now_s += every_s
    assert_left_alone(desk, pauses)


def test_polling_with_a_pause_is_left_alone() -> None:
    desk = Desk()
    desk.queue.add("a", "x")
    for _ in range(100):
        desk.queue.done(desk.take(), ItemOutcome.requeue(delay_s=1.0), NOTHING)
        desk.now_s += 1.0
    assert desk.loops == []


def test_retries_at_the_pace_of_the_backoff_are_no_loop() -> None:
    desk = Desk(limits=Limits(queue_backoff_s_max=0.2))
    desk.queue.add("a", "x")
    for _ in range(100):
        desk.queue.done(desk.take(), fails())
        desk.now_s += 0.2
    assert desk.loops == []


def test_runs_of_which_nothing_is_known_are_left_alone() -> None:
    desk = Desk()
    pauses = [desk.run("web", OTHER) for _ in range(500)]
    pauses += [desk.run("web", OTHER, facts=RunEffects(changed=True)) for _ in range(500)]
    assert_left_alone(desk, pauses)


def test_memory_of_runs_is_bounded() -> None:
    desk = Desk(limits=Limits(queue_loop_keys_max=100, queue_wakes_max=4))
    for n in range(1000):
        desk.run(f"k{n}", OTHER, facts=NOTHING)
    assert len(desk.queue.detector) == 100
    assert desk.sample("kedge_queue_histories") == 100
    for n in count():
        desk.run("k", Wake(str(n)), facts=NOTHING)
        if n > 50:
            break
    assert len(desk.queue.detector._histories["k"].suspects) == 4


def test_a_looping_key_that_is_forgotten_is_no_longer_slowed() -> None:
    desk = Desk(limits=Limits(queue_loop_keys_max=2))
    for _ in range(20):
        desk.run("a", OTHER, facts=NOTHING)
    for key in ("b", "c"):
        desk.run(key, OTHER, facts=NOTHING)
    assert desk.run("a", OTHER, facts=NOTHING) == 0.0

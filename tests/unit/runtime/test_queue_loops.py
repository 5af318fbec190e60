"""Loops are found, attributed to a wake-up, throttled and reported; real work is left alone, however much it is."""

from __future__ import annotations

from itertools import count

import pytest
from tests.kit.runtime import QueueHarness, fails

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


def test_runs_that_change_nothing_are_throttled_more_and_more_up_to_a_bound() -> None:
    harness = QueueHarness()
    pauses = [harness.run("a", OTHER, facts=NOTHING) for _ in range(40)]
    runs = LIMITS.queue_loop_runs_max
    assert pauses[:runs] == [0.0] * runs
    for n, pause_s in enumerate(pauses[runs:]):
        whole_s = min(LIMITS.queue_loop_hold_s * 2**n, LIMITS.queue_loop_hold_s_max)
        assert 0.75 * whole_s <= pause_s <= whole_s


def test_a_loop_is_reported_once_with_its_wake_up() -> None:
    harness = QueueHarness()
    for _ in range(30):
        harness.run("a", OTHER, facts=NOTHING)
    assert [(loop.key, loop.kind, loop.woken_by, loop.runs) for loop in harness.loops] == [
        ("a", LoopKind.FUTILE, OTHER, LIMITS.queue_loop_runs_max)
    ]
    report = harness.queue.explain("a")
    assert report is not None
    assert report.loop is not None
    assert report.loop.woken_by == OTHER
    assert [loop.key for loop in harness.queue.statistics().loops] == ["a"]
    assert harness.sample("kedge_queue_loops_total", kind="futile") == 1
    assert harness.sample("kedge_queue_holds_total") == 30 - LIMITS.queue_loop_runs_max + 1
    assert harness.sample("kedge_queue_looping") == 1


def test_the_report_of_a_throttled_key_has_the_reason() -> None:
    harness = QueueHarness()
    for _ in range(LIMITS.queue_loop_runs_max):
        harness.run("a", OTHER, facts=NOTHING)
    harness.queue.add("a", OTHER)
    report = harness.queue.explain("a")
    assert report is not None
    assert report.wait_reason is WaitReason.LOOPING


def test_two_controllers_that_undo_each_other_are_throttled_although_both_write_each_time() -> None:
    harness = QueueHarness()
    for _ in range(20):
        harness.run("a", OTHER, facts=wrote("mine"))  # the rival puts its own back, which wakes us
    assert [(loop.kind, loop.woken_by) for loop in harness.loops] == [(LoopKind.OSCILLATION, OTHER)]
    assert harness.run("a", OTHER, facts=wrote("mine")) > 1.0


def test_a_controller_that_alternates_between_two_writes_is_throttled() -> None:
    harness = QueueHarness()
    for n in range(30):
        harness.run("a", OWN, facts=wrote("A" if n % 2 else "B"))
    assert [(loop.kind, loop.woken_by) for loop in harness.loops] == [(LoopKind.OSCILLATION, OWN)]


def test_an_echo_beside_another_writer_is_not_reported_as_the_cause() -> None:
    harness = QueueHarness()
    for _ in range(LIMITS.queue_loop_runs_max + 1):
        harness.queue.add("a", OWN)
        harness.run("a", OTHER, facts=wrote("mine"))
    assert [loop.woken_by for loop in harness.loops] == [OTHER]


def test_an_oscillation_is_reported_as_one_although_some_of_its_runs_are_futile() -> None:
    harness = QueueHarness()
    harness.run("a", OTHER, facts=wrote("mine"))
    for n in range(LIMITS.queue_loop_runs_max):
        harness.run("a", OTHER, facts=NOTHING if n % 2 else wrote("mine"))
    assert [loop.kind for loop in harness.loops] == [LoopKind.OSCILLATION]


def test_an_oscillation_at_a_slow_pace_is_found_too() -> None:
    harness = QueueHarness()
    for _ in range(LIMITS.queue_loop_runs_max + 1):
        harness.run("a", OTHER, facts=wrote("mine"))
        harness.now_s += 120
    assert len(harness.loops) == 1


def test_a_status_with_the_time_in_it_wakes_itself_and_is_throttled() -> None:
    harness = QueueHarness()
    for _ in range(LIMITS.queue_loop_echoes_max + 5):
        harness.now_s += 0.01
        harness.run("a", OWN, facts=wrote(f"seen at {harness.now_s}", target="status"))
    assert [(loop.kind, loop.woken_by) for loop in harness.loops] == [(LoopKind.ECHO, OWN)]
    assert harness.run("a", OWN, facts=wrote("yet another", target="status")) > 1.0


def test_a_status_with_the_time_in_it_is_found_although_others_wake_the_key_too() -> None:
    harness = QueueHarness()
    for n in range(3 * LIMITS.queue_loop_echoes_max):
        harness.now_s += 0.01
        harness.queue.add("a", OWN)
        if n % 3 == 0:
            harness.queue.add("a", Wake(f"Pod/{n}", writer="agent"))
        item = harness.queue.get_nowait()
        if item is None:
            break
        harness.queue.done(item, facts=wrote(f"seen at {harness.now_s}", target="status"))
    assert [loop.kind for loop in harness.loops] == [LoopKind.ECHO]


def test_a_key_that_requeues_at_once_and_does_nothing_is_throttled() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    for _ in range(LIMITS.queue_loop_runs_max + 1):
        harness.queue.done(harness.take(), ItemOutcome.requeue(delay_s=0.0), NOTHING)
    assert harness.queue.get_nowait() is None
    report = harness.queue.explain("a")
    assert report is not None
    assert report.wait_reason is WaitReason.LOOPING


def test_a_failing_key_that_wakes_itself_cannot_bypass_its_backoff() -> None:
    harness = QueueHarness()
    harness.queue.add("a", OWN)
    runs = 0
    while (item := harness.queue.get_nowait()) is not None:
        runs += 1
        assert runs < 100, "at full speed for ever"
        harness.queue.add("a", OWN)  # it writes its failure into its status
        harness.queue.done(item, fails())
    assert runs == LIMITS.queue_loop_runs_max


def test_a_wake_up_during_the_run_that_reveals_the_loop_is_held_too() -> None:
    harness = QueueHarness()
    harness.queue.add("a", OTHER)
    for _ in range(LIMITS.queue_loop_runs_max):
        item = harness.take()
        harness.queue.add("a", OTHER)
        harness.queue.done(item, facts=NOTHING)
    assert harness.queue.get_nowait() is None
    assert len(harness.queue) == 1, "held, not dropped"


# -- the way out


def test_another_wake_up_passes_at_once_and_includes_the_held_one() -> None:
    harness = QueueHarness()
    for _ in range(20):
        harness.run("a", OTHER, facts=NOTHING)
    harness.queue.add("a", OTHER)
    assert harness.queue.get_nowait() is None
    harness.queue.add("a", USER)
    assert harness.take().wakes == (OTHER, USER)


def test_a_run_with_progress_ends_the_loop() -> None:
    harness = QueueHarness()
    for _ in range(20):
        harness.run("a", OTHER, facts=NOTHING)
    harness.run("a", OTHER, facts=wrote("something new"))
    assert harness.run("a", OTHER, facts=NOTHING) == 0.0
    assert harness.queue.statistics().loops == ()


def test_silence_ends_the_loop() -> None:
    harness = QueueHarness()
    for _ in range(12):
        harness.run("a", OTHER, facts=NOTHING)
    harness.now_s += LIMITS.queue_loop_gap_s + 2 * LIMITS.queue_loop_hold_s_max
    assert harness.queue.statistics().loops == ()
    assert harness.queue.explain("a") is None
    assert [harness.run("a", OTHER, facts=NOTHING) for _ in range(5)] == [0.0] * 5


# -- honest work


def assert_left_alone(harness: QueueHarness, pauses: list[float]) -> None:
    assert set(pauses) == {0.0}
    assert harness.loops == []


def test_many_keys_woken_by_one_change_are_left_alone() -> None:
    harness = QueueHarness()
    assert_left_alone(harness, [harness.run(f"pod-{n}", OTHER, facts=NOTHING) for n in range(2000)])


def test_one_key_woken_by_many_different_objects_is_left_alone() -> None:
    harness = QueueHarness()
    pauses = [harness.run("web", Wake(f"Pod/shop/web-{n}", writer="agent"), facts=NOTHING) for n in range(2000)]
    assert_left_alone(harness, pauses)


def test_one_key_with_new_inputs_each_time_is_left_alone_although_it_writes_nothing() -> None:
    harness = QueueHarness()
    pauses = [harness.run("web", OTHER, facts=RunEffects(changed=False, saw=n)) for n in range(500)]
    assert_left_alone(harness, pauses)


def test_one_key_with_new_inputs_each_time_is_left_alone_although_it_writes_the_same() -> None:
    harness = QueueHarness()
    assert_left_alone(harness, [harness.run("web", OTHER, facts=wrote("same", saw=n)) for n in range(500)])


def test_one_key_that_writes_something_new_for_each_change_of_others_is_left_alone() -> None:
    harness = QueueHarness()
    assert_left_alone(harness, [harness.run("web", OTHER, facts=wrote(n)) for n in range(500)])


def test_steps_that_each_write_another_object_are_left_alone_although_each_wakes_the_next() -> None:
    harness = QueueHarness()

    def step(n: int) -> RunEffects:
        return RunEffects(changed=True, wrote=frozenset({(f"Pod/web-{n}", "made"), ("status", f"{n} made")}))

    assert_left_alone(harness, [harness.run("web", OWN, facts=step(n)) for n in range(500)])


def test_the_echo_of_a_single_write_is_left_alone() -> None:
    harness = QueueHarness()
    pauses = []
    for n in range(100):
        pauses.append(harness.run("web", USER, facts=wrote(n)))
        pauses.append(harness.run("web", OWN, facts=NOTHING))
        harness.now_s += 10
    assert_left_alone(harness, pauses)


@pytest.mark.parametrize("every_s", [10.0, 600.0])
def test_a_heartbeat_that_changes_nothing_is_left_alone(every_s: float) -> None:
    harness = QueueHarness()
    pauses = []
    for _ in range(100):
        pauses.append(harness.run("node", Wake("Node/n1", writer="agent"), facts=NOTHING))
        harness.now_s += every_s
    assert_left_alone(harness, pauses)


def test_polling_with_a_delay_is_left_alone() -> None:
    harness = QueueHarness()
    harness.queue.add("a", "x")
    for _ in range(100):
        harness.queue.done(harness.take(), ItemOutcome.requeue(delay_s=1.0), NOTHING)
        harness.now_s += 1.0
    assert harness.loops == []


def test_retries_at_the_pace_of_the_backoff_are_no_loop() -> None:
    harness = QueueHarness(limits=Limits(queue_backoff_s_max=0.2))
    harness.queue.add("a", "x")
    for _ in range(100):
        harness.queue.done(harness.take(), fails())
        harness.now_s += 0.2
    assert harness.loops == []


def test_runs_without_known_effects_are_left_alone() -> None:
    harness = QueueHarness()
    pauses = [harness.run("web", OTHER) for _ in range(500)]
    pauses += [harness.run("web", OTHER, facts=RunEffects(changed=True)) for _ in range(500)]
    assert_left_alone(harness, pauses)


def test_memory_of_runs_is_bounded() -> None:
    harness = QueueHarness(limits=Limits(queue_loop_keys_max=100, queue_wakes_max=4))
    for n in range(1000):
        harness.run(f"k{n}", OTHER, facts=NOTHING)
    assert len(harness.queue.detector) == 100
    assert harness.sample("kedge_queue_histories") == 100
    for n in count():
        harness.run("k", Wake(str(n)), facts=NOTHING)
        if n > 50:
            break
    assert len(harness.queue.detector._histories["k"].suspects) == 4


def test_a_looping_key_that_is_forgotten_is_no_longer_throttled() -> None:
    harness = QueueHarness(limits=Limits(queue_loop_keys_max=2))
    for _ in range(20):
        harness.run("a", OTHER, facts=NOTHING)
    for key in ("b", "c"):
        harness.run(key, OTHER, facts=NOTHING)
    assert harness.run("a", OTHER, facts=NOTHING) == 0.0

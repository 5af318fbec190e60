"""Retention: the writers of a kept decision's inputs are kept too, and the budgets of memory and disk hold."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.records import WEB, call, decision, make_env, pod, read

from kedge.env import Env
from kedge.keys import Key
from kedge.observe import Decision, DecisionLog, DecisionStep, Recorder, read_decisions
from kedge.observe.records import SchedulingAttempt, WakeCause

POD = Key("Pod", "default", "web-0")


def never_sampled(recent_max: int = 1_000) -> Env:
    return make_env(decisions_sample_every=1 << 30, decisions_recent_max=recent_max)


def wrote(name: str, revision: int) -> Decision:
    return decision(name, [call("create", POD, revision=revision, reply=(pod("web-0", revision),))])


def kept(recorder: Recorder) -> dict[str, str]:
    return {each.id: each.kept for each in recorder.decisions()}


def test_the_decision_that_wrote_an_input_of_a_kept_one_is_kept_too() -> None:
    recorder = Recorder(never_sampled())
    for n in range(3):
        recorder.take(wrote(f"w-{n}", 10 + n))
    recorder.take(decision("d-1", [read(pod("web-0", 11))], result="failed"))
    assert kept(recorder) == {"d-1": "failure: failed", "w-1": "input: of d-1"}
    assert recorder.coverage().kept == {"failure": 1, "input": 1}


def test_an_attempt_keeps_the_writer_of_its_pod_and_of_the_change_that_woke_it() -> None:
    recorder = Recorder(never_sampled())
    for n in range(4):
        recorder.take(wrote(f"w-{n}", 10 + n))
    scheduling = SchedulingAttempt(pod_revision=10, cause=WakeCause(WEB, 12, "deployments"))
    recorder.take(decision("a-1", key=POD, scheduling=scheduling, result="failed"))
    assert set(kept(recorder)) == {"a-1", "w-0", "w-2"}


def test_it_goes_one_step_back_and_no_further() -> None:
    recorder = Recorder(never_sampled())
    recorder.take(wrote("first", 10))
    second = decision("second", [read(pod("web-0", 10)), call(revision=11, reply=(pod("web-1", 11),))])
    recorder.take(second)
    recorder.take(decision("third", [read(pod("web-1", 11))], result="failed"))
    assert set(kept(recorder)) == {"third", "second"}


def test_a_decision_that_nothing_kept_refers_to_is_not_kept() -> None:
    recorder = Recorder(never_sampled())
    recorder.take(wrote("w-1", 10))
    recorder.take(decision("d-1", [read(pod("web-0", 10))]))
    recorder.take(decision("d-2", [read(pod("web-0", 9))], result="failed"))
    assert set(kept(recorder)) == {"d-2"}


def test_writers_are_held_for_a_bounded_time() -> None:
    recorder = Recorder(never_sampled(recent_max=5))
    for n in range(8):
        recorder.take(wrote(f"w-{n}", 10 + n))
    recorder.take(decision("d-1", [read(*(pod("web-0", 10 + n) for n in range(8)))], result="failed"))
    assert set(kept(recorder)) == {"d-1", *(f"w-{n}" for n in range(3, 8))}


def test_a_writer_that_is_kept_late_is_pinned_then_and_logged_once(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, never_sampled())
    recorder, pinned = Recorder(never_sampled(), log=log), []

    def pin(found: Decision) -> list[object]:
        pinned.append(found.id)
        return []

    recorder.take(wrote("w-1", 10), pin)  # type: ignore[arg-type]
    for n in range(2):
        recorder.take(decision(f"d-{n}", [read(pod("web-0", 10))], result="failed"))
    assert recorder.coverage().kept == {"failure": 2, "input": 1}
    assert pinned == ["w-1"]
    assert log.statistics().appended == 3


def test_dropped_records_are_counted_by_cause(tmp_path: Path) -> None:
    env = make_env(
        decisions_kept_max=10,
        decision_log_record_bytes_max=2_000,
        decisions_sample_every=2,
        decision_log_bytes_max=60_000,
        decision_log_segment_bytes_max=8_000,
    )
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    for n in range(1_000):
        recorder.take(decision(f"d-{n}", [read(pod("a", n))], result="failed" if n % 2 else "await change"))
    recorder.take(decision("large", [call("x" * 5_000)], result="failed"))
    log.close()
    covered, held = recorder.coverage(), recorder.statistics().held

    def dropped(why: str, of: str = "decisions_log") -> float | None:
        return env.metrics.registry.get_sample_value(f"kedge_{of}_dropped_total", {"why": why})

    count = sum(covered.kept.values())
    assert dropped("sampled away", "decisions") == covered.seen - count > 0
    assert dropped("memory", "decisions") == count - held > 0
    assert dropped("size") == 1
    found = DecisionLog(tmp_path, env).statistics()
    assert found.segments > 0
    assert dropped("log full") == count - 1 - _on_disk(tmp_path) > 0


def _on_disk(folder: Path) -> int:
    return sum(1 for _ in read_decisions(folder))


def test_records_of_an_earlier_run_are_counted_when_its_segments_are_dropped(tmp_path: Path) -> None:
    for run in range(2):
        env = make_env(
            decision_log_record_bytes_max=2_000, decision_log_bytes_max=40_000, decision_log_segment_bytes_max=10_000
        )
        log = DecisionLog(tmp_path, env)
        for n in range(20 if run == 0 else 100):
            log.append(decision(f"d-{run}-{n}", [read(pod("a", n))]))
        log.close()
    total = env.metrics.registry.get_sample_value("kedge_decisions_log_dropped_total", {"why": "log full"})
    assert total == 120 - _on_disk(tmp_path) > 20, "all of the first run, in which none was dropped, and more"


# -- budgets ---------------------------------------------------------------------------------------

SEGMENT, DISK = 200_000, 1_000_000


def many(count: int) -> Iterator[Decision]:
    for n in range(count):
        found = pod(f"web-{n % 500}", n + 1, text="x" * 100)
        steps: list[DecisionStep] = [
            read(found),
            call("patch", found.key, {"status": {f"field-{n % 300}": 1}}, revision=n + 2),
        ]
        yield decision(f"d-{n}", steps, key=found.key, result="failed" if n % 10 == 0 else "await change")


def hold_budgets(folder: Path, count: int) -> None:
    env = make_env(
        decision_log_bytes_max=DISK,
        decision_log_segment_bytes_max=SEGMENT,
        decision_log_record_bytes_max=20_000,
        decisions_kept_max=1_000,
        decision_writers_max=2_000,
        decision_rows_max=100,
        decisions_recent_max=200,
    )
    log = DecisionLog(folder, env)
    recorder, objects = Recorder(env, log=log), 0
    for n, each in enumerate(many(count)):
        recorder.take(each)
        if n % 5_000 == 4_999:
            log.flush()
            found = recorder.statistics()
            assert found.held <= 1_000
            assert found.writers <= 2_000
            assert found.rows <= 100
            assert sum(path.stat().st_size for path in folder.iterdir()) <= DISK
            assert log.statistics().pending == 0
            alive = sum(1 for found in gc.get_objects() if type(found) is list and len(found) == 2)
            objects = objects or alive
            assert alive < 3 * objects + 10_000, "records that no bound holds are freed"
    assert recorder.statistics().seen == count
    assert log.statistics().segments_dropped > 0


def test_the_budgets_of_memory_and_disk_hold(tmp_path: Path) -> None:
    hold_budgets(tmp_path, 20_000)


@pytest.mark.soak
def test_the_budgets_of_memory_and_disk_hold_under_a_million_decisions(tmp_path: Path) -> None:
    hold_budgets(tmp_path, 1_000_000)

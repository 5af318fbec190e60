"""Counts of reads, writes and wake-ups by field: what they hold, and that a log keeps them over restarts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.kit.records import Time, call, decision, make_env, read

from kedge.observe import DecisionLog, Recorder
from kedge.observe.readers.coupling.traffic import Traffic, traffic_of
from kedge.observe.readers.recording import Recording
from kedge.observe.recording.aggregate import TOUCH, WAKE
from kedge.observe.recording.segments import read_log
from kedge.observe.records import CountsRecord, Decision

REPLICAS = {"spec": {"replicas": 3}}


def touched(name: str, *fields: str, **more: object) -> Decision:
    return decision(name, [read(), call(intent=REPLICAS)], touched={"Pod": fields}, **more)


def counted(recorder: Recorder, verb: str) -> dict[tuple[str, str], int]:
    return {(row.kind, row.field): row.count for row in recorder.counts() if row.verb == verb}


def test_fields_that_noted_decisions_touched_are_counted_by_decision() -> None:
    recorder = Recorder(make_env())
    recorder.take(touched("d-1", "spec.nodeName", "status.phase"))
    recorder.take(touched("d-2", "status.phase"))
    assert counted(recorder, TOUCH) == {("Pod", "spec.nodeName"): 1, ("Pod", "status.phase"): 2}


def test_wake_ups_are_counted_by_kind_and_writer_and_a_resync_is_none() -> None:
    recorder = Recorder(make_env())
    for number in range(3):
        wakes = (("Pod/default/a", "replicasets"), (f"Pod/default/{number}", ""), ("resync", ""))
        recorder.take(decision(f"d-{number}", wakes=wakes))
    assert counted(recorder, WAKE) == {("Pod", "replicasets"): 3, ("Pod", ""): 3}


def test_labels_without_a_bound_become_one_field() -> None:
    recorder = Recorder(make_env())
    for number in range(400):
        recorder.take(decision(f"d-{number}", [call(intent={"metadata": {"labels": {f"label-{number}": "x"}}})]))
    found = counted(recorder, "patch")
    assert len(found) == 257
    assert found["Deployment.apps", "metadata.labels.*"] == 144


def test_the_first_decisions_of_a_controller_and_a_sample_are_noted() -> None:
    recorder = Recorder(make_env(decisions_noted_first=4, decisions_noted_every=10))
    noted = [recorder.begin("replicasets")[1] is not None for _ in range(30)]
    assert [place for place, each in enumerate(noted, 1) if each] == [1, 2, 3, 4, 10, 20, 30]
    assert recorder.begin("jobs")[1] is not None
    assert Recorder(make_env(), records=False).begin("none") == (None, None)


# -- durable ---------------------------------------------------------------------------------------


def records(directory: Path) -> list[CountsRecord]:
    return [each for each in read_log(directory) if isinstance(each, CountsRecord)]


def merged(found: Iterable[CountsRecord]) -> Traffic:
    return traffic_of(Recording(counts=list(found)), {})


def replicas_written(found: Iterable[CountsRecord]) -> int:
    return merged(found).writes["deployments"]["Deployment.apps"]["spec.replicas"]


def test_counts_are_in_the_log_and_are_summed_over_restarts(tmp_path: Path) -> None:
    env = make_env(decisions_sample_every=1)
    for run in range(3):
        log = DecisionLog(tmp_path, env)
        recorder = Recorder(env, log=log)
        for number in range(4):
            recorder.take(touched(f"d-{run}-{number}", "status.phase"))
            log.flush()
        log.close()
    found = merged(records(tmp_path))
    assert found.touched["deployments"]["Pod"]["status.phase"] == 12
    assert found.writes["deployments"]["Deployment.apps"]["spec.replicas"] == 12
    assert found.reads["deployments"]["Pod"] == 12
    assert found.groups == [frozenset({"p-1"})] * 3


def test_counts_that_were_flushed_survive_a_kill(tmp_path: Path) -> None:
    env = make_env(decisions_sample_every=1)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    recorder.take(touched("d-1", "status.phase"))
    log.flush()  # and never closed
    assert replicas_written(records(tmp_path)) == 1


def test_kept_decisions_that_ended_after_the_last_count_are_in_the_traffic_too(tmp_path: Path) -> None:
    time = Time()
    env = make_env(time, decisions_sample_every=1, decision_counts_every_s=3600.0)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    recorder.take(touched("d-1", "status.phase", began=env.now()))
    log.flush()  # with the first counts; the next are due in an hour
    for number in range(2, 5):
        time.seconds += 1.0
        recorder.take(touched(f"d-{number}", "spec.nodeName", began=env.now()))
        log.flush()
    recording = Recording()
    for each in read_log(tmp_path):
        recording.add(each)
    found = traffic_of(recording, {})
    assert found.writes["deployments"]["Deployment.apps"]["spec.replicas"] == 4
    assert found.reads["deployments"]["Pod"] == 4
    assert found.touched["deployments"]["Pod"] == {"status.phase": 1, "spec.nodeName": 3}


def test_decisions_that_are_only_counted_are_in_the_counts_of_a_closed_log(tmp_path: Path) -> None:
    env = make_env(decisions_sample_every=1 << 40)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    for number in range(50):
        recorder.take(touched(f"d-{number}", "status.phase"))
    log.close()
    assert replicas_written(records(tmp_path)) == 50


def test_a_segment_stands_alone_and_repeats_no_row_that_did_not_change(tmp_path: Path) -> None:
    env = make_env(decisions_sample_every=1, decision_log_segment_bytes_max=3_000, decision_counts_every_s=0.0)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    recorder.take(decision("d-0", controller="jobs"))
    for number in range(60):
        recorder.take(touched(f"d-{number}", "status.phase"))
        log.flush()
    log.close()
    segments = sorted(tmp_path.iterdir())
    assert len(segments) > 3
    for segment in segments[:-1]:
        segment.unlink()
    left = records(tmp_path)
    assert replicas_written(left) == 60
    rows = [row for record in left for row in record.rows]
    assert len(rows) == len(set(rows))

"""The ring: decisions that no rule kept, held for a while so that an incident can reach back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.kit.records import BEGAN, WEB, Time, call, decision, make_env, pod, read

from kedge.keys import Key, Revision
from kedge.limits import Limits
from kedge.observe import Decision, DecisionLog, Recorder, read_decisions
from kedge.observe.readers.recording import read_recording
from kedge.observe.recording.brief import Release
from kedge.observe.recording.recent_decisions import BRIEF_BYTES, DecisionRing, ended_decision
from kedge.observe.recording.segments import segments
from kedge.observe.records import CacheMark

NEVER = {"decisions_sample_every": 10**9}


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def no_pin(record: Decision) -> Sequence[Release]:
    del record
    return ()


class Brief:
    """A bind, as a scheduler passes it."""

    attempt, priority, tenant = 1, 0, "default"
    wake: tuple[str, str] = ("added", "")
    marks: tuple[CacheMark, ...] = ()
    key: Key = WEB
    fence: Revision = 0
    result = "bound"

    def __init__(self, number: int) -> None:
        self.id, self.began = f"b-{number}", at(number)
        self.revision: Revision = 100 + number


class Maker:
    controller, process = "deployments", "p-1"

    def __init__(self) -> None:
        self.made = 0

    def record_of(self, brief: Any) -> Decision:
        self.made += 1
        return decision(brief.id, began=brief.began)

    def records_of(self, briefs: Iterable[Any]) -> Iterator[Decision]:
        return map(self.record_of, briefs)

    def pin(self, record: Decision) -> Sequence[Release]:
        return no_pin(record)


def ring(**limits: float) -> DecisionRing:
    return DecisionRing(make_env(None, **limits))


def ids(found: Iterable[tuple[Decision, Any]]) -> list[str]:
    return [each.id for each, _ in found]


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        ({}, 200),
        ({"decision_ring_max": 50}, 50),
        ({"decision_ring_max": 0}, 0),
        ({"decision_ring_bytes_max": 20 * BRIEF_BYTES}, 20),
        ({"decision_ring_s": 30.0}, 31),
    ],
)
def test_it_is_bounded_by_count_bytes_and_time(limits: dict[str, float], held: int) -> None:
    made, maker = ring(**limits), Maker()
    for n in range(200):
        made.add_briefs([Brief(n)], maker)
    found = ids(made.take(BEGAN))
    # Time is looked at now and then: as many more may be there as are added in between.
    assert held <= len(found) <= held + (64 if "decision_ring_s" in limits else 0)
    assert found == [f"b-{n}" for n in range(199, 199 - len(found), -1)], "the newest, newest first"


def test_large_decisions_count_by_their_size() -> None:
    made = ring(decision_ring_bytes_max=100_000)
    for n in range(10):
        body = call(intent={"text": "x" * 30_000})
        made.add([ended_decision(decision(f"d-{n}", [body], began=at(n)), no_pin)])
    assert ids(made.take(BEGAN)) == ["d-9", "d-8", "d-7"]


def test_older_decisions_stay_for_a_window_that_reaches_further_back() -> None:
    made, maker = ring(), Maker()
    for n in range(6):
        made.add_briefs([Brief(n)], maker)
    assert ids(made.take(at(4))) == ["b-5", "b-4"]
    assert maker.made == 2, "only records that are wanted are made"
    assert ids(made.take(at(1))) == ["b-3", "b-2", "b-1"]
    assert ids(made.take(at(0))) == ["b-0"]


def test_a_recorder_reaches_back_into_its_log_once(tmp_path: Path) -> None:
    time = Time()
    env = make_env(time, **NEVER)
    log = DecisionLog(tmp_path, env)
    recorder, maker = Recorder(env, log=log), Maker()
    for n in range(4):
        recorder.take(decision(f"d-{n}", [read(pod("web-0", 5))], began=at(n)))
        recorder.take_brief(Brief(n), maker)
    recorder.take(decision("failed", result="failed", began=at(2)))
    assert [each.id for each in recorder.decisions()] == ["failed"]
    for _ in recorder.reach_back("first", at(2)):
        pass
    log.flush()
    kept = {each.id: each.kept for each in read_decisions(tmp_path)}
    reached = "window: first, reached back"
    assert kept == {"failed": "failure: failed", **dict.fromkeys(("d-2", "b-2", "d-3", "b-3"), reached)}
    assert recorder.coverage().kept["window"] == 4
    for _ in recorder.reach_back("second", at(1)):
        pass
    log.close()
    assert [each.id for each in read_decisions(tmp_path)].count("d-2") == 1
    assert {each.id for each in read_decisions(tmp_path)} == {*kept, "d-1", "b-1"}


def test_binds_that_are_counted_together_are_counted_as_one_by_one() -> None:
    """A scheduler may begin to follow a cache between two binds, and a recorder may serve two schedulers."""
    first, second = Maker(), Maker()
    second.controller, second.process = "other-scheduler", "p-2"
    pods, nodes = (CacheMark(kind, 1, 1, 0.0) for kind in ("Pod", "Node"))
    recorders = Recorder(make_env(None, **NEVER)), Recorder(make_env(None, **NEVER, decisions_batch_max=1))
    for recorder in recorders:
        for n in range(20):
            brief = Brief(n)
            brief.wake = (f"Node/{n % 2}", "agents") if n % 3 else ("added", "")
            brief.marks = (pods,) if n < 7 else (pods, nodes)
            recorder.take_brief(brief, second if 10 <= n < 14 else first)
    together, one_by_one = recorders
    assert list(together.counts()) == list(one_by_one.counts())
    counts = {(row.controller, row.verb, row.kind): row.count for row in together.counts()}
    assert counts["deployments", "snapshot", "Pod"] == 16
    assert counts["deployments", "snapshot", "Node"] == 9
    assert counts["deployments", "wake", "Node"] + counts["other-scheduler", "wake", "Node"] == 13
    assert counts["other-scheduler", "bind", "Pod"] == 4
    assert together.coverage().seen == 20
    for n in range(20):
        assert together.writer_of(WEB, 100 + n) == f"b-{n}"
    assert together.counts_record("r").deciders == ("p-1", "p-2")


def test_a_bind_whose_version_a_kept_decision_read_is_kept_before_a_batch_is_full() -> None:
    recorder, maker = Recorder(make_env(None, **NEVER)), Maker()
    for n in range(3):
        recorder.take_brief(Brief(n), maker)
    failed = decision("failed", [read(pod("web-0", 101))], result="failed", began=at(5))
    recorder.take(failed)
    assert {each.id for each in recorder.decisions()} == {"failed", "b-1"}


@pytest.mark.parametrize(("since_s", "stated"), [(0, True), (5, True), (6, False)])
def test_decisions_that_the_ring_no_longer_holds_are_stated(tmp_path: Path, since_s: int, stated: bool) -> None:
    env = make_env(None, **NEVER, decision_ring_max=4)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    for n in range(10):
        recorder.take(decision(f"d-{n}", began=at(n)))
    for _ in recorder.reach_back("first", at(since_s)):
        pass
    log.close()
    (path,) = segments(tmp_path).values()
    gaps = [each.text for each in read_recording(path).outside if each.kind == "gap"]
    assert gaps == (["decisions before 00:00:05 that no rule kept are no longer held"] if stated else [])


def test_a_reach_back_pauses_between_batches() -> None:
    env = make_env(None, **NEVER)
    recorder = Recorder(env)
    count = 3 * Limits().decisions_batch_max
    for n in range(count):
        recorder.take(decision(f"d-{n}", began=at(n / 1000)))
    assert sum(1 for _ in recorder.reach_back("first", BEGAN)) >= 3
    assert len(list(recorder.decisions())) == count

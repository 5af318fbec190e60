"""Decisions after their end: counted, kept, indexed by the versions they wrote."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from sys import getrefcount
from types import MappingProxyType
from typing import Any

import pytest
from tests.kit.records import BEGAN, WEB, Time, call, decision, make_env, pod, read

from kedge.api.objects import Object
from kedge.env import Env
from kedge.keys import Key, Origin
from kedge.observe import OTHER, Decision, DecisionLog, DecisionStep, FieldCount, Recorder, read_decisions

POD = Key("Pod", "default", "web-0")


def rows(recorder: Recorder) -> dict[tuple[str, str, str, str], int]:
    return {(row.controller, row.verb, row.kind, row.field): row.count for row in recorder.counts()}


def fields_of(intent: Any, verb: str = "patch") -> dict[str, int]:
    recorder = Recorder(make_env())
    recorder.take(decision(steps=[call(verb, POD, intent)]))
    return {row.field: row.count for row in recorder.counts()}


def metric(env: Env, name: str, **labels: str) -> float | None:
    return env.metrics.registry.get_sample_value(name, labels)


# -- the counts ------------------------------------------------------------------------------------


def test_every_decision_is_counted_whether_it_is_kept_or_not() -> None:
    recorder = Recorder(make_env())
    for n in range(10):
        steps: list[DecisionStep] = [
            read(cache="Pod"),
            read(cache="Pod[default;app=web;]"),
            call(intent={"status": {"replicas": n}}),
        ]
        recorder.take(decision(f"d-{n}", steps, kept="sample" if n == 3 else ""))
    recorder.take(decision("other", [read(verb="get")], controller="jobs"))
    assert rows(recorder) == {
        ("deployments", "list", "Pod", "*"): 20,
        ("deployments", "patch", "Deployment.apps", "status.replicas"): 10,
        ("jobs", "get", "Pod", "*"): 1,
    }
    assert recorder.coverage().seen == 11


def test_a_write_is_counted_by_its_fields_two_levels_deep_and_by_label() -> None:
    assert fields_of(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"labels": {"app": "web"}, "finalizers": None},
            "spec": {"containers": [{"name": "main"}]},
            "status": {},
        }
    ) == {"metadata.labels.app": 1, "metadata.finalizers": 1, "spec.containers": 1, "status": 1}


def test_a_body_that_cannot_be_changed_is_counted_like_any_other() -> None:
    assert fields_of(MappingProxyType({"spec": {"replicas": 3}})) == {"spec.replicas": 1}


def test_a_json_patch_is_counted_by_the_fields_it_names() -> None:
    assert fields_of(
        [
            {"op": "replace", "path": "/spec/replicas", "value": 3},
            {"op": "add", "path": "/metadata/labels/app", "value": "web"},
            {"op": "add", "path": "/data/a~1b", "value": ""},
            {"op": "replace", "path": "", "value": {}},
        ]
    ) == {"spec.replicas": 1, "metadata.labels.app": 1, "data": 1, "*": 1}


def test_names_chosen_by_users_are_no_fields() -> None:
    assert fields_of({"data": {f"key-{n}": "" for n in range(50)}}) == {"data": 1}


def test_preconditions_of_a_patch_are_not_counted_as_fields() -> None:
    conditions = {"uid": "u-1", "resourceVersion": "5", "labels": {"app": None}}
    assert fields_of({"metadata": conditions, "spec": {"uid": 1}}) == {"metadata.labels.app": 1, "spec.uid": 1}
    assert fields_of({"metadata": {"resourceVersion": "5"}}) == {}


def test_a_bind_writes_the_node_name_and_not_its_inputs() -> None:
    assert fields_of({"node": "a", "decidedOn": {"Pod/default/web-0": 7}}, "bind") == {"spec.nodeName": 1}


def test_a_call_without_a_key_is_counted_by_the_kind_of_its_reply_or_body() -> None:
    recorder = Recorder(make_env())
    asked = {"kind": "Pod", "namespace": "default"}
    recorder.take(decision(steps=[call("list", None, asked, outcome="read"), call("list", None, None, outcome="read")]))
    assert {row.kind: row.field for row in recorder.counts()} == {"Pod": "*", "other": "*"}


@pytest.mark.parametrize("verb", ["get", "list", "delete", "evict", "confirm ended"])
def test_requests_about_a_whole_object_have_no_fields(verb: str) -> None:
    assert fields_of({"uid": "u-1"}, verb) == {"*": 1}


@pytest.mark.parametrize("intent", [None, [], "text", b"bytes"])
def test_a_write_without_fields_is_counted_for_the_whole_object(intent: Any) -> None:
    assert fields_of(intent) == {"*": 1}


def test_a_failed_write_is_counted_too() -> None:
    recorder = Recorder(make_env())
    recorder.take(decision(steps=[call(intent={"spec": {"replicas": 1}}, outcome="Conflict")]))
    assert rows(recorder) == {("deployments", "patch", "Deployment.apps", "spec.replicas"): 1}


def test_items_beyond_the_last_row_are_counted_in_the_row_other() -> None:
    env = make_env(decision_rows_max=3)
    recorder = Recorder(env)
    for n in range(20):
        intent = {"status": {f"field-{n}": 1}, f"top-{n}": 1}
        recorder.take(decision(f"d-{n}", [read(cache=f"Kind{n}"), call(intent=intent), call(f"verb-{n}")]))
    found = list(recorder.counts())
    assert len(found) == 4
    assert found[-1] == FieldCount(OTHER, OTHER, OTHER, OTHER, 20 * 4 - 3)
    assert sum(row.count for row in found) == 20 * 4
    assert recorder.statistics().rows == 3
    assert metric(env, "kedge_decisions_other_total") == 77


# -- the writer of a version ------------------------------------------------------------------------


def test_the_decision_that_wrote_a_version_is_found() -> None:
    recorder = Recorder(make_env())
    gone = pod("web-0", 8, origin=Origin("op-1", "d-1"))
    recorder.take(
        decision("d-1", [call(revision=7), call("delete", POD, outcome="removed", revision=8, reply=(gone,))])
    )
    assert recorder.writer_of(WEB, 7) == "d-1"
    assert recorder.writer_of(POD, 8) == "d-1"
    assert recorder.writer_of(POD, 7) is None
    assert recorder.writer_of(WEB, 9) is None


@pytest.mark.parametrize("outcome", ["unchanged", "read", "absent", "Conflict", "OutcomeUnknown", "cancelled"])
def test_a_call_that_wrote_no_version_is_no_writer(outcome: str) -> None:
    recorder = Recorder(make_env())
    recorder.take(decision(steps=[call(outcome=outcome, revision=7)]))
    assert recorder.writer_of(WEB, 7) is None


@pytest.mark.parametrize("reply", [(), (pod("web-0", 8, origin=Origin("op-9", "d-9")),)])
def test_a_removal_that_found_the_object_gone_did_not_write_its_last_version(reply: tuple[Object, ...]) -> None:
    recorder = Recorder(make_env())
    recorder.take(decision("d-1", [call("delete", POD, outcome="removed", revision=8, reply=reply)]))
    assert recorder.writer_of(POD, 8) is None


def test_an_object_with_a_generated_name_has_a_writer() -> None:
    recorder = Recorder(make_env())
    recorder.take(decision("d-1", [call("create", None, {}, revision=7, reply=(pod("web-x7", 7),))]))
    assert recorder.writer_of(Key("Pod", "default", "web-x7"), 7) == "d-1"


def test_only_the_newest_writers_are_remembered() -> None:
    recorder = Recorder(make_env(decision_writers_max=5))
    for n in range(1, 21):
        recorder.take(decision(f"d-{n}", [call(revision=n), call(outcome="done", revision=n)]))
    assert [n for n in range(1, 21) if recorder.writer_of(WEB, n)] == [16, 17, 18, 19, 20]
    assert recorder.statistics().writers == 5
    assert recorder.statistics().writers_dropped == 15


# -- what is held ----------------------------------------------------------------------------------


def test_kept_records_are_bounded_and_release_their_pins() -> None:
    recorder = Recorder(make_env(decisions_kept_max=3))
    released: list[str] = []

    def pin(kept: Decision) -> list[Callable[[], None]]:
        return [lambda: released.append(f"{kept.id} pods"), lambda: released.append(f"{kept.id} nodes")]

    for n in range(5):
        recorder.take(decision(f"d-{n}", kept="sample"), pin)
    assert [each.id for each in recorder.decisions()] == ["d-4", "d-3", "d-2"]
    assert released == ["d-0 pods", "d-0 nodes", "d-1 pods", "d-1 nodes"]
    assert recorder.decision("d-1") is None
    assert (found := recorder.decision("d-2")) is not None
    assert found.id == "d-2"
    assert recorder.coverage().dropped == 2

    recorder.close()
    assert released[4:] == [f"d-{n} {what}" for n in (2, 3, 4) for what in ("pods", "nodes")]
    assert list(recorder.decisions()) == []


def test_only_a_kept_record_pins() -> None:
    pinned: list[str] = []

    def pin(_: Decision) -> list[Callable[[], None]]:
        pinned.append("pods")
        return []

    recorder = Recorder(make_env())
    recorder.take(decision(), pin)
    assert list(recorder.decisions()) == []
    assert pinned == []
    recorder.take(decision(result="failed"), pin)
    assert [each.kept for each in recorder.decisions()] == ["failure: failed"]
    assert pinned == ["pods"]


def test_a_decision_belongs_to_the_windows_that_were_open_when_it_ended() -> None:
    recorder = Recorder(make_env(decisions_sample_every=1 << 30))
    recorder.take(decision("before"))
    recorder.open_window("rollout", until_s=60.0)
    recorder.take(decision("during"))
    recorder.close_window("rollout")
    recorder.take(decision("after"))
    assert [(each.id, each.kept) for each in recorder.decisions()] == [("during", "window: rollout")]


def test_a_flush_writes_the_records_that_wait_for_a_full_batch(tmp_path: Path) -> None:
    env = make_env()
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    recorder.take(decision("d-1", kept="sample"))
    log.flush()
    assert [each.id for each in read_decisions(tmp_path)] == ["d-1"]


def test_an_id_used_twice_is_found_until_the_later_record_is_dropped() -> None:
    recorder = Recorder(make_env(decisions_kept_max=2))
    recorder.take(decision("same", kept="sample"))
    recorder.take(decision("same", kept="sample", reason="later"))
    recorder.take(decision("next", kept="sample"))
    assert (found := recorder.decision("same")) is not None
    assert found.reason == "later"
    recorder.take(decision("last", kept="sample"))
    assert recorder.decision("same") is None


def test_records_are_found_by_controller_key_and_time_newest_first() -> None:
    recorder = Recorder(make_env())
    for n in range(4):
        recorder.take(
            decision(
                f"d-{n}",
                kept="sample",
                controller="jobs" if n % 2 else "deployments",
                key=POD if n < 2 else WEB,
                began=BEGAN + timedelta(seconds=n),
            )
        )

    def ids(**asked: Any) -> list[str]:
        return [each.id for each in recorder.decisions(**asked)]

    assert ids() == ["d-3", "d-2", "d-1", "d-0"]
    assert ids(controller="jobs") == ["d-3", "d-1"]
    assert ids(key=WEB) == ["d-3", "d-2"]
    assert ids(since=BEGAN + timedelta(seconds=2)) == ["d-3", "d-2"]
    assert ids(controller="jobs", key=POD) == ["d-1"]


def test_records_may_be_added_during_iteration() -> None:
    recorder = Recorder(make_env(decisions_kept_max=3))
    for n in range(3):
        recorder.take(decision(f"d-{n}", kept="sample"))
    seen = []
    for n, each in enumerate(recorder.decisions()):
        seen.append(each.id)
        recorder.take(decision(f"later-{n}", kept="sample"))
    assert seen == ["d-2", "d-1", "d-0"]


# -- what is known of it ---------------------------------------------------------------------------


def test_coverage_counts_seen_and_kept_decisions_by_rule() -> None:
    time = Time()
    recorder = Recorder(make_env(time, decisions_kept_max=2, decisions_sample_every=16))
    assert recorder.coverage().held_since is None
    time.seconds = 30.0
    for n, kept in enumerate(["", "", "sample", "failure: Conflict", "failure: failed", "requested"]):
        recorder.take(decision(f"d-{n}", kept=kept, began=BEGAN + timedelta(seconds=n)))
    coverage = recorder.coverage()
    assert (coverage.since, coverage.until) == (BEGAN, BEGAN + timedelta(seconds=30))
    assert coverage.seen == 6
    assert coverage.kept == {"sample": 1, "failure": 2, "other": 1}
    assert (coverage.held, coverage.dropped) == (2, 2)
    assert coverage.held_since == BEGAN + timedelta(seconds=4)
    assert coverage.sample_every == 16


def test_metrics_are_up_to_date_when_they_are_scraped() -> None:
    env = make_env(decisions_kept_max=1)
    recorder = Recorder(env)
    for looks in (1, 2):
        recorder.take(decision("a", [call(revision=looks)], kept="retry"))
        recorder.take(decision("b", kept="sample"))
        assert metric(env, "kedge_decisions_total") == 2 * looks
        assert metric(env, "kedge_decisions_kept_total", rule="retry") == looks
        assert metric(env, "kedge_decisions_dropped_total", why="memory") == 2 * looks - 1
        assert metric(env, "kedge_decisions_held") == 1
        assert metric(env, "kedge_decisions_writers") == looks


def test_a_full_batch_is_counted_and_encoded_without_a_reader(tmp_path: Path) -> None:
    env = make_env(decisions_batch_max=4, decision_ring_max=0)
    log = DecisionLog(tmp_path, env)
    recorder, found = Recorder(env, log=log), pod("a", 1)
    holders = getrefcount(found)
    for n in range(10):
        recorder.take(decision(f"d-{n}", [read(found)]))
    assert getrefcount(found) == holders + 2, "decisions that are only counted are released in batches"
    for n in range(10):
        log.append(decision(f"k-{n}"))
    assert metric(env, "kedge_decisions_log_unencoded") == 2
    log.flush()
    assert metric(env, "kedge_decisions_log_unencoded") == 0
    assert [each.id for each in read_decisions(tmp_path)] == [f"k-{n}" for n in range(10)]


def test_with_records_off_nothing_is_kept_and_nothing_is_pinned() -> None:
    recorder = Recorder(make_env(), records=False)
    failed = decision(result="failed", steps=[read(), call(revision=7)])
    assert recorder.why_keep(failed) == ""
    failed.kept = "failure"
    recorder.take(failed, lambda _: pytest.fail("pinned for nothing"))
    assert list(recorder.decisions()) == []
    assert list(recorder.counts()) == []
    assert recorder.writer_of(WEB, 7) is None


def test_kept_records_go_to_the_log_and_others_do_not(tmp_path: Path) -> None:
    env = make_env(decisions_kept_max=1)
    log = DecisionLog(tmp_path, env)
    recorder = Recorder(env, log=log)
    for n in range(6):
        recorder.take(decision(f"d-{n}", kept="sample" if n % 2 else ""))
    log.close()
    assert [each.id for each in read_decisions(tmp_path)] == ["d-1", "d-3", "d-5"]

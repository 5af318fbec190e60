"""Log lines: two formats of one vocabulary, the decision in every line, a bounded rate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.log_output import CapturedLog, kept_loggers
from tests.kit.records import call, decision, make_env

from kedge.env import system_env
from kedge.logs import (
    DEBUG,
    DECISION,
    INFO,
    JSON,
    TEXT,
    WARNING,
    NoLog,
    installed_output,
)
from kedge.observe.recording.decision_lines import PERSISTENT, log_decision


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with kept_loggers():
        yield


def output(log_format: str = JSON, level: int = INFO, lines_per_s: int = 100) -> CapturedLog:
    return CapturedLog(log_format, level, lines_per_s)


def test_a_line_is_one_json_object_with_the_fields_of_the_component() -> None:
    written = output()
    log = system_env().log
    log.write(INFO, "request", {"verb": "patch", "key": "Pod/default/a", "revision": 7, "decision": "a:p:1"})
    log.write(DEBUG, "read", {})
    (line,) = written.documents
    assert (line["level"], line["message"], line["logger"]) == ("info", "request", "kedge")
    assert (line["verb"], line["revision"], line["decision"]) == ("patch", 7, "a:p:1")
    assert line["time"].endswith("Z")


def test_a_line_for_people_has_the_same_fields_and_leaves_out_empty_ones() -> None:
    written = output(TEXT)
    system_env().log.write(WARNING, "decision", {"key": "Pod/default/a", "reason": "no room", "error": ""})
    (line,) = written.lines
    assert line.endswith('Z warning decision key=Pod/default/a reason="no room"')


def test_lines_of_adapters_carry_the_decision_that_the_task_is_making() -> None:
    written = output()
    token = DECISION.set("deployment:p-1:7")
    logging.getLogger("kedge.client.http").warning("%s failed", "http://a")
    DECISION.reset(token)
    logging.getLogger("kedge.client.http").warning("outside")
    first, second = written.documents
    assert (first["message"], first["decision"]) == ("http://a failed", "deployment:p-1:7")
    assert "decision" not in second


def test_an_exception_is_a_field_of_its_line() -> None:
    written = output()
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("kedge.server").exception("request failed")
    (line,) = written.documents
    assert line["error"].endswith("ValueError: broken")


def test_lines_beyond_the_rate_are_dropped_counted_and_reported() -> None:
    written = output(lines_per_s=10)
    env = system_env()
    for number in range(60):
        env.log.write(INFO, f"line {number}", {})
    assert len(written.lines) == 50
    assert env.metrics.registry.get_sample_value("kedge_log_lines_dropped_total") == 10
    written.time.seconds = 0.25
    env.log.write(INFO, "later", {})
    report, later = written.documents[-2:]
    assert (report["level"], report["dropped"], later["message"]) == ("warning", 10, "later")


def test_a_stream_that_fails_costs_the_line_and_not_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    written = output()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    written.stream.close()
    system_env().log.write(INFO, "lost", {})


def test_a_second_output_replaces_the_first() -> None:
    first, second = output(), output()
    assert installed_output() is second.output
    system_env().log.write(INFO, "one line", {})
    assert (first.lines, len(second.lines)) == ([], 1)


def test_the_port_of_a_simulated_process_writes_nothing() -> None:
    written = output(level=DEBUG)
    env = make_env()
    assert isinstance(env.log, NoLog)
    log_decision(env.log, decision(result="terminal", reason="over"))
    assert not written.lines


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"result": "terminal", "reason": "over"}, "warning"),
        ({"result": "failed", "error": "Conflict: it has changed", "attempt": PERSISTENT}, "warning"),
        ({"result": "failed", "error": "Conflict: it has changed"}, "info"),
        ({"steps": [call(revision=9)]}, "info"),
        ({}, "debug"),
    ],
)
def test_a_lasting_failure_is_a_warning_and_a_decision_without_effect_is_for_debugging(
    fields: dict[str, Any], level: str
) -> None:
    written = output(level=DEBUG)
    log_decision(system_env().log, decision("deployment:p-1:7", **fields))
    (line,) = written.documents
    assert line["level"] == level
    assert (line["controller"], line["key"], line["decision"]) == (
        "deployments",
        "Deployment.apps/default/web",
        "deployment:p-1:7",
    )
    assert line["outcome"] == fields.get("result", "await change")
    assert line["revision"] == (9 if "steps" in fields else 0)


def test_only_lasting_failures_are_logged_by_default() -> None:
    written = output(level=WARNING)
    log = system_env().log
    log_decision(log, decision(steps=[call(revision=9)]))
    log_decision(log, decision(result="failed", error="Conflict: x"))
    assert not written.lines
    log_decision(log, decision(result="terminal"))
    assert len(written.lines) == 1

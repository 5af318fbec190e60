"""The rules that keep a decision in full."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.kit.records import WEB, Time, call, decision, make_env, read

from kedge.env import uid_from
from kedge.errors import BadRequest, TooManyRequests
from kedge.keys import Key
from kedge.observe import Decision, KeepRules, Recorder

POLICY = Key("SchedulingPolicy.kedge.dev", "", "spread")
NEVER_SAMPLED = 1 << 40


def why(about: Decision, **rules: Any) -> str:
    return Recorder(make_env(decisions_sample_every=NEVER_SAMPLED), rules=KeepRules(**rules)).why_keep(about)


@pytest.mark.parametrize("result", ["failed", "terminal", "cancelled"])
def test_a_failed_decision_is_kept(result: str) -> None:
    assert why(decision(result=result)) == f"failure: {result}"


@pytest.mark.parametrize("result", ["await change", "requeue"])
def test_a_successful_decision_is_only_counted(result: str) -> None:
    assert why(decision(result=result, steps=[read(), call()])) == ""


@pytest.mark.parametrize("outcome", ["Conflict", "OutcomeUnknown", "Fenced", "Refused", "cancelled"])
def test_a_decision_with_a_failed_call_is_kept_even_if_it_continued(outcome: str) -> None:
    assert why(decision(steps=[call(outcome=outcome), call()])) == f"failure: {outcome}"


@pytest.mark.parametrize("outcome", ["done", "unchanged", "removed", "read", "absent", "NotFound", "AlreadyExists"])
def test_a_benign_outcome_is_no_failure(outcome: str) -> None:
    assert why(decision(steps=[call(outcome=outcome)])) == ""


def test_a_retry_is_kept() -> None:
    assert why(decision(attempt=2)) == "retry"


def test_a_decision_about_a_policy_is_kept() -> None:
    assert why(decision(key=POLICY)) == "policy"


def test_a_decision_that_writes_a_policy_is_kept_and_one_that_reads_it_is_not() -> None:
    assert why(decision(steps=[call(key=POLICY, outcome="done")])) == "policy"
    assert why(decision(steps=[call("get", POLICY, outcome="read")])) == ""


def test_priorities_are_kept_from_the_bound_up() -> None:
    assert why(decision(priority=100), priority_min=100) == "priority"
    assert why(decision(priority=99), priority_min=100) == ""


def test_without_a_bound_of_their_own_the_rules_use_the_limit() -> None:
    for limit, expected in ((100, "priority"), (101, "")):
        env = make_env(decisions_sample_every=NEVER_SAMPLED, decisions_priority_min=limit)
        assert Recorder(env).why_keep(decision(priority=100)) == expected
        assert Recorder(env, rules=KeepRules(tenants=frozenset({"x"}))).why_keep(decision(priority=100)) == expected


def test_named_tenants_are_kept() -> None:
    assert why(decision(tenant="gold"), tenants=frozenset({"gold"})) == "tenant"
    assert why(decision(tenant="tin"), tenants=frozenset({"gold"})) == ""


# -- the sample ------------------------------------------------------------------------------------


def test_the_sample_is_the_same_in_every_process() -> None:
    """The expected ids are literals, so that a hash that differs between processes is noticed."""
    recorder = Recorder(make_env(decisions_sample_every=16))
    assert [n for n in range(100) if recorder.why_keep(decision(f"d-{n}"))] == [16, 21, 40, 68, 77, 82]


@pytest.mark.parametrize("numbered", [True, False])
def test_the_sampled_share_does_not_depend_on_the_form_of_ids(*, numbered: bool) -> None:
    env, source = make_env(decisions_sample_every=16), Random(3)
    ids = [f"web-7f-{n}" if numbered else uid_from(source) for n in range(16_000)]
    recorder = Recorder(env)
    reasons = [recorder.why_keep(decision(each)) for each in ids]
    assert set(reasons) == {"", "sample"}
    assert 850 < reasons.count("sample") < 1_150


# -- quiet times -----------------------------------------------------------------------------------


def test_a_decision_that_wrote_is_kept_while_there_are_few_of_them() -> None:
    time = Time()
    recorder = Recorder(make_env(time, decisions_sample_every=NEVER_SAMPLED, decisions_quiet_per_s=4.0))
    wrote = decision(steps=[call(outcome="done")])
    assert [recorder.why_keep(wrote) for _ in range(6)] == ["quiet"] * 4 + [""] * 2
    time.seconds += 0.5
    assert [recorder.why_keep(wrote) for _ in range(3)] == ["quiet"] * 2 + [""]
    time.seconds += 3600.0
    assert [recorder.why_keep(wrote) for _ in range(6)] == ["quiet"] * 4 + [""] * 2


def test_a_decision_that_only_read_uses_up_no_quiet_time() -> None:
    recorder = Recorder(make_env(decisions_sample_every=NEVER_SAMPLED, decisions_quiet_per_s=4.0))
    assert not recorder.why_keep(decision(steps=[call(outcome="unchanged")]))
    assert not recorder.why_keep(decision())


def test_a_verdict_at_the_begin_stands_unless_the_decision_fails() -> None:
    recorder = Recorder(make_env(decisions_sample_every=NEVER_SAMPLED))
    assert recorder.why_keep(decision(), begun="quiet") == "quiet"
    assert recorder.why_keep(decision(result="failed"), begun="quiet") == "failure: failed"


# -- windows ---------------------------------------------------------------------------------------


def windowed(**window: Any) -> tuple[Recorder, Time]:
    time = Time()
    recorder = Recorder(make_env(time, decisions_sample_every=NEVER_SAMPLED, decision_windows_max=2))
    recorder.open_window("incident 7", until_s=60.0, **window)
    return recorder, time


def test_an_open_window_keeps_everything_until_its_end() -> None:
    recorder, time = windowed()
    time.seconds = 59.9
    assert recorder.why_keep(decision()) == "window: incident 7"
    time.seconds = 60.0
    assert recorder.why_keep(decision()) == ""
    assert recorder.coverage().windows == ()


def test_a_window_can_be_closed_before_its_end() -> None:
    recorder, _ = windowed()
    assert recorder.close_window("incident 7")
    assert not recorder.close_window("incident 7")
    assert recorder.why_keep(decision()) == ""


def test_a_window_that_names_tenants_or_keys_keeps_only_those() -> None:
    recorder, _ = windowed(tenants=["gold"], keys=[WEB])
    assert recorder.why_keep(decision(tenant="gold", key=POLICY)) == "window: incident 7"
    assert recorder.why_keep(decision(tenant="tin", key=WEB)) == "window: incident 7"
    assert recorder.why_keep(decision(tenant="tin", key=WEB._replace(name="other"))) == ""


def test_a_window_opened_again_has_its_new_end() -> None:
    recorder, time = windowed()
    recorder.open_window("incident 7", until_s=120.0)
    time.seconds = 100.0
    assert recorder.why_keep(decision()) == "window: incident 7"


def test_windows_are_bounded_and_ended_windows_are_not_counted() -> None:
    recorder, time = windowed()
    recorder.open_window("rollout", until_s=600.0)
    with pytest.raises(TooManyRequests, match="close one"):
        recorder.open_window("third", until_s=600.0)
    recorder.open_window("rollout", until_s=700.0)  # no third one
    time.seconds = 61.0
    recorder.open_window("third", until_s=600.0)
    assert [each.name for each in recorder.coverage().windows] == ["rollout", "third"]


def test_a_window_that_ends_too_late_is_refused() -> None:
    env = make_env()
    with pytest.raises(BadRequest, match="more than the limit of 86400 s"):
        Recorder(env).open_window("for ever", until_s=env.limits.decision_window_s_max + 1)


def test_the_rules_are_a_value() -> None:
    assert replace(KeepRules(), priority_min=5) == KeepRules(priority_min=5)

"""The burn gate of a rollout: no data holds it, a burn that goes on rolls it back, one that has ended only holds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.kit.pod_views import NOW, a_pod, ago

from kedge.api.views import Condition, PodView
from kedge.api.views.kedge_dev import RolloutBurn, RolloutGates, RolloutSpec, RolloutStage, RolloutStatus
from kedge.controllers.rollout.burn import MeasuredBurn, measure_burn
from kedge.controllers.rollout.gates import (
    CacheFact,
    GateEvaluation,
    GateFacts,
    GateResult,
    SampleOutcome,
    evaluate_gates,
)
from kedge.controllers.rollout.plan import RolloutAction, RolloutFacts, RolloutPhase, TargetState, plan_rollout

RULES = RolloutBurn(slo="TimeToReady", within_seconds=60, objective_percent=90, rate_max=2, window_seconds=1200)
CACHES = (CacheFact("Pod", 500, 1.0),)


def bound_pod(*, age_s: float, bound_s: float | None) -> PodView:
    """A pod that was bound `bound_s` ago."""
    if bound_s is None:
        return a_pod(age_s=age_s)
    return a_pod(
        age_s=age_s,
        node="node-1",
        conditions=(Condition(type="PodScheduled", status="True", last_transition_time=ago(bound_s)),),
    )


def measured(*pods: PodView, rules: RolloutBurn = RULES) -> MeasuredBurn:
    return measure_burn(rules, pods, NOW)


def judge(burn: MeasuredBurn | None, rules: RolloutBurn | None = RULES) -> GateEvaluation:
    facts = GateFacts(100, CACHES, (SampleOutcome.GOOD,), burn=burn)
    return evaluate_gates(RolloutGates(burn=rules), facts)


def reason(found: GateEvaluation) -> str:
    return found.gates[-1].reason


# -- events ----------------------------------------------------------------------------------------


def test_a_pod_is_good_if_it_was_ready_in_time() -> None:
    found = measured(a_pod(age_s=100, node="n", ready_s=50), a_pod(age_s=100, node="n", ready_s=40))
    assert (found.bad, found.events) == (0, 2)
    assert found.window == 0.0


def test_a_pod_is_bad_once_its_time_is_up_and_stays_bad() -> None:
    assert measured(a_pod(age_s=59, node="n")).events == 0
    assert measured(a_pod(age_s=60, node="n")).bad == 1
    assert measured(a_pod(age_s=100, node="n", ready_s=30)).bad == 1
    assert measured(a_pod(age_s=100, phase="Failed", node="n")).bad == 1


def test_a_pod_that_succeeded_has_no_time_of_readiness() -> None:
    assert measured(a_pod(age_s=100, phase="Succeeded", node="n")).events == 0


def test_time_to_bound_ends_with_the_bind() -> None:
    rules = RolloutBurn(slo="TimeToBound", within_seconds=10)
    assert measured(bound_pod(age_s=30, bound_s=25), rules=rules).bad == 0
    assert measured(bound_pod(age_s=30, bound_s=5), rules=rules).bad == 1
    assert measured(bound_pod(age_s=30, bound_s=None), rules=rules).bad == 1
    assert measured(bound_pod(age_s=5, bound_s=None), rules=rules).events == 0


def test_the_rate_is_the_share_of_bad_pods_over_the_allowed_share() -> None:
    good, bad = a_pod(age_s=100, node="n", ready_s=50), a_pod(age_s=100, node="n")
    assert measured(good, good, good, bad).window == pytest.approx(2.5)


def test_events_leave_the_short_window_first_and_then_the_long_one() -> None:
    lately, before, long_ago = (a_pod(age_s=60 + each, node="n") for each in (50, 150, 1250))
    found = measured(lately)
    assert found.window == pytest.approx(10.0)
    assert found.short_window == pytest.approx(10.0)
    found = measured(before)
    assert found.window == pytest.approx(10.0)
    assert found.short_window is None
    assert measured(long_ago) == MeasuredBurn(None, None, 0, 0)


# -- the gate --------------------------------------------------------------------------------------


def test_without_rules_there_is_no_such_gate() -> None:
    found = judge(None, rules=None)
    assert found.result is GateResult.OPEN
    assert [each.name for each in found.gates] == ["Freshness", "Samples", "Health", "PendingReasons"]


@pytest.mark.parametrize("burn", [None, MeasuredBurn(None, None, 0, 0)])
def test_no_data_holds(burn: MeasuredBurn | None) -> None:
    found = judge(burn)
    assert (found.result, reason(found), found.gates[-1].status) == (GateResult.SHUT, "NoData", "Unknown")


def test_a_rate_at_the_maximum_is_within_the_budget() -> None:
    found = judge(MeasuredBurn(2.0, 2.0, 1, 5))
    assert (found.result, reason(found)) == (GateResult.OPEN, "BurnWithinBudget")


def test_a_burn_that_goes_on_is_a_regression() -> None:
    found = judge(MeasuredBurn(5.0, 5.0, 2, 4))
    assert (found.result, reason(found)) == (GateResult.REGRESSED, "BurnTooFast")
    assert found.regression is not None
    expected = "2 of 4 pods missed TimeToReady of 60 s: a burn rate of 5.0, and 2 is allowed"
    assert found.regression.message == expected


@pytest.mark.parametrize("lately", [None, 0.0, 2.0])
def test_a_burn_that_has_ended_holds_and_is_no_regression(lately: float | None) -> None:
    found = judge(MeasuredBurn(5.0, lately, 2, 4))
    assert (found.result, reason(found)) == (GateResult.SHUT, "BurnRecovering")


def test_on_old_caches_the_burn_is_not_judged() -> None:
    facts = GateFacts(100, (CacheFact("Pod", 500, 99.0),), burn=MeasuredBurn(9.0, 9.0, 9, 9))
    found = evaluate_gates(RolloutGates(burn=RULES), facts)
    assert (found.result, reason(found), found.gates[-1].name) == (GateResult.SHUT, "NotJudged", "Burn")


# -- the plan --------------------------------------------------------------------------------------


def look(burn: MeasuredBurn, **status: Any) -> Any:
    spec = RolloutSpec(stages=(RolloutStage(name="canary"),), gates=RolloutGates(burn=RULES))
    before = RolloutStatus(
        change="v5", phase="Progressing", activation_revision=100, stage_started_at=ago(100), observed_generation=1
    )
    gates = GateFacts(100, CACHES, (SampleOutcome.GOOD,), burn=burn)
    facts = RolloutFacts(spec, before, 1, "v5", TargetState.STAGED, NOW, gates=gates)
    return plan_rollout(replace(facts, status=_with(before, **status)))


def _with(status: RolloutStatus, **more: Any) -> RolloutStatus:
    fields = {name: getattr(status, name) for name in status.__struct_fields__}
    return RolloutStatus(**{**fields, **more})


def test_a_burn_holds_the_rollout_and_rolls_it_back_once_it_lasts() -> None:
    fast = MeasuredBurn(5.0, 5.0, 2, 4)
    first = look(fast)
    assert (first.phase, first.reason, first.act) == (RolloutPhase.HOLDING, "Regressing", RolloutAction.NONE)
    assert first.message.startswith("Burn: 2 of 4 pods missed")
    later = look(fast, regressing_since=ago(31))
    assert (later.phase, later.act) == (RolloutPhase.ROLLING_BACK, RolloutAction.ROLL_BACK)


def test_a_rollout_without_data_waits_until_its_deadline_and_never_rolls_back() -> None:
    nothing = MeasuredBurn(None, None, 0, 0)
    assert look(nothing).reason == "NoData"
    late = look(nothing, stage_started_at=ago(700), regressing_since=ago(500))
    assert (late.phase, late.reason, late.act) == (RolloutPhase.PAUSED, "DeadlineExceeded", RolloutAction.NONE)

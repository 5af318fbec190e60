"""The plan of an autoscaler: stabilised, limited, bounded, and never scaling up behind missing replicas."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, ago

from kedge.api.views.schema import dec_hook
from kedge.api.views.workloads import (
    AutoscalerSpec,
    AutoscalerStatus,
    PendingReason,
    ScalingAdvice,
    ScalingBehavior,
    ScalingEvent,
    ScalingPolicy,
    ScalingRules,
    StageCounts,
    WorkloadProgress,
)
from kedge.controllers.autoscaler.plan import ScalingLimits, ScalingPlan, TargetFacts, plan_scaling
from kedge.controllers.autoscaler.usage import Proposal

LIMITS = ScalingLimits(unserved_max=10, cooldown_s=15, history_max=8)


def asks(replicas: int | None, *, problem: str = "") -> Proposal:
    return Proposal(replicas, "cpu", reason="" if replicas is not None else "FailedGetResourceMetric", problem=problem)


def served(replicas: int, **more: Any) -> TargetFacts:
    """A target with all replicas ready."""
    progress = WorkloadProgress(desired=replicas, stages=StageCounts(serving=replicas), observed_generation=1)
    facts: dict[str, Any] = {"replicas": replicas, "ready": replicas, "progress": progress, **more}
    return TargetFacts(**facts)


def pending(replicas: int, ready: int, *why: PendingReason) -> TargetFacts:
    stages = {"serving": ready}
    for each in why:
        stages[each.stage] = stages.get(each.stage, 0) + each.count
    progress = WorkloadProgress(desired=replicas, stages=StageCounts(**stages), pending=why, observed_generation=1)
    return TargetFacts(replicas=replicas, ready=ready, progress=progress)


def spec(least: int = 1, most: int = 100, **behavior: ScalingRules) -> AutoscalerSpec:
    return AutoscalerSpec(
        min_replicas=least, max_replicas=most, behavior=ScalingBehavior(**behavior) if behavior else None
    )


def plan(
    target: TargetFacts,
    *proposals: Proposal,
    of: AutoscalerSpec | None = None,
    status: AutoscalerStatus | None = None,
    now: datetime = NOW,
) -> ScalingPlan:
    return plan_scaling(of or spec(), status or AutoscalerStatus(), target, proposals, LIMITS, now)


def condition_of(made: ScalingPlan, type_: str) -> tuple[str, str]:
    found = [each for each in made.conditions if each["type"] == type_]
    assert len(found) == 1, made.conditions
    return found[0]["status"], found[0]["reason"]


def written(made: ScalingPlan, before: AutoscalerStatus) -> AutoscalerStatus:
    """The status as the next reconcile reads it."""
    json = {**msgspec.to_builtins(before), **made.as_json(), **(made.past_as_json() if made.scales else {})}
    return msgspec.convert(json, AutoscalerStatus, dec_hook=dec_hook)


# -- what metrics ask for --------------------------------------------------------------------------


def test_the_largest_proposal_decides() -> None:
    assert plan(served(4), asks(5), asks(7), asks(3)).desired == 7


def test_a_metric_without_a_proposal_prevents_scaling_down() -> None:
    assert plan(served(4), asks(2), asks(None, problem="no data")).desired == 4
    assert condition_of(plan(served(4), asks(2), asks(None)), "ScalingActive") == ("False", "FailedGetResourceMetric")
    assert plan(served(4), asks(6), asks(None)).desired == 6


def test_without_data_nothing_changes() -> None:
    made = plan(served(4), asks(None, problem="no pod has a measurement"))
    assert made.desired == 4
    assert condition_of(made, "ScalingActive") == ("False", "FailedGetResourceMetric")


def test_a_target_scaled_to_zero_stays_at_zero() -> None:
    made = plan(served(0), asks(5))
    assert made.desired == 0
    assert condition_of(made, "ScalingActive") == ("False", "ScalingDisabled")


def test_a_size_out_of_bounds_goes_to_the_bound_whatever_the_metrics_are() -> None:
    assert plan(served(1), asks(None), of=spec(3, 10)).desired == 3
    made = plan(served(20), asks(None), of=spec(3, 10))
    assert made.desired == 10
    assert condition_of(made, "ScalingLimited") == ("True", "TooManyReplicas")


def test_a_raised_bound_is_reached_although_replicas_are_pending() -> None:
    blocked = pending(2, 1, PendingReason(stage="queued", reason="Unschedulable", count=1))
    assert plan(blocked, asks(2), of=spec(5, 10)).desired == 5


# -- stabilisation ---------------------------------------------------------------------------------


def test_it_scales_down_only_to_the_largest_advice_in_the_window() -> None:
    past = (ScalingAdvice(since=ago(400), low=9, high=9), ScalingAdvice(since=ago(200), low=6, high=6))
    made = plan(served(10), asks(2), status=AutoscalerStatus(advice=past))
    # 9 was the advice until 200 s ago, which is within the window of 300 s.
    assert made.desired == 9
    assert condition_of(made, "AbleToScale") == ("True", "ScaleDownStabilized")
    later = plan(served(10), asks(2), status=AutoscalerStatus(advice=past), now=NOW + timedelta(seconds=101))
    assert later.desired == 6


def test_it_scales_up_only_to_the_smallest_advice_in_the_window() -> None:
    rules = ScalingRules(stabilization_window_seconds=60)
    past = (ScalingAdvice(since=ago(300), low=3, high=3), ScalingAdvice(since=ago(30), low=8, high=8))
    made = plan(served(3), asks(6), of=spec(scale_up=rules), status=AutoscalerStatus(advice=past))
    assert made.desired == 3
    assert condition_of(made, "AbleToScale") == ("True", "ScaleUpStabilized")
    later = plan(
        served(3), asks(6), of=spec(scale_up=rules), status=AutoscalerStatus(advice=past),
        now=NOW + timedelta(seconds=31),
    )  # fmt: skip
    assert later.desired == 6


def test_an_autoscaler_without_history_assumes_the_current_size_as_advice() -> None:
    """After a restart that lost all history, the size is not reduced at once."""
    first = plan(served(10), asks(2))
    status = written(first, AutoscalerStatus())
    assert [(each.low, each.high) for each in status.advice] == [(10, 10), (2, 2)]
    soon = plan(served(10), asks(2), status=status, now=NOW + timedelta(seconds=299))
    assert soon.desired == 10


def test_the_last_advice_is_valid_while_no_controller_runs() -> None:
    """No reconcile for an hour: the advice meanwhile is unknown, and the last one is valid until now."""
    past = (ScalingAdvice(since=ago(3600), low=9, high=9),)
    assert plan(served(9), asks(2), status=AutoscalerStatus(advice=past)).desired == 9


def test_repeated_advice_adds_nothing() -> None:
    first = written(plan(served(4), asks(4)), AutoscalerStatus())
    again = plan(served(4), asks(4), status=first, now=NOW + timedelta(seconds=15))
    assert again.as_json()["advice"] == plan(served(4), asks(4)).as_json()["advice"]


def test_advice_in_the_future_does_not_block() -> None:
    past = (ScalingAdvice(since=ago(-86_400), low=50, high=50),)
    made = plan(served(10), asks(2), status=AutoscalerStatus(advice=past))
    status = written(made, AutoscalerStatus(advice=past))
    later = plan(served(10), asks(2), status=status, now=NOW + timedelta(seconds=301))
    assert later.desired == 2


# -- rates -----------------------------------------------------------------------------------------


def policy(type_: str, value: int, period_s: int = 60) -> ScalingPolicy:
    return ScalingPolicy(type=type_, value=value, period_seconds=period_s)


@pytest.mark.parametrize(
    ("select", "size"),
    [("Max", 15), ("Min", 12), ("Disabled", 10)],
)
def test_of_several_policies_up_the_one_selected_decides(select: str, size: int) -> None:
    rules = ScalingRules(
        stabilization_window_seconds=0, select_policy=select, policies=(policy("Pods", 2), policy("Percent", 50))
    )
    made = plan(served(10), asks(50), of=spec(scale_up=rules))
    assert made.desired == size
    assert condition_of(made, "ScalingLimited") == ("True", "ScaleUpLimit")


@pytest.mark.parametrize(
    ("select", "size"),
    [("Max", 5), ("Min", 8), ("Disabled", 10)],
)
def test_of_several_policies_down_the_one_selected_decides(select: str, size: int) -> None:
    rules = ScalingRules(
        stabilization_window_seconds=0, select_policy=select, policies=(policy("Pods", 2), policy("Percent", 50))
    )
    made = plan(served(10), asks(1), of=spec(scale_down=rules))
    assert made.desired == size
    assert condition_of(made, "ScalingLimited") == ("True", "ScaleDownLimit")


def test_a_rate_counts_the_changes_within_its_period() -> None:
    rules = ScalingRules(stabilization_window_seconds=0, policies=(policy("Pods", 4, 60),))
    status = AutoscalerStatus(scaling_events=(ScalingEvent(time=ago(30), before=6, after=9),))
    assert plan(served(9), asks(50), of=spec(scale_up=rules), status=status).desired == 10
    assert (
        plan(
            served(9), asks(50), of=spec(scale_up=rules), status=status, now=NOW + timedelta(seconds=31)
        ).desired
        == 13
    )  # fmt: skip


def test_a_change_that_was_recorded_and_never_made_is_not_counted() -> None:
    rules = ScalingRules(stabilization_window_seconds=0, policies=(policy("Pods", 4, 60),))
    status = AutoscalerStatus(scaling_events=(ScalingEvent(time=ago(30), before=6, after=10),))
    assert plan(served(6), asks(50), of=spec(scale_up=rules), status=status).desired == 10


def test_without_behaviour_it_grows_by_four_or_doubles_as_kubernetes_does() -> None:
    assert plan(served(1), asks(50)).desired == 5
    assert plan(served(8), asks(50)).desired == 16


def test_the_recorded_history_is_bounded_and_merging_is_conservative() -> None:
    status = AutoscalerStatus()
    rules = ScalingRules(stabilization_window_seconds=3600)
    for n in range(40):
        wanted = 5 + (n * 7) % 11
        made = plan(
            served(10), asks(wanted), of=spec(scale_down=rules, scale_up=rules), status=status,
            now=NOW + timedelta(seconds=n),
        )  # fmt: skip
        status = written(made, status)
    assert len(status.advice) <= LIMITS.history_max
    assert min(each.low for each in status.advice) == 5
    assert max(each.high for each in status.advice) == 15


# -- not adding to what is behind ------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["Unschedulable", "WaitingForScheduler", "ZoneQuota", "TopologySpread"])
@pytest.mark.parametrize("stage", ["admitted", "queued", "scheduled"])
def test_replicas_without_a_node_prevent_scaling_up(stage: str, reason: str) -> None:
    made = plan(pending(6, 4, PendingReason(stage=stage, reason=reason, count=2)), asks(9))
    assert made.desired == 6
    assert condition_of(made, "ScalingHeldBack") == ("True", "ReplicasPending")
    message = next(each for each in made.conditions if each["type"] == "ScalingHeldBack")["message"]
    assert f"2 {stage} ({reason})" in message


def test_replicas_that_a_quota_refused_prevent_scaling_up() -> None:
    made = plan(served(4, failure="exceeded quota: limits"), asks(9))
    assert made.desired == 4
    assert condition_of(made, "ScalingHeldBack") == ("True", "ReplicasRefused")


def test_a_stale_cache_prevents_scaling_up_but_not_down() -> None:
    made = plan(served(4, stale="Pod"), asks(9))
    assert made.desired == 4
    assert condition_of(made, "ScalingHeldBack") == ("True", "CacheStale")


def test_a_target_that_has_not_observed_its_last_size_prevents_scaling_up() -> None:
    made = plan(served(4, observed=False), asks(9))
    assert made.desired == 4
    assert condition_of(made, "ScalingHeldBack") == ("True", "TargetNotObserved")


def test_replicas_on_silent_nodes_prevent_scaling_up_while_the_nodes_may_return() -> None:
    progress = WorkloadProgress(desired=6, stages=StageCounts(serving=4), unknown=2, observed_generation=1)
    made = plan(TargetFacts(replicas=6, ready=4, progress=progress, undecided=2), asks(9))
    assert made.desired == 6
    assert condition_of(made, "ScalingHeldBack") == ("True", "ReplicasUnknown")
    # A zone that stays cut off must not stop the others from growing, and its replicas are not missing.
    assert plan(TargetFacts(replicas=6, ready=4, progress=progress), asks(9)).desired == 9


def test_replicas_that_are_not_created_yet_prevent_scaling_up() -> None:
    made = plan(pending(6, 4), asks(9))
    assert made.desired == 6
    assert condition_of(made, "ScalingHeldBack") == ("True", "ReplicasPending")


def test_starting_replicas_count_towards_the_bound() -> None:
    starting = pending(12, 4, PendingReason(stage="starting", reason="ContainersNotReady", count=8))
    made = plan(starting, asks(30))
    assert made.desired == 4 + LIMITS.unserved_max
    assert condition_of(made, "ScalingHeldBack") == ("True", "UnservedReplicas")


def test_it_does_not_scale_up_right_after_the_last_change() -> None:
    status = AutoscalerStatus(last_scale_time=ago(14))
    made = plan(served(4), asks(9), status=status)
    assert made.desired == 4
    assert condition_of(made, "ScalingHeldBack") == ("True", "CoolingDown")
    assert plan(served(4), asks(9), status=status, now=NOW + timedelta(seconds=1)).desired == 8
    ahead = AutoscalerStatus(last_scale_time=ago(-3600))
    assert plan(served(4), asks(8), status=ahead).desired == 8


def test_it_may_scale_down_whatever_is_missing() -> None:
    blocked = pending(6, 4, PendingReason(stage="queued", reason="Unschedulable", count=2))
    past = (ScalingAdvice(since=ago(301), low=4, high=4),)
    assert plan(blocked, asks(4), status=AutoscalerStatus(advice=past)).desired == 4


# -- always ----------------------------------------------------------------------------------------

counts = st.integers(0, 40)
reasons = st.builds(
    PendingReason,
    stage=st.sampled_from(["queued", "bound", "starting"]),
    reason=st.just("Why"),
    count=st.integers(1, 9),
)
rules = st.none() | st.builds(
    ScalingRules,
    stabilization_window_seconds=st.none() | st.integers(0, 600),
    select_policy=st.sampled_from(["Max", "Min", "Disabled"]),
    policies=st.lists(
        st.builds(
            ScalingPolicy,
            type=st.sampled_from(["Pods", "Percent"]),
            value=st.integers(1, 200),
            period_seconds=st.integers(1, 1800),
        ),
        max_size=3,
    ).map(tuple),
)
times = st.none() | st.integers(-100_000, 100_000).map(ago)
statuses = st.builds(
    AutoscalerStatus,
    last_scale_time=times,
    advice=st.lists(st.builds(ScalingAdvice, since=times, low=counts, high=counts), max_size=5).map(tuple),
    scaling_events=st.lists(st.builds(ScalingEvent, time=times, before=counts, after=counts), max_size=5).map(tuple),
)


@given(
    ready=counts,
    why=st.lists(reasons, max_size=3),
    missing=st.integers(0, 3),
    asked=st.lists(st.none() | counts, min_size=1, max_size=3),
    least=st.integers(1, 10),
    more=st.integers(0, 60),
    up=rules,
    down=rules,
    status=statuses,
)
def test_for_any_input_it_keeps_its_bounds_and_gives_a_reason(
    ready: int,
    why: list[PendingReason],
    missing: int,
    asked: list[int | None],
    least: int,
    more: int,
    up: ScalingRules | None,
    down: ScalingRules | None,
    status: AutoscalerStatus,
) -> None:
    current = ready + sum(each.count for each in why) + missing
    target = pending(current, ready, *why)
    of = AutoscalerSpec(
        min_replicas=least, max_replicas=least + more, behavior=ScalingBehavior(scale_up=up, scale_down=down)
    )
    made = plan_scaling(of, status, target, [asks(each) for each in asked], LIMITS, NOW)
    desired = made.desired
    if current == 0:
        assert desired == 0
        return
    if desired != current:
        assert least <= desired <= least + more
    if least <= current:
        # The bound: never more than so many beyond the ready replicas.
        assert desired <= max(current, ready + LIMITS.unserved_max)
    if desired > current >= least:
        assert any(each is not None and each > current for each in asked)
        assert not any(each.stage == "queued" for each in why)
        assert missing == 0
    if desired < current <= least + more:
        assert all(each is not None and each < current for each in asked)
    highest = max((each for each in asked if each is not None), default=current)
    if desired < min(highest, least + more) and least <= current <= least + more:
        statuses = {each["type"]: each["status"] for each in made.conditions}
        assert (
            "True" in (statuses.get("ScalingHeldBack"), statuses.get("ScalingLimited"))
            or any(each["reason"] == "ScaleUpStabilized" for each in made.conditions)
            or statuses.get("ScalingActive") == "False"
        )
    assert len(made.events) <= LIMITS.history_max
    assert len(made.advice) <= max(LIMITS.history_max, len(status.advice))

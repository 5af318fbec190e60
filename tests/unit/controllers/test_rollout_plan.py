"""The plan of a rollout: stage by stage behind its gates, paused by deadlines, rolled back by regressions alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, a_set, ago

from kedge.api.views.kedge_dev import (
    PendingCount,
    RolloutBaseline,
    RolloutGates,
    RolloutSpec,
    RolloutStage,
    RolloutStatus,
)
from kedge.controllers.deployment.plan import RollingBounds, plan_scales
from kedge.controllers.rollout.gates import CacheFact, GateFacts, SampleOutcome
from kedge.controllers.rollout.plan import (
    RollbackCapacity,
    RolloutAction,
    RolloutFacts,
    RolloutPhase,
    RolloutPlan,
    TargetState,
    plan_rollout,
)
from kedge.controllers.rollout.target import replacing

STAGES = (RolloutStage(name="canary", hold_seconds=60), RolloutStage(name="half", hold_seconds=0))
SPEC = RolloutSpec(stages=STAGES, gates=RolloutGates(min_samples=1), progress_deadline_seconds=600)
CACHES = (CacheFact("Pod", 500, 1.0),)
GOOD = GateFacts(100, CACHES, (SampleOutcome.GOOD,))
SILENT = GateFacts(100, CACHES)
WORSE = GateFacts(100, CACHES, (SampleOutcome.GOOD,), pending={("queued", "Unschedulable"): 3})
BASELINES = (RolloutBaseline(name="canary", pending=(PendingCount(stage="queued", reason="X", count=1),)),)


def under_way(**more: Any) -> RolloutStatus:
    statuses: dict[str, Any] = {
        "change": "v5",
        "phase": "Progressing",
        "activation_revision": 100,
        "stage_started_at": ago(100),
        "observed_generation": 1,
        "baselines": BASELINES,
    }
    return RolloutStatus(**{**statuses, **more})


def look(status: RolloutStatus, gates: GateFacts = GOOD, *, spec: RolloutSpec = SPEC, **more: Any) -> RolloutPlan:
    facts: dict[str, Any] = {"target_state": TargetState.STAGED, "change": "v5", "generation": 1, "now": NOW, **more}
    return plan_rollout(RolloutFacts(spec, status, gates=gates, **facts))


# -- beginning -------------------------------------------------------------------------------------


def test_the_baseline_is_recorded_before_anything_is_changed() -> None:
    made = look(RolloutStatus(), target_state=TargetState.ORIGINAL, baselines=BASELINES)
    assert (made.phase, made.act, made.begins) == (RolloutPhase.PROGRESSING, RolloutAction.NONE, True)
    assert made.baselines == BASELINES
    assert made.activation_revision == 0


@pytest.mark.parametrize("caches", [(), (CacheFact("Pod", 500, 61.0),)])
def test_no_baseline_is_taken_on_old_caches(caches: tuple[CacheFact, ...]) -> None:
    made = look(RolloutStatus(), GateFacts(0, caches), target_state=TargetState.ORIGINAL)
    assert (made.phase, made.reason, made.begins) == (RolloutPhase.PENDING, "CacheStale", False)


@pytest.mark.parametrize("target_state", [TargetState.FOREIGN, TargetState.STAGED, TargetState.MISSING])
def test_a_rollout_waits_for_a_missing_target_and_for_another_change(target_state: TargetState) -> None:
    made = look(RolloutStatus(), target_state=target_state)
    assert (made.phase, made.act) == (RolloutPhase.PENDING, RolloutAction.NONE)


def test_a_change_that_is_already_active_is_complete() -> None:
    assert look(RolloutStatus(), target_state=TargetState.PROMOTED).phase is RolloutPhase.COMPLETE


def test_a_changed_rollout_rolls_its_previous_change_back_first() -> None:
    made = look(under_way(change="v4"), target_state=TargetState.ELSEWHERE)
    assert (made.act, made.reason, made.change) == (RolloutAction.ROLL_BACK, "Superseding", "v4")
    waiting = under_way(change="v4", phase="Pending")
    assert look(waiting, target_state=TargetState.ORIGINAL).reason == "Superseding"
    assert look(waiting, target_state=TargetState.ORIGINAL, rolled_back=True).begins


def test_after_a_complete_rollout_the_next_change_starts_from_the_first_stage() -> None:
    assert look(under_way(change="v4", phase="Complete", stage=2), target_state=TargetState.ORIGINAL).begins


# -- stages ----------------------------------------------------------------------------------------


def test_a_stage_that_is_not_active_is_activated() -> None:
    made = look(under_way(activation_revision=0), target_state=TargetState.ORIGINAL)
    assert (made.act, made.stage) == (RolloutAction.ACTIVATE, 0)


def test_an_unrecorded_activation_counts_from_now() -> None:
    made = look(under_way(activation_revision=0), target_revision=321)
    assert (made.act, made.activation_revision, made.stage_started_at) == (RolloutAction.NONE, 321, NOW)


def test_gates_must_stay_open_for_the_hold_of_the_stage() -> None:
    first = look(under_way())
    assert (first.stage, first.healthy_since, first.reason) == (0, NOW, "GatesOpen")
    assert look(under_way(healthy_since=ago(59))).stage == 0
    passed = look(under_way(healthy_since=ago(60)))
    assert (passed.stage, passed.activation_revision, passed.healthy_since) == (1, 0, None)


def test_a_gate_that_shuts_restarts_the_hold() -> None:
    assert look(under_way(healthy_since=ago(59)), SILENT).healthy_since is None


def test_without_data_a_stage_waits() -> None:
    made = look(under_way(healthy_since=ago(3600)), SILENT)
    assert (made.phase, made.reason, made.stage, made.act) == (RolloutPhase.HOLDING, "NoData", 0, RolloutAction.NONE)


def test_after_the_last_stage_the_change_is_promoted_then_complete() -> None:
    passed = look(under_way(stage=1))
    assert passed.stage == 2
    promoting = look(under_way(stage=2, activation_revision=0))
    assert promoting.act is RolloutAction.PROMOTE
    done = look(under_way(stage=2, activation_revision=0), target_state=TargetState.PROMOTED)
    assert (done.phase, done.act, done.requeues) == (RolloutPhase.COMPLETE, RolloutAction.NONE, False)


def test_a_target_that_another_writer_changed_is_left_alone() -> None:
    made = look(under_way(), target_state=TargetState.FOREIGN)
    assert (made.phase, made.reason, made.act) == (RolloutPhase.PAUSED, "TargetChanged", RolloutAction.NONE)


def test_a_person_can_pause_and_resume() -> None:
    paused = msgspec.structs.replace(SPEC, paused=True)
    assert look(under_way(healthy_since=ago(90)), spec=paused).phase is RolloutPhase.PAUSED
    assert look(under_way(), WORSE, spec=paused).act is RolloutAction.NONE
    again = look(under_way(phase="Paused", reason="PausedByPerson"))
    assert (again.phase, again.stage_started_at) == (RolloutPhase.PROGRESSING, NOW)


# -- deadline --------------------------------------------------------------------------------------


def test_after_its_deadline_it_pauses_and_does_not_roll_back() -> None:
    late = under_way(stage_started_at=ago(600))
    made = look(late, SILENT)
    assert (made.phase, made.reason, made.act) == (RolloutPhase.PAUSED, "DeadlineExceeded", RolloutAction.NONE)
    paused = under_way(phase="Paused", reason="DeadlineExceeded", stage_started_at=ago(99_999))
    assert look(paused, SILENT).phase is RolloutPhase.PAUSED
    assert look(paused, GOOD).phase is RolloutPhase.PAUSED


def test_the_deadline_of_a_changed_rollout_restarts() -> None:
    paused = under_way(phase="Paused", reason="DeadlineExceeded", stage_started_at=ago(99_999))
    made = look(paused, SILENT, generation=2)
    assert (made.phase, made.stage_started_at) == (RolloutPhase.HOLDING, NOW)


def test_a_time_in_the_future_does_not_block() -> None:
    made = look(under_way(stage_started_at=ago(-86_400)), SILENT)
    assert made.stage_started_at == NOW


# -- regression ------------------------------------------------------------------------------------


def test_a_regression_rolls_back_once_it_has_lasted() -> None:
    first = look(under_way(), WORSE)
    assert (first.phase, first.reason, first.regressing_since) == (RolloutPhase.HOLDING, "Regressing", NOW)
    lasting = look(under_way(regressing_since=ago(30)), WORSE)
    assert (lasting.phase, lasting.act, lasting.rollback_observed) == (
        RolloutPhase.ROLLING_BACK,
        RolloutAction.ROLL_BACK,
        False,
    )
    over = look(under_way(regressing_since=ago(29)), GOOD)
    assert over.regressing_since is None


def test_a_regression_pauses_if_the_spec_requests_that() -> None:
    spec = msgspec.structs.replace(SPEC, on_regression="Pause")
    made = look(under_way(regressing_since=ago(30)), WORSE, spec=spec)
    assert (made.phase, made.reason, made.act) == (RolloutPhase.PAUSED, "Regressed", RolloutAction.NONE)
    stays = look(under_way(phase="Paused", reason="Regressed", regressing_since=ago(900)), WORSE, spec=spec)
    assert (stays.phase, stays.act) == (RolloutPhase.PAUSED, RolloutAction.NONE)


def test_a_regression_rolls_back_a_rollout_that_a_deadline_paused() -> None:
    paused = under_way(phase="Paused", reason="DeadlineExceeded", regressing_since=ago(30))
    assert look(paused, WORSE).act is RolloutAction.ROLL_BACK


def test_a_rollback_is_complete_when_it_is_observed_not_when_it_is_requested() -> None:
    back = under_way(phase="RollingBack")
    asked = look(back, target_state=TargetState.ORIGINAL)
    assert (asked.phase, asked.rollback_observed) == (RolloutPhase.ROLLING_BACK, False)
    seen = look(back, target_state=TargetState.ORIGINAL, rolled_back=True)
    assert (seen.phase, seen.rollback_observed) == (RolloutPhase.ROLLED_BACK, True)
    statuses = {each["type"]: each["status"] for each in seen.as_json()["conditions"]}
    assert statuses["RollbackObserved"] == "True"


def test_a_rollback_does_not_replace_the_only_healthy_capacity() -> None:
    back = under_way(phase="RollingBack")
    alone = RollbackCapacity(healthy_before=0, healthy_changed=2, kept=0)
    made = look(back, capacity=alone)
    assert (made.phase, made.reason, made.act) == (RolloutPhase.ROLLING_BACK, "OnlyHealthyCapacity", RolloutAction.NONE)
    assert look(back, capacity=replace(alone, healthy_before=1)).act is RolloutAction.ROLL_BACK
    assert look(back, capacity=replace(alone, kept=1)).act is RolloutAction.ROLL_BACK
    assert look(back, capacity=replace(alone, healthy_changed=0)).act is RolloutAction.ROLL_BACK


def test_a_rollback_keeps_the_minimum_of_the_disruption_budgets() -> None:
    back = under_way(phase="RollingBack")
    budgeted = RollbackCapacity(healthy_before=1, healthy_changed=3, kept=1, floor=3)
    assert look(back, capacity=budgeted).act is RolloutAction.NONE
    assert look(back, capacity=replace(budgeted, kept=3)).act is RolloutAction.ROLL_BACK


# -- always ----------------------------------------------------------------------------------------


@dataclass
class RolloutModel:
    """A target and a status, changed only by the plan, as the controller would."""

    status: RolloutStatus
    now: datetime
    staged: int | None = None
    """The active stage; None for none, and one more than the last for all."""
    revision: int = 100

    def target_state(self) -> TargetState:
        if self.staged is None:
            return TargetState.ORIGINAL
        if self.staged >= len(STAGES):
            return TargetState.PROMOTED
        return TargetState.STAGED if self.staged == min(self.status.stage, len(STAGES) - 1) else TargetState.ELSEWHERE

    def step(self, gates: GateFacts, capacity: RollbackCapacity, *, crash: bool) -> RolloutPlan:
        seen = replace(gates, activation_revision=self.status.activation_revision)
        facts = RolloutFacts(
            SPEC, self.status, 1, "v5", self.target_state(), self.now, target_revision=self.revision, gates=seen,
            capacity=capacity, rolled_back=self.staged is None,
        )  # fmt: skip
        plan = plan_rollout(facts)
        statuses = {**plan.as_json(), **plan.times_as_json(), "observedGeneration": 1}
        self.status = msgspec.convert(
            {name: value for name, value in statuses.items() if value is not None and name != "conditions"},
            RolloutStatus,
        )
        if crash:
            return plan
        if plan.act is RolloutAction.ACTIVATE:
            self.revision += 10
            self.staged = plan.stage
            self.status = msgspec.structs.replace(self.status, activation_revision=self.revision)
        elif plan.act is RolloutAction.PROMOTE:
            self.staged = len(STAGES)
        elif plan.act is RolloutAction.ROLL_BACK:
            self.staged = None
        return plan


outcomes = st.lists(st.sampled_from(list(SampleOutcome)), max_size=3).map(tuple)
pendings: st.SearchStrategy[Mapping[tuple[str, str], int]] = st.sampled_from(
    [{}, {}, {("queued", "WaitingForScheduler"): 2}, {("queued", "Unschedulable"): 2}]
)
looks = st.tuples(
    st.integers(1, 120),
    outcomes,
    pendings,
    st.integers(80, 200),
    st.booleans(),
    st.sampled_from([RollbackCapacity(), RollbackCapacity(healthy_changed=2), RollbackCapacity(1, 1)]),
)


@given(st.lists(looks, min_size=1, max_size=30))
def test_it_progresses_only_with_data_and_rolls_back_only_on_a_regression(
    story: list[tuple[int, tuple[SampleOutcome, ...], Mapping[tuple[str, str], int], int, bool, RollbackCapacity]],
) -> None:
    model = RolloutModel(RolloutStatus(), NOW)
    for seconds, samples, pending, revision, crash, capacity in story:
        model.now += timedelta(seconds=seconds)
        before, staged = model.status, model.staged
        gates = GateFacts(0, (CacheFact("Pod", revision, 1.0),), samples, pending=pending)
        plan = model.step(gates, capacity, crash=crash)
        worse = ("queued", "Unschedulable") in pending
        if plan.stage > before.stage:
            assert SampleOutcome.GOOD in samples
            assert SampleOutcome.ERROR not in samples
            assert revision >= before.activation_revision > 0
            assert not worse
        if plan.act is RolloutAction.ROLL_BACK:
            assert capacity.is_safe
            assert before.phase == "RollingBack" or (worse and before.regressing_since is not None)
        if model.staged is not None and staged is None:
            assert before.change == "v5", "the baseline was not on record when the target was changed"
        if before.phase in ("Complete", "RolledBack"):
            assert plan.act is RolloutAction.NONE
        if plan.phase is RolloutPhase.ROLLED_BACK:
            assert model.staged is None


# -- what the plans lean on ------------------------------------------------------------------------


def test_a_deployment_updates_no_more_replicas_than_its_cap() -> None:
    bounds = RollingBounds(surge=1, unavailable=0)
    first = plan_scales(4, bounds, new=None, old=[a_set("old", 4)], updated_max=2)
    assert first.first_size == 1
    grown = plan_scales(4, bounds, new=a_set("new", 2), old=[a_set("old", 2)], updated_max=2)
    assert grown.sizes == {}
    assert grown.waits_for == "the next stage of its rollout"
    freed = plan_scales(4, bounds, new=a_set("new", 2), old=[a_set("old", 2)])
    assert freed.sizes == {"new": 3}


@given(
    st.integers(1, 8), st.integers(0, 3), st.integers(0, 3), st.integers(1, 8), st.integers(0, 8), st.integers(0, 12)
)
def test_a_cap_is_never_exceeded_and_the_other_replicas_stay_old(
    desired: int, surge: int, unavailable: int, cap: int, new: int, old: int
) -> None:
    bounds = RollingBounds(surge, unavailable if surge or unavailable else 1)
    made = plan_scales(desired, bounds, new=a_set("new", new), old=[a_set("old", old)], updated_max=cap)
    sizes = {"new": new, "old": old, **made.sizes}
    if new <= desired:
        assert sizes["new"] <= max(new, cap)
        if sizes["old"] < old:
            assert sizes["old"] >= desired - max(cap, new)


def test_a_replacing_merge_patch_removes_the_old_fields() -> None:
    there = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    wanted = {"b": {"c": 3}, "e": [2], "f": 4}
    assert replacing(there, wanted) == {"a": None, "b": {"c": 3, "d": None}, "e": [2], "f": 4}

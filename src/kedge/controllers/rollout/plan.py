"""The plan of a rollout: its phase, the next write to its target, and its status. Pure.

One stage after another, each behind its gates. A deadline pauses; a lasting regression rolls back; nothing progresses
without data. All state is in the status, written before the target. `controller` carries the plan out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from kedge.api.conditions import condition
from kedge.api.timestamps import format_micro_time
from kedge.api.views.kedge_dev import RolloutBaseline, RolloutSpec, RolloutStatus
from kedge.controllers.rollout.gates import GateEvaluation, GateFacts, GateResult, GateStatus, evaluate_gates, too_old
from kedge.controllers.shared.pods import is_ahead
from kedge.errors import check

PROGRESSING, ROLLBACK_OBSERVED = "Progressing", "RollbackObserved"


class RolloutPhase(StrEnum):
    PENDING = "Pending"
    PROGRESSING = "Progressing"
    HOLDING = "Holding"
    PAUSED = "Paused"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    COMPLETE = "Complete"


class TargetState(StrEnum):
    """The state of the target with respect to the change."""

    MISSING = "missing"
    ORIGINAL = "original"
    """As before the change."""
    STAGED = "staged"
    """The change is active exactly as the current stage specifies."""
    ELSEWHERE = "elsewhere"
    """The change is active as another stage specifies."""
    PROMOTED = "promoted"
    """The change is active everywhere."""
    FOREIGN = "foreign"
    """Another writer has changed it."""


class RolloutAction(StrEnum):
    NONE = ""
    ACTIVATE = "activate"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class RollbackCapacity:
    """The healthy replicas that a rollback would replace. A policy's rollback replaces none: that is the default."""

    healthy_before: int = 0
    """Available replicas of the previous template."""
    healthy_changed: int = 0
    """Available replicas of any other template: a rollback replaces them."""
    kept: int = 0
    """How many available replicas the strategy of the target always keeps."""
    floor: int = 1
    """The minimum of the disruption budgets; at least one."""

    @property
    def is_safe(self) -> bool:
        """Whether the minimum of healthy replicas, as far as they exist, stays throughout a rollback."""
        there = self.healthy_before + self.healthy_changed
        least = min(self.floor, there)
        return self.healthy_changed == 0 or self.healthy_before >= least or self.kept >= least


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """The input of a plan."""

    spec: RolloutSpec
    status: RolloutStatus
    generation: int
    change: str
    """A digest of the change."""
    target_state: TargetState
    now: datetime
    target_revision: int = 0
    rolled_back: bool = False
    """The target is as before the change, and its controllers have observed that."""
    problem: str = ""
    """Why this rollout is impossible; empty if it is possible."""
    gates: GateFacts = field(default_factory=GateFacts)
    baselines: tuple[RolloutBaseline, ...] = ()
    """The pending pods in the scope of each stage now."""
    capacity: RollbackCapacity = field(default_factory=RollbackCapacity)
    regress_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The status to write, then the write to the target."""

    phase: RolloutPhase
    reason: str
    message: str = ""
    act: RolloutAction = RolloutAction.NONE
    stage: int = 0
    activation_revision: int = 0
    stage_started_at: datetime | None = None
    healthy_since: datetime | None = None
    regressing_since: datetime | None = None
    baselines: tuple[RolloutBaseline, ...] = ()
    gates: tuple[GateStatus, ...] = ()
    change: str = ""
    begins: bool = False
    """The first status of this change: the state to roll back to is recorded with it."""
    rollback_observed: bool | None = None
    """None if there was no rollback."""
    requeues: bool = True
    """The plan may change without an event."""

    def times_as_json(self) -> dict[str, str | None]:
        """Patched explicitly, before the rest of the status: if they are lost, a stage only takes longer."""
        return {
            "stageStartedAt": _time(self.stage_started_at),
            "healthySince": _time(self.healthy_since),
            "regressingSince": _time(self.regressing_since),
        }

    def as_json(self) -> dict[str, Any]:
        moving = self.phase in (RolloutPhase.PROGRESSING, RolloutPhase.HOLDING, RolloutPhase.COMPLETE)
        conditions = [condition(PROGRESSING, status=moving, reason=self.reason, message=self.message)]
        if self.rollback_observed is not None:
            reason = "SeenInForce" if self.rollback_observed else self.reason
            conditions.append(
                condition(ROLLBACK_OBSERVED, status=self.rollback_observed, reason=reason, message=self.message)
            )
        return {
            "change": self.change,
            "phase": str(self.phase),
            "stage": self.stage,
            "activationRevision": self.activation_revision,
            "baselines": [
                {
                    "name": each.name,
                    "pending": [{"stage": p.stage, "reason": p.reason, "count": p.count} for p in each.pending],
                }
                for each in self.baselines
            ],
            "gates": [each.as_json() for each in self.gates],
            "reason": self.reason,
            "message": self.message,
            "conditions": conditions,
        }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_micro_time(moment)


def plan_rollout(facts: RolloutFacts) -> RolloutPlan:
    """The next step."""
    check(bool(facts.spec.stages), "admission rejects a rollout without stages")
    status = facts.status
    if status.change != facts.change:
        return _begin(facts)
    match RolloutPhase(status.phase or "Pending"):
        case RolloutPhase.COMPLETE | RolloutPhase.ROLLED_BACK:
            return _stay(facts)
        case RolloutPhase.ROLLING_BACK:
            return _roll_back(facts, _unchanged(facts))
        case RolloutPhase.PENDING | RolloutPhase.PROGRESSING | RolloutPhase.HOLDING | RolloutPhase.PAUSED:
            return _progress(facts)


def _unchanged(facts: RolloutFacts) -> RolloutPlan:
    """The plan that changes nothing."""
    status = facts.status
    gates = tuple(GateStatus(each.name, each.status, each.reason, each.message) for each in status.gates)
    return RolloutPlan(
        RolloutPhase(status.phase or "Pending"),
        status.reason,
        status.message,
        stage=status.stage,
        activation_revision=status.activation_revision,
        stage_started_at=_not_ahead(status.stage_started_at, facts.now),
        healthy_since=_not_ahead(status.healthy_since, facts.now),
        regressing_since=_not_ahead(status.regressing_since, facts.now),
        baselines=status.baselines,
        gates=gates,
        change=status.change,
    )


def _not_ahead(moment: datetime | None, now: datetime) -> datetime | None:
    """A time that only a wrong clock can have written becomes now: no controller waits for it."""
    return now if moment is not None and is_ahead(moment, now) else moment


def _stay(facts: RolloutFacts) -> RolloutPlan:
    kept = _unchanged(facts)
    observed = True if kept.phase is RolloutPhase.ROLLED_BACK else None
    return replace(kept, rollback_observed=observed, requeues=False)


# -- start -----------------------------------------------------------------------------------------


def _begin(facts: RolloutFacts) -> RolloutPlan:
    """Take the baseline before anything is changed. A previous change that is still active is taken back first."""
    over = facts.status.phase in (RolloutPhase.COMPLETE, RolloutPhase.ROLLED_BACK)
    wait = RolloutPlan(RolloutPhase.PENDING, "", change="" if over else facts.status.change)
    if facts.problem:
        return replace(wait, reason="NotPossible", message=facts.problem)
    if facts.spec.paused:
        return replace(wait, reason="PausedByPerson")
    match facts.target_state:
        case TargetState.MISSING:
            return replace(wait, reason="TargetMissing")
        case TargetState.PROMOTED:
            return replace(
                wait, phase=RolloutPhase.COMPLETE, reason="AlreadyInForce", change=facts.change, requeues=False
            )
        case TargetState.STAGED | TargetState.ELSEWHERE if facts.status.change:
            return _supersede(facts, wait)
        case TargetState.FOREIGN | TargetState.STAGED | TargetState.ELSEWHERE:
            return replace(wait, reason="TargetTaken", message="another change of the target is under way")
        case TargetState.ORIGINAL:
            if facts.status.change and facts.status.phase == RolloutPhase.PENDING and not facts.rolled_back:
                return replace(wait, reason="Superseding", message="the previous change is being rolled back")
    caches = facts.gates.caches
    old = too_old(caches, facts.spec.gates.sample_age_seconds_max)
    if old or not caches:
        return replace(wait, reason="CacheStale", message=f"too old for a baseline: {', '.join(old)}")
    return RolloutPlan(
        RolloutPhase.PROGRESSING,
        "BaselineTaken",
        stage_started_at=facts.now,
        baselines=facts.baselines,
        change=facts.change,
        begins=True,
    )


def _supersede(facts: RolloutFacts, wait: RolloutPlan) -> RolloutPlan:
    """The target has the previous change of this rollout: roll that back first."""
    if not facts.capacity.is_safe:
        return replace(wait, reason="OnlyHealthyCapacity", message="the previous change has all healthy replicas")
    message = "the previous change is being rolled back"
    return replace(wait, reason="Superseding", message=message, act=RolloutAction.ROLL_BACK)


# -- a stage ---------------------------------------------------------------------------------------


def _progress(facts: RolloutFacts) -> RolloutPlan:
    kept = _unchanged(facts)
    if facts.problem:
        return replace(kept, phase=RolloutPhase.PAUSED, reason="NotPossible", message=facts.problem)
    if facts.target_state in (TargetState.MISSING, TargetState.FOREIGN):
        message = "another writer has changed or deleted its target: change the rollout to start again"
        return replace(kept, phase=RolloutPhase.PAUSED, reason="TargetChanged", message=message)
    if facts.spec.paused:
        return replace(kept, phase=RolloutPhase.PAUSED, reason="PausedByPerson", message="", healthy_since=None)
    if kept.phase is RolloutPhase.PAUSED:
        if kept.reason in ("DeadlineExceeded", "Regressed") and facts.generation == facts.status.observed_generation:
            return _watch_paused(facts, kept)
        # A person has changed or unpaused the rollout: the deadline of the stage starts again.
        kept = replace(
            kept,
            phase=RolloutPhase.PROGRESSING,
            reason="Resumed",
            message="",
            stage_started_at=facts.now,
            regressing_since=None,
        )
    if kept.stage >= len(facts.spec.stages):
        return _promote(facts, kept)
    if facts.target_state is not TargetState.STAGED:
        stage = facts.spec.stages[kept.stage].name
        return replace(
            kept,
            phase=RolloutPhase.PROGRESSING,
            reason="StageActivated",
            message=f"stage {stage}",
            act=RolloutAction.ACTIVATE,
            activation_revision=0,
            healthy_since=None,
            regressing_since=None,
            gates=(),
        )
    if not kept.activation_revision:
        # The stage is active, and its activation was not recorded: the current revision is late enough to be safe.
        revision = facts.target_revision
        return replace(kept, activation_revision=revision, stage_started_at=facts.now, healthy_since=None)
    return _judge(facts, kept)


def _judge(facts: RolloutFacts, kept: RolloutPlan) -> RolloutPlan:
    judgement = evaluate_gates(facts.spec.gates, facts.gates)
    kept = replace(kept, gates=judgement.gates)
    match judgement.result:
        case GateResult.REGRESSED:
            return _regressing(facts, kept, judgement)
        case GateResult.OPEN:
            return _healthy(facts, replace(kept, regressing_since=None))
        case GateResult.SHUT:
            held = replace(kept, phase=RolloutPhase.HOLDING, healthy_since=None, regressing_since=None)
            return _within_deadline(facts, _because(held, judgement))


def _because(plan: RolloutPlan, judgement: GateEvaluation) -> RolloutPlan:
    gate = judgement.shut
    return plan if gate is None else replace(plan, reason=gate.reason, message=f"{gate.name}: {gate.message}")


def _within_deadline(facts: RolloutFacts, plan: RolloutPlan) -> RolloutPlan:
    """Pause after the deadline, nothing more: a slow stage is no evidence of a regression."""
    began = plan.stage_started_at or facts.now
    if facts.now < began + timedelta(seconds=facts.spec.progress_deadline_seconds):
        return plan
    return replace(plan, phase=RolloutPhase.PAUSED, reason="DeadlineExceeded")


def _regressing(facts: RolloutFacts, kept: RolloutPlan, judgement: GateEvaluation) -> RolloutPlan:
    since = kept.regressing_since or facts.now
    kept = replace(_because(kept, judgement), phase=RolloutPhase.HOLDING, healthy_since=None, regressing_since=since)
    gate = judgement.regression
    assert gate is not None  # it is what makes the result a regression
    kept = replace(kept, message=f"{gate.name}: {gate.message}")
    if facts.now < since + timedelta(seconds=facts.regress_s):
        return _within_deadline(facts, replace(kept, reason="Regressing"))
    if facts.spec.on_regression == "Pause":
        return replace(kept, phase=RolloutPhase.PAUSED, reason="Regressed")
    return _roll_back(facts, replace(kept, phase=RolloutPhase.ROLLING_BACK, reason="Regressed"))


def _healthy(facts: RolloutFacts, kept: RolloutPlan) -> RolloutPlan:
    stage = facts.spec.stages[kept.stage]
    since = kept.healthy_since or facts.now
    if facts.now < since + timedelta(seconds=stage.hold_seconds):
        message = f"stage {stage.name}: every gate must stay open for {stage.hold_seconds} s"
        return replace(kept, phase=RolloutPhase.PROGRESSING, reason="GatesOpen", message=message, healthy_since=since)
    return replace(
        kept,
        phase=RolloutPhase.PROGRESSING,
        reason="StagePassed",
        message=f"stage {stage.name}",
        stage=kept.stage + 1,
        activation_revision=0,
        stage_started_at=facts.now,
        healthy_since=None,
    )


def _promote(facts: RolloutFacts, kept: RolloutPlan) -> RolloutPlan:
    if facts.target_state is TargetState.PROMOTED:
        return replace(kept, phase=RolloutPhase.COMPLETE, reason="Promoted", message="", requeues=False)
    return replace(kept, phase=RolloutPhase.PROGRESSING, reason="Promoting", message="", act=RolloutAction.PROMOTE)


def _watch_paused(facts: RolloutFacts, kept: RolloutPlan) -> RolloutPlan:
    """Paused by a deadline or a regression: it does not progress, but a lasting regression still rolls it back."""
    if (
        facts.target_state is not TargetState.STAGED
        or not kept.activation_revision
        or kept.stage >= len(facts.spec.stages)
    ):
        return kept
    judgement = evaluate_gates(facts.spec.gates, facts.gates)
    if judgement.result is not GateResult.REGRESSED:
        return replace(kept, gates=judgement.gates, regressing_since=None)
    plan = _regressing(facts, replace(kept, gates=judgement.gates), judgement)
    if plan.phase is RolloutPhase.ROLLING_BACK:
        return plan
    return replace(kept, gates=judgement.gates, regressing_since=plan.regressing_since)


# -- rollback --------------------------------------------------------------------------------------


def _roll_back(facts: RolloutFacts, kept: RolloutPlan) -> RolloutPlan:
    """Roll the change back, unless that would replace the only healthy capacity; done when it is observed."""
    kept = replace(kept, phase=RolloutPhase.ROLLING_BACK, healthy_since=None, rollback_observed=False)
    if facts.target_state is TargetState.ORIGINAL:
        if facts.rolled_back:
            message = "the target is as before the change"
            return replace(
                kept, phase=RolloutPhase.ROLLED_BACK, reason="RolledBack", message=message, rollback_observed=True,
                requeues=False,
            )  # fmt: skip
        return replace(kept, reason="RollbackRequested", message="rolled back, and not yet observed everywhere")
    if facts.target_state in (TargetState.MISSING, TargetState.FOREIGN):
        message = "another writer has changed the target: nothing of this rollout is left to roll back"
        return replace(kept, phase=RolloutPhase.PAUSED, reason="TargetChanged", message=message)
    if not facts.capacity.is_safe:
        message = (
            f"{facts.capacity.healthy_changed} healthy replicas have the change and {facts.capacity.healthy_before} do"
            f" not; {facts.capacity.floor} must stay, and the target's strategy keeps {facts.capacity.kept}"
        )
        return replace(kept, reason="OnlyHealthyCapacity", message=message)
    return replace(kept, reason="RollbackRequested", message=kept.message, act=RolloutAction.ROLL_BACK)

"""The plan of a rollout: where it stands, what to do to its target next, and what to say. Pure.

One stage after another, each behind its gates. A deadline pauses; a regression that lasts rolls back; nothing moves on
without data. Everything it remembers is in the status, written before the act it is about. `rollouts` carries it out.
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
    """How the target stands to the change."""

    MISSING = "missing"
    ORIGINAL = "original"
    """As it was before."""
    STAGED = "staged"
    """The change is in force as far as the present stage says, and no further."""
    ELSEWHERE = "elsewhere"
    """The change is in it, as far as another stage says."""
    PROMOTED = "promoted"
    """The change is all there is."""
    FOREIGN = "foreign"
    """Somebody else has changed it."""


class RolloutAction(StrEnum):
    NONE = ""
    ACTIVATE = "activate"
    PROMOTE = "promote"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class RollbackCapacity:
    """What a rollback could take away. A policy's takes nothing, which is what the defaults say."""

    healthy_before: int = 0
    """Available replicas of the template before."""
    healthy_changed: int = 0
    """Available replicas of any other: these a rollback replaces."""
    kept: int = 0
    """How many available replicas the target's own strategy keeps at every moment."""
    floor: int = 1
    """What disruption budgets ask for; at least one."""

    @property
    def is_safe(self) -> bool:
        """Whether healthy capacity is left throughout, as far as there is any."""
        there = self.healthy_before + self.healthy_changed
        least = min(self.floor, there)
        return self.healthy_changed == 0 or self.healthy_before >= least or self.kept >= least


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What one look found."""

    spec: RolloutSpec
    status: RolloutStatus
    generation: int
    change: str
    """A digest of what is to be rolled out."""
    target_state: TargetState
    now: datetime
    target_revision: int = 0
    rolled_back: bool = False
    """The target is as it was before, and that was seen in force."""
    problem: str = ""
    """Why this rollout cannot be carried out at all; empty if it can."""
    gates: GateFacts = field(default_factory=GateFacts)
    baselines: tuple[RolloutBaseline, ...] = ()
    """What is pending now, in the scope of each stage."""
    capacity: RollbackCapacity = field(default_factory=RollbackCapacity)
    regress_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What to write, then what to do."""

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
    """It is the first word on this change: what there is to go back to is written down with it."""
    rollback_observed: bool | None = None
    """None if there was no rollback."""
    requeues: bool = True
    """Time alone may change something."""

    def times_as_json(self) -> dict[str, str | None]:
        """Written for their own sake, and before the rest: should that be lost, a stage only takes longer."""
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
    """A time that only a wrong clock can have written is now: it cannot be waited for."""
    return now if moment is not None and is_ahead(moment, now) else moment


def _stay(facts: RolloutFacts) -> RolloutPlan:
    kept = _unchanged(facts)
    observed = True if kept.phase is RolloutPhase.ROLLED_BACK else None
    return replace(kept, rollback_observed=observed, requeues=False)


# -- beginning -------------------------------------------------------------------------------------


def _begin(facts: RolloutFacts) -> RolloutPlan:
    """Take the baseline, before anything is changed. A change that is underway under another name is waited for."""
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
                return replace(wait, reason="Superseding", message="the change before is being taken back")
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
    """What the target holds is this rollout's own, from before it was changed: that goes first, or is the baseline."""
    if not facts.capacity.is_safe:
        return replace(wait, reason="OnlyHealthyCapacity", message="the change before holds all healthy replicas")
    words = "the change before is being taken back"
    return replace(wait, reason="Superseding", message=words, act=RolloutAction.ROLL_BACK)


# -- a stage ---------------------------------------------------------------------------------------


def _progress(facts: RolloutFacts) -> RolloutPlan:
    kept = _unchanged(facts)
    if facts.problem:
        return replace(kept, phase=RolloutPhase.PAUSED, reason="NotPossible", message=facts.problem)
    if facts.target_state in (TargetState.MISSING, TargetState.FOREIGN):
        words = "its target is not what this rollout made of it: change the rollout to begin anew"
        return replace(kept, phase=RolloutPhase.PAUSED, reason="TargetChanged", message=words)
    if facts.spec.paused:
        return replace(kept, phase=RolloutPhase.PAUSED, reason="PausedByPerson", message="", healthy_since=None)
    if kept.phase is RolloutPhase.PAUSED:
        if kept.reason in ("DeadlineExceeded", "Regressed") and facts.generation == facts.status.observed_generation:
            return _watch_paused(facts, kept)
        # A person has changed the rollout, or unpaused it: the stage gets its time anew.
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
        # It is in force, and nobody wrote down since when: not later than now, which is late enough to be safe.
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
    """Past the deadline it pauses, and does nothing else: that it took long proves nothing."""
    began = plan.stage_started_at or facts.now
    if facts.now < began + timedelta(seconds=facts.spec.progress_deadline_seconds):
        return plan
    return replace(plan, phase=RolloutPhase.PAUSED, reason="DeadlineExceeded")


def _regressing(facts: RolloutFacts, kept: RolloutPlan, judgement: GateEvaluation) -> RolloutPlan:
    since = kept.regressing_since or facts.now
    kept = replace(_because(kept, judgement), phase=RolloutPhase.HOLDING, healthy_since=None, regressing_since=since)
    gate = next(each for each in judgement.gates if each.status == "False" and each.reason == "PendingIncreased")
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
        words = f"stage {stage.name}: every gate must stay open for {stage.hold_seconds} s"
        return replace(kept, phase=RolloutPhase.PROGRESSING, reason="GatesOpen", message=words, healthy_since=since)
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
    """Paused for want of progress: it goes no further by itself, but a regression that lasts still rolls it back."""
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


# -- going back ------------------------------------------------------------------------------------


def _roll_back(facts: RolloutFacts, kept: RolloutPlan) -> RolloutPlan:
    """Take the change back, unless the only healthy capacity would go with it; done when that is seen in force."""
    kept = replace(kept, phase=RolloutPhase.ROLLING_BACK, healthy_since=None, rollback_observed=False)
    if facts.target_state is TargetState.ORIGINAL:
        if facts.rolled_back:
            words = "the target is as it was before"
            return replace(
                kept, phase=RolloutPhase.ROLLED_BACK, reason="RolledBack", message=words, rollback_observed=True,
                requeues=False,
            )  # fmt: skip
        return replace(kept, reason="RollbackRequested", message="taken back, and not yet seen in force everywhere")
    if facts.target_state in (TargetState.MISSING, TargetState.FOREIGN):
        words = "somebody else has changed the target: there is nothing of this rollout to take back"
        return replace(kept, phase=RolloutPhase.PAUSED, reason="TargetChanged", message=words)
    if not facts.capacity.is_safe:
        words = (
            f"{facts.capacity.healthy_changed} healthy replicas have the change and {facts.capacity.healthy_before} do"
            f" not; {facts.capacity.floor} must stay, and the target's strategy keeps {facts.capacity.kept}"
        )
        return replace(kept, reason="OnlyHealthyCapacity", message=words)
    return replace(kept, reason="RollbackRequested", message=kept.message, act=RolloutAction.ROLL_BACK)

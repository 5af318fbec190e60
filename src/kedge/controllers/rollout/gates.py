"""The gates of a rollout: conditions on fresh data that must hold before a stage is left. Pure.

A gate is open only on evidence from after the change. Errors, old samples and missing samples never count as good;
without data every gate is closed. A regression is a count that is worse than before the change; missing data is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kedge.api.conditions import FALSE, TRUE, UNKNOWN, find_condition
from kedge.api.views import PodView
from kedge.api.views.kedge_dev import RolloutBurn, RolloutGates
from kedge.controllers.rollout.burn import MeasuredBurn
from kedge.controllers.shared.pods import is_active
from kedge.controllers.shared.progress import UNDER_WAY, ReplicaStage, pending_reason, stage_of

Pending = Mapping[tuple[str, str], int]
"""Pending pods, counted by stage and reason."""
FRESHNESS, SAMPLES, HEALTH, PENDING, BURN = "Freshness", "Samples", "Health", "PendingReasons", "Burn"
_REGRESSIONS = frozenset({"PendingIncreased", "BurnTooFast"})
"""Reasons of a shut gate that are worse than before the change; all others only keep the rollout waiting."""


class SampleOutcome(StrEnum):
    """The sample of one pod after the change."""

    GOOD = "good"
    BAD = "bad"
    ERROR = "error"
    """Its state is unknown. It counts against the change."""
    OLD = "old"
    """Its last report is from before the change, or too old."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last renewal of the lease of a pod's node."""

    revision: int
    silence_s: float
    """Seconds since then, by the clock of this process."""


@dataclass(frozen=True, slots=True)
class CacheFact:
    """The revision and age of a cache that a gate reads."""

    name: str
    revision: int
    age_s: float


@dataclass(frozen=True, slots=True)
class GateFacts:
    """The input of the gates of one stage."""

    activation_revision: int = 0
    caches: tuple[CacheFact, ...] = ()
    samples: tuple[SampleOutcome, ...] = ()
    expected: int = 0
    """How many pods there should be; if there are more, their number counts instead."""
    pending: Pending = field(default_factory=dict)
    baseline: Pending = field(default_factory=dict)
    behind: str = ""
    """The component that has not observed the change yet; empty if all have."""
    burn: MeasuredBurn | None = None


@dataclass(frozen=True, slots=True)
class GateStatus:
    name: str
    status: str
    reason: str
    message: str = ""

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "status": self.status, "reason": self.reason, "message": self.message}


class GateResult(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    REGRESSED = "regressed"


@dataclass(frozen=True, slots=True)
class GateEvaluation:
    result: GateResult
    gates: tuple[GateStatus, ...]

    @property
    def shut(self) -> GateStatus | None:
        """The first gate that is not open."""
        return next((each for each in self.gates if each.status != TRUE), None)

    @property
    def regression(self) -> GateStatus | None:
        """The first gate that shows a regression."""
        return next((each for each in self.gates if each.status == FALSE and each.reason in _REGRESSIONS), None)


def evaluate_gates(rules: RolloutGates, facts: GateFacts) -> GateEvaluation:
    """Evaluate every gate. On caches that are old or behind the change nothing is evaluated, not even a regression."""
    fresh = _freshness(rules, facts)
    if fresh.status != TRUE:
        names = (SAMPLES, HEALTH, PENDING) if rules.burn is None else (SAMPLES, HEALTH, PENDING, BURN)
        return GateEvaluation(GateResult.SHUT, (fresh, *(GateStatus(name, UNKNOWN, "NotJudged") for name in names)))
    gates = [fresh, _samples(rules, facts), _health(rules, facts), _pending(rules, facts)]
    if rules.burn is not None:
        gates.append(_burn(rules.burn, facts.burn))
    found = GateEvaluation(GateResult.OPEN, tuple(gates))
    if found.regression is not None:
        return replace(found, result=GateResult.REGRESSED)
    return found if found.shut is None else replace(found, result=GateResult.SHUT)


def _freshness(rules: RolloutGates, facts: GateFacts) -> GateStatus:
    if not facts.activation_revision or not facts.caches:
        return GateStatus(FRESHNESS, UNKNOWN, "NotActive", "the change is not active")
    behind = [each.name for each in facts.caches if each.revision < facts.activation_revision]
    if behind:
        return GateStatus(FRESHNESS, UNKNOWN, "CacheBehind", f"not past the change: {', '.join(behind)}")
    if facts.behind:
        return GateStatus(FRESHNESS, UNKNOWN, "ChangeNotObserved", facts.behind)
    old = too_old(facts.caches, rules.sample_age_seconds_max)
    if old:
        return GateStatus(FRESHNESS, UNKNOWN, "CacheStale", f"too old: {', '.join(old)}")
    return GateStatus(FRESHNESS, TRUE, "CachesPastChange")


def too_old(caches: Iterable[CacheFact], age_s_max: float) -> list[str]:
    return [each.name for each in caches if not each.age_s <= age_s_max]


def _samples(rules: RolloutGates, facts: GateFacts) -> GateStatus:
    known = sum(each in (SampleOutcome.GOOD, SampleOutcome.BAD) for each in facts.samples)
    if known < rules.min_samples:
        reason = "TooFewSamples" if known else "NoData"
        return GateStatus(SAMPLES, UNKNOWN, reason, f"{known} of at least {rules.min_samples} since the change")
    return GateStatus(SAMPLES, TRUE, "EnoughSamples")


def _health(rules: RolloutGates, facts: GateFacts) -> GateStatus:
    # A share of all pods that exist or should exist: a pod with an error, or without a sample, is not good.
    whole = max(facts.expected, len(facts.samples))
    good = sum(each is SampleOutcome.GOOD for each in facts.samples)
    if not whole:
        return GateStatus(HEALTH, UNKNOWN, "NoData")
    if good * 100 < rules.ready_percent_min * whole:
        message = f"{good} of {whole} are known to be ready, and {rules.ready_percent_min} percent must be"
        unknown = sum(count for (stage, _), count in facts.pending.items() if stage == ReplicaStage.UNKNOWN)
        if unknown:
            return GateStatus(HEALTH, FALSE, "ReplicasUnknown", f"{message}; {unknown} are on silent nodes")
        errors = sum(each is SampleOutcome.ERROR for each in facts.samples)
        return GateStatus(HEALTH, FALSE, "SamplesErrored" if errors else "NotReady", message)
    return GateStatus(HEALTH, TRUE, "Ready")


def _pending(rules: RolloutGates, facts: GateFacts) -> GateStatus:
    worse = [
        f"{count} {stage} ({reason}), {facts.baseline.get((stage, reason), 0)} before"
        for (stage, reason), count in sorted(facts.pending.items())
        # A silent node is missing data, which is no regression: the health gate counts it.
        if reason not in UNDER_WAY
        and stage != ReplicaStage.UNKNOWN
        and count > facts.baseline.get((stage, reason), 0) + rules.pending_increase_max
    ]
    if worse:
        return GateStatus(PENDING, FALSE, "PendingIncreased", "; ".join(worse))
    return GateStatus(PENDING, TRUE, "NoRegression")


def _burn(rules: RolloutBurn, burn: MeasuredBurn | None) -> GateStatus:
    if burn is None or burn.window is None:
        return GateStatus(BURN, UNKNOWN, "NoData", f"no pod with the change has an outcome for {rules.slo} yet")
    counted = f"{burn.bad} of {burn.events} pods missed {rules.slo} of {rules.within_seconds} s"
    if burn.window <= rules.rate_max:
        return GateStatus(BURN, TRUE, "BurnWithinBudget")
    message = f"{counted}: a burn rate of {burn.window:.1f}, and {rules.rate_max} is allowed"
    if burn.short_window is not None and burn.short_window > rules.rate_max:
        return GateStatus(BURN, FALSE, "BurnTooFast", message)
    return GateStatus(BURN, FALSE, "BurnRecovering", f"{message}; no longer lately")


# -- samples ---------------------------------------------------------------------------------------


def pending_of(pods: Iterable[PodView]) -> Counter[tuple[str, str]]:
    """Pods that are not ready, counted by stage and reason; failed pods have the stage `ended`."""
    found: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        stage = stage_of(pod, ())
        if stage is not None:
            reason = pending_reason(pod, stage)
            if reason:
                found[str(stage), reason] += 1
        elif pod.status.phase == "Failed":
            found["ended", pod.status.reason or "Failed"] += 1
    return found


def sample(pod: PodView, heartbeat: Heartbeat | None, *, after: int, age_s_max: float) -> SampleOutcome | None:
    """The sample of a pod for a change at revision `after`; None for a pod without one: it waits, or leaves.

    An agent writes a pod's status when it changes, and its node's lease periodically: the status is as fresh as the
    lease.
    """
    if pod.finished:
        return SampleOutcome.GOOD if pod.status.phase == "Succeeded" else SampleOutcome.BAD
    if not is_active(pod) or not pod.spec.node_name:
        return None
    if heartbeat is None or heartbeat.revision <= after or heartbeat.silence_s > age_s_max:
        return SampleOutcome.OLD
    ready = find_condition(pod.status.conditions, "Ready")
    if ready is None:
        return None  # its agent has not reported it yet
    return {TRUE: SampleOutcome.GOOD, FALSE: SampleOutcome.BAD}.get(ready.status, SampleOutcome.ERROR)


def sampled(outcomes: Sequence[SampleOutcome | None]) -> tuple[SampleOutcome, ...]:
    return tuple(each for each in outcomes if each is not None)

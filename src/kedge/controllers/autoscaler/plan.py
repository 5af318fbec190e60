"""The plan of an autoscaler: from the proposals of metrics to a size, or to a reason why the size stays. Pure.

Stabilised over windows, limited by rates, kept between the bounds, and never more than `unserved_max` beyond the ready
replicas: if something blocks replicas, it would block more of them too. The history is in the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from kedge.api.conditions import condition
from kedge.api.timestamps import format_micro_time, format_time
from kedge.api.views.workloads import (
    AutoscalerSpec,
    AutoscalerStatus,
    ScalingAdvice,
    ScalingEvent,
    ScalingPolicy,
    ScalingRules,
    WorkloadProgress,
)
from kedge.controllers.autoscaler.usage import Proposal
from kedge.controllers.shared.pods import is_ahead
from kedge.controllers.shared.progress import STAGES, ReplicaStage
from kedge.errors import check

ABLE, ACTIVE, LIMITED, HELD_BACK = "AbleToScale", "ScalingActive", "ScalingLimited", "ScalingHeldBack"
UP_DEFAULT = ScalingRules(
    stabilization_window_seconds=0,
    policies=(
        ScalingPolicy(type="Pods", value=4, period_seconds=15),
        ScalingPolicy(type="Percent", value=100, period_seconds=15),
    ),
)
DOWN_DEFAULT = ScalingRules(
    stabilization_window_seconds=300, policies=(ScalingPolicy(type="Percent", value=100, period_seconds=15),)
)
_UNPLACED = (ReplicaStage.ADMITTED, ReplicaStage.QUEUED, ReplicaStage.SCHEDULED)
"""Stages without a node: another replica would wait there too."""


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    """The limits of a plan."""

    unserved_max: int = 10
    cooldown_s: float = 15.0
    history_max: int = 32


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The target of the autoscaler, all from one version of it."""

    replicas: int
    ready: int
    progress: WorkloadProgress
    observed: bool = True
    """Its status is about its current spec."""
    failure: str = ""
    """Why its controller cannot create replicas: a quota, an admission policy."""
    undecided: int = 0
    """Replicas on silent nodes that may still return: no controller has had the time to declare the nodes lost."""
    stale: str = ""
    """A cache that is too old to show why replicas are missing; empty if none is."""


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """A size, and the status that goes with it."""

    current: int
    desired: int
    conditions: tuple[dict[str, Any], ...]
    advice: tuple[ScalingAdvice, ...]
    events: tuple[ScalingEvent, ...]
    """Past changes that still count, and the change of this plan."""
    metrics: tuple[dict[str, Any], ...] = ()
    last_scale: datetime | None = None
    clock_mended: bool = False
    """Advice had times of a wrong clock. They are patched explicitly: a status write skips times that change alone."""

    @property
    def scales(self) -> bool:
        return self.desired != self.current

    def past_as_json(self) -> dict[str, Any]:
        """The history to record before the size changes; without it, a restart would double the rate."""
        return {
            "lastScaleTime": None if self.last_scale is None else format_time(self.last_scale),
            "scalingEvents": [
                {"time": format_micro_time(each.time), "before": each.before, "after": each.after}
                for each in self.events
                if each.time is not None
            ],
        }

    def advice_as_json(self) -> list[dict[str, Any]]:
        return [
            {"since": format_micro_time(each.since), "low": each.low, "high": each.high}
            for each in self.advice
            if each.since is not None
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "currentReplicas": self.current,
            "desiredReplicas": self.desired,
            "currentMetrics": list(self.metrics),
            "advice": self.advice_as_json(),
            "conditions": list(self.conditions),
        }


def plan_scaling(
    spec: AutoscalerSpec,
    status: AutoscalerStatus,
    target: TargetFacts,
    proposals: Sequence[Proposal],
    limits: ScalingLimits,
    now: datetime,
) -> ScalingPlan:
    """Decide on a size. Conditions show why it differs from the proposals."""
    current = target.replicas
    check(current >= 0, "admission rejects a negative replica count")
    up, down = _rules(spec)
    events = _events_that_count(status.scaling_events, current, (up, down), now)
    kept = ScalingPlan(
        current,
        current,
        (),
        _clean(status.advice, current, now),
        events,
        tuple(each.status for each in proposals if each.status is not None),
        status.last_scale_time,
        clock_mended=any(each.since is None or is_ahead(each.since, now) for each in status.advice),
    )
    if current == 0:
        return replace(kept, conditions=(_active(status=False, reason="ScalingDisabled", message="it is scaled to 0"),))
    if not spec.min_replicas <= current <= spec.max_replicas:
        # The bounds are explicit settings: reaching them is neither stabilised nor held back.
        return _to_the_bounds(kept, spec, limits, now)
    wanted, active = _wanted(proposals, current)
    if wanted is None:
        return replace(kept, conditions=(_able("ReadyForNewScale"), active, _not_held()))
    advice = _advised(kept.advice, wanted, (up, down), limits, now)
    stable, able = _stabilised(kept.advice, wanted, current, up, down, now)
    limited, limiting = _limited(spec, stable, current, up, down, events, now)
    desired, held = _held_back(limited, target, status.last_scale_time, limits, now)
    plan = replace(kept, conditions=(able, active, limiting, held), advice=advice)
    return _scaled(plan, desired, limits, now)


def _scaled(plan: ScalingPlan, desired: int, limits: ScalingLimits, now: datetime) -> ScalingPlan:
    if desired == plan.current:
        return plan
    event = ScalingEvent(time=now, before=plan.current, after=desired)
    events = _merged_events((*plan.events, event), limits.history_max)
    return replace(plan, desired=desired, events=events, last_scale=now)


def _to_the_bounds(kept: ScalingPlan, spec: AutoscalerSpec, limits: ScalingLimits, now: datetime) -> ScalingPlan:
    over = kept.current > spec.max_replicas
    reason = "TooManyReplicas" if over else "TooFewReplicas"
    message = f"{kept.current} is {'more than maxReplicas' if over else 'less than minReplicas'}"
    conditions = (_able("ReadyForNewScale"), _limiting(reason, message), _not_held())
    desired = spec.max_replicas if over else spec.min_replicas
    return _scaled(replace(kept, conditions=conditions), desired, limits, now)


# -- proposals -------------------------------------------------------------------------------------


def _wanted(proposals: Sequence[Proposal], current: int) -> tuple[int | None, dict[str, Any]]:
    """The largest proposal. A metric without a proposal prevents scaling down."""
    sizes = [each.replicas for each in proposals if each.replicas is not None]
    failed = next((each for each in proposals if each.replicas is None), None)
    most = max(sizes, default=None)
    if failed is not None and (most is None or most < current):
        return None, _active(status=False, reason=failed.reason, message=failed.problem)
    if most is None:
        return None, _active(status=False, reason="FailedGetMetrics", message="the spec has no metrics")
    return most, _active(status=True, reason="ValidMetricFound", message="")


# -- stabilisation ---------------------------------------------------------------------------------


def _clean(advice: Iterable[ScalingAdvice], current: int, now: datetime) -> tuple[ScalingAdvice, ...]:
    """Past advice in order; without any, the current size.

    A time that a wrong clock put far into the future becomes now: no controller waits for it.
    """
    known = [_since(each, now) if each.since is None or is_ahead(each.since, now) else each for each in advice]
    if not known:
        return (ScalingAdvice(since=now, low=current, high=current),)
    return tuple(sorted(known, key=lambda each: each.since or now))


def _since(each: ScalingAdvice, since: datetime) -> ScalingAdvice:
    return ScalingAdvice(since=since, low=each.low, high=each.high)


def _pieces(advice: Sequence[ScalingAdvice], window_s: float, now: datetime) -> list[ScalingAdvice]:
    """Advice that was valid at some time within the window. Each was valid until the next, the last one until now.

    The advice while no controller ran is unknown: assuming the last one changes least.
    """
    begin = now - timedelta(seconds=window_s)
    ends = [*(each.since or now for each in advice[1:]), now]
    return [each for each, end in zip(advice, ends, strict=True) if end > begin]


def _stabilised(
    past: Sequence[ScalingAdvice], wanted: int, current: int, up: ScalingRules, down: ScalingRules, now: datetime
) -> tuple[int, dict[str, Any]]:
    """Scale up to the smallest recent advice, down to the largest."""
    least = min([wanted, *(each.low for each in _pieces(past, up.stabilization_window_seconds or 0, now))])
    most = max([wanted, *(each.high for each in _pieces(past, down.stabilization_window_seconds or 0, now))])
    stable = max(current, least) if current < least else min(current, most)
    if stable < wanted:
        return stable, _able("ScaleUpStabilized", f"{wanted} was not advised throughout the last window")
    if stable > wanted:
        return stable, _able("ScaleDownStabilized", f"more than {wanted} was advised within the last window")
    return stable, _able("ReadyForNewScale")


def _advised(
    past: tuple[ScalingAdvice, ...],
    wanted: int,
    rules: Sequence[ScalingRules],
    limits: ScalingLimits,
    now: datetime,
) -> tuple[ScalingAdvice, ...]:
    """The past advice and the new one, merged to `history_max`; repeated advice adds nothing."""
    if (past[-1].low, past[-1].high) == (wanted, wanted):
        return past
    longest_s = max(each.stabilization_window_seconds or 0 for each in rules)
    kept = [*_pieces(past, longest_s, now), ScalingAdvice(since=now, low=wanted, high=wanted)]
    while len(kept) > max(2, limits.history_max):
        first, second = kept[:2]
        kept[:2] = [ScalingAdvice(since=first.since, low=min(first.low, second.low), high=max(first.high, second.high))]
    return tuple(kept)


# -- rates and bounds ------------------------------------------------------------------------------


def _rules(spec: AutoscalerSpec) -> tuple[ScalingRules, ScalingRules]:
    behavior = spec.behavior
    given_up = behavior.scale_up if behavior is not None else None
    given_down = behavior.scale_down if behavior is not None else None
    return _with_defaults(given_up, UP_DEFAULT), _with_defaults(given_down, DOWN_DEFAULT)


def _with_defaults(given: ScalingRules | None, default: ScalingRules) -> ScalingRules:
    if given is None:
        return default
    window_s = given.stabilization_window_seconds
    return ScalingRules(
        stabilization_window_seconds=default.stabilization_window_seconds if window_s is None else window_s,
        select_policy=given.select_policy,
        policies=given.policies or default.policies,
        tolerance=given.tolerance,
    )


def _limited(
    spec: AutoscalerSpec,
    desired: int,
    current: int,
    up: ScalingRules,
    down: ScalingRules,
    events: Sequence[ScalingEvent],
    now: datetime,
) -> tuple[int, dict[str, Any]]:
    most = max(current, _furthest(up, current, events, now, sign=1))
    least = min(current, _furthest(down, current, events, now, sign=-1))
    if desired > min(most, spec.max_replicas):
        if spec.max_replicas <= most:
            return spec.max_replicas, _limiting("TooManyReplicas", f"{desired} is more than maxReplicas")
        return most, _limiting("ScaleUpLimit", f"{desired} is more than the rate of scaling up allows now")
    if desired < max(least, spec.min_replicas):
        if spec.min_replicas >= least:
            return spec.min_replicas, _limiting("TooFewReplicas", f"{desired} is less than minReplicas")
        return least, _limiting("ScaleDownLimit", f"{desired} is less than the rate of scaling down allows now")
    return desired, condition(LIMITED, status=False, reason="DesiredWithinRange")


def _furthest(rules: ScalingRules, current: int, events: Sequence[ScalingEvent], now: datetime, *, sign: int) -> int:
    """The size that the policies of one direction allow, counted from the size at the start of each period."""
    if rules.select_policy == "Disabled":
        return current
    sizes = []
    for policy in rules.policies:
        start = current - sum(each.after - each.before for each in _within(events, policy.period_seconds, now))
        if policy.type == "Pods":
            sizes.append(start + sign * policy.value)
        elif sign > 0:
            sizes.append(-(-start * (100 + policy.value) // 100))
        else:
            sizes.append(start * (100 - policy.value) // 100)
    largest = (rules.select_policy == "Min") != (sign > 0)  # "Min" is the least change
    return max(sizes) if largest else min(sizes)


def _within(events: Iterable[ScalingEvent], period_s: float, now: datetime) -> list[ScalingEvent]:
    begin = now - timedelta(seconds=period_s)
    return [each for each in events if each.time is not None and each.time > begin]


def _events_that_count(
    events: Sequence[ScalingEvent], current: int, rules: Sequence[ScalingRules], now: datetime
) -> tuple[ScalingEvent, ...]:
    """Past changes within the period of a rate. The last one was recorded but never made if the size is unchanged."""
    if events and events[-1].before == current:
        events = events[:-1]
    longest_s = max(policy.period_seconds for each in rules for policy in each.policies)
    return tuple(each for each in _within(events, longest_s, now) if each.time and not is_ahead(each.time, now))


def _merged_events(events: Sequence[ScalingEvent], most: int) -> tuple[ScalingEvent, ...]:
    """At most `most` events: the two oldest are merged, with the time of the later."""
    kept = list(events)
    while len(kept) > max(2, most):
        first, second = kept[:2]
        after = first.after + second.after - second.before
        kept[:2] = [ScalingEvent(time=second.time, before=first.before, after=after)]
    return tuple(kept)


# -- scaling up behind missing replicas ------------------------------------------------------------


def _held_back(
    desired: int, target: TargetFacts, last_scale: datetime | None, limits: ScalingLimits, now: datetime
) -> tuple[int, dict[str, Any]]:
    """Do not scale up while replicas that were requested before are missing; the condition names the reason."""
    current = target.replicas
    if desired <= current:
        return desired, _not_held()
    reason, message = _why_not(target)
    if reason:
        return current, _held(reason, f"{desired} are desired, but {message}")
    if last_scale is not None and not is_ahead(last_scale, now):
        rest_s = (last_scale + timedelta(seconds=limits.cooldown_s) - now).total_seconds()
        if rest_s > 0:
            return current, _held("CoolingDown", f"{desired} are desired, too soon after the last change")
    most = max(current, target.ready + limits.unserved_max)
    if desired > most:
        message = f"{desired} are desired, and at most {limits.unserved_max} beyond the ready replicas may be requested"
        return most, _held("UnservedReplicas", message)
    return desired, _not_held()


def _why_not(target: TargetFacts) -> tuple[str, str]:
    """Why scaling up is useless now: new replicas would be blocked by the same cause."""
    if target.stale:
        return "CacheStale", f"the cache of {target.stale} is too old to show what is missing"
    if not target.observed or target.progress.observed_generation == 0:
        return "TargetNotObserved", "the controller of the target has not observed its last change"
    if target.failure:
        return "ReplicasRefused", f"replicas cannot be created: {target.failure}"
    if target.undecided:
        return "ReplicasUnknown", f"{target.undecided} replicas are on silent nodes, which may return"
    waiting = [each for each in target.progress.pending if each.stage in _UNPLACED]
    if waiting:
        listed = ", ".join(f"{each.count} {each.stage} ({each.message or each.reason})" for each in waiting)
        return "ReplicasPending", f"replicas wait for a node: {listed}"
    missing = target.replicas - _counted(target.progress)
    if missing > 0:
        return "ReplicasPending", f"{missing} requested replicas are not created yet"
    return "", ""


def _counted(progress: WorkloadProgress) -> int:
    stages: int = sum(getattr(progress.stages, stage) for stage in STAGES)
    return stages + progress.unknown


# -- conditions ------------------------------------------------------------------------------------


def _able(reason: str, message: str = "") -> dict[str, Any]:
    return condition(ABLE, status=True, reason=reason, message=message)


def _active(*, status: bool, reason: str, message: str) -> dict[str, Any]:
    return condition(ACTIVE, status=status, reason=reason, message=message)


def _limiting(reason: str, message: str) -> dict[str, Any]:
    return condition(LIMITED, status=True, reason=reason, message=message)


def _held(reason: str, message: str) -> dict[str, Any]:
    return condition(HELD_BACK, status=True, reason=reason, message=message)


def _not_held() -> dict[str, Any]:
    return condition(HELD_BACK, status=False, reason="NotHeldBack")

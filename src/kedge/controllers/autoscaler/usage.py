"""How many replicas a metric asks for, given what pods use: Kubernetes' arithmetic, in whole numbers. Pure.

What is not known speaks against change: a pod without a measurement counts as idle when more is asked for, and as busy
when less is. `scaling` decides what becomes of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

from kedge.api.conditions import FALSE, TRUE, find_condition
from kedge.api.quantity import Quantity
from kedge.api.views import PodView
from kedge.api.views.workloads import MetricSpec, MetricTarget
from kedge.controllers.shared.pods import is_active

_NEVER_READY_S = 30.0
"""A pod whose last word on readiness came this soon after its start, and was no, has never been ready."""
NO_USAGE = "FailedGetResourceMetric"
UNSUPPORTED = "InvalidMetricSourceType"


@dataclass(frozen=True, slots=True)
class PodUsage:
    """What one pod uses, and when that was measured."""

    at: datetime
    """By the clock of its node, as are the times in the pod's status. Nothing else is compared with it."""
    age_s: float
    """Since it was seen, by the clock of who looks."""
    window_s: int
    containers: Mapping[str, Mapping[str, Quantity]]


@dataclass(frozen=True, slots=True)
class UsageRules:
    """How usage is judged."""

    sample_s: float = 60.0
    start_s: float = 300.0
    tolerance_up: Fraction = Fraction(1, 10)
    tolerance_down: Fraction = Fraction(1, 10)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one metric asks for; or why it cannot say."""

    replicas: int | None
    about: str
    """The metric, in words."""
    status: dict[str, Any] | None = None
    """As `status.currentMetrics` shows it."""
    reason: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Metric:
    resource: str
    container: str
    target: MetricTarget

    @property
    def about(self) -> str:
        return f"{self.resource} of container {self.container}" if self.container else self.resource


class _Unusable(Exception):
    """The metric cannot be computed, for a reason that the status tells."""


def propose(
    metric: MetricSpec,
    current: int,
    pods: Sequence[PodView],
    usage: Mapping[str, PodUsage],
    rules: UsageRules,
    now: datetime,
) -> Proposal:
    """The replicas that one metric asks for. `usage` is by pod uid; one measured too long ago is none."""
    read = _read_metric(metric)
    if read is None:
        words = f"kedge scales on Resource and ContainerResource, not on {metric.type or 'nothing'}"
        return Proposal(None, metric.type, reason=UNSUPPORTED, problem=words)
    try:
        weights = {pod.uid: _weight(pod, read) for pod in pods if is_active(pod)}
        groups = _group(pods, read, usage, rules, now)
        if not groups.used:
            raise _Unusable(f"no pod of {len(weights)} has a usable measurement of {read.about}")
    except _Unusable as error:
        return Proposal(None, read.about, reason=NO_USAGE, problem=str(error))
    wanted = _replicas(groups, weights, read, current, rules)
    return Proposal(wanted, read.about, _shown(metric, read, groups, pods))


# -- what a metric is about ------------------------------------------------------------------------


def _read_metric(metric: MetricSpec) -> _Metric | None:
    if metric.type == "Resource" and metric.resource is not None:
        return _Metric(metric.resource.name, "", metric.resource.target)
    if metric.type == "ContainerResource" and metric.container_resource is not None:
        source = metric.container_resource
        return _Metric(source.name, source.container, source.target)
    return None


def _weight(pod: PodView, metric: _Metric) -> int:
    """What the pod would use if it were exactly on target, in nano units."""
    target = metric.target
    if target.average_utilization is None:
        return target.average_value.nano if target.average_value is not None else 0
    return _requested(pod, metric) * target.average_utilization // 100


def _requested(pod: PodView, metric: _Metric) -> int:
    sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    containers = [
        each for each in (*pod.spec.containers, *sidecars) if not metric.container or each.name == metric.container
    ]
    asked = [each.resources.requests.get(metric.resource) for each in containers]
    if not asked or any(amount is None for amount in asked):
        raise _Unusable(f"pod {pod.name} has a container that requests no {metric.about}: utilisation is of requests")
    return sum(amount.nano for amount in asked if amount is not None)


# -- which pods count ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Groups:
    used: Mapping[str, int]
    """By pod uid: what is used, of pods that are measured and ready."""
    unready: tuple[str, ...]
    missing: tuple[str, ...]


def _group(
    pods: Sequence[PodView], metric: _Metric, usage: Mapping[str, PodUsage], rules: UsageRules, now: datetime
) -> _Groups:
    used: dict[str, int] = {}
    unready: list[str] = []
    missing: list[str] = []
    for pod in pods:
        if not is_active(pod):
            continue
        sample = usage.get(pod.uid)
        amount = _amount(sample, metric, rules)
        if pod.status.phase in ("", "Pending"):
            unready.append(pod.uid)
        elif sample is None or amount is None:
            missing.append(pod.uid)
        elif metric.resource == "cpu" and _is_unready(pod, sample, rules, now):
            unready.append(pod.uid)
        else:
            used[pod.uid] = amount
    return _Groups(used, tuple(unready), tuple(missing))


def _amount(sample: PodUsage | None, metric: _Metric, rules: UsageRules) -> int | None:
    if sample is None or sample.age_s > rules.sample_s:
        return None
    containers = sample.containers
    if metric.container:
        containers = {name: each for name, each in containers.items() if name == metric.container}
    amounts = [each.get(metric.resource) for each in containers.values()]
    if not amounts or any(amount is None for amount in amounts):
        return None
    return sum(amount.nano for amount in amounts if amount is not None)


def _is_unready(pod: PodView, sample: PodUsage, rules: UsageRules, now: datetime) -> bool:
    """Whether its CPU says nothing yet: starting takes CPU that serving will not."""
    ready = find_condition(pod.status.conditions, "Ready")
    started = pod.status.start_time
    if ready is None or ready.last_transition_time is None or started is None:
        return ready is None or ready.status != TRUE
    if started + timedelta(seconds=rules.start_s) > now:
        before = sample.at < ready.last_transition_time + timedelta(seconds=sample.window_s)
        return ready.status == FALSE or before
    return ready.status == FALSE and started + timedelta(seconds=_NEVER_READY_S) > ready.last_transition_time


# -- arithmetic ------------------------------------------------------------------------------------


def _replicas(groups: _Groups, weights: Mapping[str, int], metric: _Metric, current: int, rules: UsageRules) -> int:
    ratio = _ratio(groups.used, weights)
    idle_too = bool(groups.unready) and ratio > 1
    if not groups.missing and not idle_too:
        return current if _on_target(ratio, rules) else _ceil(ratio * len(groups.used))
    used = dict(groups.used)
    for uid in groups.missing:
        # Busy when fewer would be asked for, idle when more would be: what is not known argues against change.
        if ratio < 1:
            used[uid] = _busy(weights[uid], metric)
        elif ratio > 1:
            used[uid] = 0
    if idle_too:
        used.update(dict.fromkeys(groups.unready, 0))
    cautious = _ratio(used, weights)
    flipped = (ratio < 1 < cautious) or (cautious < 1 < ratio)
    if _on_target(cautious, rules) or flipped:
        return current
    wanted = _ceil(cautious * len(used))
    if (cautious < 1 and wanted > current) or (cautious > 1 and wanted < current):
        return current
    return wanted


def _busy(weight: int, metric: _Metric) -> int:
    target = metric.target.average_utilization
    return weight if target is None else weight * max(100, target) // target


def _ratio(used: Mapping[str, int], weights: Mapping[str, int]) -> Fraction:
    whole = sum(weights[uid] for uid in used)
    return Fraction(sum(used.values()), whole) if whole > 0 else Fraction(1)


def _on_target(ratio: Fraction, rules: UsageRules) -> bool:
    return 1 - rules.tolerance_down <= ratio <= 1 + rules.tolerance_up


def _ceil(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)


def _shown(metric: MetricSpec, read: _Metric, groups: _Groups, pods: Sequence[PodView]) -> dict[str, Any]:
    total = sum(groups.used.values())
    current: dict[str, Any] = {"averageValue": str(Quantity(total // len(groups.used) // 1_000_000 * 1_000_000))}
    if read.target.average_utilization is not None:
        requested = sum(_requested(pod, read) for pod in pods if pod.uid in groups.used)
        current["averageUtilization"] = total * 100 // requested if requested else 0
    said: dict[str, Any] = {"name": read.resource, "current": current}
    if read.container:
        said["container"] = read.container
    return {"type": metric.type, "containerResource" if read.container else "resource": said}

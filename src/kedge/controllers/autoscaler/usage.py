"""The number of replicas that a metric proposes for the usage of pods: Kubernetes' arithmetic, in integers. Pure.

Missing data counts against a change: a pod without a measurement counts as idle when scaling up, and as busy when
scaling down. `plan` decides on the proposals.
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
"""A pod that became unready this soon after its start has never been ready."""
NO_USAGE = "FailedGetResourceMetric"
UNSUPPORTED = "InvalidMetricSourceType"


@dataclass(frozen=True, slots=True)
class PodUsage:
    """The usage of one pod, and when it was measured."""

    at: datetime
    """By the clock of its node, like the times in the pod's status. It is compared only with those."""
    age_s: float
    """Seconds since it was seen, by the clock of this process."""
    window_s: int
    containers: Mapping[str, Mapping[str, Quantity]]


@dataclass(frozen=True, slots=True)
class UsageRules:
    """The limits and tolerances for usage."""

    sample_s: float = 60.0
    start_s: float = 300.0
    tolerance_up: Fraction = Fraction(1, 10)
    tolerance_down: Fraction = Fraction(1, 10)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The replicas that one metric proposes; or why there is no proposal."""

    replicas: int | None
    about: str
    """A description of the metric."""
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
    """The metric cannot be computed; the status shows the reason."""


def propose(
    metric: MetricSpec,
    current: int,
    pods: Sequence[PodView],
    usage: Mapping[str, PodUsage],
    rules: UsageRules,
    now: datetime,
) -> Proposal:
    """The replicas that one metric proposes. `usage` is by pod uid; an old measurement counts as missing."""
    read = _read_metric(metric)
    if read is None:
        problem = f"kedge scales on Resource and ContainerResource, not on {metric.type or 'nothing'}"
        return Proposal(None, metric.type, reason=UNSUPPORTED, problem=problem)
    try:
        weights = {pod.uid: _weight(pod, read) for pod in pods if is_active(pod)}
        groups = _group(pods, read, usage, rules, now)
        if not groups.used:
            raise _Unusable(f"no pod of {len(weights)} has a usable measurement of {read.about}")
    except _Unusable as error:
        return Proposal(None, read.about, reason=NO_USAGE, problem=str(error))
    wanted = _replicas(groups, weights, read, current, rules)
    return Proposal(wanted, read.about, _shown(metric, read, groups, pods))


# -- metrics ---------------------------------------------------------------------------------------


def _read_metric(metric: MetricSpec) -> _Metric | None:
    if metric.type == "Resource" and metric.resource is not None:
        return _Metric(metric.resource.name, "", metric.resource.target)
    if metric.type == "ContainerResource" and metric.container_resource is not None:
        source = metric.container_resource
        return _Metric(source.name, source.container, source.target)
    return None


def _weight(pod: PodView, metric: _Metric) -> int:
    """The usage of the pod at exactly the target, in nano units."""
    target = metric.target
    if target.average_utilization is None:
        return target.average_value.nano if target.average_value is not None else 0
    return _requested(pod, metric) * target.average_utilization // 100


def _requested(pod: PodView, metric: _Metric) -> int:
    sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    containers = [
        each for each in (*pod.spec.containers, *sidecars) if not metric.container or each.name == metric.container
    ]
    requests = [each.resources.requests.get(metric.resource) for each in containers]
    if not requests or any(amount is None for amount in requests):
        raise _Unusable(f"pod {pod.name} has a container that requests no {metric.about}: utilisation is of requests")
    return sum(amount.nano for amount in requests if amount is not None)


# -- pods ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Groups:
    used: Mapping[str, int]
    """Usage by uid of the pods that are measured and ready."""
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
    """Whether its CPU usage does not count yet: starting takes CPU that serving will not."""
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
        # Busy when scaling down, idle when scaling up: missing data counts against a change.
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
    shown: dict[str, Any] = {"name": read.resource, "current": current}
    if read.container:
        shown["container"] = read.container
    return {"type": metric.type, "containerResource" if read.container else "resource": shown}

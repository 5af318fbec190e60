"""The proposals of metrics for the usage of pods: missing data counts against a change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import NOW, a_pod, ago

from kedge.api.quantity import Quantity, parse_quantity
from kedge.api.usage import format_usage, parse_usage
from kedge.api.views import Container, PodSpec, PodView
from kedge.api.views.base import ResourceList
from kedge.api.views.core import ResourceRequirements
from kedge.api.views.workloads import ContainerResourceMetricSource, MetricSpec, MetricTarget, ResourceMetricSource
from kedge.controllers.autoscaler.usage import PodUsage, Proposal, UsageRules, propose

RULES = UsageRules()


def utilisation(percent: int) -> MetricSpec:
    target = MetricTarget(type="Utilization", average_utilization=percent)
    return MetricSpec(type="Resource", resource=ResourceMetricSource(name="cpu", target=target))


def average(value: str) -> MetricSpec:
    target = MetricTarget(type="AverageValue", average_value=parse_quantity(value))
    return MetricSpec(type="Resource", resource=ResourceMetricSource(name="cpu", target=target))


def a_replica(
    n: int, *, cpu: str = "100m", ready_s: float | None = 600, started_s: float = 600, **more: Any
) -> PodView:
    """A pod with one container that requests `cpu`, started `started_s` ago."""
    pod = a_pod(f"web-{n}", node=f"node-{n}", ready_s=ready_s, **more)
    requests = ResourceList({"cpu": parse_quantity(cpu)} if cpu else {})
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    status = msgspec.structs.replace(pod.status, start_time=ago(started_s))
    return msgspec.structs.replace(
        pod, spec=PodSpec(node_name=pod.spec.node_name, containers=(container,)), status=status
    )


def uses(cpu: str, *, age_s: float = 5, container: str = "main") -> PodUsage:
    return PodUsage(ago(age_s), age_s, 15, {container: {"cpu": parse_quantity(cpu)}})


def ask(metric: MetricSpec, pods: list[PodView], used: dict[int, PodUsage], current: int | None = None) -> Proposal:
    usage = {pods[n].uid: each for n, each in used.items()}
    return propose(metric, len(pods) if current is None else current, pods, usage, RULES, NOW)


# -- arithmetic ------------------------------------------------------------------------------------


def test_replicas_follow_the_ratio_of_usage_to_target_rounded_up() -> None:
    pods = [a_replica(n) for n in range(4)]
    assert ask(utilisation(50), pods, {n: uses("90m") for n in range(4)}).replicas == 8  # 4 * 90/50 = 7.2
    assert ask(utilisation(50), pods, {n: uses("20m") for n in range(4)}).replicas == 2
    assert ask(average("30m"), pods, {n: uses("45m") for n in range(4)}).replicas == 6


def test_a_tenth_off_the_target_is_on_target() -> None:
    pods = [a_replica(n) for n in range(10)]
    assert ask(utilisation(50), pods, {n: uses("55m") for n in range(10)}).replicas == 10
    assert ask(utilisation(50), pods, {n: uses("56m") for n in range(10)}).replicas == 12
    assert ask(utilisation(50), pods, {n: uses("45m") for n in range(10)}).replicas == 10
    assert ask(utilisation(50), pods, {n: uses("44m") for n in range(10)}).replicas == 9


def test_the_status_shows_the_measurement() -> None:
    pods = [a_replica(n) for n in range(2)]
    found = ask(utilisation(50), pods, {0: uses("40m"), 1: uses("80m")})
    current = {"averageValue": "60m", "averageUtilization": 60}
    assert found.status == {"type": "Resource", "resource": {"name": "cpu", "current": current}}


def test_a_container_metric_counts_that_container_alone() -> None:
    target = MetricTarget(type="Utilization", average_utilization=50)
    source = ContainerResourceMetricSource(name="cpu", container="main", target=target)
    metric = MetricSpec(type="ContainerResource", container_resource=source)
    used = PodUsage(ago(5), 5, 15, {"main": {"cpu": parse_quantity("100m")}, "proxy": {"cpu": parse_quantity("5")}})
    assert ask(metric, [a_replica(0)], {0: used}).replicas == 2


# -- what is not known -----------------------------------------------------------------------------


def test_without_any_measurement_there_is_no_proposal() -> None:
    found = ask(utilisation(50), [a_replica(0)], {})
    assert found.replicas is None
    assert found.reason == "FailedGetResourceMetric"


def test_a_pod_that_requests_nothing_has_no_utilisation() -> None:
    found = ask(utilisation(50), [a_replica(0, cpu="")], {0: uses("90m")})
    assert found.replicas is None
    assert "web-0" in found.problem


def test_an_unsupported_metric_type_is_rejected_by_name() -> None:
    found = ask(MetricSpec(type="External"), [a_replica(0)], {0: uses("90m")})
    assert found.replicas is None
    assert "External" in found.problem


def test_a_pod_without_a_measurement_counts_as_idle_when_scaling_up() -> None:
    pods = [a_replica(n) for n in range(4)]
    # 180 % on three pods; with the fourth idle 135 %.
    assert ask(utilisation(50), pods, {n: uses("90m") for n in range(3)}).replicas == 6


def test_a_pod_without_a_measurement_counts_as_busy_when_scaling_down() -> None:
    pods = [a_replica(n) for n in range(4)]
    # 10 % on three pods; the fourth counts as using its whole request: 130m of 200m.
    assert ask(utilisation(50), pods, {n: uses("10m") for n in range(3)}).replicas == 3


def test_missing_data_never_turns_scaling_up_into_scaling_down() -> None:
    pods = [a_replica(n) for n in range(4)]
    assert ask(utilisation(50), pods, {0: uses("90m")}).replicas == 4


def test_an_old_measurement_counts_as_missing() -> None:
    assert ask(utilisation(50), [a_replica(0)], {0: uses("90m", age_s=61)}).replicas is None


def test_the_age_of_a_measurement_does_not_depend_on_the_clock_of_its_node() -> None:
    used = {"main": {"cpu": parse_quantity("90m")}}
    pods = [a_replica(n) for n in range(2)]
    fresh = {n: PodUsage(ago(hours * 3600), 5, 15, used) for n, hours in enumerate((24, -24))}
    assert ask(utilisation(50), pods, fresh).replicas == 4
    assert ask(utilisation(50), pods, {0: PodUsage(ago(1), 61, 15, used)}).replicas is None


def test_the_cpu_of_a_start_is_not_load() -> None:
    starting = a_replica(1, ready_s=10, started_s=20)
    pods = [a_replica(0), starting]
    # Measured over 15 s that ended 5 s ago, when it was ready for 5 s only.
    assert ask(utilisation(50), pods, {0: uses("50m"), 1: uses("1")}).replicas == 2
    settled = a_replica(1, ready_s=30, started_s=40)
    assert ask(utilisation(50), [a_replica(0), settled], {0: uses("50m"), 1: uses("150m")}).replicas == 4


def test_pending_pods_count_as_idle_when_scaling_up() -> None:
    """They will take over load soon: replicas for that load are not requested twice."""
    pods = [a_replica(0), a_replica(1), a_replica(2, ready_s=None, phase="Pending")]
    assert ask(utilisation(50), pods, {0: uses("75m"), 1: uses("75m")}).replicas == 3


def test_leaving_pods_are_not_counted() -> None:
    pods = [a_replica(0), a_replica(1, draining_s=3), a_replica(2, terminating=True)]
    assert ask(utilisation(50), pods, {n: uses("100m") for n in range(3)}, current=1).replicas == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["ready", "pending", "starting"]), st.none() | st.integers(0, 400)),
        min_size=1,
        max_size=8,
    ),
    st.integers(10, 150),
)
def test_missing_data_never_increases_the_proposal(cluster: list[tuple[str, int | None]], percent: int) -> None:
    pods, known = [], {}
    for n, (state, milli) in enumerate(cluster):
        ready = state == "ready"
        pods.append(a_replica(n, ready_s=600 if ready else None, phase="Pending" if state == "pending" else "Running"))
        if milli is not None:
            known[n] = uses(f"{milli}m")
    current = len(pods)
    found = ask(utilisation(percent), pods, known).replicas
    for n in known:
        less = ask(utilisation(percent), pods, {m: each for m, each in known.items() if m != n}).replicas
        assert less is None or (found is not None and less <= max(found, current))
    if found is None:
        return
    busiest = max(m for _, m in cluster if m is not None)
    idlest = min(m for _, m in cluster if m is not None)
    if found > current:
        assert busiest > percent
    if found < current:
        assert idlest < percent


# -- reports ---------------------------------------------------------------------------------------


def test_a_report_survives_a_round_trip() -> None:
    text = format_usage(NOW + timedelta(seconds=1), 15, {"uid-1": {"main": {"cpu": Quantity(120_000_000)}}})
    report = parse_usage(text)
    assert report.at == NOW + timedelta(seconds=1)
    assert report.window_seconds == 15
    assert report.pods["uid-1"]["main"]["cpu"] == parse_quantity("120m")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pods": 3}', '{"pods": {"u": {"main": {"cpu": "much"}}}}'])
def test_text_that_is_no_report_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a usage report"):
        parse_usage(text)

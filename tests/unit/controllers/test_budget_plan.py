"""A budget counts healthy pods, and keeps an eviction until it has seen the pod leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.kit.pod_views import a_pod, ago, ready_pod

from kedge.api.views import FrozenMap, PodDisruptionBudgetView, PodView
from kedge.api.views.workloads import DisruptionBudgetSpec, DisruptionBudgetStatus
from kedge.controllers.budget.plan import BudgetPlan, plan_budget
from kedge.controllers.budget.status import budget_status


def budget(
    *,
    min_available: int | str | None = None,
    max_unavailable: int | str | None = None,
    disrupted: dict[str, float] | None = None,
) -> PodDisruptionBudgetView:
    statuses = FrozenMap({name: ago(seconds) for name, seconds in (disrupted or {}).items()})
    return PodDisruptionBudgetView(
        spec=DisruptionBudgetSpec(min_available=min_available, max_unavailable=max_unavailable),
        status=DisruptionBudgetStatus(disrupted_pods=statuses),
    )


def plan(view: PodDisruptionBudgetView, pods: list[PodView], expected: int, *, current: bool = False) -> BudgetPlan:
    return plan_budget(view, pods, expected, pods_are_current=current)


def ready(count: int) -> list[PodView]:
    return [ready_pod(f"web-{n}") for n in range(count)]


def test_healthy_pods_above_the_minimum_may_be_disrupted() -> None:
    found = plan(budget(min_available=3), ready(4), 4)
    assert (found.current_healthy, found.desired_healthy, found.expected_pods, found.disruptions_allowed) == (
        4,
        3,
        4,
        1,
    )


def test_percentages_are_of_the_requested_replicas_and_rounded_up() -> None:
    assert plan(budget(min_available="50%"), ready(5), 5).desired_healthy == 3
    assert plan(budget(max_unavailable="30%"), ready(5), 5).desired_healthy == 3
    assert plan(budget(max_unavailable=1), ready(3), 5).disruptions_allowed == 0


def test_stopping_draining_and_unready_pods_are_not_healthy() -> None:
    pods = [*ready(2), ready_pod("going", terminating=True), ready_pod("draining", draining_s=1.0), a_pod("new")]
    assert plan(budget(min_available=1), pods, 5).current_healthy == 2


def test_an_eviction_counts_until_its_pod_is_seen_to_leave() -> None:
    statuses = budget(min_available=2, disrupted={"web-0": 5.0})
    found = plan(statuses, ready(3), 3)
    assert found.disruptions_allowed == 0
    assert "disruptedPods" not in budget_status(statuses, found)


def test_an_eviction_counts_whatever_the_clocks_show() -> None:
    """The pod was created by a server whose clock is ahead, and evicted an hour ago by this clock."""
    statuses = budget(min_available=2, disrupted={"web-0": 3600.0})
    assert plan(statuses, [ready_pod("web-0", age_s=-7200.0), *ready(3)[1:]], 3).disruptions_allowed == 0


def test_an_eviction_is_removed_once_its_pod_was_seen_to_leave() -> None:
    statuses = budget(min_available=1, disrupted={"web-0": 5.0, "web-1": 5.0})
    found = plan(statuses, [ready_pod("web-0", terminating=True), ready_pod("web-2")], 3)
    assert found.disrupted == {}
    assert budget_status(statuses, found)["disruptedPods"] == dict.fromkeys(("web-0", "web-1"))


def test_a_new_pod_of_the_same_name_counts_once_the_cache_is_past_the_eviction() -> None:
    statuses = budget(min_available=2, disrupted={"web-0": 5.0})
    assert plan(statuses, ready(3), 3, current=True).disruptions_allowed == 1


def test_a_budget_without_pods_allows_nothing() -> None:
    assert plan(budget(min_available=0), [], 0).disruptions_allowed == 0


@given(
    st.lists(st.sampled_from(["ready", "starting", "going", "evicted"]), max_size=8),
    st.one_of(st.integers(0, 8), st.sampled_from(["0%", "34%", "100%"])),
    st.booleans(),
)
def test_the_allowed_disruptions_never_exceed_the_spare_pods(
    kinds: list[str], bound: int | str, at_least: bool
) -> None:
    pods, disrupted = [], {}
    for n, kind in enumerate(kinds):
        name = f"web-{n}"
        pods.append(a_pod(name) if kind == "starting" else ready_pod(name, terminating=kind == "going"))
        if kind == "evicted":
            disrupted[name] = 1.0
    view = budget(**{"min_available" if at_least else "max_unavailable": bound}, disrupted=disrupted)
    found = plan(view, pods, len(pods))
    assert found.current_healthy == kinds.count("ready")
    assert 0 <= found.disruptions_allowed <= found.current_healthy
    if found.disruptions_allowed:
        assert found.current_healthy - found.disruptions_allowed >= found.desired_healthy

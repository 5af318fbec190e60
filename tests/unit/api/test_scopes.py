"""Scopes against a naive reading of their fields."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kedge.api.scopes import Workload, admits
from kedge.api.views import LabelSelectorSpec, ObjectMeta, PodView, Scope
from kedge.api.views.base import Labels

names = st.sampled_from(["risk", "fraud", "web"])
scopes = st.builds(
    Scope,
    tenants=st.lists(names, max_size=2).map(tuple),
    workloads=st.lists(names | names.map(lambda name: f"risk/{name}"), max_size=2).map(tuple),
)
POD = PodView(metadata=ObjectMeta(name="p", namespace="risk", uid="pod-uid", labels=Labels({"app": "web"})))


@given(scopes, names, st.uuids().map(str))
def test_tenants_and_workloads_are_matched_by_name(scope: Scope, name: str, uid: str) -> None:
    tenant = not scope.tenants or "risk" in scope.tenants
    workload = not scope.workloads or name in scope.workloads or f"risk/{name}" in scope.workloads
    assert admits(scope, POD, Workload(uid, name)) == (tenant and workload)


def test_a_selector_is_matched_against_the_labels_of_the_pod() -> None:
    for value, expected in (("web", True), ("other", False)):
        scope = Scope(pod_selector=LabelSelectorSpec(match_labels=Labels({"app": value})))
        assert admits(scope, POD, Workload()) is expected


@given(st.integers(0, 99), st.uuids().map(str))
def test_a_larger_percentage_only_adds_workloads(percent: int, uid: str) -> None:
    workload = Workload(uid, "web")
    assert not admits(Scope(percent=0), POD, workload)
    assert admits(Scope(percent=100), POD, workload)
    assert admits(Scope(percent=percent + 1), POD, workload) or not admits(Scope(percent=percent), POD, workload)


@given(st.integers(0, 100))
def test_a_pod_without_a_controller_is_its_own_workload(percent: int) -> None:
    scope = Scope(percent=percent)
    assert admits(scope, POD, Workload()) == admits(scope, POD, Workload("pod-uid", "p"))

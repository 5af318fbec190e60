"""Resources of a pod that is resized in place, held equal to a plain implementation of Kubernetes 1.36's rule.

Amounts are whole units, or fractions as a count of nano units: sums are exact, and each pod is rounded up once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.api.views import PodView
from kedge.api.views.schema import decoder_of
from kedge.placement.resize import is_infeasible, same_counts
from kedge.placement.resources import held_requests, pod_limits, pod_requests, quota_requests, spec_requests

Amounts = Mapping[str, int]

RESOURCES = ("cpu", "memory", "example.com/gpu")
NANOS = {"cpu": 1_000_000, "memory": 1_000_000_000, "example.com/gpu": 1_000_000_000}
"""Nano units in one unit of what is counted: in a thousandth of a CPU, in a byte, in a device."""
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 6), max_size=3)


def fractions_of(resource: str) -> st.SearchStrategy[int]:
    """Amounts in nano units: less than a unit, a little more than one, and just beside one."""
    unit = NANOS[resource]
    near = st.sampled_from((0, 1, unit // 3, unit // 2, unit - 1, unit, unit + 1, 5 * unit // 2))
    return near | st.integers(0, 3 * unit)


fractions = st.fixed_dictionaries({}, optional={each: fractions_of(each) for each in RESOURCES})


@st.composite
def pods(draw: st.DrawFn, amounts: st.SearchStrategy[dict[str, int]] = amounts) -> dict[str, Any]:
    requirements = st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts})
    names = draw(st.permutations(("a", "b", "c", "d")))
    many = draw(st.integers(1, 3))
    containers = [{"name": name, "resources": draw(requirements)} for name in names[:many]]
    init = [
        {"name": name, "resources": draw(requirements), **({"restartPolicy": "Always"} if draw(st.booleans()) else {})}
        for name in names[many : many + draw(st.integers(0, 2))]
    ]
    spec = {"containers": containers, "initContainers": init, "overhead": draw(amounts)}
    status: dict[str, Any] = {"conditions": draw(st.lists(conditions, max_size=2))}
    if draw(st.booleans()):
        spec["resources"] = draw(requirements)
    if draw(st.booleans()):
        status |= {"resources": draw(requirements), "allocatedResources": draw(amounts)}
    for field, every in (("containerStatuses", containers), ("initContainerStatuses", init)):
        status[field] = [draw(reports(str(each["name"]), amounts)) for each in every if draw(st.booleans())]
    return {"spec": spec, "status": status}


conditions = st.fixed_dictionaries(
    {
        "type": st.sampled_from(("PodResizePending", "PodResizeInProgress", "Ready")),
        "status": st.sampled_from(("True", "False")),
        "reason": st.sampled_from(("Infeasible", "Deferred", "")),
    }
)


def reports(name: str, amounts: st.SearchStrategy[dict[str, int]]) -> st.SearchStrategy[dict[str, Any]]:
    requirements = st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts})
    optional = {"resources": requirements, "allocatedResources": amounts}
    return st.fixed_dictionaries({"name": st.just(name)}, optional=optional)


def view_of(pod: Mapping[str, Any], suffix: str = "") -> PodView:
    view: PodView = decoder_of(PodView).decode(msgspec.json.encode(_in_text(pod, suffix)))
    return view


def _in_text(part: Any, suffix: str) -> Any:
    """Amounts as quantities: a whole CPU is 1000 of what is counted, and has 10**9 nano units."""
    if isinstance(part, Mapping):
        return {
            name: f"{value}{suffix}" if isinstance(value, int) else _in_text(value, suffix)
            for name, value in part.items()
        }
    return [_in_text(each, suffix) for each in part] if isinstance(part, list) else part


# -- the plain implementation ------------------------------------------------------------------------


def plain_total(pod: Mapping[str, Any], which: str, *, of_pod_from_spec: bool) -> dict[str, int]:
    """The rule of Kubernetes 1.36.4, one sentence of it after the other."""
    spec, status = pod["spec"], pod["status"]
    pending = [each for each in status["conditions"] if each["type"] == "PodResizePending"]
    infeasible = bool(pending) and pending[0]["reason"] == "Infeasible"
    reported = {each["name"]: each for each in (*status["containerStatuses"], *status["initContainerStatuses"])}

    def effective(desired: Amounts, applied: Amounts, allocated: Amounts) -> dict[str, int]:
        lists = [applied] if which == "limits" else [applied, allocated]
        return highest(*lists) if infeasible else highest(desired, *lists)

    def of_container(container: Mapping[str, Any], *, follows: bool) -> dict[str, int]:
        desired = container["resources"].get(which, {})
        found = reported.get(container["name"], {}) if follows else {}
        if found.get("resources") is None:
            return dict(desired)
        return effective(desired, found["resources"].get(which, {}), found.get("allocatedResources", {}))

    total = plus(*(of_container(each, follows=True) for each in spec["containers"]))
    beside: dict[str, int] = {}
    most: dict[str, int] = {}
    for each in spec["initContainers"]:
        sidecar = each.get("restartPolicy") == "Always"
        own = of_container(each, follows=sidecar)
        if sidecar:
            total, beside = plus(total, own), plus(beside, own)
            most = highest(most, beside)
        else:
            most = highest(most, plus(own, beside))
    total = highest(total, most)
    desired = spec.get("resources", {}).get(which, {})
    effective_of_pod: Mapping[str, int] | None = None
    if not of_pod_from_spec and status.get("resources") is not None:
        effective_of_pod = effective(desired, status["resources"].get(which, {}), status.get("allocatedResources", {}))
    for name, amount in desired.items():
        if name in ("cpu", "memory"):
            total[name] = amount if effective_of_pod is None else effective_of_pod.get(name, 0)
    for name, amount in spec["overhead"].items():
        if which == "requests" or total.get(name):
            total[name] = total.get(name, 0) + amount
    return total


def highest(*lists: Amounts) -> dict[str, int]:
    return {name: max(each.get(name, 0) for each in lists) for name in {n for each in lists for n in each}}


def plus(*lists: Amounts) -> dict[str, int]:
    return {name: sum(each.get(name, 0) for each in lists) for name in {n for each in lists for n in each}}


def in_units(total: Amounts) -> dict[str, int]:
    return {name: amount * (1000 if name == "cpu" else 1) for name, amount in total.items()}


def rounded_up(total: Amounts) -> dict[str, int]:
    """A total in nano units, as it is counted."""
    return {name: -(-amount // NANOS[name]) for name, amount in total.items()}


def plain_held(pod: Mapping[str, Any], part: str) -> dict[str, int]:
    """The requests that the node reports as allocated or as applied; those of the spec where it reports none."""
    spec, status = pod["spec"], pod["status"]
    reported = {each["name"]: each for each in (*status["containerStatuses"], *status["initContainerStatuses"])}

    def held(desired: Amounts, found: Mapping[str, Any]) -> Amounts:
        if found.get("resources") is None:
            return desired
        own: Amounts = found["resources"].get("requests", {}) if part == "applied" else found.get(part, {})
        return own

    def as_desired(container: Mapping[str, Any]) -> dict[str, Any]:
        own = held(container["resources"].get("requests", {}), reported.get(container["name"], {}))
        return {**container, "resources": {"requests": own}}

    of_pod = spec.get("resources", {}).get("requests", {})
    own_of_pod = held(of_pod, status)
    replaced = {
        "containers": list(map(as_desired, spec["containers"])),
        "initContainers": list(map(as_desired, spec["initContainers"])),
        "overhead": spec["overhead"],
        "resources": {"requests": {name: own_of_pod.get(name, 0) for name in of_pod}},
    }
    nothing: dict[str, Any] = {"conditions": [], "containerStatuses": [], "initContainerStatuses": []}
    return plain_total({"spec": replaced, "status": nothing}, "requests", of_pod_from_spec=True)


@given(pods())
def test_requests_are_those_of_kubernetes(pod: dict[str, Any]) -> None:
    expected = in_units(plain_total(pod, "requests", of_pod_from_spec=False)) | {"pods": 1}
    assert pod_requests(view_of(pod)) == expected


@given(pods())
def test_a_quota_counts_requests_and_limits_as_kubernetes_does(pod: dict[str, Any]) -> None:
    view = view_of(pod)
    assert quota_requests(view) == in_units(plain_total(pod, "requests", of_pod_from_spec=True)) | {"pods": 1}
    assert pod_limits(view) == in_units(plain_total(pod, "limits", of_pod_from_spec=True))


@given(pods(fractions))
def test_fractions_of_a_resized_pod_are_summed_exactly_and_rounded_up_once(pod: dict[str, Any]) -> None:
    view = view_of(pod, "n")
    assert pod_requests(view) == rounded_up(plain_total(pod, "requests", of_pod_from_spec=False)) | {"pods": 1}
    assert quota_requests(view) == rounded_up(plain_total(pod, "requests", of_pod_from_spec=True)) | {"pods": 1}
    assert pod_limits(view) == rounded_up(plain_total(pod, "limits", of_pod_from_spec=True))


@given(pods(fractions))
def test_fractions_that_a_node_holds_are_summed_exactly_and_rounded_up_once(pod: dict[str, Any]) -> None:
    view, parts = view_of(pod, "n"), (plain_held(pod, "allocatedResources"), plain_held(pod, "applied"))
    held = held_requests(view)
    assert held is None or held == rounded_up(highest(*parts)) | {"pods": 1}


def resized(spec: str, allocated: str, applied: str, *, resource: str, reason: str = "") -> PodView:
    """A pod of three equal containers in the middle of a resize."""
    names = ("a", "b", "c")
    reported = {"allocatedResources": {resource: allocated}, "resources": {"requests": {resource: applied}}}
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return view_of(
        {
            "spec": {"containers": [{"name": each, "resources": {"requests": {resource: spec}}} for each in names]},
            "status": {"conditions": conditions, "containerStatuses": [{"name": each, **reported} for each in names]},
        }
    )


@pytest.mark.parametrize(
    ("resource", "spec", "allocated", "applied", "counted", "counted_infeasible", "held"),
    [
        ("memory", "400m", "400m", "400m", 2, 2, 2),  # 1.2 bytes: 3 if each container were rounded
        ("memory", "500m", "400m", "300m", 2, 2, 2),  # 1.5 bytes desired
        ("memory", "1500m", "400m", "300m", 5, 2, 2),  # up: 4.5 bytes desired, 1.2 allocated
        ("memory", "300m", "1500m", "1400m", 5, 5, 5),  # down: it holds 4.5 bytes until it is applied
        ("cpu", "300u", "300u", "300u", 1, 1, 1),  # 0.9 thousandths
        ("cpu", "700u", "300u", "200u", 3, 1, 1),  # 2.1 thousandths desired
        ("cpu", "200u", "300u", "500u", 2, 2, 2),  # 1.5 thousandths applied
        ("cpu", "1n", "0", "0", 1, 0, 0),
    ],
)
def test_fractions_of_several_containers_are_rounded_up_once_for_the_pod(
    resource: str, spec: str, allocated: str, applied: str, counted: int, counted_infeasible: int, held: int
) -> None:
    pod = resized(spec, allocated, applied, resource=resource)
    refused = resized(spec, allocated, applied, resource=resource, reason="Infeasible")
    assert pod_requests(pod)[resource] == quota_requests(pod)[resource] == counted
    assert pod_requests(refused)[resource] == quota_requests(refused)[resource] == counted_infeasible
    assert (held_requests(pod) or {})[resource] == (held_requests(refused) or {})[resource] == held


@given(pods())
def test_a_pod_whose_status_reports_nothing_counts_with_its_spec(pod: dict[str, Any]) -> None:
    pod["status"] = {"conditions": pod["status"]["conditions"], "containerStatuses": [], "initContainerStatuses": []}
    view = view_of(pod)
    assert pod_requests(view) == spec_requests(view.spec)
    assert held_requests(view) is None


@given(pods(), pods())
def test_versions_with_the_same_counts_have_the_same_requests(one: dict[str, Any], other: dict[str, Any]) -> None:
    mine, theirs = view_of(one), view_of({"spec": one["spec"], "status": other["status"]})
    assert same_counts(mine, mine)
    if same_counts(mine, theirs):
        assert pod_requests(mine) == pod_requests(theirs)
        assert held_requests(mine) == held_requests(theirs)


def test_only_the_first_pending_condition_decides_whatever_its_status() -> None:
    pending = [{"type": "PodResizePending", "status": "False", "reason": "Infeasible"}]
    assert is_infeasible(view_of({"spec": {"containers": []}, "status": {"conditions": pending}}))

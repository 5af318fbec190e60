"""Slices list the pods that receive work; a listed pod stays in its slice."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.pod_views import a_pod, ready_pod

from kedge.api.views import Container, ContainerPort, ObjectMeta, PodView, ServiceView
from kedge.api.views.core import ServicePort, ServiceSpec
from kedge.controllers.endpoints.plan import Slice, SlicePlan, plan_slices

SERVICE = ServiceView(
    metadata=ObjectMeta(name="web"), spec=ServiceSpec(ports=(ServicePort(port=80, target_port=8080),))
)


def at(pod: PodView, address: str = "10.0.0.1") -> PodView:
    return replace(pod, status=replace(pod.status, pod_ip=address))


def plan(
    pods: list[PodView], slices: tuple[Slice, ...] = (), *, service: ServiceView = SERVICE, most: int = 3
) -> SlicePlan:
    return plan_slices(service, pods, slices, zones={"node-a": "zone-a"}, endpoints_max=most)


def carried_out(slices: tuple[Slice, ...], steps: SlicePlan) -> tuple[Slice, ...]:
    found = {each.name: each for each in slices}
    for each in steps.create:
        assert each.name not in found
        found[each.name] = each
    for each in steps.update:
        found[each.name] = each
    for name in steps.delete:
        del found[name]
    return tuple(found.values())


def names(slices: tuple[Slice, ...], *, ready: bool | None = None) -> list[str]:
    return sorted(
        each["targetRef"]["name"]
        for found in slices
        for each in found.endpoints
        if ready is None or each["conditions"]["ready"] is ready
    )


def test_a_ready_pod_is_listed_with_its_zone_and_ports() -> None:
    (made,) = plan([at(ready_pod("web-0"))]).create
    assert made.name == "web-0"
    assert made.group == ("IPv4", (("", "TCP", 8080, ""),))
    (endpoint,) = made.endpoints
    assert endpoint["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert (endpoint["nodeName"], endpoint["zone"], endpoint["addresses"]) == ("node-a", "zone-a", ["10.0.0.1"])


def test_draining_and_ended_pods_and_pods_without_an_address_are_not_listed() -> None:
    pods = [
        at(ready_pod("draining", draining_s=1.0)),
        at(a_pod("ended", node="node-a", phase="Succeeded")),
        ready_pod("nowhere"),
    ]
    assert plan(pods) == SlicePlan()


def test_stopping_and_unready_pods_are_listed_as_not_ready() -> None:
    pods = [at(ready_pod("going", terminating=True)), at(a_pod("starting", node="node-a"))]
    made = plan(pods).create
    assert names(made, ready=False) == ["going", "starting"]
    eager = replace(SERVICE, spec=replace(SERVICE.spec, publish_not_ready_addresses=True))
    assert names(plan(pods, service=eager).create, ready=True) == ["going", "starting"]


def test_pods_that_name_their_ports_differently_are_in_slices_of_their_own() -> None:
    service = replace(SERVICE, spec=ServiceSpec(ports=(ServicePort(name="http", port=80, target_port="http"),)))

    def with_port(name: str, number: int) -> PodView:
        pod = at(ready_pod(name))
        container = Container(name="main", ports=(ContainerPort(name="http", container_port=number),))
        return replace(pod, spec=replace(pod.spec, containers=(container,)))

    made = plan([with_port("a", 80), with_port("b", 81), with_port("c", 80)], service=service).create
    assert [sorted(names((each,))) for each in made] == [["a", "c"], ["b"]]


def test_a_pods_change_rewrites_its_own_slice_alone() -> None:
    pods = [at(ready_pod(f"p{n}")) for n in range(7)]
    slices = carried_out((), plan(pods))
    assert [len(each.endpoints) for each in slices] == [3, 3, 1]
    pods[1] = at(a_pod("p1", node="node-a"))
    steps = plan(pods, slices)
    assert [each.name for each in steps.update] == ["web-0"]
    assert not steps.create
    assert not steps.delete


pod_states = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(["ready", "starting", "draining", "going"])),
    unique_by=lambda each: each[0],
)


@given(st.lists(pod_states, min_size=1, max_size=5), st.integers(1, 4))
def test_slices_follow_the_pods_whatever_they_were_and_then_rest(
    rounds: list[list[tuple[int, str]]], most: int
) -> None:
    slices: tuple[Slice, ...] = ()
    make: dict[str, Any] = {
        "ready": ready_pod,
        "starting": lambda name: a_pod(name, node="node-a"),
        "draining": lambda name: ready_pod(name, draining_s=1.0),
        "going": lambda name: ready_pod(name, terminating=True),
    }
    for states in rounds:
        pods = [at(make[state](f"p{n}")) for n, state in states]
        homes = {name: each.name for each in slices for name in names((each,))}
        steps = plan(pods, slices, most=most)
        slices = carried_out(slices, steps)
        assert names(slices) == sorted(f"p{n}" for n, state in states if state != "draining")
        assert names(slices, ready=True) == sorted(f"p{n}" for n, state in states if state == "ready")
        assert all(0 < len(each.endpoints) <= most for each in slices)
        now = {name: each.name for each in slices for name in names((each,))}
        assert all(now[name] == home for name, home in homes.items() if name in now)  # no pod moves
        assert plan(pods, slices, most=most) == SlicePlan()

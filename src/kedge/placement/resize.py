"""How a pod's resources count while they are resized in place, as in Kubernetes 1.36.

The spec has the desired resources, the status those that the node has allocated and those that are applied. A container
counts with the highest of the three, and without its spec if the node refuses the resize as infeasible. Pure; sums are
in `resources`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kedge.api.conditions import find_condition
from kedge.api.quantity import Quantity
from kedge.api.views import Container, ContainerStatus, PodSpec, PodStatus, PodView, ResourceList
from kedge.api.wellknown import INFEASIBLE, RESIZE_PENDING

_ZERO = Quantity(0)


class PodParts(NamedTuple):
    """Amounts of each container of a pod, in order, and those of the pod itself, which replace the sum."""

    containers: tuple[ResourceList, ...]
    init_containers: tuple[ResourceList, ...]
    sidecars: tuple[bool, ...]
    """For each init container whether it stays beside the containers."""
    of_pod: ResourceList


def reports_resources(status: PodStatus) -> bool:
    """Whether a node has reported any resources of the pod."""
    for each in status.container_statuses:
        if each.resources is not None:
            return True
    return status.resources is not None or any(each.resources is not None for each in status.init_container_statuses)


def is_infeasible(pod: PodView) -> bool:
    """Whether the pod's node refuses its resize for good."""
    found = find_condition(pod.status.conditions, RESIZE_PENDING)
    return found is not None and found.reason == INFEASIBLE


def parts_of_spec(spec: PodSpec, which: str) -> PodParts:
    """The desired `requests` or `limits`."""
    return PodParts(
        tuple([getattr(each.resources, which) for each in spec.containers]),
        tuple([getattr(each.resources, which) for each in spec.init_containers]),
        tuple([_is_sidecar(each) for each in spec.init_containers]),
        getattr(spec.resources, which),
    )


def counted_requests(pod: PodView) -> PodParts:
    """The requests that count. An init container that is no sidecar counts with its spec."""
    desired, infeasible, reported = parts_of_spec(pod.spec, "requests"), is_infeasible(pod), _by_name(pod.status)

    def counted(container: Container) -> ResourceList:
        spec, status = container.resources.requests, reported.get(container.name)
        if status is None or status.resources is None:
            return spec
        return _counted(spec, (status.resources.requests, status.allocated_resources), infeasible=infeasible)

    status, of_pod = pod.status, desired.of_pod
    if of_pod and status.resources is not None:
        counted_of_pod = _counted(
            of_pod, (status.resources.requests, status.allocated_resources), infeasible=infeasible
        )
        of_pod = _only(counted_of_pod, of_pod)
    return desired._replace(
        containers=tuple([counted(each) for each in pod.spec.containers]),
        init_containers=tuple(
            [counted(each) if _is_sidecar(each) else each.resources.requests for each in pod.spec.init_containers]
        ),
        of_pod=of_pod,
    )


def counted_limits(pod: PodView) -> PodParts:
    """The limits that count: of the spec and of those that are applied."""
    desired = parts_of_spec(pod.spec, "limits")
    if not reports_resources(pod.status):
        return desired
    infeasible, reported = is_infeasible(pod), _by_name(pod.status)

    def counted(container: Container) -> ResourceList:
        spec, status = container.resources.limits, reported.get(container.name)
        if status is None or status.resources is None:
            return spec
        return _counted(spec, (status.resources.limits,), infeasible=infeasible)

    return desired._replace(
        containers=tuple([counted(each) for each in pod.spec.containers]),
        init_containers=tuple(
            [counted(each) if _is_sidecar(each) else each.resources.limits for each in pod.spec.init_containers]
        ),
    )


def allocated_parts(pod: PodView) -> PodParts:
    """The requests that the node has allocated. A container that it has not reported counts with its spec."""
    return _reported_parts(pod, applied=False)


def applied_parts(pod: PodView) -> PodParts:
    """The requests that are applied on the node. A container that it has not reported counts with its spec."""
    return _reported_parts(pod, applied=True)


def same_counts(one: PodView, other: PodView) -> bool:
    """Whether two versions of a pod have the same of everything that counts."""
    if one.spec is not other.spec and one.spec != other.spec:
        return False
    mine, theirs = one.status, other.status
    return (
        _reported(mine) == _reported(theirs)
        and (mine.resources, mine.allocated_resources) == (theirs.resources, theirs.allocated_resources)
        and is_infeasible(one) == is_infeasible(other)
    )


def _reported_parts(pod: PodView, *, applied: bool) -> PodParts:
    reported, status = _by_name(pod.status), pod.status

    def found(container: Container) -> ResourceList:
        each = reported.get(container.name)
        if each is None or each.resources is None:
            return container.resources.requests
        return each.resources.requests if applied else each.allocated_resources

    desired = parts_of_spec(pod.spec, "requests")
    of_pod = desired.of_pod
    if of_pod and status.resources is not None:
        of_pod = _only(status.resources.requests if applied else status.allocated_resources, of_pod)
    return desired._replace(
        containers=tuple([found(each) for each in pod.spec.containers]),
        init_containers=tuple([found(each) for each in pod.spec.init_containers]),
        of_pod=of_pod,
    )


def _counted(spec: ResourceList, reported: tuple[ResourceList, ...], *, infeasible: bool) -> ResourceList:
    if all(each == spec for each in reported):
        return spec  # no resize is under way
    return _highest(reported if infeasible else (spec, *reported))


def _highest(lists: Iterable[ResourceList]) -> ResourceList:
    found: dict[str, Quantity] = {}
    for each in lists:
        for resource, amount in each.items():
            if resource not in found or amount.nano > found[resource].nano:
                found[resource] = amount
    return ResourceList(found)


def _only(amounts: ResourceList, named: ResourceList) -> ResourceList:
    """The amounts of the resources in `named`; zero for one that is missing."""
    return ResourceList({resource: amounts.get(resource, _ZERO) for resource in named})


def _by_name(status: PodStatus) -> dict[str, ContainerStatus]:
    return {each.name: each for each in (*status.container_statuses, *status.init_container_statuses)}


def _reported(status: PodStatus) -> list[tuple[object, ...]]:
    return [
        (each.name, each.resources, each.allocated_resources)
        for each in (*status.container_statuses, *status.init_container_statuses)
        if each.resources is not None
    ]


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"

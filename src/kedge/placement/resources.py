"""Requests of a pod and resources of a node, as plain integers: milli-CPUs, and whole units of everything else."""

from __future__ import annotations

from collections.abc import Mapping

from kedge.api.pod_resources import Nanos, set_for_pod, total_of_containers
from kedge.api.quantity import Quantity, units
from kedge.api.views import NodeView, PodSpec, PodView, ResourceList
from kedge.placement.resize import (
    PodParts,
    allocated_parts,
    applied_parts,
    counted_limits,
    counted_requests,
    parts_of_spec,
    reports_resources,
)

Units = Mapping[str, int]
"""Resource name to amount: `cpu` in thousandths, everything else in its own unit."""

PODS = "pods"
CPU = "cpu"
MEMORY = "memory"


def to_units(quantities: Mapping[str, Quantity]) -> Units:
    if type(quantities) is ResourceList:
        return quantities.in_units
    return {resource: units(resource, quantity) for resource, quantity in quantities.items()}


def pod_requests(pod: PodView) -> dict[str, int]:
    """The pod's requests on its node, itself included as one of `pods`, by `resize.counted_requests`."""
    if not reports_resources(pod.status):
        return spec_requests(pod.spec)
    return total_requests(pod.spec, counted_requests(pod))


def spec_requests(spec: PodSpec) -> dict[str, int]:
    """The requests in a pod's spec: those of a pod that no node has allocated anything to."""
    if len(spec.containers) == 1 and not (spec.init_containers or spec.overhead or spec.resources.requests):
        total = dict(to_units(spec.containers[0].resources.requests))  # the common case, in every bind
        total[PODS] = 1
        return total
    return total_requests(spec, parts_of_spec(spec, "requests"))


def total_requests(spec: PodSpec, parts: PodParts) -> dict[str, int]:
    """The sum of a pod's parts with its overhead, itself included as one of `pods`."""
    exact = _exact(parts)
    for resource, amount in spec.overhead.items():
        exact[resource] = exact.get(resource, 0) + amount.nano
    total = _rounded(exact)
    total[PODS] = 1
    return total


def quota_requests(pod: PodView) -> dict[str, int]:
    """As `pod_requests`, but resources of the pod itself are those of its spec: a quota reads no others."""
    if not (reports_resources(pod.status) and pod.spec.resources.requests):
        return pod_requests(pod)
    return total_requests(pod.spec, counted_requests(pod)._replace(of_pod=pod.spec.resources.requests))


def held_requests(pod: PodView) -> dict[str, int] | None:
    """The requests that the pod's node reports as allocated or applied, whichever is more; None if it reports none."""
    if not reports_resources(pod.status):
        return None
    allocated = total_requests(pod.spec, allocated_parts(pod))
    for resource, amount in total_requests(pod.spec, applied_parts(pod)).items():
        allocated[resource] = max(amount, allocated.get(resource, 0))
    return allocated


def pod_limits(pod: PodView) -> dict[str, int]:
    """The pod's limits, for the resources that it limits, as a quota counts them."""
    exact = _exact(counted_limits(pod)._replace(of_pod=pod.spec.resources.limits))
    for resource, amount in pod.spec.overhead.items():
        if exact.get(resource):
            exact[resource] += amount.nano
    return _rounded(exact)


def node_allocatable(node: NodeView) -> Units:
    """The node's allocatable resources; its capacity where it declares none."""
    return to_units(node.status.allocatable or node.status.capacity)


def add(*parts: Units) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def subtract(whole: Units, part: Units) -> dict[str, int]:
    """`whole` minus `part`; a resource that becomes zero is left out."""
    rest = dict(whole)
    for resource, amount in part.items():
        rest[resource] = rest.get(resource, 0) - amount
        if not rest[resource]:
            del rest[resource]
    return rest


def fits(requested: Units, claimed: Units, node: NodeView) -> bool:
    """Whether there are no `shortages` on a node. It reads only the requested resources."""
    offered = node_allocatable(node)
    for resource, amount in requested.items():
        if amount > 0 and claimed.get(resource, 0) + amount > offered.get(resource, 0):
            return False
    return True


def shortages(requested: Units, used: Units, available: Units) -> list[str]:
    """The resources whose `used + requested` exceeds `available`, by name. A request of zero never falls short."""
    return sorted(
        resource
        for resource, amount in requested.items()
        if amount > 0 and used.get(resource, 0) + amount > available.get(resource, 0)
    )


def exact_total(spec: PodSpec, which: str) -> Nanos:
    return _exact(parts_of_spec(spec, which))


def _exact(parts: PodParts) -> Nanos:
    total = total_of_containers(parts.containers, zip(parts.init_containers, parts.sidecars, strict=True))
    set_for_pod(total, parts.of_pod)
    return total


def _rounded(exact: Nanos) -> dict[str, int]:
    """Rounded up once for the pod: containers may request fractions of a unit."""
    return {resource: units(resource, Quantity(nano)) for resource, nano in exact.items()}

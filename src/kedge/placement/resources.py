"""Requests of a pod and resources of a node, as plain integers: milli-CPUs, and whole units of everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kedge.api.quantity import Quantity, units
from kedge.api.views import Container, NodeView, PodView, ResourceList

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
    """The pod's requests on its node, itself included as one of `pods`."""
    total = dict(_pod_total(pod, "requests"))
    if pod.spec.overhead:
        total = add(total, to_units(pod.spec.overhead))
    total[PODS] = 1
    return total


def pod_limits(pod: PodView) -> dict[str, int]:
    """The pod's limits, for the resources that it limits."""
    total = dict(_pod_total(pod, "limits"))
    for resource, amount in to_units(pod.spec.overhead).items():
        if resource in total:
            total[resource] += amount
    return total


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


def _pod_total(pod: PodView, which: str) -> Units:
    """Containers run together; init containers run one after another before them, except sidecars, which stay."""
    containers = pod.spec.containers
    if len(containers) == 1 and not pod.spec.init_containers:
        return to_units(getattr(containers[0].resources, which))  # the common case, in every bind
    total = _sum(containers, which)
    if not pod.spec.init_containers:
        return total
    sidecars: dict[str, int] = {}
    highest: dict[str, int] = {}
    for container in pod.spec.init_containers:
        own = to_units(getattr(container.resources, which))
        if container.restart_policy == "Always":
            total = add(total, own)
            sidecars = add(sidecars, own)
            running = sidecars
        else:
            running = add(sidecars, own)
        highest = _maximum(highest, running)
    return _maximum(total, highest)


def _sum(containers: Iterable[Container], which: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in containers:
        for resource, quantity in getattr(container.resources, which).items():
            total[resource] = total.get(resource, 0) + units(resource, quantity)
    return total


def _maximum(one: Units, other: Units) -> dict[str, int]:
    highest = dict(one)
    for resource, amount in other.items():
        highest[resource] = max(highest.get(resource, 0), amount)
    return highest

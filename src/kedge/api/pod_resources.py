"""The resources of a whole pod, exactly: what its containers add up to, and where the pod itself sets an amount.

Amounts are counts of nano units, so that sums are exact; a caller rounds once, for the pod. `defaults` fills in the
requests of a pod with it, `placement.resources` counts with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kedge.api.quantity import Quantity

Nanos = dict[str, int]
"""Resource name to amount, in nano units."""


def is_set_for_pods(resource: str) -> bool:
    """Whether `spec.resources` of a pod may set it. Other resources are set by its containers alone."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def total_of_containers(
    containers: Iterable[Mapping[str, Quantity]], init_containers: Iterable[tuple[Mapping[str, Quantity], bool]] = ()
) -> Nanos:
    """Containers run together; init containers run one after another before them, except sidecars, which stay.

    An init container comes with whether it is a sidecar.
    """
    total: Nanos = {}
    for amounts in containers:
        _add(total, amounts)
    sidecars: Nanos = {}
    highest: Nanos = {}
    for amounts, sidecar in init_containers:
        if sidecar:
            _add(total, amounts)
            _add(sidecars, amounts)
            _raise(highest, sidecars)
        else:
            running = dict(sidecars)
            _add(running, amounts)
            _raise(highest, running)
    _raise(total, highest)
    return total


def set_for_pod(total: Nanos, of_pod: Mapping[str, Quantity]) -> None:
    """Replace the amounts that the pod sets itself."""
    for resource, amount in of_pod.items():
        if is_set_for_pods(resource):
            total[resource] = amount.nano


def _add(total: Nanos, amounts: Mapping[str, Quantity]) -> None:
    for resource, amount in amounts.items():
        total[resource] = total.get(resource, 0) + amount.nano


def _raise(highest: Nanos, amounts: Nanos) -> None:
    for resource, amount in amounts.items():
        highest[resource] = max(highest.get(resource, 0), amount)

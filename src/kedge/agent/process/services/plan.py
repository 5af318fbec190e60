"""The ports that a node's proxy serves, from Services, EndpointSlices and Nodes. Pure.

A pod's address is a loopback address of its machine: on another machine it would lead to another pod, or nowhere. So
such an endpoint is used only if its node has the boot id of this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kedge.api.views import EndpointSliceView, ServiceView
from kedge.api.views.core import Endpoint
from kedge.api.wellknown import SERVICE_NAME_LABEL

Target = tuple[str, int]
"""Address and port of an endpoint."""


class ServiceName(NamedTuple):
    """The name of a Service."""

    namespace: str
    name: str


class ServicePortPlan(NamedTuple):
    """One port of a Service, and its endpoints on this machine."""

    service: ServiceName
    port_name: str
    port: int
    ready: tuple[Target, ...]
    """New connections go to these."""
    known: frozenset[Target]
    """Connections to these stay: an endpoint that is only unready finishes what it has."""


def plan_ports(
    services: Iterable[ServiceView],
    slices: Iterable[EndpointSliceView],
    boot_ids: Mapping[str, str],
    own_boot_id: str,
) -> tuple[ServicePortPlan, ...]:
    """Every TCP port of every Service that has an address of its own. `boot_ids` is by node."""
    by_service: dict[ServiceName, list[EndpointSliceView]] = {}
    for each in slices:
        owner = each.metadata.labels.get(SERVICE_NAME_LABEL, "")
        if owner:
            by_service.setdefault(ServiceName(each.namespace, owner), []).append(each)
    found = []
    for service in sorted(services, key=lambda each: (each.namespace, each.name)):
        if not has_address(service):
            continue
        name = ServiceName(service.namespace, service.name)
        for port in service.spec.ports:
            if port.protocol == "TCP":
                ready, known = _targets(by_service.get(name, ()), port.name, boot_ids, own_boot_id)
                found.append(ServicePortPlan(name, port.name, port.port, ready, known))
    return tuple(found)


def has_address(service: ServiceView) -> bool:
    """Whether a Service is reached at an address: not an alias, and not headless."""
    return service.spec.type != "ExternalName" and service.spec.cluster_ip != "None" and bool(service.spec.ports)


def _targets(
    slices: Sequence[EndpointSliceView], port_name: str, boot_ids: Mapping[str, str], own_boot_id: str
) -> tuple[tuple[Target, ...], frozenset[Target]]:
    ready: list[Target] = []
    known: set[Target] = set()
    for each in slices:
        number = next((port.port for port in each.ports if port.name == port_name and port.protocol == "TCP"), None)
        if not number:
            continue
        for endpoint in each.endpoints:
            if not endpoint.addresses or not _is_reachable(endpoint, boot_ids, own_boot_id):
                continue
            target = endpoint.addresses[0], number
            known.add(target)
            if endpoint.conditions.ready is not False:
                ready.append(target)
    return tuple(sorted(set(ready))), frozenset(known)


def _is_reachable(endpoint: Endpoint, boot_ids: Mapping[str, str], own_boot_id: str) -> bool:
    try:
        is_loopback = ipaddress.ip_address(endpoint.addresses[0]).is_loopback
    except ValueError:
        return False
    return not is_loopback or boot_ids.get(endpoint.node_name, "") == own_boot_id

"""The plan of a Service's EndpointSlices: which to create, update and delete. Pure.

A pod is listed while it has an address and is neither draining nor ended, and as ready only while it is ready. Each
stays in its slice, so that a change of one pod rewrites one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kedge.api.views import PodView, ServiceView
from kedge.api.views.core import ServicePort
from kedge.controllers.shared.pods import is_draining, is_ready

Json = dict[str, Any]

Group = tuple[str, tuple[tuple[str, str, int, str], ...]]
"""The address family and ports that the endpoints of one slice share."""


@dataclass(frozen=True, slots=True)
class Slice:
    """An EndpointSlice, stored or planned."""

    name: str
    group: Group
    endpoints: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class SlicePlan:
    create: tuple[Slice, ...] = ()
    update: tuple[Slice, ...] = ()
    delete: tuple[str, ...] = ()


def plan_slices(
    service: ServiceView,
    pods: Sequence[PodView],
    slices: Sequence[Slice],
    *,
    zones: Mapping[str, str],
    endpoints_max: int,
) -> SlicePlan:
    """Update the slices of a Service to its pods. `zones` maps node names to zones."""
    wanted: dict[Group, dict[str, Json]] = {}
    for pod in sorted(pods, key=lambda each: each.name):
        group = _group_of(service, pod)
        if group is not None:
            wanted.setdefault(group, {})[pod.uid] = endpoint_of(service, pod, zones.get(pod.spec.node_name, ""))
    update, delete, open_slices = [], [], []
    for each in sorted(slices, key=lambda found: found.name):
        left = wanted.get(each.group, {})
        kept = [left.pop(uid) for uid in _uids(each.endpoints) if uid in left]
        if kept:
            open_slices.append(Slice(each.name, each.group, tuple(kept)))
        else:
            delete.append(each.name)
    before = {each.name: each for each in slices}
    create: list[Slice] = []
    for each in open_slices:
        left = wanted.get(each.group, {})
        room = max(0, endpoints_max - len(each.endpoints))
        filled = Slice(each.name, each.group, (*each.endpoints, *(left.pop(uid) for uid in list(left)[:room])))
        if filled.endpoints != before[each.name].endpoints:
            update.append(filled)
    taken = {each.name for each in slices}
    for group, left in wanted.items():
        rest = list(left.values())
        for start in range(0, len(rest), endpoints_max):
            name = _free_name(service.name, taken)
            taken.add(name)
            create.append(Slice(name, group, tuple(rest[start : start + endpoints_max])))
    return SlicePlan(tuple(create), tuple(update), tuple(delete))


def endpoint_of(service: ServiceView, pod: PodView, zone: str) -> Json:
    """One pod as an endpoint. As in Kubernetes, a terminating pod may serve open connections and gets no new ones."""
    ready = is_ready(pod)
    made: Json = {
        "addresses": [pod.status.pod_ip],
        "conditions": {
            "ready": service.spec.publish_not_ready_addresses or (ready and not pod.terminating),
            "serving": ready,
            "terminating": pod.terminating,
        },
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }
    if pod.spec.node_name:
        made["nodeName"] = pod.spec.node_name
    if zone:
        made["zone"] = zone
    return made


def _group_of(service: ServiceView, pod: PodView) -> Group | None:
    """The group of slices that lists a pod; None if the pod is not listed."""
    if pod.finished or is_draining(pod) or not pod.status.pod_ip:
        return None
    family = "IPv6" if ":" in pod.status.pod_ip else "IPv4"
    ports = []
    for each in service.spec.ports:
        number = _port_number(each, pod)
        if number:
            ports.append((each.name, each.protocol, number, each.app_protocol))
    return family, tuple(ports)


def _port_number(port: ServicePort, pod: PodView) -> int:
    """The number of a Service's port in a pod; 0 if the pod has no port of that name."""
    target = port.target_port
    if isinstance(target, int):
        return target or port.port
    for container in pod.spec.containers:
        for each in container.ports:
            if each.name == target and each.protocol == port.protocol:
                return each.container_port
    return 0 if target else port.port


def _uids(endpoints: Iterable[Json]) -> list[str]:
    return [str((each.get("targetRef") or {}).get("uid", "")) for each in endpoints]


def _free_name(service: str, taken: set[str]) -> str:
    number = 0
    while f"{service}-{number}" in taken:
        number += 1
    return f"{service}-{number}"

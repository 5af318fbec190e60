"""Endpoints: the pods of a Service that get work, written as EndpointSlices. The plan is pure.

A pod is listed while it has an address and is neither draining nor ended, as ready only while it is. Each stays in the
slice it is in, so that one pod's change rewrites one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kedge.api.holds import active_hold
from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.owners import owner_reference
from kedge.api.selectors import LabelSelector, parse_label_selector
from kedge.api.views import PodView, ServiceView
from kedge.api.views.core import ServicePort
from kedge.api.wellknown import (
    NODE_KIND,
    SERVICE_KIND,
    SERVICE_NAME_LABEL,
    SLICE_MANAGER,
    SLICE_MANAGER_LABEL,
    ZONE_LABEL,
)
from kedge.controllers.shared.pods import is_draining, is_ready
from kedge.controllers.shared.reconcile import ENDPOINT_SLICE, POD, look_again, split_held, wait_out
from kedge.env import Env
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec
from kedge.runtime.cache import CacheChange, CacheSet

NAME = "endpoints"
SERVICE = KINDS.of_key_kind(SERVICE_KIND)
NODE = KINDS.of_key_kind(NODE_KIND)

Json = dict[str, Any]
Group = tuple[str, tuple[tuple[str, str, int, str], ...]]
"""What the endpoints of one slice share: the family of their addresses, and the ports."""


@dataclass(frozen=True, slots=True)
class Slice:
    """An EndpointSlice as it is, or as it is to be."""

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
    """Bring the slices of a Service to what its pods are. `zones` are those of nodes, by name."""
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
    """One pod as an endpoint. As in Kubernetes, one that is stopping may serve what it has, and gets nothing new."""
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
    """Where a pod is to be listed; None if it is not."""
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
    """The number a Service's port has in a pod; 0 if the pod has no port of that name."""
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


# -- the shell -------------------------------------------------------------------------------------


def slice_of(found: Object) -> Slice:
    """A stored slice as the plan sees it."""
    document = found.edit()
    ports = tuple(
        (str(p.get("name") or ""), str(p.get("protocol") or "TCP"), int(p.get("port") or 0), p.get("appProtocol") or "")
        for p in document.get("ports") or ()
    )
    return Slice(found.key.name, (str(document.get("addressType")), ports), tuple(document.get("endpoints") or ()))


def slice_body(service: Object, made: Slice) -> Json:
    family, ports = made.group
    return {
        "apiVersion": ENDPOINT_SLICE.api_version,
        "kind": ENDPOINT_SLICE.kind,
        "metadata": {
            "name": made.name,
            "namespace": service.key.namespace,
            "labels": {SERVICE_NAME_LABEL: service.key.name, SLICE_MANAGER_LABEL: SLICE_MANAGER},
            "ownerReferences": [owner_reference(SERVICE, service.metadata)],
        },
        "addressType": family,
        "endpoints": list(made.endpoints),
        "ports": [
            {"name": name, "protocol": protocol, "port": number, **({"appProtocol": app} if app else {})}
            for name, protocol, number, app in ports
        ],
    }


class EndpointsReconciler:
    """One look at one Service."""

    def __init__(self, env: Env) -> None:
        self._slices = env.metrics.counter("kedge_endpoint_slices", "Slices written, by what was done", ("act",))

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        service = ctx.get(key)
        if service is None or service.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="it is gone, or going: its slices are garbage")
        view, now = service.as_view(ServiceView), ctx.now()
        hold = active_hold(view, NAME, now)
        if hold is not None:
            return await wait_out(ctx, service, hold, now)
        selector = service_selector(view)
        if selector is None:
            return Action.await_change(reason="somebody else keeps its endpoints")
        pods = [pod.as_view(PodView) for pod in ctx.list(POD, namespace=key.namespace, selector=selector)]
        known = {each.key.name: each for each in ctx.owned(ENDPOINT_SLICE, service)}
        ours = {
            name: each for name, each in known.items() if each.metadata.labels.get(SLICE_MANAGER_LABEL) == SLICE_MANAGER
        }
        plan = plan_slices(
            view,
            pods,
            [slice_of(each) for each in ours.values()],
            zones=self._zones(ctx, pods),
            endpoints_max=ctx.limits.slice_endpoints_max,
        )
        # What is listed anew is listed before anything is taken out: a Service is never emptier than it must be.
        for made in plan.create:
            self._slices.labels("create").inc()
            await ctx.ensure(ENDPOINT_SLICE, slice_body(service, made))
        free, ends = split_held(ours.values(), NAME, now)
        touchable = {each.key.name for each in free}
        for made in plan.update:
            if made.name in touchable:
                self._slices.labels("update").inc()
                await ctx.patch(ours[made.name], {"endpoints": list(made.endpoints)})
        for name in plan.delete:
            if name in touchable:
                self._slices.labels("delete").inc()
                await ctx.delete(ours[name])
        return look_again(now, *ends)

    def _zones(self, ctx: Context, pods: Iterable[PodView]) -> dict[str, str]:
        zones = {}
        for name in sorted({pod.spec.node_name for pod in pods if pod.spec.node_name}):
            node = ctx.get(Key(NODE.key_kind, "", name))
            zones[name] = node.metadata.labels.get(ZONE_LABEL, "") if node is not None else ""
        return zones


def service_selector(service: ServiceView) -> LabelSelector | None:
    """What selects the pods of a Service; None if kedge does not keep its endpoints."""
    if service.spec.type == "ExternalName" or not service.spec.selector:
        return None
    return parse_label_selector(",".join(f"{name}={value}" for name, value in sorted(service.spec.selector.items())))


def wake_services(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
    """The Services that select a pod, as it was or as it is."""
    labels = [each.metadata.labels for each in (change.old, change.new) if each is not None]
    for cache in caches.of_kind(SERVICE.key_kind):
        for service in cache.list(namespace=change.key.namespace).value:
            wanted = service.as_view(ServiceView).spec.selector
            if wanted and any(all(each.get(k) == v for k, v in wanted.items()) for each in labels):
                yield service.key


def endpoints_controller(runtime: ControllerRuntime) -> Controller:
    """The controller, ready to run."""
    return Controller(
        ControllerSpec(
            name=NAME,
            kind=SERVICE,
            owns=(ENDPOINT_SLICE,),
            watches=(WatchSpec(kind=POD, keys_of=wake_services), WatchSpec(kind=NODE)),
        ),
        EndpointsReconciler(runtime.env),
        runtime,
    )

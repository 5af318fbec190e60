"""The endpoints controller: writes the pods of a Service that may receive work as EndpointSlices.

`plan` decides. Only slices with kedge's manager label are written; a Service without a selector is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kedge.api.holds import active_hold
from kedge.api.objects import Object
from kedge.api.owners import owner_reference
from kedge.api.selectors import LabelSelector, parse_label_selector
from kedge.api.views import PodView, ServiceView
from kedge.api.wellknown import (
    SERVICE_NAME_LABEL,
    SLICE_MANAGER,
    SLICE_MANAGER_LABEL,
    ZONE_LABEL,
)
from kedge.controllers.endpoints.plan import Json, Slice, SlicePlan, plan_slices
from kedge.controllers.shared.actions import requeue_at
from kedge.controllers.shared.holds import hold_off, split_held
from kedge.controllers.shared.kinds import ENDPOINT_SLICE, NODE, POD, SERVICE
from kedge.env import Env
from kedge.errors import Forbidden, Invalid, TooLarge
from kedge.keys import Key
from kedge.runtime import Action, Context, Controller, ControllerRuntime, ControllerSpec, WatchSpec, writes
from kedge.runtime.cache import CacheChange, CacheSet

NAME = "endpoints"


def slice_of(found: Object) -> Slice:
    """A stored slice as the plan's input."""
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
    """Reconciles one Service."""

    def __init__(self, env: Env) -> None:
        self._slices = env.metrics.counter("kedge_endpoint_slices_total", "Slices written, by action", ("act",))

    async def reconcile(self, ctx: Context, key: Key) -> Action:
        service = ctx.get(key)
        if service is None or service.metadata.deletion_timestamp is not None:
            return Action.await_change(reason="deleted or being deleted: its slices are garbage")
        view, now = service.as_view(ServiceView), ctx.now()
        hold = active_hold(view, NAME, now)
        if hold is not None:
            return await hold_off(ctx, service, hold, now)
        selector = service_selector(view)
        if selector is None:
            return Action.await_change(reason="kedge does not manage its endpoints")
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
        free, ends = split_held(ours.values(), NAME, now)
        try:
            await self._apply(ctx, service, plan, {each.key.name: each for each in free})
        except (Forbidden, Invalid, TooLarge) as error:
            ctx.event(service, "FailedToUpdateEndpointSlices", error.message, warning=True)
            raise
        return requeue_at(now, *ends)

    async def _apply(self, ctx: Context, service: Object, plan: SlicePlan, touchable: Mapping[str, Object]) -> None:
        """New endpoints are listed before old ones are removed, so that a Service keeps as many as possible."""
        for made in plan.create:
            self._slices.labels("create").inc()
            await ctx.ensure(ENDPOINT_SLICE, slice_body(service, made))
        for made in plan.update:
            if made.name in touchable:
                self._slices.labels("update").inc()
                await ctx.patch(touchable[made.name], {"endpoints": list(made.endpoints)})
        for name in plan.delete:
            if name in touchable:
                self._slices.labels("delete").inc()
                await ctx.delete(touchable[name])

    def _zones(self, ctx: Context, pods: Iterable[PodView]) -> dict[str, str]:
        zones = {}
        for name in sorted({pod.spec.node_name for pod in pods if pod.spec.node_name}):
            node = ctx.get(Key(NODE.key_kind, "", name))
            zones[name] = node.metadata.labels.get(ZONE_LABEL, "") if node is not None else ""
        return zones


def service_selector(service: ServiceView) -> LabelSelector | None:
    """The selector of a Service; None if kedge does not manage its endpoints."""
    if service.spec.type == "ExternalName" or not service.spec.selector:
        return None
    return parse_label_selector(",".join(f"{name}={value}" for name, value in sorted(service.spec.selector.items())))


def wake_services(change: CacheChange, caches: CacheSet) -> Iterable[Key]:
    """Wakes the Services that select a pod, before or after the change."""
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
            writes=(*writes("create patch delete", ENDPOINT_SLICE),),
            owns=(ENDPOINT_SLICE,),
            watches=(WatchSpec(kind=POD, keys_of=wake_services), WatchSpec(kind=NODE)),
        ),
        EndpointsReconciler(runtime.env),
        runtime,
    )

"""`metrics.k8s.io`: the resource usage of nodes and pods, computed from the reports of agents when it is requested.

`kubectl top` reads it. The reports are in the leases of nodes (`api.usage`); nothing is stored here. A node or pod
without a report, or with one older than `autoscaler_sample_s`, is left out, as by Kubernetes' metrics server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kedge.api.access import Caller
from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS, Kind, PrinterColumn
from kedge.api.objects import Object
from kedge.api.quantity import Quantity, sum_quantities
from kedge.api.requests import Get, GetOptions, List, ListOptions, ObjectList
from kedge.api.timestamps import format_time
from kedge.api.usage import UsageReport, parse_usage
from kedge.api.wellknown import LEASE_KIND, METRICS_GROUP, NODE_KIND, NODE_LEASE_NAMESPACE, POD_KIND, USAGE
from kedge.env import Env
from kedge.errors import MethodNotAllowed, NotFound
from kedge.keys import NO_REVISION, Key
from kedge.server.http import parameters
from kedge.server.http.exchange import Exchange, HttpRequest
from kedge.server.http.list_parts import in_turns
from kedge.server.http.negotiation import reply_form
from kedge.server.http.replies import Replier
from kedge.server.http.routes import ResourcePath, attributes_of
from kedge.server.service import Service

_COLUMNS = (PrinterColumn("CPU"), PrinterColumn("Memory"), PrinterColumn("Window", path=".window"))
NODE_METRICS = Kind(
    group=METRICS_GROUP, version="v1beta1", kind="NodeMetrics", plural="nodes", singular="", namespaced=False,
    columns=_COLUMNS,
)  # fmt: skip
POD_METRICS = Kind(
    group=METRICS_GROUP, version="v1beta1", kind="PodMetrics", plural="pods", singular="", columns=_COLUMNS
)
METRICS_KINDS = (NODE_METRICS, POD_METRICS)
"""Kinds of this group, for discovery. They are read, never written."""

_NODE, _POD, _LEASE = (KINDS.of_key_kind(each) for each in (NODE_KIND, POD_KIND, LEASE_KIND))
_BY_PLURAL = {kind.plural: kind for kind in METRICS_KINDS}
_REPORT_BYTES = 8 * 1024
"""Reports that are decoded before other requests get a turn: about a millisecond."""
Usage = Mapping[str, Quantity]


class UsageMetrics:
    """Answers requests about usage from one service."""

    def __init__(self, service: Service, env: Env) -> None:
        self._service = service
        self._env = env

    async def serve(self, path: ResourcePath, request: HttpRequest, exchange: Exchange, caller: Caller) -> None:
        """Answer one request.

        Raises:
            NotFound: there is no such resource, or no recent report about the object.
            MethodNotAllowed: it is no get or list.
        """
        kind = _BY_PLURAL.get(path.resource)
        if kind is None or path.version != kind.version or path.subresource:
            raise NotFound("the server could not find the requested resource")
        if kind is NODE_METRICS and path.namespace:
            raise NotFound("the server could not find the requested resource")
        query = parameters.parse_query(request.query)
        if request.method not in ("GET", "HEAD") or parameters.flag(query, "watch"):
            raise MethodNotAllowed(f"{kind.resource} is served for get and list alone")
        verb = "get" if path.name else "list"
        await self._service.access.check(caller, attributes_of(path, verb))
        form = reply_form(request.headers.get(b"accept", b""))
        reply = Replier(self._env, request, exchange, query)
        if path.name:
            reply.found(await self._one(kind, path, caller), form)
        else:
            options = ListOptions(
                namespace=path.namespace,
                label_selector=query.get("labelSelector", ""),
                field_selector=query.get("fieldSelector", ""),
                caller=caller.user,
            )
            await reply.listed(await self._every(kind, options), form)

    async def _one(self, kind: Kind, path: ResourcePath, caller: Caller) -> Object:
        about = _NODE if kind is NODE_METRICS else _POD
        key = Key(about.key_kind, path.namespace, path.name)
        found = await self._service.send(Get(key, GetOptions(caller=caller.user)))
        measured = self._measured(kind, found, await self._reports())
        if measured is None:
            raise NotFound(f'no recent usage of {about.resource} "{path.name}" is known: wait for the next report')
        return measured

    async def _every(self, kind: Kind, options: ListOptions) -> ObjectList:
        reports = await self._reports()
        page = await self._service.send(List(_NODE if kind is NODE_METRICS else _POD, options))
        found = []
        async for each in in_turns(page.objects):
            measured = self._measured(kind, each, reports)
            if measured is not None:
                found.append(measured)
        return ObjectList(kind=kind, objects=found, revision=page.revision)

    async def _reports(self) -> dict[str, UsageReport]:
        """The recent reports, by node."""
        leases = await self._service.send(List(_LEASE, ListOptions(namespace=NODE_LEASE_NAMESPACE)))
        found: dict[str, UsageReport] = {}
        size = 0
        for lease in leases.objects:
            if size >= _REPORT_BYTES:
                size = 0
                await asyncio.sleep(0)
            text = lease.metadata.annotations.get(USAGE, "")
            size += len(text)
            try:
                report = parse_usage(text) if text else None
            except ValueError:
                continue  # written by another program than an agent
            if report is not None and report.at is not None and self._is_recent(report.at):
                found[lease.key.name] = report
        return found

    def _is_recent(self, at: datetime) -> bool:
        return (self._env.now() - at).total_seconds() <= self._env.limits.autoscaler_sample_s

    def _measured(self, kind: Kind, about: Object, reports: Mapping[str, UsageReport]) -> Object | None:
        if kind is NODE_METRICS:
            report = reports.get(about.key.name)
            if report is None:
                return None
            every = [used for containers in report.pods.values() for used in containers.values()]
            return self._object(kind, about, report, {"usage": _texts(_total(every))})
        report = reports.get(about.view.spec.node_name)
        containers = None if report is None else report.pods.get(about.uid)
        if report is None or not containers:
            return None
        rows = [{"name": name, "usage": _texts(containers[name])} for name in sorted(containers)]
        return self._object(kind, about, report, {"containers": rows})

    def _object(self, kind: Kind, about: Object, report: UsageReport, usage: Mapping[str, Any]) -> Object:
        now = format_time(self._env.now())
        metadata: dict[str, Any] = {"name": about.key.name, "creationTimestamp": now}
        if about.key.namespace:
            metadata["namespace"] = about.key.namespace
        if about.metadata.labels:
            metadata["labels"] = dict(about.metadata.labels)
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": metadata,
            "timestamp": format_time(report.at) if report.at is not None else now,
            "window": f"{report.window_seconds}s",
            **usage,
        }
        key = Key(kind.key_kind, about.key.namespace, about.key.name)
        return Object(kind, key, encode_object(body), revision=NO_REVISION)


def _total(every: Iterable[Usage]) -> Usage:
    """The sum of each resource. It is zero for an idle node, not missing."""
    amounts: dict[str, list[Quantity]] = {"cpu": [], "memory": []}
    for used in every:
        for name, amount in used.items():
            amounts.setdefault(name, []).append(amount)
    return {name: sum_quantities(values) for name, values in amounts.items()}


def _texts(used: Usage) -> dict[str, str]:
    return {name: str(amount) for name, amount in used.items()}

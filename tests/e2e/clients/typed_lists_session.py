"""Typed lists of a live cluster: a field that a client requires and kedge leaves out fails the whole list."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import kubernetes_asyncio
from kubernetes import client, config
from lightkube import Client
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.resources.discovery_v1 import EndpointSlice

KINDS = (Node, Pod, Event, Deployment, ReplicaSet, Lease, EndpointSlice)


def lists(package: Any, api: Any = None) -> Iterable[Any]:
    """The calls that list the objects of a running cluster with generated types."""
    core, apps = package.CoreV1Api(api), package.AppsV1Api(api)
    yield core.list_node
    yield core.list_pod_for_all_namespaces
    yield core.list_event_for_all_namespaces
    yield package.EventsV1Api(api).list_event_for_all_namespaces
    yield apps.list_deployment_for_all_namespaces
    yield apps.list_replica_set_for_all_namespaces
    yield package.CoordinationV1Api(api).list_lease_for_all_namespaces
    yield package.DiscoveryV1Api(api).list_endpoint_slice_for_all_namespaces


async def asynchronously() -> None:
    await kubernetes_asyncio.config.load_kube_config()
    async with kubernetes_asyncio.client.ApiClient() as api:
        for call in lists(kubernetes_asyncio.client, api):
            assert (await call()).items, call


def main() -> None:
    config.load_kube_config()
    for call in lists(client):
        assert call().items, call
    node = client.CoreV1Api().list_node().items[0]
    info = node.status.node_info
    assert all((info.machine_id is not None, info.architecture, info.kernel_version, info.os_image)), info
    assert all(each.last_heartbeat_time and each.last_transition_time for each in node.status.conditions), node
    pod = client.CoreV1Api().read_namespaced_pod("unschedulable", "default")
    assert pod.status.phase == "Pending"
    event = client.EventsV1Api().list_namespaced_event("default").items[0]
    assert event.event_time.tzinfo is not None, event
    asyncio.run(asynchronously())
    with Client() as light:
        for kind in KINDS:
            assert list(light.list(kind, **({} if kind is Node else {"namespace": "*"}))), kind
    print("done", flush=True)


if __name__ == "__main__":
    main()

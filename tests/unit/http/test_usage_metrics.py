"""`metrics.k8s.io`: usage of nodes and pods from the reports in leases."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kit.api_server import exchange, local_api
from tests.kit.loops import on_loop
from tests.kit.raw_http import create_config_map, request, sent

from kedge.api.quantity import parse_quantity
from kedge.api.usage import format_usage
from kedge.api.wellknown import NODE_LEASE_NAMESPACE, USAGE

NODES = "/apis/metrics.k8s.io/v1beta1/nodes"
PODS = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NODE_LEASE_NAMESPACE}/leases"


async def create(port: int, path: str, body: dict[str, Any]) -> Any:
    code, _, made = await sent(port, "POST", path, body)
    assert code == 201, made
    return made


async def report(port: int, node: str, at: datetime, pods: dict[str, dict[str, dict[str, str]]]) -> None:
    """A lease as an agent writes it."""
    amounts = {
        uid: {name: {each: parse_quantity(text) for each, text in used.items()} for name, used in containers.items()}
        for uid, containers in pods.items()
    }
    text = format_usage(at, 15, amounts)
    await create(port, LEASES, {"metadata": {"name": node, "annotations": {USAGE: text}}})


async def cluster(port: int) -> dict[str, Any]:
    """Two nodes: one with a recent report about its pod, one whose report is old."""
    await create_config_map(port, "a")
    await create(port, "/api/v1/namespaces", {"metadata": {"name": NODE_LEASE_NAMESPACE}})
    now = datetime.now(UTC)
    pods: dict[str, Any] = {}
    for node, age_s in (("node-1", 1), ("node-2", 600)):
        capacity = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        status = {"capacity": capacity, "allocatable": capacity}
        await create(port, "/api/v1/nodes", {"metadata": {"name": node, "labels": {"at": node}}, "status": status})
        containers = [{"name": "main", "image": "x"}, {"name": "side", "image": "x"}]
        pod = {"metadata": {"name": f"on-{node}", "labels": {"app": node}}, "spec": {"containers": containers}}
        made = pods[node] = await create(port, "/api/v1/namespaces/default/pods", pod)
        binding = {"metadata": {"name": f"on-{node}"}, "target": {"kind": "Node", "name": node}}
        await create(port, f"/api/v1/namespaces/default/pods/on-{node}/binding", binding)
        used = {"side": {"cpu": "5m", "memory": "1Mi"}, "main": {"cpu": "20m", "memory": "2Mi"}}
        await report(port, node, now - timedelta(seconds=age_s), {made["metadata"]["uid"]: used})
    return pods


@on_loop
async def test_usage_is_served_per_node_and_per_container_and_old_reports_are_left_out() -> None:
    async with local_api() as (_, port):
        await cluster(port)
        _, _, nodes = await sent(port, "GET", NODES)
        _, _, pods = await sent(port, "GET", PODS)
        one_code, _, one = await sent(port, "GET", f"{PODS}/on-node-1")
        old_code, _, _ = await sent(port, "GET", f"{NODES}/node-2")
    assert (nodes["kind"], nodes["apiVersion"]) == ("NodeMetricsList", "metrics.k8s.io/v1beta1")
    (node,) = nodes["items"]
    assert (node["metadata"]["name"], node["window"]) == ("node-1", "15s")
    assert node["usage"] == {"cpu": "25m", "memory": "3Mi"}
    (pod,) = pods["items"]
    assert [each["name"] for each in pod["containers"]] == ["main", "side"]
    assert pod["containers"][0]["usage"]["cpu"] == "20m"
    assert (one_code, one["metadata"]["labels"], old_code) == (200, {"app": "node-1"}, 404)


@on_loop
async def test_usage_is_selected_by_labels_shown_as_a_table_and_never_written() -> None:
    async with local_api() as (_, port):
        await cluster(port)
        _, _, chosen = await sent(port, "GET", f"{PODS}?labelSelector=app%3Dnode-1")
        _, _, others = await sent(port, "GET", f"{NODES}?labelSelector=at%3Dnode-2")
        accept = b"Host: x\r\nAccept: application/json;as=Table;g=meta.k8s.io;v=v1\r\n"
        wanted = request("GET", PODS).replace(b"Host: x\r\n", accept)
        table = json.loads((await exchange(port, wanted, end=False)).partition(b"\r\n\r\n")[2])
        written, _, _ = await sent(port, "POST", PODS, {"metadata": {"name": "x"}})
        watched, _, _ = await sent(port, "GET", f"{PODS}?watch=true")
        _, _, listed = await sent(port, "GET", "/apis/metrics.k8s.io/v1beta1")
    assert [each["metadata"]["name"] for each in chosen["items"]] == ["on-node-1"]
    assert others["items"] == []
    assert [row["cells"] for row in table["rows"]] == [["on-node-1", "25m", "3Mi", "15s"]]
    assert (written, watched) == (405, 405)
    assert {each["name"]: each["verbs"] for each in listed["resources"]} == {
        "nodes": ["get", "list"],
        "pods": ["get", "list"],
    }


@on_loop
async def test_a_damaged_report_hides_one_node_and_nothing_else() -> None:
    async with local_api() as (_, port):
        await cluster(port)
        bad = {"metadata": {"name": "node-3", "annotations": {USAGE: "{"}}}
        await create(port, LEASES, bad)
        code, _, nodes = await sent(port, "GET", NODES)
    assert (code, [each["metadata"]["name"] for each in nodes["items"]]) == (200, ["node-1"])

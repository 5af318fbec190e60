"""Objects that a person holds, and the limits of the tests of holds."""

from __future__ import annotations

from typing import Any

from tests.objects import node, pod

from kedge.api.objects import Object
from kedge.api.requests import Binding
from kedge.limits import Limits
from kedge.sim.cluster import Cluster

LIMITS = Limits(
    decisions_sample_every=1, repair_every_s=20.0, resync_every_s=60.0, queue_backoff_s_max=15.0, orphan_s=5.0
)

Notes = dict[str, str]


def noted(body: dict[str, Any], notes: Notes) -> dict[str, Any]:
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **notes}}}


def annotated(notes: Notes) -> dict[str, Any]:
    return {"annotations": notes}


async def bound_pod(cluster: Cluster, *, ready: bool = False, notes: Notes | None = None) -> Object:
    await cluster.create({"apiVersion": "v1", "kind": "Node", **node("node-a")})
    body = noted(pod("web-0"), notes or {})
    body["metadata"]["labels"] = {"app": "web"}
    made = await cluster.create({"apiVersion": "v1", "kind": "Pod", **body})
    await cluster.authority.bind(Binding(pod=made.key, node="node-a"))
    if ready:
        conditions = [{"type": "Ready", "status": "True", "reason": "Started"}]
        status = {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "conditions": conditions}
        await cluster.authority.patch(made.key, {"status": status}, subresource="status")
    return made

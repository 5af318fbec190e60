"""Dumps of real clusters, as `kubectl get -o json` prints them."""

from __future__ import annotations

import copy
from typing import Any

from tests.objects import deployment, node, pod, resource_quota

from kedge.api.defaults import apply_defaults
from kedge.api.kinds import KINDS

SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True, "blockOwnerDeletion": True}


def item(body: dict[str, Any], uid: str, **status: Any) -> dict[str, Any]:
    """An object as `kubectl get -o json` prints it."""
    shown = copy.deepcopy(body)
    shown["metadata"] |= {"uid": uid, "resourceVersion": "123456", "creationTimestamp": "2025-05-05T05:05:05Z"}
    shown["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update"}]
    apply_defaults(KINDS.of_api(body["apiVersion"], body["kind"]), shown)
    return {**shown, **({"status": status} if status else {})}


def small_dump() -> dict[str, Any]:
    running = pod("web-0", nodeName="node-a", serviceAccountName="web", dnsPolicy="ClusterFirst")
    items = [
        item(running, "p-1", phase="Running", podIP="10.0.0.9", qosClass="Burstable"),
        item(node("node-a"), "n-1"),
        item(deployment(), "d-1"),
        item(resource_quota(pods="5"), "q-1"),
        {"apiVersion": "metrics.k8s.io/v1", "kind": "PodMetrics", "metadata": {"name": "web-0"}},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def owned(name: str, uid: str, place: str, owner: dict[str, Any], *, image: str = "web:1") -> dict[str, Any]:
    """A pod as Kubernetes makes it: with a random name and the fields that admission adds."""
    body = pod(name, nodeName=place, serviceAccountName="default", enableServiceLinks=True)
    body["spec"]["containers"][0]["image"] = image
    body["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}
    ]
    body["spec"]["volumes"] = [{"name": "token", "emptyDir": {}}]
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"app": "web"}}
    if owner["kind"] == "ReplicaSet":
        body["metadata"]["labels"]["pod-template-hash"] = owner["name"].rpartition("-")[2]
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2025-05-05T05:05:05Z"}]
    return item(body, uid, phase="Running", podIP="10.0.0.9", startTime="2025-05-05T05:05:05Z", conditions=ready)


def real_dump() -> dict[str, Any]:
    """The output of `kubectl get nodes,pods,deployments -A -o json`: no ReplicaSets, DaemonSets or Jobs."""
    web = item(deployment("web", replicas=3), "d-1")
    web["metadata"] |= {"generation": 4, "annotations": {"deployment.kubernetes.io/revision": "4"}}
    current, old = {**SET, "name": "web-5d4f8c7b9d", "uid": "rs-4"}, {**SET, "name": "web-77c6d8f9b5", "uid": "rs-3"}
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "logs", "uid": "ds-1", "controller": True}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "sums", "uid": "j-1", "controller": True}
    items = [
        *(item(node(f"node-{n}"), f"n-{n}") for n in "ab"),
        web,
        owned("web-5d4f8c7b9d-x2x4z", "p-1", "node-a", current),
        owned("web-5d4f8c7b9d-8kq7w", "p-2", "node-b", current),
        owned("web-77c6d8f9b5-lm4n5", "p-3", "node-a", old, image="web:0"),
        owned("logs-abcde", "p-4", "node-a", daemon),
        owned("sums-vwxyz", "p-5", "node-b", job),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}

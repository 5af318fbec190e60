"""A cluster whose store is written past the service, to commit states that the service would refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.objects import pod

from kedge.api.codec import encode_object
from kedge.api.kinds import KINDS
from kedge.api.requests import Binding
from kedge.api.wellknown import SLOT
from kedge.keys import Key
from kedge.sim.cluster import Cluster
from kedge.sim.judges.invariants import Judge
from kedge.store import Put

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}


class RawCluster:
    """A judged cluster with raw access to its store."""

    def __init__(self, cluster: Cluster, judge: Judge) -> None:
        self.cluster = cluster
        self.judge = judge

    async def put(self, key: Key, change: Callable[[dict[str, Any]], None], **by: Any) -> None:
        found = self.cluster.find(key)
        assert found is not None
        document = found.edit()
        change(document)
        await self.cluster.store.commit([], [Put(key, encode_object(document))], **by)

    async def add(self, body: dict[str, Any], uid: str, **by: Any) -> None:
        """Commit an object as it is, uid included."""
        kind = KINDS.of_api(body["apiVersion"], body["kind"])
        metadata = {"uid": uid, **body["metadata"]}
        key = Key(kind.key_kind, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])
        await self.cluster.store.commit([], [Put(key, encode_object({**body, "metadata": metadata}))], **by)

    async def bound(self, name: str = "web-0", where: str = "node-a") -> str:
        made = await self.cluster.create(pod(name))
        await self.cluster.authority.bind(Binding(pod=made.key, pod_uid=made.uid, node=where))
        return made.uid


def slotted(name: str, **annotations: str) -> dict[str, Any]:
    body = pod(name)
    body["metadata"] |= {"annotations": {SLOT: "0", **annotations}, "ownerReferences": [OWNER]}
    return body


def replica_set(replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod()["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    metadata = {"name": "web", "namespace": "default", "generation": 1}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}


def ready(name: str) -> dict[str, Any]:
    body = slotted(name)
    body["metadata"]["labels"] = {"app": "web"}
    return {**body, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}

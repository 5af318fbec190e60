"""ConfigMaps that own each other, for tests of garbage collection."""

from __future__ import annotations

from typing import Any

from tests.kit.nodes import objects

from kedge.api.objects import Object
from kedge.keys import Key


def a_map(name: str, *owners: Object, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": o.key.name, "uid": o.uid, "blockOwnerDeletion": True}
        for o in owners
    ]
    return {"metadata": {"name": name, "namespace": namespace, "ownerReferences": references, **metadata}}


def maps(store: Any, namespace: str = "default") -> set[str]:
    return {each.key.name for each in objects(store, "ConfigMap") if each.key.namespace == namespace}


def key_of(name: str, namespace: str = "default") -> Key:
    return Key("ConfigMap", namespace, name)

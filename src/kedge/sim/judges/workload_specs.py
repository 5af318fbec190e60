"""Specs of workloads, read without code of the controllers: their surge, and their templates."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kedge.api.objects import Object
from kedge.api.wellknown import TEMPLATE_DIGEST, TEMPLATE_HASH_LABEL
from kedge.server.service import mutations_of


def surge_of(deployment: Object) -> int:
    spec = deployment.view.spec
    if spec.strategy.type == "Recreate":
        return 0
    rolling = spec.strategy.rolling_update
    surge = rolling.max_surge if rolling is not None else "25%"
    if isinstance(surge, str):
        return -(-int(spec.replicas) * int(surge.rstrip("%")) // 100)
    return int(surge)


def template_without_hash(found: Object) -> dict[str, Any]:
    """The pod template of a Deployment or of one of its ReplicaSets, comparable with each other's."""
    template = _plain_template(found)
    template.get("metadata", {}).get("labels", {}).pop(TEMPLATE_HASH_LABEL, None)
    return template


def _without_nulls_here(each: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in each.items() if value is not None}


def _plain_template(found: Object) -> dict[str, Any]:
    """A pod template without what clients in Go write for absent fields: nulls, and containers' empty `resources`."""
    written = json.dumps(found.edit()["spec"]["template"])
    template: dict[str, Any] = json.loads(written, object_hook=_without_nulls_here)
    for group in ("containers", "initContainers"):
        for container in template.get("spec", {}).get(group, ()):
            if container.get("resources") == {}:
                del container["resources"]
    return template


def is_of_template(replica_set: Object, deployment: Object) -> bool:
    """Whether a ReplicaSet is of the pod template that its Deployment has now.

    An admission policy may have changed the template of the ReplicaSet when it was created. Then the two differ, and
    the digest of the template that it was created for decides.
    """
    if template_without_hash(replica_set) == template_without_hash(deployment):
        return True
    annotations = replica_set.metadata.annotations
    if not mutations_of(annotations):
        return False
    template = json.dumps(_plain_template(deployment), sort_keys=True, separators=(",", ":"))
    return annotations.get(TEMPLATE_DIGEST) == hashlib.sha256(template.encode()).hexdigest()

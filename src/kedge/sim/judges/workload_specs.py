"""Specs of workloads, read without code of the controllers: their surge, and their templates."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kedge.api.objects import Object
from kedge.api.wellknown import TEMPLATE_DIGEST
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
    template: dict[str, Any] = found.edit()["spec"]["template"]
    template.get("metadata", {}).get("labels", {}).pop("pod-template-hash", None)
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
    template = json.dumps(deployment.edit()["spec"]["template"], sort_keys=True, separators=(",", ":"))
    return annotations.get(TEMPLATE_DIGEST) == hashlib.sha256(template.encode()).hexdigest()

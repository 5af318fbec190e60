"""Pod templates of a Deployment: the ReplicaSet of a template, its name, revision and body. Pure.

A template is identified by a digest of the Deployment's own template, so that an admission policy that changes
ReplicaSets cannot cause two of them for one template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kedge.api.objects import Object
from kedge.api.owners import owner_reference
from kedge.api.views import DeploymentView
from kedge.api.wellknown import (
    AVAILABILITY_FLOOR,
    DEPLOYMENT_REVISION,
    DEPLOYMENT_REVISION_HISTORY,
    DESIRED_REPLICAS,
    GIVE_UP_IN,
    HOLD_PREFIX,
    LAST_APPLIED,
    MAX_REPLICAS,
    PODS_IN,
    TEMPLATE_DIGEST,
    TEMPLATE_HASH_LABEL,
    UPDATED_IN,
    UPDATED_MAX,
)
from kedge.controllers.shared.kinds import DEPLOYMENT

_NOT_COPIED = frozenset(
    {
        DEPLOYMENT_REVISION,
        DEPLOYMENT_REVISION_HISTORY,
        DESIRED_REPLICAS,
        MAX_REPLICAS,
        TEMPLATE_DIGEST,
        UPDATED_MAX,
        UPDATED_IN,
        PODS_IN,
        GIVE_UP_IN,
        LAST_APPLIED,
        AVAILABILITY_FLOOR,
    }
)
"""Annotations of the Deployment alone. `kubectl rollout undo` copies all others of an old ReplicaSet back to it."""
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes: nothing that spells a word
_HASH_LENGTH = 10
_HISTORY_LENGTH_MAX = 2000


def template_of(workload: Object) -> dict[str, Any]:
    template: dict[str, Any] = workload.edit()["spec"]["template"]
    return template


def template_digest(template: Mapping[str, Any]) -> str:
    """The identity of a template, independent of the order of its fields."""
    plain = json.dumps(without_zeros(template), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def without_zeros(document: Any) -> Any:
    """Without what a client in Go writes for absent fields: `kubectl rollout undo` sends `creationTimestamp: null` and
    `resources: {}` with a template that had neither. Other empty objects, such as selectors, have a meaning."""
    if isinstance(document, Mapping):
        return {
            name: without_zeros(value)
            for name, value in document.items()
            if value is not None and not (name == "resources" and value == {})
        }
    return [without_zeros(value) for value in document] if isinstance(document, list) else document


def template_hash(digest: str, collisions: int) -> str:
    """The suffix of the ReplicaSet's name, and its pods' label. Each number of collisions gives another hash."""
    number = int(hashlib.sha256(f"{digest}/{collisions}".encode()).hexdigest(), 16)
    letters = []
    for _ in range(_HASH_LENGTH):
        number, index = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[index])
    return "".join(letters)


def find_current(sets: Sequence[Object], template: Mapping[str, Any], digest: str) -> Object | None:
    """The ReplicaSet of this template; the oldest of several, so that every reader chooses the same.

    If none was created for it, a ReplicaSet with an equal template is used: it was adopted, or an admission policy had
    changed it and a rollback copied the template from it.
    """
    living = [each for each in sets if each.metadata.deletion_timestamp is None]
    found = [each for each in living if each.metadata.annotations.get(TEMPLATE_DIGEST) == digest]
    if not found:
        wanted = _without_hash(template)
        found = [each for each in living if _without_hash(template_of(each)) == wanted]
    return min(found, key=lambda each: (str(each.metadata.creation_timestamp), each.key.name), default=None)


def _without_hash(template: Mapping[str, Any]) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    metadata["labels"] = {
        name: value for name, value in (metadata.get("labels") or {}).items() if name != TEMPLATE_HASH_LABEL
    }
    without: dict[str, Any] = without_zeros({**template, "metadata": metadata})
    return without


def revision_of(each: Object) -> int:
    text = each.metadata.annotations.get(DEPLOYMENT_REVISION, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def is_rollback(current: Object | None, old: Sequence[Object]) -> bool:
    """Whether the current template was rolled out before: its ReplicaSet had an earlier revision, or still has it."""
    if current is None:
        return False
    earlier = current.metadata.annotations.get(DEPLOYMENT_REVISION_HISTORY, "")
    return bool(earlier) or revision_of(current) < max(map(revision_of, old), default=0)


def number_of(each: Object, annotation: str) -> int | None:
    text = each.metadata.annotations.get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() else None


def next_revision(current: Object | None, old: Sequence[Object]) -> int:
    """One more than any other revision; the current ReplicaSet keeps its own while that is the highest."""
    highest = max((revision_of(each) for each in old), default=0)
    own = revision_of(current) if current is not None else 0
    return own if own > highest else highest + 1


def set_annotations(
    deployment: Object, digest: str, revision: int, desired: int, most: int, current: Object | None
) -> dict[str, str]:
    """The annotations of the current ReplicaSet: those of the Deployment, and its revision and sizes.

    A ReplicaSet whose revision moves up again keeps the earlier ones as history: that identifies a rollback.
    """
    copied = {
        name: text
        for name, text in deployment.metadata.annotations.items()
        if name not in _NOT_COPIED and not name.startswith(HOLD_PREFIX)
    }
    made = {**copied, DEPLOYMENT_REVISION: str(revision), DESIRED_REPLICAS: str(desired), MAX_REPLICAS: str(most)}
    if current is None:
        return {**made, TEMPLATE_DIGEST: digest}
    before = revision_of(current)
    if before and before != revision:
        history = [*current.metadata.annotations.get(DEPLOYMENT_REVISION_HISTORY, "").split(","), str(before)]
        made[DEPLOYMENT_REVISION_HISTORY] = ",".join(filter(None, history))[-_HISTORY_LENGTH_MAX:].lstrip(",")
    return made


def replica_set_body(
    deployment: Object, template: Mapping[str, Any], suffix: str, replicas: int, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """The ReplicaSet of a template, as JSON."""
    view = deployment.as_view(DeploymentView)
    metadata = dict(template.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), TEMPLATE_HASH_LABEL: suffix}
    selector = dict(deployment.edit()["spec"]["selector"])
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), TEMPLATE_HASH_LABEL: suffix}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{deployment.key.name}-{suffix}",
            "namespace": deployment.key.namespace,
            "labels": labels,
            "annotations": dict(annotations),
            "ownerReferences": [owner_reference(DEPLOYMENT, view)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": view.spec.min_ready_seconds,
            "selector": selector,
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }

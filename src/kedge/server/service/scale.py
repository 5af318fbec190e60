"""The scale subresource: the replica count of a workload, alone, as autoscalers and `kubectl scale` see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.api.codec import parse_object
from kedge.api.objects import Object
from kedge.api.requests import PatchType, WriteOptions, Written
from kedge.api.selectors import label_selector
from kedge.errors import BadRequest, FieldError, Invalid, MethodNotAllowed, NotFound
from kedge.keys import Key
from kedge.server.service.core import Core
from kedge.server.service.writing import Document, change, patched


def scale_of(workload: Object) -> Document:
    """The `autoscaling/v1` Scale of a workload."""
    if "scale" not in workload.kind.subresources:
        raise MethodNotAllowed(f"{workload.kind.kind} has no scale", key=workload.key)
    document = workload.edit()
    metadata = document["metadata"]
    shown = {field: metadata[field] for field in ("name", "namespace", "uid", "creationTimestamp") if field in metadata}
    spec, status = document.get("spec", {}), document.get("status", {})
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {**shown, "resourceVersion": str(workload.revision)},
        "spec": {"replicas": spec.get("replicas", 1)},
        "status": {
            "replicas": status.get("replicas", 0),
            "selector": str(label_selector(workload.view.spec.selector)),
        },
    }


async def patch_scale(core: Core, key: Key, body: Any, patch_type: PatchType, options: WriteOptions) -> Written:
    """Patch the Scale of a workload, as it is now; a change in between is a conflict that the patch did not see."""
    (entry,) = (await core.store.get([key])).entries
    if entry is None:
        raise NotFound(f'{core.kind_of(key).resource} "{key.name}" not found', key=key)
    return await update_scale(core, key, patched(scale_of(core.object_of(entry)), body, patch_type), options)


async def update_scale(core: Core, key: Key, body: bytes | Mapping[str, Any], options: WriteOptions) -> Written:
    """Set `spec.replicas` of the workload to what a Scale says. Returns the workload."""
    kind = core.kind_of(key)
    if "scale" not in kind.subresources:
        raise MethodNotAllowed(f"{kind.kind} has no scale", key=key)
    scale = parse_object(body)
    spec = scale.get("spec")
    replicas = spec.get("replicas", 0) if isinstance(spec, dict) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        error = FieldError(
            "spec.replicas", "FieldValueInvalid", f"Invalid value: {replicas!r}: must be a whole number, 0 or more"
        )
        raise Invalid(f'Scale "{key.name}" is invalid: {error}', key=key, errors=[error])
    metadata = scale.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadRequest("metadata of a Scale must be an object", key=key)

    def edit(now: Document) -> Document:
        own = {field: metadata[field] for field in ("resourceVersion", "uid") if metadata.get(field)}
        return {**now, "metadata": {**now["metadata"], **own}, "spec": {**now.get("spec", {}), "replicas": replicas}}

    return await change(core, key, edit, "", options)

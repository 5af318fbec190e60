"""The scale subresource: a workload's replica count, as autoscalers and `kubectl scale` use it."""

from __future__ import annotations

from kedge.api.codec import encode_object, parse_object
from kedge.api.kinds import Kind
from kedge.api.objects import Object
from kedge.api.requests import Get, GetScale, Patch, Update, Written
from kedge.api.selectors import label_selector
from kedge.errors import BadRequest, FieldError, Invalid, MethodNotAllowed
from kedge.keys import Key
from kedge.server.service.core import Core, part
from kedge.server.service.patches import Document, patched
from kedge.server.service.reads import get
from kedge.server.service.writes import change


def scale_of(workload: Object) -> Document:
    """The `autoscaling/v1` Scale of a workload."""
    if "scale" not in workload.kind.subresources:
        raise MethodNotAllowed(f"{workload.kind.kind} has no scale", key=workload.key)
    document = workload.edit()
    metadata = document["metadata"]
    shown = {field: metadata[field] for field in ("name", "namespace", "uid", "creationTimestamp") if field in metadata}
    spec, status = part(document, "spec"), part(document, "status")
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {**shown, "resourceVersion": str(workload.revision)},
        "spec": {"replicas": 1 if spec.get("replicas") is None else spec["replicas"]},
        "status": {
            "replicas": status.get("replicas") or 0,
            "selector": str(label_selector(workload.view.spec.selector)),
        },
    }


async def get_scale(core: Core, request: GetScale) -> Document:
    return scale_of(await get(core, Get(request.key, request.options)))


async def patch_scale(core: Core, request: Patch) -> Written:
    """Patch the Scale of a workload at its current version: only a patch that names a version can conflict."""
    key = request.key
    kind = _scaled_kind(core, key)

    async def edit(now: Document) -> Document:
        workload = Object(kind, key, encode_object(now), revision=int(now["metadata"]["resourceVersion"]))
        return _scaled(now, key, await patched(scale_of(workload), request, core.env.limits))

    return await change(core, request, edit, "")


async def update_scale(core: Core, request: Update) -> Written:
    """Set `spec.replicas` of the workload to that of a Scale. Returns the workload."""
    _scaled_kind(core, request.key)
    scale = parse_object(request.body)

    async def edit(now: Document) -> Document:
        return _scaled(now, request.key, scale)

    return await change(core, request, edit, "")


def _scaled_kind(core: Core, key: Key) -> Kind:
    kind = core.kind_of(key)
    if "scale" not in kind.subresources:
        raise MethodNotAllowed(f"{kind.kind} has no scale", key=key)
    return kind


def _scaled(now: Document, key: Key, scale: Document) -> Document:
    """The workload with the replicas, and under the preconditions, of a Scale."""
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
    own = {field: metadata[field] for field in ("resourceVersion", "uid") if metadata.get(field)}
    return {**now, "metadata": {**now["metadata"], **own}, "spec": {**now["spec"], "replicas": replicas}}

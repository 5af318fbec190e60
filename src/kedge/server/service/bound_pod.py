"""A pod once it is bound: its node's name, the record of the bind, and the condition `PodScheduled`."""

from __future__ import annotations

from typing import Any

from kedge.api.codec import encode_object
from kedge.api.conditions import set_condition
from kedge.api.objects import Object
from kedge.api.wellknown import BIND_ANNOTATION
from kedge.server.service.core import part

_SCHEDULED = "PodScheduled"


def bound_pod(pod: Object, node: str, record: str, now: str) -> bytes:
    """The next bytes of `pod`, bound to `node` at the time `now`, with the `record` of the bind. Pure."""
    document = pod.edit()
    document["spec"]["nodeName"] = node
    part(document["metadata"], "annotations")[BIND_ANNOTATION] = record
    status = part(document, "status")
    status["conditions"] = _without_reason(
        set_condition(status.get("conditions") or (), scheduled_condition(pod.metadata.generation), now)
    )
    return encode_object(document)


def scheduled_condition(generation: int) -> dict[str, Any]:
    return {"type": _SCHEDULED, "status": "True", "observedGeneration": generation}


def _without_reason(conditions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reason why the pod was unschedulable is removed once it is bound."""
    for each in conditions:
        if each.get("type") == _SCHEDULED:
            each.pop("reason", None)
            each.pop("message", None)
    return conditions

"""Older versions of a kind that clients still send: converted to the version that is stored, and back in the reply.

Only creation, because `kubectl autoscale` sends `autoscaling/v1`; all else is served in the stored version alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kedge.errors import BadRequest, MethodNotAllowed
from kedge.server.http.routes import ResourcePath

_AUTOSCALING, _OLDER, _STORED = "autoscaling", "v1", "v2"
_TARGET = "targetCPUUtilizationPercentage"


def is_older(path: ResourcePath) -> bool:
    """Whether the path names an older version of a kind that is served."""
    return path.version == _OLDER and path.group == _AUTOSCALING and path.resource == "horizontalpodautoscalers"


def stored_path(path: ResourcePath, method: str) -> ResourcePath:
    """The path in the stored version.

    Raises:
        MethodNotAllowed: the older version is not served for this method.
    """
    if method != "POST" or path.name:
        raise MethodNotAllowed("autoscaling/v1 is served for create alone: use autoscaling/v2")
    return path._replace(version=_STORED)


def to_stored(body: Mapping[str, Any]) -> dict[str, Any]:
    """A HorizontalPodAutoscaler of `autoscaling/v1` as one of `autoscaling/v2`."""
    spec = body.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise BadRequest("spec is an object")
    kept = {name: value for name, value in spec.items() if name != _TARGET}
    percent = spec.get(_TARGET)
    if percent is not None:
        target = {"type": "Utilization", "averageUtilization": percent}
        kept["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    converted = {name: value for name, value in body.items() if name != "status"}
    return {**converted, "apiVersion": f"{_AUTOSCALING}/{_STORED}", "spec": kept}


def from_stored(body: Mapping[str, Any]) -> dict[str, Any]:
    """A new HorizontalPodAutoscaler of `autoscaling/v2` as one of `autoscaling/v1`."""
    spec = body["spec"]
    kept = {name: spec[name] for name in ("scaleTargetRef", "minReplicas", "maxReplicas") if name in spec}
    for metric in spec.get("metrics") or ():
        resource = metric.get("resource") or {}
        if resource.get("name") == "cpu" and "averageUtilization" in resource.get("target", {}):
            kept[_TARGET] = resource["target"]["averageUtilization"]
    converted = {name: value for name, value in body.items() if name != "status"}
    status = {"currentReplicas": 0, "desiredReplicas": 0}
    return {**converted, "apiVersion": f"{_AUTOSCALING}/{_OLDER}", "spec": kept, "status": status}

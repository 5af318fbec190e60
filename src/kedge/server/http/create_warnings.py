"""Warnings about new objects: pods have no images and no pod network, and some objects are stored and not acted on.

They go to other clients only: kedge's own controllers create pods by the thousand, and act on no warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kedge.api.kinds import Kind
from kedge.api.wellknown import ADMISSION_GROUP, EXTENSIONS_GROUP, POD_KIND, SERVICE_KIND

NOTE = "kedge runs commands as processes of the node: an image is only a label, and there is no pod network"

_STORED_ONLY: Final = frozenset({EXTENSIONS_GROUP, ADMISSION_GROUP})
"""Groups whose objects change nothing."""
_CLUSTER_IP: Final = "ClusterIP"


def has_warnings(kind: Kind) -> bool:
    """Whether objects of this kind may have warnings: others need not be decoded for them."""
    return kind.key_kind in (POD_KIND, SERVICE_KIND) or kind.group in ("apps", "batch", *_STORED_ONLY)


def create_warnings(kind: Kind, body: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings about a new object."""
    if kind.group in _STORED_ONLY:
        return (f"kedge stores {kind.kind} objects and does not act on them",)
    if kind.key_kind == SERVICE_KIND:
        return service_warnings(body)
    return pod_warnings(body) if kind.key_kind == POD_KIND or kind.group in ("apps", "batch") else ()


def service_warnings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of a Service that no node serves: each node proxies TCP ports of Services with an address."""
    spec = body.get("spec")
    if not isinstance(spec, Mapping):
        return ()
    found = []
    if (type_ := spec.get("type") or _CLUSTER_IP) != _CLUSTER_IP:
        found.append(f"spec.type {type_} is not served: on each node the Service is a {_CLUSTER_IP} Service")
    if spec.get("clusterIP") == "None":
        found.append("spec.clusterIP None is not served: there is no name server that would list the pods")
    for port in spec.get("ports") or ():
        if isinstance(port, Mapping) and port.get("protocol") not in (None, "TCP"):
            found.append(f"port {port.get('port')}: protocol {port['protocol']} is not served, only TCP is")
        if isinstance(port, Mapping) and port.get("nodePort"):
            found.append(f"port {port.get('port')}: nodePort {port['nodePort']} is not opened")
    return tuple(found)


def pod_warnings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The warnings about a new object that is a pod or has the template of one."""
    spec = _pod_spec(body)
    if spec is None:
        return ()
    found = [NOTE, *_volume_warnings(spec)]
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            if not isinstance(container, Mapping):
                continue
            name = container.get("name")
            if not container.get("command"):
                found.append(f"container {name} has no command and will wait: add the command to run")
            found += [
                f"container {name}: hostPort {port['hostPort']} is reserved, and nothing is forwarded to it:"
                " let the process listen on that port of the node"
                for port in container.get("ports") or ()
                if isinstance(port, Mapping) and port.get("hostPort")
            ]
    return tuple(found)


def _volume_warnings(spec: Mapping[str, Any]) -> list[str]:
    found = []
    for volume in spec.get("volumes") or ():
        empty = volume.get("emptyDir") if isinstance(volume, Mapping) else None
        if not isinstance(empty, Mapping):
            continue
        name = volume.get("name")
        if empty.get("medium") == "Memory":
            found.append(f"volume {name}: medium Memory is a folder on disk on nodes without VolumeMounts")
        elif empty.get("sizeLimit"):
            found.append(f"volume {name}: sizeLimit of a folder on disk is not enforced: use medium Memory")
    return found


def _pod_spec(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part that has containers: of a pod, of a template, or of a template in a template, as a CronJob has."""
    spec = body.get("spec")
    for inner in ("jobTemplate", "template"):
        if isinstance(spec, Mapping) and isinstance(spec.get(inner), Mapping):
            spec = spec[inner].get("spec")
    return spec if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list) else None

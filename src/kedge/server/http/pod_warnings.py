"""Warnings about pods that every user of kedge should read once: no images, no pod network.

They go to other clients only: kedge's own controllers create pods by the thousand, and act on no warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTE = "kedge runs commands as processes of the node: an image is only a label, and there is no pod network"


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

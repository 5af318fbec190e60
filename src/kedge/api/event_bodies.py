"""Events as Kubernetes has them: one object for all occurrences of a reason, with a count and its first and last time.

The name follows from the object, the reason and the component, so repeats find it. Nothing here writes.
"""

from __future__ import annotations

import zlib
from datetime import datetime
from typing import Any

from kedge.api.kinds import KINDS
from kedge.api.objects import Object
from kedge.api.timestamps import format_time
from kedge.api.wellknown import DECISION_ANNOTATION, EVENT_KIND
from kedge.keys import Key

NORMAL, WARNING = "Normal", "Warning"
MESSAGE_BYTES_MAX = 1024
"""The bound of Kubernetes on the message of an Event."""
_NAME_MAX = 200


def event_key(about: Object, reason: str, component: str) -> Key:
    """An Event about an object without a namespace is in `default`, as in Kubernetes."""
    digest = zlib.crc32(f"{about.uid}{reason}{component}".encode())
    name = f"{about.key.name[:_NAME_MAX]}.{digest:08x}"
    return Key(KINDS.of_key_kind(EVENT_KIND).key_kind, about.key.namespace or "default", name)


def event_body(
    key: Key,
    about: Object,
    *,
    component: str,
    event_type: str,
    reason: str,
    message: str,
    now: datetime,
    decision: str,
    count: int = 1,
) -> dict[str, Any]:
    """A new Event."""
    at = format_time(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": key.name, "namespace": key.namespace, "annotations": {DECISION_ANNOTATION: decision}},
        "involvedObject": {
            "apiVersion": about.kind.api_version,
            "kind": about.kind.kind,
            "namespace": about.key.namespace,
            "name": about.key.name,
            "uid": about.uid,
            "resourceVersion": str(about.revision),
        },
        "reason": reason,
        "message": _bounded(message),
        "type": event_type,
        "count": count,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "source": {"component": component},
        "reportingComponent": component,
    }


def event_repeat(*, message: str, now: datetime, decision: str, count: int) -> dict[str, Any]:
    """The patch of an Event that has occurred again."""
    return {
        "metadata": {"annotations": {DECISION_ANNOTATION: decision}},
        "message": _bounded(message),
        "count": count,
        "lastTimestamp": format_time(now),
    }


def count_of(event: Object) -> int:
    count = event.edit().get("count")
    return count if isinstance(count, int) and count > 0 else 1


def _bounded(message: str) -> str:
    data = message.encode()
    return message if len(data) <= MESSAGE_BYTES_MAX else data[: MESSAGE_BYTES_MAX - 3].decode(errors="ignore") + "..."

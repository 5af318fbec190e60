"""Parts that ReplicaSets and Jobs share: the record of a lost pod, and the priority of a key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kedge.api.conditions import condition, set_condition
from kedge.api.objects import Object
from kedge.api.wellknown import NODE_LOST


def lost_status(pod: Object, now: datetime) -> dict[str, Any]:
    """The patch that records the end of a pod on a lost node. Its claim on the node stays."""
    status = pod.edit().get("status") or {}
    unready = condition("Ready", status=False, reason="PodFailed", observed_generation=pod.metadata.generation)
    return {
        "status": {
            "phase": "Failed",
            "reason": NODE_LOST,
            "message": "its node was declared lost",
            "conditions": set_condition(status.get("conditions") or (), unready, now),
        }
    }


def template_priority(found: Object) -> int:
    """A key has the priority of its object's pods."""
    return found.view.spec.template.spec.priority or 0

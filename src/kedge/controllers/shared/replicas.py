"""Parts that ReplicaSets and Jobs share: the record of a lost pod, and the priority of a key."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from kedge.api.conditions import condition, set_condition
from kedge.api.objects import Object
from kedge.api.views import PriorityClassView
from kedge.api.wellknown import NODE_LOST, SYSTEM_PRIORITIES
from kedge.controllers.shared.kinds import PRIORITY_CLASS
from kedge.keys import Key
from kedge.runtime import WatchSpec
from kedge.runtime.cache import CacheSet, Index


def lost_status(pod: Object, now: datetime) -> dict[str, Any]:
    """The patch that records the end of a pod on a lost node. Its claim on the node stays."""
    status = pod.edit().get("status") or {}
    conditions = status.get("conditions") or ()
    for type_ in ("Ready", "ContainersReady"):
        if type_ == "Ready" or any(each.get("type") == type_ for each in conditions):
            ended = condition(type_, status=False, reason="PodFailed", observed_generation=pod.metadata.generation)
            conditions = set_condition(conditions, ended, now)
    return {
        "status": {
            "phase": "Failed",
            "reason": NODE_LOST,
            "message": "its node was declared lost",
            "conditions": conditions,
        }
    }


def _default_class(found: Object) -> tuple[str, ...]:
    return ("yes",) if found.as_view(PriorityClassView).global_default else ()


_DEFAULT_CLASSES = Index("default", _default_class)
PRIORITY_CLASSES = WatchSpec(kind=PRIORITY_CLASS, indexes=(_DEFAULT_CLASSES,))
"""The watch that `template_priority` needs."""


def template_priority(found: Object, caches: CacheSet) -> int:
    """A key has the priority that its object's pods get: their own, or that of their class, or of the default class."""
    spec = found.view.spec.template.spec
    if spec.priority is not None:
        return int(spec.priority)
    name = spec.priority_class_name
    if name in SYSTEM_PRIORITIES:
        return SYSTEM_PRIORITIES[name]
    for cache in caches.of_kind(PRIORITY_CLASS.key_kind):
        if name:
            known = cache.get(Key(PRIORITY_CLASS.key_kind, "", name)).value
            return 0 if known is None else known.as_view(PriorityClassView).value
        return max((each.view.value for each in cache.by_index(_DEFAULT_CLASSES, "yes").value), default=0)
    return 0

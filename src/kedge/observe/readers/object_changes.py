"""Differences between two versions of an object, one line each: only changes that matter to a timeline.

`timeline` uses it for every commit. Pure; kinds that it does not know have no lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kedge.api import wellknown
from kedge.api.holds import HELD
from kedge.api.objects import Object
from kedge.api.views import Condition, PodView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    JOB_KIND,
    LEASE_KIND,
    NAMESPACE_KIND,
    NODE_KIND,
    POD_KIND,
    REPLACES,
    REPLICA_SET_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
    ROLLOUT_KIND,
    SCHEDULING_POLICY_KIND,
    SYSTEM_NAMESPACE,
    ZONE_QUOTA_KIND,
)
from kedge.keys import Key

CONDITIONS = {
    NODE_KIND: ("Ready", "Suspect", "Lost", "Drained"),
    DEPLOYMENT_KIND: ("RepairComplete", "Bound", "SchedulingRetrying", "RollbackObserved", "Progressing"),
    REPLICA_SET_KIND: ("RepairComplete", "ReplicaFailure"),
    JOB_KIND: ("Complete", "Failed", "Suspended"),
    POD_KIND: ("Ready", "DisruptionTarget", "PodScheduled"),
    AUTOSCALER_KIND: ("ScalingActive", "ScalingHeldBack"),
    ROLLOUT_KIND: ("Progressing", "RollbackObserved"),
    DISRUPTION_BUDGET_KIND: (),
    NAMESPACE_KIND: (),
}
"""By kind, the conditions that a timeline shows, and for each of these kinds whether a person holds it."""


def describe_change(key: Key, old: Object | None, new: Object | None) -> Iterator[str]:
    name = f"{key.kind.partition('.')[0]} {key.name}"
    if key.kind == POD_KIND:
        yield from _pod_changes(name, old, new)
    elif key.kind == LEASE_KIND:
        if key.namespace == SYSTEM_NAMESPACE and new is not None:
            before, after = (each.view.spec.holder_identity if each is not None else "" for each in (old, new))
            if after and after != before:
                yield f"{after} acquired lease {key.name}"
        return
    elif key.kind in _SHOWN:
        if new is None:
            yield f"{name} deleted"
        elif old is None:
            yield f"{name} created{_spec_summary(key, new)}"
        elif old.metadata.generation != new.metadata.generation or key.kind == RESOURCE_QUOTA_KIND:
            was, now = _spec_summary(key, old), _spec_summary(key, new)
            if was != now:
                yield f"{name} changed{now}"
    if new is not None:
        yield from _condition_changes(key, name, old, new)


_SHOWN = (
    DEPLOYMENT_KIND,
    REPLICA_SET_KIND,
    SCHEDULING_POLICY_KIND,
    RESERVATION_KIND,
    RESOURCE_QUOTA_KIND,
    ZONE_QUOTA_KIND,
    AUTOSCALER_KIND,
    JOB_KIND,
    ROLLOUT_KIND,
)


def _spec_summary(key: Key, found: Object) -> str:
    spec: dict[str, Any] = found.edit().get("spec", {})
    match key.kind:
        case wellknown.DEPLOYMENT_KIND | wellknown.REPLICA_SET_KIND:
            images = ", ".join(each.get("image", "") for each in spec["template"]["spec"]["containers"])
            return f": {spec.get('replicas', 1)} replicas of {images}, generation {found.metadata.generation}"
        case wellknown.SCHEDULING_POLICY_KIND:
            canary = (spec.get("canary") or {}).get("version", "")
            return f": version {spec.get('version', '')}{f', canary {canary}' if canary else ''}"
        case wellknown.RESERVATION_KIND:
            pod = (spec.get("pod") or {}).get("name", "")
            return f" for {pod} on {spec.get('nodeName', '')}" if pod else " for a gang"
        case wellknown.JOB_KIND:
            return f": {spec.get('completions') or 1} completions, {spec.get('parallelism', 1)} at a time"
        case wellknown.ROLLOUT_KIND:
            target = spec.get("target") or {}
            return f" of {target.get('kind', '')} {target.get('name', '')}: {len(spec.get('stages', ()))} stages"
        case wellknown.RESOURCE_QUOTA_KIND:
            return f": {_pairs(spec.get('hard', {}))}"
        case wellknown.ZONE_QUOTA_KIND:
            return ": " + "; ".join(f"{zone} {_pairs(each.get('hard', {}))}" for zone, each in spec["zones"].items())
    return ""


def _pairs(amounts: dict[str, Any]) -> str:
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())


def _pod_changes(name: str, old: Object | None, new: Object | None) -> Iterator[str]:
    if new is None:
        yield f"{name} deleted"
        return
    view = new.as_view(PodView)
    was = old.as_view(PodView) if old is not None and old.uid == new.uid else None
    if was is None:
        replaces = view.metadata.annotations.get(REPLACES, "")
        yield f"{name} created{f' to replace {replaces[:8]}' if replaces else ''}"
    if view.spec.node_name and (was is None or not was.spec.node_name):
        yield f"{name} bound to {view.spec.node_name}"
    if view.finished and (was is None or not was.finished):
        yield f"{name} ended: {view.status.phase}{f', {view.status.reason}' if view.status.reason else ''}"
    if view.terminating and (was is None or not was.terminating):
        yield f"{name} terminating"


def _condition_changes(key: Key, name: str, old: Object | None, new: Object) -> Iterator[str]:
    if key.kind not in CONDITIONS:
        return
    shown = (*CONDITIONS[key.kind], HELD)
    before = {each.type: each for each in _conditions(old)}
    for each in _conditions(new):
        was = before.get(each.type)
        now = (each.status, each.reason)
        if each.type in shown and (was is None or (was.status, was.reason) != now):
            yield f"{name} {each.type}={each.status}{f' ({each.reason})' if each.reason else ''}"


def _conditions(found: Object | None) -> tuple[Condition, ...]:
    """The conditions of an object; none if its kind has no conditions."""
    status = None if found is None else getattr(found.view, "status", None)
    return tuple(getattr(status, "conditions", ()))

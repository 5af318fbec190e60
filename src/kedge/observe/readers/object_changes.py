"""Differences between two versions of an object, one line each: only changes that matter to a timeline.

`timeline` uses it for every commit. Pure; kinds that it does not know have no lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kedge.api import wellknown
from kedge.api.holds import HELD
from kedge.api.objects import Object
from kedge.api.views import Condition, PodView
from kedge.api.wellknown import (
    AUTOSCALER_KIND,
    DEPLOYMENT_KIND,
    DISRUPTION_BUDGET_KIND,
    EVENT_KIND,
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
    DEPLOYMENT_KIND: (
        "RepairComplete",
        "Bound",
        "SchedulingRetrying",
        "RollbackObserved",
        "Progressing",
        "AvailabilityFloor",
    ),
    REPLICA_SET_KIND: ("RepairComplete", "ReplicaFailure"),
    JOB_KIND: ("Complete", "Failed", "Suspended"),
    POD_KIND: ("Ready", "DisruptionTarget", "PodScheduled"),
    AUTOSCALER_KIND: ("ScalingActive", "ScalingHeldBack"),
    ROLLOUT_KIND: ("Progressing", "RollbackObserved"),
    DISRUPTION_BUDGET_KIND: (),
    NAMESPACE_KIND: (),
}
"""By kind, the conditions that a timeline shows, and for each of these kinds whether a person holds it."""


_ROUTINE = {
    DEPLOYMENT_KIND: frozenset({("Bound", "False"), ("SchedulingRetrying", "False"), ("Progressing", "True")}),
    REPLICA_SET_KIND: frozenset({("ReplicaFailure", "False")}),
    NODE_KIND: frozenset({("Suspect", "False"), ("Lost", "False")}),
    POD_KIND: frozenset({("PodScheduled", "True"), ("PodScheduled", "False"), ("Ready", "False")}),
    ROLLOUT_KIND: frozenset({("RollbackObserved", "False")}),
    AUTOSCALER_KIND: frozenset({("ScalingActive", "True")}),
}
"""By kind, conditions that repeat a line: the bind or the failed attempt, a pod that ends, a return to normal."""
_FIRST = frozenset({("ScalingHeldBack", "False")})
"""Conditions that matter only after they had another status."""


class ObjectChange(NamedTuple):
    """One difference, and how much of it a reader wants."""

    text: str
    more: str = ""
    """The generation and the message of a condition."""
    detail: bool = False
    """It repeats another line, or is a step on the way to one: a short story leaves it out."""
    is_condition: bool = False


def describe_change(key: Key, old: Object | None, new: Object | None) -> Iterator[ObjectChange]:
    name = f"{key.kind.partition('.')[0]} {key.name}"
    if key.kind == POD_KIND:
        yield from _pod_changes(name, old, new)
    elif key.kind == LEASE_KIND:
        if key.namespace == SYSTEM_NAMESPACE and new is not None:
            before, after = (each.view.spec.holder_identity if each is not None else "" for each in (old, new))
            if after and after != before:
                yield ObjectChange(f"{after} acquired lease {key.name}", detail=not before)
        return
    elif key.kind == EVENT_KIND:
        yield from _event(old, new)
    elif key.kind in _SHOWN:
        if new is None:
            yield ObjectChange(f"{name} deleted")
        elif old is None:
            yield ObjectChange(f"{name} created{_spec_summary(key, new)}", detail=_is_owned(new))
        elif old.metadata.generation != new.metadata.generation or key.kind == RESOURCE_QUOTA_KIND:
            was, now = _spec_summary(key, old), _spec_summary(key, new)
            if was != now:
                yield ObjectChange(f"{name} changed{now}", detail=_is_owned(new))
    if new is not None:
        if key.kind in QUOTA_KINDS:
            yield from _quota_use(key, name, old, new)
        yield from _condition_changes(key, name, old, new)


QUOTA_KINDS = (RESOURCE_QUOTA_KIND, ZONE_QUOTA_KIND)
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


def _event(old: Object | None, new: Object | None) -> Iterator[ObjectChange]:
    """Only failed scheduling: other events repeat a change of the object that they are about."""
    if old is None and new is not None:
        body = new.edit()
        about = body.get("regarding") or body.get("involvedObject") or {}
        if body.get("reason") == "FailedScheduling":
            note = body.get("note") or body.get("message", "")
            yield ObjectChange(f"Event FailedScheduling about {about.get('kind', '')} {about.get('name', '')}: {note}")


def _is_owned(found: Object) -> bool:
    """Whether it follows another object, as a ReplicaSet follows its Deployment."""
    return bool(found.metadata.owner_references)


def _spec_summary(key: Key, found: Object) -> str:
    spec: dict[str, Any] = found.edit().get("spec") or {}
    match key.kind:
        case wellknown.DEPLOYMENT_KIND | wellknown.REPLICA_SET_KIND:
            images = ", ".join(each.get("image", "") for each in spec["template"]["spec"]["containers"])
            return f": {spec.get('replicas', 1)} replicas of {images}, generation {found.metadata.generation}"
        case wellknown.SCHEDULING_POLICY_KIND:
            canary = spec.get("canary")
            return f": version {_policy(spec)}" + (f"; canary {_policy(canary)}" if canary else "")
        case wellknown.RESERVATION_KIND:
            pod = (spec.get("pod") or {}).get("name", "")
            return f" for {pod} on {spec.get('nodeName', '')}" if pod else " for a gang"
        case wellknown.JOB_KIND:
            return f": {spec.get('completions') or 1} completions, {spec.get('parallelism', 1)} at a time"
        case wellknown.ROLLOUT_KIND:
            target = spec.get("target") or {}
            return f" of {target.get('kind', '')} {target.get('name', '')}: {len(spec.get('stages', ()))} stages"
        case wellknown.RESOURCE_QUOTA_KIND:
            return f": {_pairs(spec.get('hard') or {})}"
        case wellknown.ZONE_QUOTA_KIND:
            return ": " + "; ".join(f"{zone} {_pairs(hard)}" for zone, hard in _hard(key, found).items())
    return ""


def _policy(spec: dict[str, Any]) -> str:
    """A version of a policy, its scope and its skew, as `v5-canary, scope risk-api eu-central, maxZoneSkew 1`."""
    scope = spec.get("scope") or {}
    names = [name for field in ("tenants", "workloads", "zones", "regions") for name in scope.get(field) or ()]
    parts = [str(spec.get("version", ""))]
    parts += [f"scope {' '.join(names)}"] if names else []
    parts += [f"maxZoneSkew {spec['maxZoneSkew']}"] if spec.get("maxZoneSkew") else []
    return ", ".join(parts)


def _quota_use(key: Key, name: str, old: Object | None, new: Object) -> Iterator[ObjectChange]:
    """How much of a quota is reserved, if that changed."""
    was, now = ({} if each is None else _used(key, each) for each in (old, new))
    if now == was:
        return
    hard = _hard(key, new)
    parts = [
        (f"{zone} " if zone else "")
        + ", ".join(f"{each}={used.get(each, '0')} of {most}" for each, most in limits.items())
        for zone, limits in hard.items()
        if (used := now.get(zone)) is not None
    ]
    first = not was and all(amount == "0" for used in now.values() for amount in used.values())
    if parts:
        yield ObjectChange(f"{name} reserves {'; '.join(parts)}", detail=first)


def _hard(key: Key, found: Object) -> dict[str, dict[str, Any]]:
    """The limits of a quota by zone; a ResourceQuota has one nameless zone."""
    spec = found.edit().get("spec") or {}
    if key.kind == RESOURCE_QUOTA_KIND:
        return {"": spec.get("hard") or {}}
    return {zone: (each or {}).get("hard") or {} for zone, each in (spec.get("zones") or {}).items()}


def _used(key: Key, found: Object) -> dict[str, dict[str, Any]]:
    """The reserved amounts of a quota by zone; empty before they are counted."""
    status = found.edit().get("status") or {}
    if key.kind == RESOURCE_QUOTA_KIND:
        return {"": status["used"]} if status.get("used") is not None else {}
    return {zone: (each or {}).get("used") or {} for zone, each in (status.get("zones") or {}).items()}


def _pairs(amounts: dict[str, Any]) -> str:
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())


def _pod_changes(name: str, old: Object | None, new: Object | None) -> Iterator[ObjectChange]:
    if new is None:
        yield ObjectChange(f"{name} deleted")
        return
    view = new.as_view(PodView)
    was = old.as_view(PodView) if old is not None and old.uid == new.uid else None
    if was is None:
        replaces = view.metadata.annotations.get(REPLACES, "")
        yield ObjectChange(f"{name} created{f' to replace {replaces[:8]}' if replaces else ''}")
    if view.spec.node_name and (was is None or was.spec.node_name != view.spec.node_name):
        yield ObjectChange(f"{name} bound to {view.spec.node_name}")
    if view.finished and (was is None or not was.finished):
        end = f"{view.status.phase}{f', {view.status.reason}' if view.status.reason else ''}"
        yield ObjectChange(f"{name} ended: {end}", detail=view.status.phase == "Succeeded")
    if view.terminating and (was is None or not was.terminating):
        yield ObjectChange(f"{name} terminating", detail=True)


def _condition_changes(key: Key, name: str, old: Object | None, new: Object) -> Iterator[ObjectChange]:
    if key.kind not in CONDITIONS:
        return
    shown, routine = (*CONDITIONS[key.kind], HELD), _ROUTINE.get(key.kind, frozenset())
    before = {each.type: each for each in _conditions(old)}
    for each in _conditions(new):
        was = before.get(each.type)
        now = (each.status, each.reason)
        if each.type in shown and (was is None or (was.status, was.reason) != now):
            text = f"{name} {each.type}={each.status}{f' ({each.reason})' if each.reason else ''}"
            detail = (each.type, each.status) in routine or (key.kind == REPLICA_SET_KIND and _is_owned(new))
            detail = detail or (was is None and (each.type, each.status) in _FIRST)
            yield ObjectChange(text, _more(each), detail, is_condition=True)


def _more(condition: Condition) -> str:
    generation = f", observedGeneration={condition.observed_generation}" if condition.observed_generation else ""
    return generation + (f": {condition.message}" if condition.message else "")


def _conditions(found: Object | None) -> tuple[Condition, ...]:
    """The conditions of an object; none if its kind has no conditions."""
    status = None if found is None else getattr(found.view, "status", None)
    return tuple(getattr(status, "conditions", ()))

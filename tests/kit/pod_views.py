"""Pod views, made in one line."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kedge.api.timestamps import format_time
from kedge.api.views import Condition, ContainerStatus, ObjectMeta, PodSpec, PodStatus, PodView
from kedge.api.views.base import Annotations, Labels
from kedge.api.views.core import SchedulingGate
from kedge.api.wellknown import DISRUPTION_TARGET, DRAINING, NODE_LOST, REPLACES
from kedge.controllers.deployment.plan import SetFacts

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_pod(
    name: str = "web-0",
    *,
    uid: str = "",
    node: str = "",
    phase: str = "",
    ready_s: float | None = None,
    age_s: float = 100.0,
    draining_s: float | None = None,
    terminating: bool = False,
    grace_s: int = 30,
    lost: bool = False,
    replaces: str = "",
    restarts: int = 0,
    cost: str = "",
    nominated: str = "",
    gated: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    conditions: tuple[Condition, ...] = (),
    statuses: tuple[ContainerStatus, ...] = (),
    finalizers: tuple[str, ...] = (),
) -> PodView:
    """A pod that has been ready for `ready_s`, or draining for `draining_s`."""
    notes = dict(annotations or {})
    if draining_s is not None:
        notes[DRAINING] = format_time(ago(draining_s))
    if replaces:
        notes[REPLACES] = replaces
    if cost:
        notes["controller.kubernetes.io/pod-deletion-cost"] = cost
    found = list(conditions)
    if ready_s is not None:
        found.append(Condition(type="Ready", status="True", last_transition_time=ago(ready_s)))
    if lost:
        found.append(Condition(type=DISRUPTION_TARGET, status="True", reason=NODE_LOST))
    if restarts:
        statuses = (ContainerStatus(name="main", restart_count=restarts),)
    return PodView(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=uid or f"uid-of-{name}",
            labels=Labels(labels or {"app": "web"}),
            annotations=Annotations(notes),
            creation_timestamp=ago(age_s),
            deletion_timestamp=ago(1) if terminating else None,
            deletion_grace_period_seconds=grace_s if terminating else None,
            finalizers=finalizers,
        ),
        spec=PodSpec(node_name=node, scheduling_gates=(SchedulingGate(name="wait"),) if gated else ()),
        status=PodStatus(
            phase=phase or ("Running" if node else "Pending"),
            conditions=tuple(found),
            container_statuses=statuses,
            nominated_node_name=nominated,
        ),
    )


def ready_pod(name: str, *, node: str = "node-a", ready_s: float = 60.0, **more: object) -> PodView:
    return a_pod(name, node=node, ready_s=ready_s, **more)  # type: ignore[arg-type]


def a_set(name: str, replicas: int, available: int | None = None, **more: Any) -> SetFacts:
    """A settled ReplicaSet, except for the given fields."""
    facts = SetFacts(name, replicas, copies=replicas, available=replicas if available is None else available)
    return replace(facts, **more)

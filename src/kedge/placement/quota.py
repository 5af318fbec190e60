"""The arithmetic of quotas: the cost of an object to its namespace, and of a pod to its tenant in a zone.

Pure. The service charges in the commit that causes the cost. A cost is always a difference between the object before
and after, so creation, change and removal are one rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from kedge.api.kinds import Kind
from kedge.api.pod_resources import is_set_for_pods
from kedge.api.views import PodView, ResourceQuotaView, ScopedSelectorRequirement, ZoneQuotaView
from kedge.api.wellknown import CONFIG_MAP_KIND, RESOURCE_QUOTA_KIND, SECRET_KIND, SERVICE_KIND
from kedge.placement.resources import CPU, MEMORY, PODS, Units, pod_limits, quota_requests, subtract, to_units

_LEGACY_COUNTS = {
    CONFIG_MAP_KIND: "configmaps",
    SECRET_KIND: "secrets",
    SERVICE_KIND: "services",
    RESOURCE_QUOTA_KIND: "resourcequotas",
}
"""Kinds that old manifests count by their bare plural; every kind can be counted as `count/plural.group`."""


def count_name(kind: Kind) -> str:
    return f"count/{kind.plural}.{kind.group}" if kind.group else f"count/{kind.plural}"


def object_cost(kind: Kind, pod: PodView | None) -> dict[str, int]:
    """Every amount that one object of `kind` could be charged. `pod` is its view if it is a pod."""
    cost = {count_name(kind): 1}
    if kind.key_kind in _LEGACY_COUNTS:
        cost[_LEGACY_COUNTS[kind.key_kind]] = 1
    if pod is not None and not pod.finished:
        for resource, amount in quota_requests(pod).items():
            if resource == PODS:
                cost[PODS] = amount
                continue
            cost[f"requests.{resource}"] = amount
            if resource in ("cpu", "memory", "ephemeral-storage"):
                cost[resource] = amount
        for resource, amount in pod_limits(pod).items():
            cost[f"limits.{resource}"] = amount
    return cost


def in_scope(quota: ResourceQuotaView, pod: PodView | None) -> bool:
    """Whether the quota's scopes cover the object. Scopes apply to pods, so a scoped quota counts nothing else."""
    spec = quota.spec
    wanted = spec.scope_selector.match_expressions if spec.scope_selector is not None else ()
    if not spec.scopes and not wanted:
        return True
    if pod is None:
        return False
    return all(_scope_covers(scope, pod) for scope in spec.scopes) and all(
        _meets(requirement, pod) for requirement in wanted
    )


def _meets(requirement: ScopedSelectorRequirement, pod: PodView) -> bool:
    """One requirement of a scope selector. Only a priority class has values; other scopes exist or do not."""
    name, operator = pod.spec.priority_class_name, requirement.operator
    if requirement.scope_name == "PriorityClass" and operator in ("In", "NotIn"):
        return (name in requirement.values) == (operator == "In")
    return _scope_covers(requirement.scope_name, pod) != (operator == "DoesNotExist")


def _scope_covers(scope: str, pod: PodView) -> bool:
    match scope:
        case "Terminating":
            return pod.spec.active_deadline_seconds is not None
        case "NotTerminating":
            return pod.spec.active_deadline_seconds is None
        case "BestEffort":
            return is_best_effort(pod)
        case "NotBestEffort":
            return not is_best_effort(pod)
        case "PriorityClass":
            return bool(pod.spec.priority_class_name)
        case "CrossNamespacePodAffinity":
            return _looks_into_other_namespaces(pod)
        case _:
            return False


def _looks_into_other_namespaces(pod: PodView) -> bool:
    """Whether a term about other pods names namespaces, even its own one."""
    affinity = pod.spec.affinity
    sides = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ()
    terms = [
        term
        for side in sides
        if side is not None
        for term in (
            *side.required_during_scheduling_ignored_during_execution,
            *(each.pod_affinity_term for each in side.preferred_during_scheduling_ignored_during_execution),
        )
    ]
    return any(term.namespaces or term.namespace_selector is not None for term in terms)


def is_best_effort(pod: PodView) -> bool:
    """Whether the pod requests and limits neither CPU nor memory; resources of the pod replace its containers'."""
    spec = pod.spec
    own = spec.resources
    every = [own] if any(map(is_set_for_pods, (*own.requests, *own.limits))) else []
    every = every or [each.resources for each in (*spec.containers, *spec.init_containers)]
    return not any(
        amounts.get(resource)
        for each in every
        for amounts in (each.requests, each.limits)
        for resource in (CPU, MEMORY)
    )


def tracked(amounts: Units, hard: Iterable[str]) -> dict[str, int]:
    """The amounts that a quota limits."""
    names = set(hard)
    return {resource: amount for resource, amount in amounts.items() if resource in names}


def quota_delta(kind: Kind, quota: ResourceQuotaView, old: PodView | None, new: PodView | None, exists: int) -> Units:
    """The amounts that a write adds to the quota's usage (negative if it frees).

    `old` and `new` are the pod before and after, None for other kinds and for absence; `exists` is +1 for a
    creation, -1 for a removal and 0 for a change of an object that stays.
    """
    before = object_cost(kind, old) if exists <= 0 and in_scope(quota, old) else {}
    after = object_cost(kind, new) if exists >= 0 and in_scope(quota, new) else {}
    return tracked(subtract(after, before), quota.spec.hard)


def overruns(delta: Units, used: Units, hard: Units) -> list[str]:
    """The resources that the write would take past their limit. An amount that does not grow never overruns."""
    return sorted(r for r, amount in delta.items() if amount > 0 and used.get(r, 0) + amount > hard.get(r, 0))


def zone_hard(quota: ZoneQuotaView, zone: str) -> Units | None:
    """The tenant's limits in a zone; None if this quota has none for it."""
    limits = quota.spec.zones.get(zone)
    return None if limits is None else to_units(limits.hard)


def zone_used(quota: ZoneQuotaView, zone: str) -> Units | None:
    """The sum of the tenant's claims in a zone; None if they were not counted yet."""
    use = quota.status.zones.get(zone)
    return None if use is None else to_units(use.used)

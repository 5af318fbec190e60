"""Rules of resource lists: valid names and amounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from kedge.api.names import qualified_name_problem
from kedge.api.quantity import NANO, Quantity
from kedge.api.validation.error_list import ErrorList
from kedge.api.views import ResourceRequirements
from kedge.api.wellknown import KUBERNETES_DOMAIN

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})


@lru_cache(maxsize=1024)
def _problem(resource: str) -> str:
    problem = qualified_name_problem(resource)
    if problem:
        return problem
    if "/" in resource or resource in _STANDARD or resource.startswith("hugepages-"):
        return ""
    return "must be a standard resource type or fully qualified"


@lru_cache(maxsize=1024)
def is_overcommittable(resource: str) -> bool:
    """Whether a container may use more than its request. Devices and huge pages cannot be overcommitted."""
    return resource in _STANDARD or ("/" in resource and resource.partition("/")[0].endswith(KUBERNETES_DOMAIN))


@lru_cache(maxsize=1024)
def _whole_only(resource: str) -> bool:
    """Whether its amounts must be integers."""
    return "/" in resource or resource in ("pods", "services", "secrets", "configmaps", "resourcequotas")


def check_amounts(
    errors: ErrorList,
    amounts: Mapping[str, Quantity],
    path: str,
    problem_of: Callable[[str], str] = qualified_name_problem,
) -> None:
    """Any resource list: valid names, amounts that are not negative."""
    for resource, amount in amounts.items():
        problem = problem_of(resource)
        if problem:
            errors.invalid(f"{path}[{resource}]", resource, problem)
        if amount.nano < 0:
            errors.not_negative(f"{path}[{resource}]", amount)
        if amount.nano % NANO and _whole_only(resource):
            errors.invalid(f"{path}[{resource}]", amount, "must be an integer")


def check_container_amounts(errors: ErrorList, amounts: Mapping[str, Quantity], path: str) -> None:
    """The requests or limits of a container, or a pod's overhead."""
    check_amounts(errors, amounts, path, _problem)


def _plainly_fine(limits: Mapping[str, Quantity], requests: Mapping[str, Quantity]) -> bool:
    """Whether it is the common case: only cpu and memory, nothing negative, requests within limits."""
    for resource, amount in requests.items():
        if resource not in _STANDARD or amount.nano < 0:
            return False
        limit = limits.get(resource)
        if limit is not None and limit.nano < amount.nano:
            return False
    return all(resource in _STANDARD and limit.nano >= 0 for resource, limit in limits.items())


def check_requirements(errors: ErrorList, resources: ResourceRequirements, path: str) -> None:
    """A container's resources: no request is above its limit."""
    limits, requests = resources.limits, resources.requests
    if _plainly_fine(limits, requests):
        return
    if limits:
        check_container_amounts(errors, limits, f"{path}.limits")
    if requests:
        check_container_amounts(errors, requests, f"{path}.requests")
    for resource, amount in requests.items():
        limit = limits.get(resource)
        if limit is None:
            if not is_overcommittable(resource):
                errors.required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif amount.nano > limit.nano:
            errors.invalid(f"{path}.requests", amount, f"must be less than or equal to {resource} limit of {limit}")
        elif amount.nano != limit.nano and not is_overcommittable(resource):
            errors.invalid(f"{path}.requests", amount, f"must be equal to {resource} limit of {limit}")

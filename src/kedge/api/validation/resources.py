"""Rules of resource lists: valid names and amounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kedge.api.names import qualified_name_problem, remembered_name
from kedge.api.pod_resources import is_set_for_pods, total_of_containers
from kedge.api.quantity import NANO, Quantity
from kedge.api.validation.error_list import ErrorList
from kedge.api.views import PodSpec, PodStatus, ResourceRequirements
from kedge.api.wellknown import KUBERNETES_DOMAIN

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})


@remembered_name
def _problem(resource: str) -> str:
    problem = qualified_name_problem(resource)
    if problem:
        return problem
    if "/" in resource or resource in _STANDARD or resource.startswith("hugepages-"):
        return ""
    return "must be a standard resource type or fully qualified"


@remembered_name
def is_overcommittable(resource: str) -> bool:
    """Whether a container may use more than its request. Devices and huge pages cannot be overcommitted."""
    return resource in _STANDARD or ("/" in resource and resource.partition("/")[0].endswith(KUBERNETES_DOMAIN))


@remembered_name
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


def check_pod_resources(errors: ErrorList, spec: PodSpec, path: str) -> None:
    """Resources of the pod itself: of few kinds, at least what its containers request, at least each one's limit."""
    own, place = spec.resources, f"{path}.resources"
    for name, amounts in (("requests", own.requests), ("limits", own.limits)):
        for resource in amounts:
            if not is_set_for_pods(resource):
                errors.unsupported(f"{place}.{name}[{resource}]", resource, ("cpu", "hugepages-", "memory"))
    check_requirements(errors, own, place)
    total = total_of_containers(
        (each.resources.requests for each in spec.containers),
        ((each.resources.requests, each.restart_policy == "Always") for each in spec.init_containers),
    )
    for resource, amount in own.requests.items():
        if resource in total and total[resource] > amount.nano:
            least = Quantity(total[resource], amount.format)
            errors.invalid(
                f"{place}.requests[{resource}]",
                amount,
                f"must be greater than or equal to aggregate container requests of {least}",
            )
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            for resource, limit in container.resources.limits.items():
                most = own.limits.get(resource)
                if most is not None and limit.nano > most.nano:
                    errors.invalid(
                        f"{path}.{field}[{index}].resources.limits[{resource}]",
                        limit,
                        f"must be less than or equal to pod limits of {most}",
                    )


def check_reported_resources(errors: ErrorList, status: PodStatus) -> None:
    """Resources that a node reports of a pod: they count on its ledger, so none is negative."""
    reports = [("status", status.resources, status.allocated_resources)]
    for field, statuses in (
        ("containerStatuses", status.container_statuses),
        ("initContainerStatuses", status.init_container_statuses),
    ):
        reports += [(f"status.{field}[{i}]", s.resources, s.allocated_resources) for i, s in enumerate(statuses)]
    for path, applied, allocated in reports:
        check_amounts(errors, allocated, f"{path}.allocatedResources")
        if applied is not None:
            check_amounts(errors, applied.requests, f"{path}.resources.requests")
            check_amounts(errors, applied.limits, f"{path}.resources.limits")

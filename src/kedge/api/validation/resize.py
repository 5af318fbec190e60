"""Rules of the resize subresource: which resources of a pod may change, as in Kubernetes 1.36."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kedge.api.quantity import Quantity
from kedge.api.validation.error_list import ErrorList
from kedge.api.views import Container, ContainerResizePolicy, PodSpec, PodView, ResourceList, ResourceRequirements
from kedge.api.wellknown import MIRROR_POD

_RESIZABLE = ("cpu", "memory")
_POLICIES = ("NotRequired", "RestartContainer")
_RESTART = "RestartContainer"


# -- policies --------------------------------------------------------------------------------------


def check_resize_policies(errors: ErrorList, spec: PodSpec, path: str) -> None:
    """The resize policies of every container."""
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            if container.resize_policy:
                place = f"{path}.{field}[{index}].resizePolicy"
                _check_policies(errors, container.resize_policy, place, restarts=spec.restart_policy != "Never")
                if field == "initContainers" and not _is_sidecar(container):
                    _check_init_policies(errors, container, place)


def _check_policies(errors: ErrorList, policies: Sequence[ContainerResizePolicy], path: str, *, restarts: bool) -> None:
    seen: set[str] = set()
    for index, policy in enumerate(policies):
        if policy.resource_name in seen:
            errors.duplicate(f"{path}[{index}]", policy.resource_name)
        seen.add(policy.resource_name)
        errors.one_of(path, policy.resource_name, _RESIZABLE)
        errors.one_of(path, policy.restart_policy, _POLICIES)
        if not restarts and policy.restart_policy != "NotRequired":
            errors.invalid(path, policy.restart_policy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")


def _check_init_policies(errors: ErrorList, container: Container, path: str) -> None:
    for index, policy in enumerate(container.resize_policy):
        if policy.restart_policy == _RESTART:
            errors.invalid(
                f"{path}[{index}].restartPolicy",
                policy.restart_policy,
                "must not be set to 'RestartContainer' for non-sidecar initContainers",
            )


# -- a resize --------------------------------------------------------------------------------------


def check_resize(errors: ErrorList, before: PodView, after: PodView) -> None:
    """The step from one version of a pod to a resized one: only CPU and memory of its containers and of the pod."""
    if MIRROR_POD in before.metadata.annotations:
        errors.forbidden("", "static pods cannot be resized")
        return
    if (before.status.qos_class or qos_class(before.spec)) != qos_class(after.spec):
        errors.invalid("spec", qos_class(after.spec), "Pod QOS Class may not change as a result of resizing")
    if not _is_supported(before):
        errors.forbidden("spec", "Pod running on node without support for resize")
    old, new = before.spec, after.spec
    if _any_amount(old.resources) or _any_amount(new.resources):
        _check_resources_of_pod(errors, old.resources, new.resources)
    if not _same_containers(errors, old, new):
        return
    for field, was, now in (
        ("initContainers", old.init_containers, new.init_containers),
        ("containers", old.containers, new.containers),
    ):
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            _check_container(errors, one, other, f"spec.{field}[{index}]", init=field == "initContainers")
    if not errors and _unresized(old) != _unresized(new):
        errors.forbidden("spec", "only cpu and memory resources are mutable")


def qos_class(spec: PodSpec) -> str:
    """The class of a pod by its requests and limits of CPU and memory; resources of the pod itself decide alone."""
    of_pod = _any_amount(spec.resources)
    every = [spec.resources] if of_pod else [c.resources for c in (*spec.containers, *spec.init_containers)]
    requests = [_compute(each.requests) for each in every]
    limits = [_compute(each.limits) for each in every]
    if not any(requests) and not any(limits):
        return "BestEffort"
    limited = all(len(each) == len(_RESIZABLE) for each in limits)
    return "Guaranteed" if limited and _sum(requests) == _sum(limits) else "Burstable"


def _check_resources_of_pod(errors: ErrorList, old: ResourceRequirements, new: ResourceRequirements) -> None:
    if _any_amount(old) and not _any_amount(new):
        errors.forbidden("spec.resources", "pod-level resources cannot be removed")
        return
    for name, was, now in (("requests", old.requests, new.requests), ("limits", old.limits, new.limits)):
        if not was.keys() <= now.keys():
            errors.forbidden(f"spec.resources.{name}", f"pod-level resource {name} cannot be removed")
    if _others(old) != _others(new):
        errors.forbidden("spec", "only cpu and memory resources are mutable at pod-level")


def _same_containers(errors: ErrorList, old: PodSpec, new: PodSpec) -> bool:
    """Whether both have the same containers in the same order."""
    count = len(errors.found)
    for field, was, now in (
        ("containers", old.containers, new.containers),
        ("initContainers", old.init_containers, new.init_containers),
    ):
        if len(was) != len(now):
            errors.forbidden(f"spec.{field}", f"{field} may not be added or removed on resize")
            continue
        for index, (one, other) in enumerate(zip(was, now, strict=True)):
            if one.name != other.name:
                errors.forbidden(f"spec.{field}[{index}].name", f"{field} may not be renamed or reordered on resize")
    return len(errors.found) == count


def _check_container(errors: ErrorList, old: Container, new: Container, path: str, *, init: bool) -> None:
    was, now = old.resources, new.resources
    for name, one, other in (("requests", was.requests, now.requests), ("limits", was.limits, now.limits)):
        if not one.keys() <= other.keys():
            errors.forbidden(f"{path}.resources.{name}", f"resource {name} cannot be removed")
    if _others(was) != _others(now) or old.resize_policy != new.resize_policy:
        if init:
            errors.forbidden(path, "only cpu and memory resources for init or sidecar containers are mutable")
        else:
            errors.forbidden("spec", "only cpu and memory resources are mutable")
    restarted = any(each.restart_policy == _RESTART for each in new.resize_policy)
    if init and old != new and not _is_sidecar(new) and restarted:
        errors.forbidden(path, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")


def _is_supported(pod: PodView) -> bool:
    """Whether the pod's node reports the resources of its containers; assumed while none runs."""
    running = (each for each in pod.status.container_statuses if each.state.running is not None)
    first = next(running, None)
    return first is None or first.resources is not None


def _unresized(spec: PodSpec) -> PodSpec:
    """The spec without everything that `check_resize` has compared already."""
    nothing = ResourceRequirements()

    def bare(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(msgspec.structs.replace(each, resources=nothing, resize_policy=()) for each in containers)

    return msgspec.structs.replace(
        spec, containers=bare(spec.containers), init_containers=bare(spec.init_containers), resources=nothing
    )


def _others(resources: ResourceRequirements) -> tuple[Mapping[str, Quantity], ...]:
    """The resources that no resize may change."""
    return tuple(
        {name: amount for name, amount in amounts.items() if name not in _RESIZABLE}
        for amounts in (resources.requests, resources.limits)
    )


def _any_amount(resources: ResourceRequirements) -> bool:
    return bool(resources.requests or resources.limits)


def _compute(amounts: ResourceList) -> dict[str, int]:
    return {name: amounts[name].nano for name in _RESIZABLE if name in amounts and amounts[name].nano > 0}


def _sum(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, nano in part.items():
            total[name] = total.get(name, 0) + nano
    return total


def _is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"

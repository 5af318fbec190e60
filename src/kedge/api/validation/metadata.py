"""Rules of metadata, labels, selectors and conditions, for every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kedge.api.names import (
    label_1035_problem,
    label_problem,
    label_value_problem,
    path_segment_problem,
    qualified_name_problem,
    subdomain_problem,
)
from kedge.api.validation.error_list import ErrorList
from kedge.api.views import Condition, LabelSelectorSpec, ObjectMeta, OwnerReference
from kedge.api.wellknown import (
    CLUSTER_ROLE_BINDING_KIND,
    CLUSTER_ROLE_KIND,
    EVENT_KIND,
    EVENTS_API_VERSION,
    NAMESPACE_KIND,
    ROLE_BINDING_KIND,
    ROLE_KIND,
    SERVICE_KIND,
    SIGNING_REQUEST_KIND,
)

if TYPE_CHECKING:
    from kedge.api.kinds import Kind

ANNOTATIONS_BYTES_MAX = 256 * 1024
"""Kubernetes' limit on all annotations of one object, keys included."""

_NAME_RULES: dict[str, Callable[[str], str]] = {
    NAMESPACE_KIND: label_problem,
    SERVICE_KIND: label_1035_problem,
    ROLE_KIND: path_segment_problem,
    CLUSTER_ROLE_KIND: path_segment_problem,
    ROLE_BINDING_KIND: path_segment_problem,
    CLUSTER_ROLE_BINDING_KIND: path_segment_problem,
    SIGNING_REQUEST_KIND: path_segment_problem,
}


def check_metadata(errors: ErrorList, kind: Kind, metadata: ObjectMeta, *, shared_parts_clean: bool = False) -> None:
    """Check metadata. `shared_parts_clean`: its labels and owners were checked before (`known_parts`)."""
    name_problem = _NAME_RULES.get(kind.key_kind, subdomain_problem)
    if metadata.name:
        problem = name_problem(metadata.name)
        if problem:
            errors.invalid("metadata.name", metadata.name, problem)
    elif not metadata.generate_name:
        errors.required("metadata.name", "name or generateName is required")
    if metadata.generate_name:
        # The generated suffix makes a trailing dash valid.
        complete = metadata.generate_name[:-1] + "a" if metadata.generate_name.endswith("-") else metadata.generate_name
        errors.name("metadata.generateName", metadata.generate_name, name_problem(complete))
    if kind.namespaced:
        if not metadata.namespace:
            errors.required("metadata.namespace")
        elif problem := label_problem(metadata.namespace):
            errors.name("metadata.namespace", metadata.namespace, problem)
    elif metadata.namespace:
        errors.forbidden("metadata.namespace", "not allowed on this type")
    if metadata.labels and not shared_parts_clean:
        check_labels(errors, metadata.labels, "metadata.labels")
    if metadata.annotations:
        check_annotations(errors, metadata.annotations, "metadata.annotations")
    if metadata.finalizers:
        _check_finalizers(errors, metadata.finalizers)
    if metadata.owner_references and not shared_parts_clean:
        check_owners(errors, metadata.owner_references)
    if metadata.generation < 0:
        errors.at_least("metadata.generation", metadata.generation, 0)
    errors.at_least("metadata.deletionGracePeriodSeconds", metadata.deletion_grace_period_seconds, 0)


def check_labels(errors: ErrorList, labels: Mapping[str, str], path: str) -> None:
    for key, value in labels.items():
        problem = qualified_name_problem(key)
        if problem:
            errors.invalid(path, key, problem)
        problem = label_value_problem(value)
        if problem:
            errors.invalid(path, value, problem)


def check_annotations(errors: ErrorList, annotations: Mapping[str, str], path: str) -> None:
    characters = 0
    for key, value in annotations.items():
        characters += len(key) + len(value)
        problem = qualified_name_problem(key.lower())
        if problem:
            errors.invalid(path, key, problem)
    # A character has at most four bytes: small annotations need no exact count.
    if characters * 4 > ANNOTATIONS_BYTES_MAX and _size(annotations) > ANNOTATIONS_BYTES_MAX:
        errors.too_long(path, ANNOTATIONS_BYTES_MAX)


def _size(texts: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in texts.items())


def _check_finalizers(errors: ErrorList, finalizers: Sequence[str]) -> None:
    for index, finalizer in enumerate(finalizers):
        errors.name(f"metadata.finalizers[{index}]", finalizer, qualified_name_problem(finalizer))
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        errors.invalid(
            "metadata.finalizers",
            list(finalizers),
            "finalizers orphan and foregroundDeletion cannot be both set",
        )


def check_owners(errors: ErrorList, owners: Sequence[OwnerReference]) -> None:
    controller: OwnerReference | None = None
    for index, owner in enumerate(owners):
        if not (owner.api_version and owner.kind and owner.name and owner.uid):
            path = f"metadata.ownerReferences[{index}]"
            for attribute, value in (
                ("apiVersion", owner.api_version),
                ("kind", owner.kind),
                ("name", owner.name),
                ("uid", owner.uid),
            ):
                if not value:
                    errors.required(f"{path}.{attribute}")
        if owner.kind == EVENT_KIND and owner.api_version in ("v1", EVENTS_API_VERSION):
            errors.invalid(f"metadata.ownerReferences[{index}]", owner.kind, "is disallowed from being an owner")
        if owner.controller:
            if controller is not None:
                errors.invalid(
                    "metadata.ownerReferences",
                    owner.name,
                    'Only one reference can have Controller set to true. Found "true" in references for'
                    f" {controller.name} and {owner.name}",
                )
            controller = owner


# -- selectors -------------------------------------------------------------------------------------


def check_selector(errors: ErrorList, selector: LabelSelectorSpec, path: str) -> None:
    """A `LabelSelector` object."""
    check_labels(errors, selector.match_labels, f"{path}.matchLabels")
    for index, requirement in enumerate(selector.match_expressions):
        place = f"{path}.matchExpressions[{index}]"
        match requirement.operator:
            case "In" | "NotIn":
                if not requirement.values:
                    errors.required(f"{place}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            case "Exists" | "DoesNotExist":
                if requirement.values:
                    errors.forbidden(
                        f"{place}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    )
            case _:
                errors.invalid(f"{place}.operator", requirement.operator, "not a valid selector operator")
        errors.name(f"{place}.key", requirement.key, qualified_name_problem(requirement.key))
        for at, value in enumerate(requirement.values):
            errors.name(f"{place}.values[{at}]", value, label_value_problem(value))


# -- conditions ------------------------------------------------------------------------------------


def check_conditions(errors: ErrorList, conditions: Sequence[Condition], path: str = "status.conditions") -> None:
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        if not condition.type:
            errors.required(f"{path}[{index}].type")
        elif condition.type in seen:
            errors.duplicate(f"{path}[{index}].type", condition.type)
        seen.add(condition.type)
        if condition.status not in ("True", "False", "Unknown"):
            errors.one_of(f"{path}[{index}].status", condition.status, ("True", "False", "Unknown"))
        errors.at_least(f"{path}[{index}].observedGeneration", condition.observed_generation, 0)

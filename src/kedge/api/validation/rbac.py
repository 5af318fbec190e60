"""Rules of roles and bindings, with the error texts of Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence

from kedge.api.names import label_problem, path_segment_problem, subdomain_problem
from kedge.api.validation.error_list import ErrorList
from kedge.api.validation.metadata import check_selector
from kedge.api.views import (
    ClusterRoleBindingView,
    ClusterRoleView,
    PolicyRule,
    RoleBindingView,
    RoleRef,
    RoleSubject,
    RoleView,
)
from kedge.api.wellknown import RBAC_GROUP, SERVICE_ACCOUNT_KIND

_SUBJECTS = (SERVICE_ACCOUNT_KIND, "User", "Group")


def check_role(errors: ErrorList, role: RoleView) -> None:
    _check_rules(errors, role.rules, namespaced=True)


def check_cluster_role(errors: ErrorList, role: ClusterRoleView) -> None:
    _check_rules(errors, role.rules, namespaced=False)
    if role.aggregation_rule is None:
        return
    selectors = role.aggregation_rule.cluster_role_selectors
    path = "aggregationRule.clusterRoleSelectors"
    if not selectors:
        errors.required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for index, selector in enumerate(selectors):
        check_selector(errors, selector, f"{path}[{index}]")


def check_role_binding(errors: ErrorList, binding: RoleBindingView) -> None:
    _check_role_ref(errors, binding.role_ref, ("Role", "ClusterRole"))
    _check_subjects(errors, binding.subjects)


def check_cluster_role_binding(errors: ErrorList, binding: ClusterRoleBindingView) -> None:
    _check_role_ref(errors, binding.role_ref, ("ClusterRole",))
    _check_subjects(errors, binding.subjects)


def _check_rules(errors: ErrorList, rules: Sequence[PolicyRule], *, namespaced: bool) -> None:
    for index, rule in enumerate(rules):
        path = f"rules[{index}]"
        if not rule.verbs:
            errors.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.non_resource_urls:
            if namespaced:
                errors.invalid(
                    f"{path}.nonResourceURLs",
                    list(rule.non_resource_urls),
                    "namespaced rules cannot apply to non-resource URLs",
                )
            if rule.api_groups or rule.resources or rule.resource_names:
                errors.invalid(
                    f"{path}.nonResourceURLs",
                    list(rule.non_resource_urls),
                    "rules cannot apply to both regular resources and non-resource URLs",
                )
            continue
        if not rule.api_groups:
            errors.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.resources:
            errors.required(f"{path}.resources", "resource rules must supply at least one resource")


def _check_role_ref(errors: ErrorList, ref: RoleRef, kinds: tuple[str, ...]) -> None:
    if ref.api_group != RBAC_GROUP:
        errors.unsupported("roleRef.apiGroup", ref.api_group, (RBAC_GROUP,))
    if ref.kind not in kinds:
        errors.unsupported("roleRef.kind", ref.kind, kinds)
    if not ref.name:
        errors.required("roleRef.name")
    else:
        errors.name("roleRef.name", ref.name, path_segment_problem(ref.name))


def _check_subjects(errors: ErrorList, subjects: Sequence[RoleSubject]) -> None:
    for index, subject in enumerate(subjects):
        path = f"subjects[{index}]"
        if not subject.name:
            errors.required(f"{path}.name")
        if subject.kind not in _SUBJECTS:
            errors.unsupported(f"{path}.kind", subject.kind, _SUBJECTS)
        elif subject.kind == SERVICE_ACCOUNT_KIND:
            if subject.name:
                errors.name(f"{path}.name", subject.name, subdomain_problem(subject.name))
            if subject.api_group:
                errors.unsupported(f"{path}.apiGroup", subject.api_group, ("",))
            if not subject.namespace:
                errors.required(f"{path}.namespace")
            else:
                errors.name(f"{path}.namespace", subject.namespace, label_problem(subject.namespace))
        elif subject.api_group != RBAC_GROUP:
            errors.unsupported(f"{path}.apiGroup", subject.api_group, (RBAC_GROUP,))
